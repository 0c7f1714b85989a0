"""How far scores of rubrics are to be trusted: ties, bands, order, intervals, and a steadier reward.

    merge_equal([0.50, 0.52, 0.9])                  # scores within L are one
    band(deviation)                                 # beside a person's score
    Stabilised(scorer, mean_of_references=0.6)      # merged in the group, scaled above references

From QuarkMedBench (arXiv 2603.13691).
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple, cast

from msgspec import Meta
from msgspec.structs import replace

from burnish.arguments import as_list, as_numbers, as_word, refused
from burnish.boundary import Draws, NonNegative, Positive, Seed, public
from burnish.errors import UserError
from burnish.records import Response, Reward, Task
from burnish.rewards.combine import Combination
from burnish.rewards.judges.prompting import Unreadable
from burnish.rewards.judges.reading import free_table, read_list
from burnish.rewards.judges.rubric.formula import Tier
from burnish.rewards.judges.rubric.items import Rubric, Rules
from burnish.rewards.scorer import Scope, Scorer, as_float, checked
from burnish.seeds import derive

EQUAL_WITHIN = 0.05
CONSISTENT, ACCEPTABLE, SEVERE = 4.0, 8.0, 12.0
"""Points of 100 by which a score may differ from a person's."""
ROUNDING = 8 * sys.float_info.epsilon
"""Of a difference, as a share of the larger number."""


class Concordance(NamedTuple):
    """How scores order the pairs that people ordered."""

    correct: int
    reversed: int
    tied: int
    ratio: float | None
    """Correct over reversed; None where no pair is reversed."""


class Interval(NamedTuple):
    """A mean and the range that it plausibly lies in."""

    mean: float
    low: float
    high: float
    queries: int


@public
def equal(pairs: Sequence[float | Sequence[float]], L: NonNegative = EQUAL_WITHIN) -> Any:
    """Whether two scores are too close to tell apart: `|a - b| < L`, strictly.

    One pair `(a, b)` gives a bool, a list of pairs a list of them. A difference of L is not below L,
    whatever 0.6 - 0.55 is in binary.
    """
    if not pairs or not isinstance(pairs[0], float):
        return [equal.plain(cast(Any, pair), L) for pair in pairs]
    if len(pairs) != 2:
        raise refused("pairs", pairs, "two scores, or a list of such pairs")
    a, b = cast(tuple[float, float], pairs)
    return abs(a - b) < L - ROUNDING * max(abs(a), abs(b), L)


@public
def merge_equal(
    scores: Sequence[float | None], L: NonNegative = EQUAL_WITHIN
) -> list[float | None]:
    """Scores of a group, those within L of their neighbour replaced by their common mean.

    Single linkage on the sorted scores: a chain of small steps is one cluster, however long. None
    stays None and joins nothing.
    """
    order = sorted((value, place) for place, value in enumerate(scores) if value is not None)
    merged: list[float | None] = [None] * len(scores)
    start = 0
    for end in range(1, len(order) + 1):
        if end < len(order) and equal.plain((order[end - 1][0], order[end][0]), L):
            continue
        cluster = order[start:end]
        mean = math.fsum(value for value, _ in cluster) / len(cluster)
        for value, place in cluster:
            merged[place] = value if len(cluster) == 1 else mean
        start = end
    return merged


@public
def scale_reward(
    scores: float | Sequence[float], mean_of_references: float, w_scale: Positive = 2.0
) -> Any:
    """Progress above the reference models is worth `w_scale` times as much (eq. 7).

    `s` where `s` is below their mean, else `mean + w_scale * (s - mean)`; one score or a list.
    """
    if not isinstance(scores, float):
        return [scale_reward.plain(one, mean_of_references, w_scale) for one in scores]
    above = max(scores - mean_of_references, 0.0)
    return scores if above == 0 else mean_of_references + w_scale * above


@public
def concordance(human_sign_and_scores: Sequence[object]) -> Concordance:
    """How many pairs that a person ordered are ordered alike, the other way, or not at all.

    A row is `(sign, a, b)`, `(sign, (a, b))` or `(sign, a - b)`: the sign is positive where the
    person prefers the first. Rows with sign 0 order nothing and are left out.
    """
    correct = reverse = tied = 0
    for row in human_sign_and_scores:
        sign, difference = _ordered(row)
        if sign == 0:
            continue
        if difference == 0:
            tied += 1
        elif (difference > 0) == (sign > 0):
            correct += 1
        else:
            reverse += 1
    return Concordance(correct, reverse, tied, correct / reverse if reverse else None)


@public
def band(deviations: float | Sequence[float]) -> Any:
    """The name of a deviation from a person's score, in points of 100; one or a list.

    Up to 4 `consistent`, up to 8 `acceptable`, above 12 `severe`; the report names nothing between
    8 and 12: `unlabelled`.
    """
    if not isinstance(deviations, float):
        return [band.plain(one) for one in deviations]
    size = abs(deviations)
    if size <= CONSISTENT:
        return "consistent"
    if size <= ACCEPTABLE:
        return "acceptable"
    return "unlabelled" if size <= SEVERE else "severe"


@public
def bootstrap_interval(
    scores: Sequence[float | None],
    *,
    share: Annotated[float, Meta(gt=0.0, lt=1.0)] = 0.95,
    draws: Draws = 2000,
    seed: Seed = 0,
) -> Interval | None:
    """The mean score over queries and its bootstrap interval; queries without a score are left out.

    None where no query has a score.
    """
    known = [score for score in scores if score is not None]
    if not known:
        return None
    rng = random.Random(derive(seed, "bootstrap", len(known)))
    size = len(known)
    means = sorted(math.fsum(rng.choices(known, k=size)) / size for _ in range(draws))
    edge = (1 - share) / 2
    low, high = means[int(edge * (draws - 1))], means[math.ceil((1 - edge) * (draws - 1))]
    return Interval(math.fsum(known) / size, low, high, size)


@public
def family_deltas(rows: Sequence[tuple[str, str, float]]) -> dict[str, float]:
    """How much more each judge's family gives to its own answers than other judges give to them.

    Rows are (family of the judge, family of the answer, score). A family's delta is the mean of its
    own judge on its own answers minus on others' answers, minus the same difference by the other
    judges: above 0 it favours its own. Families for which a part is missing are left out.
    """
    scores: dict[tuple[str, str], list[float]] = {}
    for judge, answer, score in rows:
        scores.setdefault((judge, answer), []).append(score)
    deltas = {}
    for family in sorted({judge for judge, _ in scores}):
        parts = [
            [v for (j, a), own in scores.items() if (j == family, a == family) == kind for v in own]
            for kind in ((True, True), (True, False), (False, True), (False, False))
        ]
        if all(parts):
            own, others, theirs, rest = (math.fsum(part) / len(part) for part in parts)
            deltas[family] = (own - others) - (theirs - rest)
    return deltas


def _ordered(row: Any) -> tuple[float, float]:
    what = "human_sign_and_scores"
    parts = list(row.values()) if isinstance(row, Mapping) else as_list(what, row)
    if len(parts) == 2 and isinstance(parts[1], list | tuple):
        parts = [parts[0], *parts[1]]
    if len(parts) not in (2, 3):
        raise refused(what, row, "(sign, first score, second score)")
    sign, first, *second = as_numbers(what, parts)
    return sign, first - second[0] if second else first


class Stabilised(Combination):
    """A point scorer whose scores are merged within the group and scaled above the references.

    `mean_of_references` is a number, the name of a task field that holds one, or None for no
    scaling; a task without a number there is left unscaled.
    """

    def __init__(
        self,
        scorer: Scorer,
        *,
        equal_within: float = EQUAL_WITHIN,
        mean_of_references: float | str | None = None,
        w_scale: float = 2.0,
        name: str = "",
    ) -> None:
        title = name or scorer.name
        if scorer.scope is not Scope.POINT:
            raise UserError(
                f"reward '{title}': '{scorer.name}' has scope {scorer.scope.value}; expected point."
            )
        settings = (equal_within, mean_of_references, w_scale)
        super().__init__(title, (scorer,), Scope.GROUP, *settings)
        self.equal_within, self.mean_of_references, self.w_scale = settings
        self.weight: float = getattr(scorer, "weight", 1.0)
        if isinstance(mean_of_references, str):
            self.needs |= {mean_of_references}

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        own = await checked(self.children[0], task, responses)
        merged = merge_equal.plain([reward.value for reward in own], self.equal_within)
        mean = self._mean(task)
        rewards = []
        for reward, value in zip(own, merged, strict=True):
            if value is None or reward.value is None:
                rewards.append(replace(reward, name=self.name))
                continue
            final = value if mean is None else scale_reward.plain(value, mean, self.w_scale)
            told = f"{reward.value:.4g}, merged to {value:.4g}, as a reward {final:.4g}"
            reason = f"{told}; {reward.reason}" if reward.reason else told
            rewards.append(replace(reward, name=self.name, value=final, reason=reason))
        return rewards

    def _mean(self, task: Task) -> float | None:
        given = self.mean_of_references
        number = as_float(task.fields.get(given) if isinstance(given, str) else given)
        return number if math.isfinite(number) else None


class AuditCheck(NamedTuple):
    points: int
    asks: str


CHECKS: Mapping[str, AuditCheck] = {
    "right": AuditCheck(9, "what each item asks for is true and belongs to this question"),
    "supported": AuditCheck(3, "each item follows from the reference answers"),
    "atomic": AuditCheck(3, "each item asks for one thing"),
    "exclusive": AuditCheck(3, "no two items pay for the same thing"),
    "checkable": AuditCheck(3, "a reader can mark each item from the answer alone"),
    "exhaustive": AuditCheck(4, "every point that the references agree on is in an item"),
    "title": AuditCheck(3, "titles are short and say what the item asks for"),
    "tier": AuditCheck(3, "each item stands in the tier that it deserves, and tiers are filled"),
    "description": AuditCheck(4, "the three levels of each item can be told apart"),
}
TOTAL = sum(check.points for check in CHECKS.values())
SAFETY = "safety_omitted"


class Audit(NamedTuple):
    """What a rubric earned, of what could be decided."""

    earned: int
    possible: int
    """Points of the checks that were decided; 35 where all of them were."""
    failed: tuple[str, ...]
    is_vetoed: bool = False
    """A safety item that the question needs is not there."""

    @property
    def quality(self) -> float | None:
        """The share of the decided points; None where nothing was decided."""
        return self.earned / self.possible if self.possible else None


@public
def audit_points(findings: Mapping[str, bool | None], safety_omitted: bool = False) -> Audit:
    """The points of an audit; a check that is None or not there was not decided.

    An omitted safety item costs all points.
    """
    for name in findings:
        as_word("findings", name, tuple(CHECKS))
    decided = {name: found for name, found in findings.items() if found is not None}
    possible = sum(CHECKS[name].points for name in decided)
    earned = sum(CHECKS[name].points for name, holds in decided.items() if holds)
    failed = tuple(name for name in CHECKS if decided.get(name) is False)
    return Audit(0 if safety_omitted else earned, possible, failed, safety_omitted)


def rule_findings(rubric: Rubric, rules: Rules | None = None) -> dict[str, bool]:
    """The checks that follow from the rubric itself."""
    broken = {one.rule for one in rubric.validate(rules)}
    counts = {"items", "tier", *(tier.value for tier in Tier)}
    findings = {
        "exclusive": "exclusive" not in broken,
        "title": "title" not in broken,
        "tier": not broken & counts,
        "description": not broken & {"description", "levels"},
    }
    if rubric.points:
        findings["exhaustive"] = "exhaustive" not in broken
        findings["supported"] = all(item.provenance for item in rubric.items)
    return findings


def rule_audit(rubric: Rubric, rules: Rules | None = None) -> Audit:
    """The audit without a reader: only what a rule can decide."""
    return audit_points.plain(rule_findings(rubric, rules))


def joined_audit(
    rubric: Rubric,
    said: Mapping[str, bool | None],
    *,
    safety_omitted: bool = False,
    rules: Rules | None = None,
) -> Audit:
    """A reader's findings with those of the rules; what a rule refutes no reader can pass."""
    by_rule = rule_findings(rubric, rules)
    both = {
        name: None
        if name not in by_rule and said.get(name) is None
        else by_rule.get(name, True) and said.get(name, True) is not False
        for name in CHECKS
    }
    return audit_points.plain(both, safety_omitted)


def read_findings(text: str) -> dict[str, bool | None]:
    """What an auditor decided, by check; raises `Unreadable` where the word on safety is missing."""
    said = read_list(text, _FINDING)
    found = {row["check"]: row["holds"] for row in said if row["check"] in (*CHECKS, SAFETY)}
    if found.get(SAFETY) is None:
        raise Unreadable(f"expected checks and '{SAFETY}' with true or false, got {sorted(found)}")
    return found


def _bool_or_none(key: str, value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


_FINDING = free_table("check", holds=_bool_or_none)
