"""What a step verifier is worth, and what happens when its facts are spoilt (EVPV).

Where we differ from the reference: of candidates that share the best score each is taken with equal
chance (the reference counts a hit if any is right), a flip always changes something, and draws follow
from the seed and the sample's id, never from `hash()`.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

from burnish.arguments import as_list, as_number, as_text, refused, same_length
from burnish.boundary import Seed, Share, public
from burnish.numbers import plain
from burnish.records import Reward
from burnish.rewards.judges.evpv.matching import OUTCOMES
from burnish.rewards.judges.evpv.scores import weighted_correctness
from burnish.seeds import derive

TieRule = Literal["expected", "optimistic"]
StepLabel = Literal[1, 0, -1]
RELATIONS = ("<", ">", "<=", ">=", "=", "!=")
FACTORS, SHIFTS, FROM_ZERO = (0.5, 0.8, 1.2, 1.5, 2.0), (-2, -1, 1, 2), (1, 2, 3, 5, 10)
"""How a number is misread: times one and plus one; 0 becomes one of the last."""
_NUMBER = re.compile(
    r"(?<![\w.])-?(?:\d{1,3}(?:,\d{3}){1,100}|\d{1,300})(?:\.\d{1,300})?(?!\w|\.\d)", re.ASCII
)
_RELATION = re.compile(r"<=|>=|!=|==|=>|=<|<>|[=<>≤≥≠]")
_SAME = {"==": "=", "=>": ">=", "=<": "<=", "<>": "!=", "≤": "<=", "≥": ">=", "≠": "!="}
FACTS_READ = " facts in the evidence"
"""Behind their number, the first evidence of every reward of EVPV."""
STEP = "step"
"""Source of the first evidence of every part of such a reward; what it says is the policy's text."""
_FACTS_READ = re.compile(rf"\d+{FACTS_READ}")
T = TypeVar("T")


class PremiseCounts(NamedTuple):
    responses: int
    gate_open: int
    """Responses whose gate is open: their evidence or a model's reply could not be read."""
    no_facts: int
    """Responses whose evidence was read and holds no fact: nothing of theirs can be confirmed."""
    supported: int
    contradicted: int
    unknown: int
    unchecked: int
    """Premises by outcome."""
    reason: str = ""
    """Why the first open gate is open."""

    @property
    def outcomes(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in OUTCOMES}

    @property
    def shares(self) -> dict[str, float]:
        """Of the responses, and of the premises by outcome; a share of nothing is left out."""
        every = sum(self.outcomes.values())
        found = {name: getattr(self, name) / self.responses for name in ("gate_open", "no_facts")}
        return found | {name: n / every for name, n in self.outcomes.items() if every}


def premise_counts(rewards: Iterable[Reward]) -> PremiseCounts | None:
    """What became of premises in rewards of EVPV, at any depth of a tree; None where there is none."""
    found: Counter[str] = Counter()
    reason = ""
    for reward in _own_rewards(rewards):
        first = reward.evidence[0]
        found["responses"] += 1
        found["gate_open"] += bool(first.error)
        found["no_facts"] += not first.error and first.observation.startswith(f"0{FACTS_READ}")
        reason = reason or first.error or ""
        for verdict in reward.verdicts:
            found[re.split(r"\W", verdict.reason, maxsplit=1)[0]] += 1
    if not found:
        return None
    counts = {name: found[name] for name in PremiseCounts._fields if name != "reason"}
    return PremiseCounts(**counts, reason=reason)


def _own_rewards(rewards: Iterable[Reward]) -> Iterator[Reward]:
    """The rewards of EVPV in some trees; what is below one is a text of the policy's."""
    for reward in rewards:
        has_count = reward.evidence and _FACTS_READ.match(reward.evidence[0].observation)
        firsts = {part.evidence[0].source if part.evidence else "" for part in reward.parts}
        if has_count and firsts == {STEP}:
            yield reward
        else:
            yield from _own_rewards(reward.parts)


class _Curves(NamedTuple):
    pass_at_k: list[float]
    """Any of them is right."""
    bon_at_k: list[float | None]
    """The one with the best score is right; None where none of them has a score."""


class BestOfK(_Curves):
    """Accuracy over the first k candidates, for k = 1, 2, ...; means over problems."""

    unscored_at_k: list[int]
    """Problems without a score among the first k, which `bon_at_k` leaves out."""

    def __new__(
        cls, pass_at_k: list[float], bon_at_k: list[float | None], unscored_at_k: Sequence[int] = ()
    ) -> BestOfK:
        found = super().__new__(cls, pass_at_k, bon_at_k)
        found.unscored_at_k = list(unscored_at_k) or [0] * len(bon_at_k)
        return found


@public
def best_of_k(
    candidates: Sequence[object], correct: Sequence[object], tie_rule: TieRule = "expected"
) -> BestOfK:
    """pass@k and the accuracy of the best-scored of k, for every prefix of the candidates.

    `candidates` are scores of one problem, or lists of them of several problems with as many each,
    whose means are given. A candidate may also be a list of step scores (`weighted_correctness` is
    taken) where `correct` is one flat list, or a table with `score`. `correct` says of each whether its
    answer is right; None, no answer, is wrong. A candidate without a score (None) is never the best one.
    `expected`: of equal scores each is taken with equal chance; `optimistic`: the reference's rule.

    >>> best_of_k([0.2, 0.9, 0.9], [True, True, False])
    BestOfK(pass_at_k=[1.0, 1.0, 1.0], bon_at_k=[1.0, 1.0, 0.5])
    >>> best_of_k([None, 0.1], [True, False]).bon_at_k
    [None, 0.0]
    """
    scores, flags = as_list("candidates", candidates, least=1), as_list("correct", correct, least=1)
    if not isinstance(flags[0], list | tuple):
        return _curves(scores, flags, tie_rule)
    same_length("correct", flags, len(scores), "problems of candidates")
    curves = [_curves(*pair, tie_rule) for pair in zip(scores, flags, strict=True)]
    width = len(curves[0].pass_at_k)
    for one in curves:
        same_length("candidates of a problem", one.pass_at_k, width, "candidates of problem 0")
    bon = []
    for k in range(width):
        known = [hit for one in curves if (hit := one.bon_at_k[k]) is not None]
        bon.append(math.fsum(known) / len(known) if known else None)
    return BestOfK(
        [math.fsum(one.pass_at_k[k] for one in curves) / len(curves) for k in range(width)],
        bon,
        [sum(one.unscored_at_k[k] for one in curves) for k in range(width)],
    )


def _curves(candidates: Any, correct: Any, tie_rule: TieRule) -> BestOfK:
    scores = [_score(one) for one in as_list("candidates", candidates, least=1)]
    right = [_is_right(one) for one in as_list("correct", correct)]
    same_length("correct", right, len(scores), "candidates")
    passed: list[float] = []
    picked: list[float | None] = []
    best = -math.inf
    tied: list[bool] = []
    for score, is_right in zip(scores, right, strict=True):
        passed.append(float(is_right or bool(passed and passed[-1])))
        if score is not None and math.isclose(score, best, rel_tol=1e-9):
            tied.append(is_right)
        elif score is not None and score > best:
            best, tied = score, [is_right]
        hits = sum(tied)
        share = float(hits > 0) if tie_rule == "optimistic" else hits / max(len(tied), 1)
        picked.append(share if tied else None)
    return BestOfK(passed, picked, [int(one is None) for one in picked])


def _score(given: Any) -> float | None:
    if isinstance(given, Mapping):
        given = given.get("score")
    if given is None:
        return None
    if isinstance(given, list | tuple):
        return weighted_correctness(given)
    return as_number("candidates", given)


def _is_right(given: Any) -> bool:
    given = plain(given)
    if given is None or isinstance(given, bool):
        return bool(given)
    return as_number("correct", given, low=0, high=1, whole=True) == 1


@public
def macro_f1(gold: Sequence[StepLabel], pred: Sequence[StepLabel | None]) -> float:
    """Mean of the F1 of right (1) and of wrong (-1) steps; steps with the gold label 0 are left out.

    A prediction of 0 or None is neither: the step counts as missed. A class that nobody has and nobody
    predicts has an F1 of 0.

    >>> macro_f1([1, 1, -1, 0], [1, -1, -1, 1])
    0.6666666666666666
    """
    same_length("pred", pred, len(gold), "steps of gold")
    pairs = [pair for pair in zip(gold, pred, strict=True) if pair[0] != 0]
    return math.fsum(_f1(pairs, kind) for kind in (1, -1)) / 2


def _f1(pairs: Sequence[tuple[int | None, int | None]], kind: int) -> float:
    hits = sum(a == b == kind for a, b in pairs)
    either = sum(a == kind for a, _ in pairs) + sum(b == kind for _, b in pairs)
    return 2 * hits / either if either else 0.0


@public
def corrupt_drop(constraints: T, ratio: Share, *, seed: Seed = 0, sample_id: str = "") -> T:
    """The facts with each one dropped by the chance `ratio`, independently.

    `constraints` is a list of facts (texts, or tables with `text`), or a table with `caption` and
    `key_facts`, whose other entries stay.

    >>> corrupt_drop({"caption": "A triangle.", "key_facts": ["AB = 10"]}, 1.0)
    {'caption': '', 'key_facts': []}
    """
    rng = _rng("drop", seed, sample_id)

    def kept(facts: list[Any]) -> list[Any]:
        return [one for one in facts if rng.random() >= ratio]

    if isinstance(constraints, Mapping):
        found: dict[str, Any] = _described(constraints)
        if found.get("caption") and rng.random() < ratio:
            found["caption"] = ""
        found["key_facts"] = kept(found["key_facts"])
        return found  # type: ignore[return-value]
    return kept(_facts(constraints))  # type: ignore[return-value]


@public
def corrupt_flip(constraints: T, ratio: Share, *, seed: Seed = 0, sample_id: str = "") -> T:
    """The facts with a number or a relation of each misread by the chance `ratio`, independently.

    `constraints` as in `corrupt_drop`. A fact with neither stays.
    """
    rng = _rng("flip", seed, sample_id)

    def changed(fact: Any) -> Any:
        if rng.random() >= ratio:
            return fact
        if isinstance(fact, Mapping):
            return {**fact, "text": flip_text.plain(fact["text"], rng)}
        return flip_text.plain(fact, rng)

    if isinstance(constraints, Mapping):
        found: dict[str, Any] = _described(constraints)
        if found.get("caption"):
            found["caption"] = changed(found["caption"])
        found["key_facts"] = [changed(one) for one in found["key_facts"]]
        return found  # type: ignore[return-value]
    return [changed(one) for one in _facts(constraints)]  # type: ignore[return-value]


@public
def flip_text(text: str, rng: random.Random) -> str:
    """One number of a text misread, or where it has none one relation sign; else the text itself."""
    numbers = list(_NUMBER.finditer(text))
    found = numbers or list(_RELATION.finditer(text))
    if not found:
        return text
    place = rng.choice(found)
    old = place[0]
    others = [sign for sign in RELATIONS if sign != _SAME.get(old, old)]
    new = _misread(old, rng) if numbers else rng.choice(others)
    return text[: place.start()] + new + text[place.end() :]


def _misread(token: str, rng: random.Random) -> str:
    """Another number, written as this one is; drawn again until its digits differ."""
    decimals = len(token.partition(".")[2])
    value, comma = float(token.replace(",", "")), "," if "," in token else ""
    while True:
        if abs(value) < 1e-9:
            new = float(rng.choice(FROM_ZERO))
        else:
            new = value * rng.choice(FACTORS) + rng.choice(SHIFTS)
        written = f"{new:{comma}.{decimals}f}"
        if (read := float(written.replace(",", ""))) != value:
            return "0" if read == 0 and not decimals else written


def _rng(purpose: str, seed: int, sample_id: str) -> random.Random:
    return random.Random(derive("evpv", purpose, seed, sample_id))


def _described(constraints: Mapping[str, Any]) -> dict[str, Any]:
    if "key_facts" not in constraints:
        raise refused("constraints", constraints, "a list of facts, or a table with `key_facts`")
    found = dict(constraints)
    found["key_facts"] = _facts(found["key_facts"])
    if found.get("caption") is not None:
        as_text("constraints: caption", found["caption"])
    return found


def _facts(given: Any) -> list[Any]:
    facts = as_list("constraints", given)
    for one in facts:
        as_text("constraints", one.get("text") if isinstance(one, Mapping) else one)
    return facts
