"""Rubrics of other benchmarks: items with points and met-or-not marks, read into the four tiers.

    rows = points_items([(9, True), (5, False), (-8, True)])
    points_score(rows)                  # the benchmark's own: points met over positive points
    score(tiered(rows), truncation=True)

HealthBench and its like give every item points, negative ones for errors, and a yes or no. Large
points become essentials, middling ones important, small ones highlights, negative ones pitfalls.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from burnish.arguments import as_list, as_number, refused
from burnish.rewards.judges.rubric.score import MarkedItem, Tier

ESSENTIAL_FROM, IMPORTANT_FROM = 8.0, 5.0


class PointsItem(NamedTuple):
    """An item worth points where it is met."""

    points: float
    is_met: bool | None
    """None where nobody marked it."""
    tag: str = ""


def points_items(rows: Iterable[Sequence[object]]) -> list[PointsItem]:
    """Items from `(points, met)` or `(points, met, tag)` rows."""
    items = []
    for row in as_list("rows", rows):
        if not isinstance(row, Sequence) or isinstance(row, str) or len(row) not in (2, 3):
            raise refused("rows", row, "(points, met) or (points, met, tag)")
        points, is_met = row[0], row[1]
        tag = str(row[2]) if len(row) > 2 else ""
        if isinstance(points, bool) or not isinstance(is_met, bool | int | None):
            raise refused("rows", row, "points as a number and met as yes, no or None")
        items.append(
            PointsItem(as_number("rows", points), None if is_met is None else bool(is_met), tag)
        )
    return items


def points_score(items: Sequence[PointsItem]) -> float | None:
    """Points of the items that are met, over all positive points; None without any, or a mark."""
    items = _checked(items)
    possible = math.fsum(item.points for item in items if item.points > 0)
    if possible <= 0 or any(item.is_met is None for item in items):
        return None
    return math.fsum(item.points for item in items if item.is_met) / possible


def tier_of(
    points: float, essential_from: float = ESSENTIAL_FROM, important_from: float = IMPORTANT_FROM
) -> Tier:
    """The tier of an item with these points."""
    if points < 0:
        return Tier.PITFALL
    if points >= essential_from:
        return Tier.ESSENTIAL
    return Tier.IMPORTANT if points >= important_from else Tier.HIGHLIGHT


def tiered(
    items: Sequence[PointsItem],
    essential_from: float = ESSENTIAL_FROM,
    important_from: float = IMPORTANT_FROM,
) -> list[MarkedItem]:
    """The items in tiers, each of weight 1: met is level 2, not met level 0."""
    items = _checked(items)
    essential_from = as_number("essential_from", essential_from)
    important_from = as_number("important_from", important_from, high=essential_from)
    return [
        MarkedItem(
            tier_of(item.points, essential_from, important_from).value,
            None if item.is_met is None else 2.0 * item.is_met,
            tag=item.tag,
            id=str(number),
        )
        for number, item in enumerate(items)
    ]


def _checked(items: Sequence[PointsItem]) -> list[PointsItem]:
    found = as_list("items", items)
    for item in found:
        if not isinstance(item, PointsItem):
            raise refused("items", item, "an item with points")
        as_number("items", item.points)
    return found
