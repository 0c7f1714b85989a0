"""Does the evidence support a claim, contradict it, or say nothing about it? (EVPV)

Three matchers, each asked for what the one before leaves unknown: the canonical form (numbers within a
tolerance, units converted), sentence vectors with rules of entailment (same numbers, same negation),
and a language model. An outcome of None could not be read: it is flagged and never a number.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import cached_property
from typing import Any, Literal, NamedTuple

from burnish.boundary import Share, public
from burnish.rewards.checks.quantities import Quantity, bare_text, read_quantity, same_quantity
from burnish.rewards.judges.evpv.facts import (
    LONGEST,
    Fact,
    Statement,
    is_named,
    name_key,
    read_fact,
    read_statement,
    spell,
    squeeze,
    subject_of,
    words_of,
)

UNKNOWN = 0.5
"""Support of a claim that the evidence says nothing about."""
RELATIVE = 1e-3
NEAR, VERY_NEAR = 0.75, 0.85
"""Cosine from which a fact is about the same as a claim, and from which a difference contradicts it."""
COMMON = 2000
"""Facts that share a word, above which the word finds nothing."""
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?%?")
_NOT = re.compile(r"\b(?:not|no|never|without|none|isn't|aren't|doesn't|cannot)\b", re.IGNORECASE)
_DIRECTED = frozenset(["to", "from", "over", "against", "than"])
"""Words after which another order of the same names is another subject."""
_SIGNS = frozenset(["<", ">", "<=", ">=", "=", "!="])


class Outcome(StrEnum):
    SUPPORTED = "supported"
    """A fact says the same."""
    CONTRADICTED = "contradicted"
    """A fact says something else of the same thing, and none says the same."""
    UNKNOWN = "unknown"
    """No fact is about it."""


OUTCOMES = (*(one.value for one in Outcome), "unchecked")
"""Every word for what became of a claim; the last is for one without an outcome."""


class Matched(NamedTuple):
    claim: str
    outcome: Outcome | None
    """None: it could not be decided, such as a model's reply that could not be read."""
    fact: str = ""
    source: str = ""
    by: str = "canonical"
    """Who decided: canonical, embedding, judge or audit."""
    note: str = ""

    @property
    def word(self) -> str:
        """One of `OUTCOMES`."""
        return OUTCOMES[-1] if self.outcome is None else self.outcome.value


@public
def support_of(matched: Matched, unknown: Share = UNKNOWN) -> float | None:
    """Supported 1, contradicted 0, unknown `unknown`; None where it could not be decided.

    >>> support_of(Matched("AB = 10", Outcome.UNKNOWN))
    0.5
    """
    levels = {Outcome.SUPPORTED: 1.0, Outcome.CONTRADICTED: 0.0, Outcome.UNKNOWN: unknown}
    return None if matched.outcome is None else levels[matched.outcome]


@public
def response_reliability(
    supports: Sequence[Share | None], rule: Literal["mean", "min"] = "mean"
) -> float | None:
    """One reliability for all claims of a response: their mean, or the least. None: 1 where there is
    no claim, none where one of them is None; but of the least, that of the others is a bound.

    >>> response_reliability([1.0, 0.5, 0.0]), response_reliability([])
    (0.5, 1.0)
    """
    values = [one for one in supports if one is not None]
    if len(values) < len(supports) and (rule == "mean" or not values):
        return None
    if not values:
        return 1.0
    return min(values) if rule == "min" else sum(values) / len(values)


class FactIndex:
    """Facts by what they are about; a claim is matched without looking at all of them."""

    def __init__(self, facts: Iterable[Any] = (), *, relative: float = RELATIVE) -> None:
        self.facts: list[Fact] = [read_fact(one) for one in facts]
        self.relative = relative
        self._by_key: dict[str, list[Fact]] = defaultdict(list)
        self._by_cell: dict[str, list[Fact]] = defaultdict(list)
        self._by_text: dict[str, Fact] = {}
        self._by_alias: dict[str, list[Fact]] = defaultdict(list)
        for fact in self.facts:
            self._by_text.setdefault(bare_text(fact.text).rstrip("."), fact)
            if fact.statement is not None:
                if fact.spellings and fact.statement.subject:
                    self._by_cell[name_key(fact.statement.subject.casefold())].append(fact)
                else:
                    self._by_key[fact.statement.key].append(fact)
                for alias in fact.aliases:
                    self._by_alias[alias].append(fact)

    def match(self, claim: str) -> Matched:
        """What the facts say of a claim, by its canonical form alone.

        >>> FactIndex(["AB = 10 cm"]).match("the length of BA is 0.1 m").outcome.value
        'supported'
        """
        text = " ".join(claim[: 4 * LONGEST].split())
        if not text or len(text) > LONGEST or len(claim) > 4 * LONGEST:
            note = f"{len(claim)} characters; a claim has 1 to {LONGEST}"
            return Matched(text[:LONGEST], Outcome.UNKNOWN, note=note)
        if (same := self._by_text.get(bare_text(text).rstrip("."))) is not None:
            return Matched(text, Outcome.SUPPORTED, same.text, same.source)
        statement = read_statement(text)
        if statement is None:
            return Matched(text, Outcome.UNKNOWN, note="not of the form subject, relation, value")
        against: Fact | None = None
        for fact in self._about(statement, text):
            assert fact.statement is not None
            said = compare(statement, fact.statement, self.relative, is_single=fact.is_single)
            if said is Outcome.SUPPORTED:
                return Matched(text, said, fact.text, fact.source)
            if said is Outcome.CONTRADICTED:
                against = against or fact
        if against is not None:
            return Matched(text, Outcome.CONTRADICTED, against.text, against.source)
        return Matched(text, Outcome.UNKNOWN)

    def _about(self, claim: Statement, text: str) -> list[Fact]:
        """The facts about a claim's subject; none where it could be one of several subjects."""
        facts = self._by_key.get(claim.key, [])
        subject = claim.subject
        if subject:
            cells = self._by_cell.get(name_key(subject.casefold()), [])
            facts = facts + [fact for fact in cells if is_named(fact, subject)]
        if not facts and self._by_alias and (glued := subject_of(text)):
            facts = self._by_alias.get(squeeze(glued), [])
        said = _spelling(claim)
        is_directed = not _DIRECTED.isdisjoint(said.split())
        facts = [
            fact
            for fact in facts
            if not is_directed
            or said in _spellings(fact)
            or _DIRECTED.isdisjoint(_spellings(fact)[0].split())
        ]
        if _is_one(facts):
            return facts
        own = [fact for fact in facts if said in _spellings(fact)] or facts
        if _is_one(own):
            return own
        said = bare_text(subject)
        return [one for one in own if one.statement and bare_text(one.statement.subject) == said]

    def nearest(self, texts: Sequence[str], most: int = 40) -> list[Fact]:
        """The facts that share most words with the texts: what a model is shown of many facts."""
        if len(self.facts) <= most:
            return list(self.facts)
        hits: dict[int, float] = defaultdict(float)
        for word in set().union(*(words_of(text) for text in texts)):
            places = self._by_word.get(word, ())
            if len(places) <= COMMON:
                for place in places:
                    hits[place] += 1 / (1 + len(places))
        best = sorted(hits, key=lambda place: (-hits[place], place))[:most]
        return [self.facts[place] for place in sorted(best)]

    @cached_property
    def _by_word(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = defaultdict(list)
        for place, fact in enumerate(self.facts):
            for word in words_of(fact.text):
                found[word].append(place)
        return found

    @cached_property
    def words(self) -> frozenset[str]:
        """Words of the subjects, in lower case."""
        return frozenset(
            word for fact in self.facts if fact.statement for word in words_of(fact.statement.key)
        )

    @cached_property
    def numbers(self) -> frozenset[float]:
        return frozenset(number for fact in self.facts for number in numbers_in(fact.text))


def _spelling(statement: Statement) -> str:
    """A subject in words; geometry, whose key has capital letters, in its canonical form."""
    has_form = not statement.subject or statement.key != statement.key.casefold()
    return statement.key if has_form else spell(statement.subject)


def _spellings(fact: Fact) -> tuple[str, ...]:
    assert fact.statement is not None
    return fact.spellings or (_spelling(fact.statement),)


def _is_one(facts: Sequence[Fact]) -> bool:
    """Whether facts are about one subject."""
    return len({_spellings(fact)[0] for fact in facts}) <= 1


def compare(
    claim: Statement, fact: Statement, relative: float = RELATIVE, *, is_single: bool = False
) -> Outcome:
    """What a fact says of a claim about the same subject."""
    if claim.relation not in _SIGNS or fact.relation not in _SIGNS:
        if claim.relation == fact.relation:
            return Outcome.SUPPORTED
        is_opposite = claim.relation.removeprefix("not ") == fact.relation.removeprefix("not ")
        return Outcome.CONTRADICTED if is_opposite else Outcome.UNKNOWN
    if claim.quantity is not None and fact.quantity is not None:
        return _compare_numbers(claim, claim.quantity, fact, fact.quantity, relative)
    signs = {claim.relation, fact.relation}
    if claim.value == fact.value:
        is_opposite = signs == {"=", "!="}
        return Outcome.CONTRADICTED if is_opposite else _where(len(signs) == 1, Outcome.SUPPORTED)
    # "The box is red" and "the box is large" may both be true; a cell has one value.
    if signs == {"="}:
        return _where(is_single, Outcome.CONTRADICTED)
    return _where(is_single and signs == {"=", "!="}, Outcome.SUPPORTED)


def _where(is_so: bool, outcome: Outcome) -> Outcome:
    return outcome if is_so else Outcome.UNKNOWN


def _compare_numbers(
    claim: Statement, mine: Quantity, fact: Statement, found: Quantity, relative: float
) -> Outcome:
    is_same = same_quantity(mine, found, relative)
    if is_same is None:
        return Outcome.UNKNOWN
    if not is_same and mine.unit != found.unit and mine.unit and found.unit:
        # Where the units differ only equality can be told.
        return _where(claim.relation == fact.relation == "=", Outcome.CONTRADICTED)
    # Signs of (true value - the claim's number) that the fact leaves open.
    left = _POSSIBLE[fact.relation]
    if not is_same:
        order = 1 if found.value > mine.value else -1
        is_beyond = fact.relation != "!=" and -order not in left
        left = {order} if is_beyond else {-1, 0, 1}
    wanted = _POSSIBLE[claim.relation]
    if left <= wanted:
        return Outcome.SUPPORTED
    return Outcome.UNKNOWN if left & wanted else Outcome.CONTRADICTED


_POSSIBLE = {
    "=": {0}, "<": {-1}, ">": {1}, "<=": {-1, 0}, ">=": {0, 1}, "!=": {-1, 1},
}  # fmt: skip
"""Signs of (true value - stated number) under a relation."""


def numbers_in(text: str, most: int = 20_000) -> set[float]:
    """The numbers in the first `most` characters of a text, as finite floats."""
    found = (read_quantity(one.rstrip("%")) for one in _NUMBER.findall(text[:most]))
    return {one.value for one in found if one is not None}


class EmbeddingMatcher:
    """Decides what the canonical form leaves unknown by the nearest fact and rules of entailment.

    Supported: a near fact has the claim's numbers and its negation. Contradicted: a very near one has
    other numbers, or the opposite negation. `encoder.encode` gives vectors of length 1, as
    `burnish.lm.embedded.SentenceEncoder` does.
    """

    def __init__(self, encoder: Any) -> None:
        self.encoder = encoder
        self._kept: tuple[FactIndex | None, Any] = (None, None)

    def match(self, index: FactIndex, matched: Sequence[Matched]) -> list[Matched]:
        """The same list, with those that are unknown decided where a near fact decides them."""
        places = [
            n for n, one in enumerate(matched) if one.outcome is Outcome.UNKNOWN and one.claim
        ]
        found = list(matched)
        if not places or not index.facts:
            return found
        if self._kept[0] is not index:
            self._kept = index, self.encoder.encode([fact.text for fact in index.facts])
        claims = self.encoder.encode([matched[n].claim for n in places])
        nearness = claims @ self._kept[1].T
        for row, place in enumerate(places):
            best = int(nearness[row].argmax())
            fact, cosine = index.facts[best], float(nearness[row][best])
            claim = matched[place].claim
            mine, other = numbers_in(claim), numbers_in(fact.text)
            is_opposite = bool(_NOT.search(claim)) != bool(_NOT.search(fact.text))
            differs = is_opposite or bool(mine and other and not mine & other)
            if cosine >= NEAR and mine <= other and not is_opposite:
                outcome = Outcome.SUPPORTED
            elif cosine >= VERY_NEAR and differs:
                outcome = Outcome.CONTRADICTED
            else:
                continue
            said = (fact.text, fact.source, "embedding", f"cosine {cosine:.2f}")
            found[place] = Matched(claim, outcome, *said)
        return found
