"""Marks on the items of a rubric, combined into one score by a formula.

Level 0, 1 or 2 is worth 0, a half or all of an item's weight. Essentials count double, pitfalls are
taken off double, and the sum is divided by what the positive tiers could give. Truncation takes the
extras from an answer that misses essentials or errs badly; saturation limits what piling up extras
can earn. From QuarkMedBench (arXiv 2603.13691); its thresholds are unpublished, ours are named here.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal, NamedTuple, cast

from msgspec import Meta
from msgspec.structs import replace

from burnish.arguments import as_list, as_number, as_numbers, as_word, refused
from burnish.boundary import INFINITE, Draws, NonNegative, Number, Positive, Seed, Share, public
from burnish.records import Response, Reward, Task
from burnish.rewards.combine import Combination
from burnish.rewards.scorer import Scope, Scorer, as_float, checked
from burnish.seeds import derive

LEVELS = (0, 1, 2)
ENOUGH_ESSENTIALS = 0.9
"""Share of the essential weight that must be marked for a score to exist."""
UNTAGGED = "untagged"
ESSENTIAL_CAP = 2.0
"""Extras earn at most this many times the essential points under saturation."""


class Tier(StrEnum):
    """How much an item of a rubric matters."""

    ESSENTIAL = "essential"
    """Without it the answer fails the person who asked."""
    IMPORTANT = "important"
    """A good answer has it."""
    HIGHLIGHT = "highlight"
    """An excellent answer has it."""
    PITFALL = "pitfall"
    """An error that stands in the answer; takes points away."""


TIER_WEIGHTS: Mapping[str, float] = {
    Tier.ESSENTIAL: 2.0,
    Tier.IMPORTANT: 1.0,
    Tier.HIGHLIGHT: 1.0,
    Tier.PITFALL: 2.0,
}
EXTRAS = (Tier.IMPORTANT, Tier.HIGHLIGHT)


class MarkedItem(NamedTuple):
    """One item and the level it was given; None where the judge gave none."""

    tier: str
    level: float | None
    weight: float = 1.0
    tag: str = ""
    id: str = ""


class Truncation(NamedTuple):
    """Extras count nothing below this share of the essentials or above this share of the pitfalls."""

    essential: float = 0.5
    pitfall: float = 0.5


class Saturation(NamedTuple):
    """Extras of one group earn at most `limit` points, all extras at most twice the essential points."""

    limit: float = 1.0
    by: Literal["tag", "tier"] = "tag"


class TierSum(NamedTuple):
    """Points that a tier earned, of those it could, over marked items."""

    earned: float
    possible: float

    @property
    def share(self) -> float | None:
        """None where the tier has no marked item."""
        return self.earned / self.possible if self.possible > 0 else None


class Explained(NamedTuple):
    score: float | None
    tiers: dict[str, TierSum]
    extras: float
    """Points of important and highlight items that counted in the end, tier weights included."""
    fired: tuple[str, ...]
    """`saturation`, `truncation: essential`, `truncation: pitfall`: what took points away or could."""
    missing: tuple[str, ...]
    """Items without a valid level; they stand neither in the sums nor in what was possible."""
    reason: str = ""
    """Why there is no score."""


Limit = Annotated[float, Meta(ge=0.0), INFINITE]
Truncated = bool | Share | Sequence[Share]
Saturated = bool | Limit | Saturation


@public
def score(
    items: Sequence[object],
    tier_weights: Mapping[str, Number] | None = None,
    truncation: Truncated | None = None,
    saturation: Saturated | None = None,
    clip: bool = False,
) -> float | None:
    """The score of one answer, `(2 S_E + S_I + S_H - 2 S_P) / (2 M_E + M_I + M_H)`, or None.

    Not clipped by default: an answer of errors alone is below 0. None where no positive item is
    marked or less than 90 % of the essential weight is. `truncation` and `saturation`: True for
    the defaults, or their numbers.
    """
    return explain.plain(items, tier_weights, truncation, saturation, clip).score


@public
def explain(
    items: Sequence[object],
    tier_weights: Mapping[str, Number] | None = None,
    truncation: Truncated | None = None,
    saturation: Saturated | None = None,
    clip: bool = False,
) -> Explained:
    """As `score`, with the sums of each tier and what the mechanisms did."""
    rows = [as_item(item) for item in items]
    weights = dict(TIER_WEIGHTS)
    for name, weight in (tier_weights or {}).items():
        weights[as_word("tier_weights", name, TIER_WEIGHTS)] = abs(weight)
    marked = [row for row in rows if row.level is not None]
    missing = tuple(row.id or str(n) for n, row in enumerate(rows) if row.level is None)
    tiers = {tier.value: _tier_sum(marked, tier) for tier in Tier}
    ceiling = math.fsum(weights[t] * tiers[t].possible for t in (Tier.ESSENTIAL, *EXTRAS))
    reason = _why_none(rows, tiers, ceiling)
    if reason:
        return Explained(None, tiers, 0.0, (), missing, reason)
    essentials = weights[Tier.ESSENTIAL] * tiers[Tier.ESSENTIAL].earned
    extras = math.fsum(weights[t] * tiers[t].earned for t in EXTRAS)
    fired: list[str] = []
    limits: Saturation | None = _limits(Saturation, saturation, 1)
    if limits is not None:
        kept = _saturated(marked, weights, limits)
        if tiers[Tier.ESSENTIAL].possible > 0:
            # The report's 2 S_E, also where the essentials' own weight in the sum is another.
            kept = min(kept, ESSENTIAL_CAP * tiers[Tier.ESSENTIAL].earned)
        if kept < extras:
            fired.append("saturation")
        extras = min(kept, extras)
    thresholds: Truncation | None = _limits(Truncation, truncation, 2)
    if thresholds is not None:
        essential, pitfall = tiers[Tier.ESSENTIAL], tiers[Tier.PITFALL]
        if essential.possible > 0 and essential.earned < thresholds.essential * essential.possible:
            fired.append("truncation: essential")
        if pitfall.possible > 0 and pitfall.earned > thresholds.pitfall * pitfall.possible:
            fired.append("truncation: pitfall")
        extras = 0.0 if {*fired} - {"saturation"} else extras
    total = essentials + extras - weights[Tier.PITFALL] * tiers[Tier.PITFALL].earned
    value = total / ceiling
    if clip:
        value = min(max(value, 0.0), 1.0)
    return Explained(value, tiers, extras, tuple(fired), missing)


def as_item(item: Any) -> MarkedItem:
    """An item given as a mapping, a sequence `(tier, level, weight, tag, id)` or a `MarkedItem`."""
    if isinstance(item, Mapping):
        texts = (item.get("tag") or "", item.get("id") or "")
        item = (item.get("tier"), item.get("level"), item.get("weight", 1.0), *texts)
    if not isinstance(item, list | tuple) or not 2 <= len(item) <= 5:
        raise refused("items", item, "an item with tier and level")
    row = MarkedItem(*item)
    is_number = isinstance(row.level, int | float) and not isinstance(row.level, bool)
    level = float(row.level) if is_number and row.level in LEVELS else None
    # Pitfalls are written with negative weights in some rubrics; only the size counts.
    weight = abs(as_number("items: weight", row.weight))
    tier = as_word("items: tier", row.tier, TIER_WEIGHTS)
    return row._replace(tier=tier, level=level, weight=weight)


def without_each(items: Sequence[Any], **settings: Any) -> dict[str, float | None]:
    """The score without each item, by the item's id or number: what hangs on one mark."""
    rows = [as_item(item) for item in items]
    return {
        row.id or str(n): score([*rows[:n], *rows[n + 1 :]], **settings)
        for n, row in enumerate(rows)
    }


@public
def dialogue_score(turns: Sequence[Number | None]) -> float | None:
    """The mean over the turns of a conversation; None where a turn has no score or there is none."""
    known = [turn for turn in turns if turn is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(turns) else None


def _tier_sum(marked: Sequence[MarkedItem], tier: str) -> TierSum:
    own = [row for row in marked if row.tier == tier]
    earned = math.fsum(row.weight * (row.level or 0.0) / 2 for row in own)
    return TierSum(earned, math.fsum(row.weight for row in own))


def _why_none(rows: Sequence[MarkedItem], tiers: Mapping[str, TierSum], ceiling: float) -> str:
    essential = math.fsum(row.weight for row in rows if row.tier == Tier.ESSENTIAL)
    marked = tiers[Tier.ESSENTIAL].possible
    # Exactly 90 % is enough, whatever nine tenths are in binary.
    if marked < ENOUGH_ESSENTIALS * essential * (1 - 1e-12):
        return f"{marked:g} of {essential:g} essential weight is marked; expected at least 90 %"
    return "" if ceiling > 0 else "no positive item is marked, so there is nothing to earn"


def _saturated(
    marked: Sequence[MarkedItem], weights: Mapping[str, float], limits: Saturation
) -> float:
    groups: dict[str, list[float]] = {}
    for row in marked:
        if row.tier in EXTRAS:
            group = row.tier if limits.by == "tier" else row.tag or UNTAGGED
            points = weights[row.tier] * row.weight * (row.level or 0.0) / 2
            groups.setdefault(group, []).append(points)
    return math.fsum(min(math.fsum(points), limits.limit) for points in groups.values())


def _limits(kind: Any, given: Any, count: int) -> Any:
    """A setting of a mechanism: true for the defaults, one number for all, or its fields."""
    if given is None or given is False:
        return None
    if given is True:
        return kind()
    return kind(*(given if isinstance(given, list | tuple) else [given] * count))


# How far scores are to be trusted: ties, bands, order, intervals, and a steadier reward.

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
    rows = [(sign, difference) for sign, difference in map(_ordered, human_sign_and_scores) if sign]
    tied = sum(difference == 0 for _, difference in rows)
    correct = sum(difference != 0 and (difference > 0) == (sign > 0) for sign, difference in rows)
    reverse = len(rows) - tied - correct
    return Concordance(correct, reverse, tied, correct / reverse if reverse else None)


@public
def band(deviations: float | Sequence[float]) -> Any:
    """The name of a deviation from a person's score, in points of 100; one or a list.

    Up to 4 `consistent`, up to 8 `acceptable`, above 12 `severe`; the report names nothing between
    8 and 12: `unlabelled`.
    """
    if not isinstance(deviations, float):
        return [band.plain(one) for one in deviations]
    names = {CONSISTENT: "consistent", ACCEPTABLE: "acceptable", SEVERE: "unlabelled"}
    return next((name for most, name in names.items() if abs(deviations) <= most), "severe")


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
    parts = as_list(what, row)
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
    ) -> None:
        settings = (equal_within, mean_of_references, w_scale)
        super().__init__(scorer.name, (scorer,), Scope.GROUP, *settings)
        self.equal_within, self.mean_of_references, self.w_scale = settings
        if isinstance(mean_of_references, str):
            self.needs |= {mean_of_references}

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        own = await checked(self.children[0], task, responses)
        merged = merge_equal.plain([reward.value for reward in own], self.equal_within)
        given = self.mean_of_references
        number = as_float(task.fields.get(given) if isinstance(given, str) else given)
        mean = number if math.isfinite(number) else None
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
