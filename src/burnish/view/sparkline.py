"""A curve on one line of text, on a scale that it may share with others.

scale = scale_of(points_a, points_b)
sparkline(points_a, scale, width=24)      # "▁▁▂▃▃▅▆▇█"
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from burnish.view.curves import Point

BLOCKS = "▁▂▃▄▅▆▇█"
PLAIN = "_.-~=+*#"
"""The same eight heights for terminals that have ASCII only."""


class Scale(NamedTuple):
    """What the width and the height of a line stand for."""

    first: float
    last: float
    low: float
    high: float


def scale_of(*curves: Sequence[Point]) -> Scale | None:
    """The smallest scale that holds all of the curves; None where they have no finite point."""
    points = [point for curve in curves for point in _drawn(curve)]
    if not points:
        return None
    xs, ys = [x for x, _ in points], [y for _, y in points]
    return Scale(min(xs), max(xs), min(ys), max(ys))


def sparkline(
    points: Sequence[Point], scale: Scale | None, *, width: int, ascii_only: bool = False
) -> str:
    """The curve as at most `width` characters, each the mean of the points that fall on it.

    No wider than one character a step; a place without a point stays blank. Values that are not
    finite are left out, and a curve that never changes is drawn in the middle.
    """
    drawn = _drawn(points)
    if scale is None or not drawn:
        return ""
    columns = max(min(width, round(scale.last - scale.first) + 1), 1)
    cells: dict[int, list[float]] = {}
    for x, y in drawn:
        across = _share(x, scale.first, scale.last)
        cells.setdefault(min(int(across * columns), columns - 1), []).append(y)
    marks = PLAIN if ascii_only else BLOCKS
    line = (
        marks[_height(sum(y / len(ys) for y in ys), scale)] if (ys := cells.get(column)) else " "
        for column in range(columns)
    )
    return "".join(line).rstrip()


def _drawn(points: Sequence[Point]) -> list[Point]:
    return [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]


def _height(value: float, scale: Scale) -> int:
    if scale.high == scale.low:
        return len(BLOCKS) // 2
    top = len(BLOCKS) - 1
    return min(max(round(_share(value, scale.low, scale.high) * top), 0), top)


def _share(value: float, low: float, high: float) -> float:
    """Where a value lies between two others; halved, for the span of large floats is infinite."""
    span = high / 2 - low / 2
    return (value / 2 - low / 2) / span if span else 0.0
