"""Marks on the items of a rubric, combined into one score by a formula.

    items = [{"tier": "essential", "level": 2}, {"tier": "pitfall", "level": 1}]
    score(items)                                    # (2*1 - 2*0.5) / 2 = 0.5
    explain(items, truncation=True).fired           # which mechanism took points away

Level 0, 1 or 2 is worth 0, a half or all of an item's weight. Essentials count double, pitfalls are
taken off double, and the sum is divided by what the positive tiers could give. Truncation takes the
extras from an answer that misses essentials or errs badly; saturation limits what piling up extras
can earn. From QuarkMedBench (arXiv 2603.13691); its thresholds are unpublished, ours are named here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from burnish.arguments import as_list, as_number, as_numbers, as_word, plain_number, refused, shown
from burnish.errors import UserError, did_you_mean

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


Item = MarkedItem | Mapping[str, Any] | Sequence[Any]


def score(
    items: Iterable[Item],
    tier_weights: Mapping[str, float] | None = None,
    truncation: Truncation | Sequence[float] | float | bool | None = None,
    saturation: Saturation | Sequence[Any] | float | bool | None = None,
    clip: bool = False,
) -> float | None:
    """The score of one answer, `(2 S_E + S_I + S_H - 2 S_P) / (2 M_E + M_I + M_H)`, or None.

    Not clipped by default: an answer of errors alone is below 0. None where no positive item is
    marked or less than 90 % of the essential weight is. `truncation` and `saturation`: True for
    the defaults, or their numbers.
    """
    return explain(items, tier_weights, truncation, saturation, clip).score


def explain(
    items: Iterable[Item],
    tier_weights: Mapping[str, float] | None = None,
    truncation: Truncation | Sequence[float] | float | bool | None = None,
    saturation: Saturation | Sequence[Any] | float | bool | None = None,
    clip: bool = False,
) -> Explained:
    """As `score`, with the sums of each tier and what the mechanisms did."""
    rows = [as_item(item) for item in as_list("items", items)]
    weights = _tier_weights(tier_weights)
    marked = [row for row in rows if row.level in LEVELS]
    missing = tuple(_title(row, n) for n, row in enumerate(rows) if row.level not in LEVELS)
    tiers = {tier.value: _tier_sum(marked, tier) for tier in Tier}
    ceiling = math.fsum(weights[t] * tiers[t].possible for t in (Tier.ESSENTIAL, *EXTRAS))
    reason = _why_none(rows, tiers, ceiling)
    if reason:
        return Explained(None, tiers, 0.0, (), missing, reason)
    essentials = weights[Tier.ESSENTIAL] * tiers[Tier.ESSENTIAL].earned
    extras = math.fsum(weights[t] * tiers[t].earned for t in EXTRAS)
    fired: list[str] = []
    limits = _saturation(saturation)
    if limits is not None:
        kept = _saturated(marked, weights, limits)
        if tiers[Tier.ESSENTIAL].possible > 0:
            # The report's 2 S_E, also where the essentials' own weight in the sum is another.
            kept = min(kept, ESSENTIAL_CAP * tiers[Tier.ESSENTIAL].earned)
        if kept < extras:
            fired.append("saturation")
        extras = min(kept, extras)
    thresholds = _truncation(truncation)
    if thresholds is not None:
        found = _truncating(tiers, thresholds)
        fired += found
        extras = 0.0 if found else extras
    total = essentials + extras - weights[Tier.PITFALL] * tiers[Tier.PITFALL].earned
    value = total / ceiling
    if clip:
        value = min(max(value, 0.0), 1.0)
    return Explained(value, tiers, extras, tuple(fired), missing)


def as_item(item: Item) -> MarkedItem:
    """An item given as a mapping, a sequence `(tier, level, weight, tag, id)` or a `MarkedItem`."""
    if isinstance(item, Mapping):
        row = MarkedItem(
            str(item.get("tier", "")),
            _level(item.get("level")),
            item.get("weight", 1.0),
            str(item.get("tag") or ""),
            str(item.get("id") or ""),
        )
    elif isinstance(item, Sequence) and not isinstance(item, str) and 2 <= len(item) <= 5:
        row = MarkedItem(str(item[0]), _level(item[1]), *item[2:])
    else:
        raise UserError(f"items: got {item!r:.60}; expected an item with tier and level.")
    if row.tier not in TIER_WEIGHTS:
        known = [tier.value for tier in Tier]
        raise UserError(
            f"items: tier is '{row.tier}'; expected {', '.join(known)}."
            f"{did_you_mean(row.tier, known)}"
        )
    weight = row.weight
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
        raise UserError(f"items: an item's weight is {weight!r}; expected a finite number.")
    # Pitfalls are written with negative weights in some rubrics; only the size counts.
    return row._replace(weight=abs(float(weight)))


def without_each(items: Sequence[Item], **settings: Any) -> dict[str, float | None]:
    """The score without each item, by the item's id or number: what hangs on one mark."""
    rows = [as_item(item) for item in as_list("items", items)]
    return {
        _title(row, n): score([*rows[:n], *rows[n + 1 :]], **settings) for n, row in enumerate(rows)
    }


def dialogue_score(turns: Sequence[float | None]) -> float | None:
    """The mean over the turns of a conversation; None where a turn has no score or there is none."""
    given = as_numbers("turns", turns, missing=True)
    known = [turn for turn in given if turn is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(given) else None


def _level(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value not in LEVELS:
        return None
    return float(value)


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


def _truncating(tiers: Mapping[str, TierSum], limits: Truncation) -> list[str]:
    essential, pitfall = tiers[Tier.ESSENTIAL], tiers[Tier.PITFALL]
    found = []
    if essential.possible > 0 and essential.earned < limits.essential * essential.possible:
        found.append("truncation: essential")
    if pitfall.possible > 0 and pitfall.earned > limits.pitfall * pitfall.possible:
        found.append("truncation: pitfall")
    return found


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


def _tier_weights(given: Mapping[str, float] | None) -> dict[str, float]:
    if given is not None and not isinstance(given, Mapping):
        raise refused("tier_weights", given, "a weight by tier")
    known = [tier.value for tier in Tier]
    for name in given or {}:
        as_word("tier_weights", name, known)
    table = {**TIER_WEIGHTS, **(given or {})}
    return {name: abs(as_number("tier_weights", table[name])) for name in known}


def _truncation(given: Any) -> Truncation | None:
    if given is None or given is False:
        return None
    limits = (
        Truncation() if given is True else _numbers(Truncation, "truncation", given, twice=True)
    )
    for share in limits:
        as_number("truncation", share, low=0, high=1)
    return limits


def _saturation(given: Any) -> Saturation | None:
    if given is None or given is False:
        return None
    limits = (
        Saturation() if given is True else _numbers(Saturation, "saturation", given, twice=False)
    )
    limit = plain_number(limits.limit)
    if limit is None or not limit >= 0 or limits.by not in ("tag", "tier"):
        raise refused("saturation", given, "points of at least 0, by tag or tier")
    return limits


def _numbers(kind: Any, what: str, given: Any, *, twice: bool) -> Any:
    """A setting given as its fields, a mapping, a list or one number."""
    try:
        if isinstance(given, Mapping):
            return kind(**given)
        if isinstance(given, Sequence) and not isinstance(given, str):
            return kind(*given)
        return kind(float(given), float(given)) if twice else kind(float(given))
    # RuntimeError: a tensor that holds no real number.
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise UserError(
            f"{what}: got {shown(given)}; expected {', '.join(kind._fields)}, or true."
        ) from None


def _title(row: MarkedItem, number: int) -> str:
    return row.id or str(number)
