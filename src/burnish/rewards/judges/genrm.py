"""A pairwise judge that writes its own principles first (GenRM of Writing-Zero, arXiv 2506.00103).

    scorer = GenRM(JudgeModel(lm, sampling=Sampling(temperature=0.6)), votes=2)
    first, second = await scorer.score(task, [a, b])      # +1 and -1 where a wins

Every vote is asked in both orders and counts only where both could be read, so that a liking for a
place cancels out. Where we differ: votes that do not agree are 0 and not a loss, which keeps the
value antisymmetric in the two texts; a reply without scores is no vote.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from copy import copy
from functools import partial
from itertools import chain
from typing import Any, Literal, NamedTuple, Self

from msgspec.structs import asdict

from burnish.boundary import PositiveInt, public
from burnish.records import Evidence, Response, Reward, Status, Task, Verdict
from burnish.rewards.judges.build import Options, check_votes, read_options
from burnish.rewards.judges.judge_model import JudgeModel
from burnish.rewards.judges.prompting import (
    JudgeReply,
    Unreadable,
    check_template,
    question_about,
    request_of,
    wording,
)
from burnish.rewards.judges.reading import after_thoughts, holds
from burnish.rewards.pairs import (
    DISAGREE,
    HIGHEST,
    LOWEST,
    Inconsistent,
    VoteRule,
    all_pair_scores,
    pair_outcome,
    parse_pair_scores,
    settled,
    tally,
)
from burnish.rewards.scorer import Scope, gather
from burnish.seeds import digest

SHOWN_FIRST, SHOWN_SECOND = "wins_shown_first", "wins_shown_second"
"""Criteria of the verdicts on whole texts: 1, 0 or -1, by where the response was shown."""


class PairReply(NamedTuple):
    number: int
    is_swapped: bool
    """True where the second response is shown first."""
    answer: JudgeReply[Judgement]

    @property
    def scores(self) -> tuple[float, float] | None:
        """Of the first and of the second response, however they were shown."""
        said = self.answer.verdict
        if said is None:
            return None
        return (said.scores[1], said.scores[0]) if self.is_swapped else said.scores


class GenRMOptions(Options, frozen=True):
    votes: PositiveInt = 1
    """Each in both orders; more than one needs a temperature above 0."""
    both_orders: bool = True
    """False where the caller asks in both orders itself."""
    rule: VoteRule = "unanimous"
    inconsistent: Inconsistent = 0.0
    """The outcome where orders or votes do not agree; "abstain": no value."""
    value: Literal["outcome", "margin"] = "outcome"
    template: str | None = None
    """Another wording, with the blanks {mark}, {request}, {first} and {second}."""
    name: str = "genrm"


class GenRM:
    """A pair scorer: `votes` times in both orders, one outcome by `rule`.

    `value`: "outcome" is +1, 0 or -1 (with the rule "mean" anything between); "margin" the mean
    difference of the two scores, in tenths. Equal texts are even and an empty one loses, unasked.
    """

    scope = Scope.PAIR
    needs: frozenset[str] = frozenset()

    def __init__(self, judge: JudgeModel, **options: Any) -> None:
        """Options are those of `GenRMOptions`."""
        own = GenRMOptions(**options)
        self.judge, self.own, self.name = judge, own, own.name
        self.asks_both_orders, self.inconsistent = own.both_orders, own.inconsistent
        self.template = wording("genrm") if own.template is None else own.template
        self.first_vote = 0
        check_template(
            self.template, ("mark", "request", "first", "second"), f"judge '{self.name}'"
        )
        check_votes(judge, self.name, "votes", own.votes)

    @property
    def fingerprint(self) -> str:
        own = self.own
        settings: tuple[object, ...] = (own.votes, own.both_orders, own.rule, own.value)
        settings += (self.first_vote,)
        if own.inconsistent != 0:  # the default leaves no trace, so that its scores stay in caches
            settings += (own.inconsistent,)
        return digest("GenRM", self.judge.fingerprint, self.template, repr(settings))

    def for_vote(self, vote: int) -> Self:
        """The same judge asked once more: its votes are those after the earlier ones."""
        other = copy(self)
        other.first_vote = vote * self.own.votes
        return other

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        a, b = responses
        known = settled(a.text, b.text)
        if known is not None:
            told = (Evidence(self.name, known[1]),)
            return [Reward(self.name, v, evidence=told) for v in (known[0], -known[0])]
        orders = (False, True) if self.own.both_orders else (False,)
        replies = await gather(
            [
                partial(self._ask, task, a, b, number, swapped)
                for number in range(self.first_vote, self.first_vote + self.own.votes)
                for swapped in orders
            ]
        )
        return [self._reward(replies, side) for side in (1.0, -1.0)]

    async def _ask(
        self, task: Task, a: Response, b: Response, number: int, is_swapped: bool
    ) -> PairReply:
        first, second = (b, a) if is_swapped else (a, b)
        shown = {"first": first, "second": second}
        question = question_about("genrm", self.template, task, shown, number)
        rivals = first.text, second.text
        read = partial(read_judgement.plain, shown=(request_of(task),), rivals=rivals)
        return PairReply(number, is_swapped, await self.judge.ask(question, read))

    def _reward(self, replies: Sequence[PairReply], side: float) -> Reward:
        """One response's reward; `side` is 1 for the first response and -1 for the second."""
        evidence = tuple(chain.from_iterable(reply.answer.evidence for reply in replies))
        verdicts = tuple(_verdicts(replies, side))
        votes: dict[int, list[tuple[float, float] | None]] = {}
        for reply in replies:
            votes.setdefault(reply.number, []).append(reply.scores)
        read = [scores for scores in votes.values() if None not in scores]
        counted = [one for scores in read for one in scores if one is not None]
        value = tally(list(votes.values()), self.own.rule, inconsistent=self.inconsistent)
        is_split = value is None and all(reply.answer.verdict for reply in replies)
        if self.own.value == "margin" and counted and not is_split:
            value = math.fsum(a - b for a, b in counted) / len(counted) / HIGHEST
        if value is None:
            silent = next((r.answer for r in replies if r.answer.verdict is None), None)
            status, why = Status.ABSTAIN, DISAGREE
            if silent is not None:
                status, why = silent.status, silent.reason
            return Reward.failed(self.name, status, why, evidence=evidence, verdicts=verdicts)
        told = ", ".join(
            f"{s[0]:g} to {s[1]:g}" for s in (c if side > 0 else c[::-1] for c in counted)
        )
        lost = self.own.votes * (1 + self.own.both_orders) - len(counted)
        reason = f"{told}; {lost} questions did not count" if lost else told
        # Never -0.0: the two values of a tie are one and the same.
        return Reward(
            self.name, side * value + 0.0, Status.OK, 1.0, (), evidence, verdicts, reason=reason
        )


def _verdicts(replies: Sequence[PairReply], side: float) -> list[Verdict]:
    """Who won each question, and under which principle, seen from one response."""
    found: list[Verdict] = []
    place = -1
    for reply in replies:
        place += len(reply.answer.evidence)
        seen = (place,) if reply.answer.evidence else ()
        is_first = reply.is_swapped == (side < 0)
        criterion = SHOWN_FIRST if is_first else SHOWN_SECOND
        said, scores = reply.answer.verdict, reply.scores
        if said is None or scores is None:
            found.append(Verdict(criterion, None, evidence=seen, reason=reply.answer.reason))
            continue
        outcome = side * pair_outcome.plain(scores) + 0.0
        found.append(Verdict(criterion, outcome, evidence=seen, reason=f"vote {reply.number + 1}"))
        for one in said.principles:
            value = None
            if one.scores is not None:
                ahead = (one.scores[0] - one.scores[1]) / HIGHEST
                value = (ahead if is_first else -ahead) + 0.0
            why = f"weight {one.weight:g}: {one.critique}".rstrip(": ")
            found.append(Verdict(one.text, value, evidence=seen, reason=why))
    return found


_NUMBER = r"(\d+(?:\.\d+)?)"
_LINE = r"^[ \t>*#-]*"
_PRINCIPLE = re.compile(
    rf"{_LINE}principle[ \t]+(\d+)[ \t]*\([ \t]*{_NUMBER}[ \t]*%?[ \t]*\)[ \t*]*:[ \t]*(\S.*)$",
    re.IGNORECASE | re.MULTILINE | re.ASCII,
)
_VERDICT = re.compile(
    rf"{_LINE}verdict[ \t]+(\d+)[ \t*]*:[ \t]*{_NUMBER}[ \t]*,[ \t]*{_NUMBER}[ \t]*(?:\|[ \t]*(.*))?$",
    re.IGNORECASE | re.MULTILINE | re.ASCII,
)


class Principle(NamedTuple):
    """One principle that the judge wrote, and how the texts did under it."""

    text: str
    weight: float
    scores: tuple[float, float] | None = None
    """Of the text shown first and of the second; None where the judge gave none."""
    critique: str = ""


class Judgement(NamedTuple):
    scores: tuple[float, float]
    principles: tuple[Principle, ...] = ()


@public
def read_judgement(
    text: str, shown: Sequence[str] = (), *, rivals: tuple[str, str] | None = None
) -> Judgement:
    """The judgement in a reply; raises `Unreadable` without two scores of its own at its end.

    Scores that stand in a text that was `shown` may be a quotation. So may those in one of the two
    `rivals`, the texts to compare, unless they say that this very text lost: a text that holds all
    its possible defeats would otherwise have none.
    """
    said = after_thoughts(text)
    scores = parse_pair_scores(said) if said.lower().endswith("</scores>") else None
    if scores is None:
        raise Unreadable(
            "expected <scores>a, b</scores> with two numbers from 0 to 10 at the end, got "
            f"{said[-60:]!r}"
        )
    own = said[said.lower().rindex("<scores>") :]
    first, second = rivals or ("", "")
    suspects = [*shown]
    suspects += [first] if scores[0] >= scores[1] else []
    suspects += [second] if scores[1] >= scores[0] else []
    if any(holds(given, own) or scores in all_pair_scores(given) for given in suspects):
        raise Unreadable("expected your own scores, got some that stand in a text to judge")
    return Judgement((scores[0], scores[1]), tuple(read_principles.plain(said)))


@public
def read_principles(text: str) -> list[Principle]:
    """The principles of a reply, in order; a number that stands twice counts once, the last time."""
    verdicts: dict[str, tuple[tuple[float, float], str]] = {}
    for number, first, second, why in _VERDICT.findall(text):
        scores = float(first), float(second)
        if all(LOWEST <= score <= HIGHEST for score in scores):
            verdicts[number] = scores, why.strip()
    found: dict[str, Principle] = {}
    for number, weight, told in _PRINCIPLE.findall(text):
        scores_and_why = verdicts.get(number, (None, ""))
        found[number] = Principle(told.strip(), float(weight), *scores_and_why)
    return list(found.values())


def build(judge: JudgeModel, options: Mapping[str, Any]) -> GenRM:
    return GenRM(judge, **asdict(read_options("genrm", options, GenRMOptions)))
