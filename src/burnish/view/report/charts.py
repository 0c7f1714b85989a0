"""Line charts as SVG text: no script, no font, no outside file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

Points = Sequence[tuple[float, float]]

WIDTH, HEIGHT = 440, 190
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 12, 26
CLASSES = ("a", "b", "c", "d", "e", "f")
"""Colours stand in the page's style, so that light and dark are one chart."""


def line_chart(
    lines: Mapping[str, Points], *, label: str, bars: Sequence[tuple[float, float, float]] = ()
) -> str:
    """One chart of a few lines over the steps; `bars` are (step, low, high) behind them."""
    drawn = {
        name: [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
        for name, points in lines.items()
    }
    drawn = {name: points for name, points in drawn.items() if points}
    if not drawn:
        return ""
    xs = [x for points in drawn.values() for x, _ in points]
    ys = [y for points in drawn.values() for _, y in points]
    ys += [edge for _, low, high in bars for edge in (low, high)]
    place = _Frame(min(xs), max(xs), *_padded(min(ys), max(ys)))
    parts = [
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">'
    ]
    parts += [_tick(place, value) for value in ticks(place.low, place.high)]
    parts += [
        f'<text class="axis" x="{place.x(value):.1f}" y="{HEIGHT - 8}" '
        f'text-anchor="{anchor}">{value:g}</text>'
        for value, anchor in _ends(place)
    ]
    parts += [
        f'<line class="bar" x1="{place.x(x):.1f}" x2="{place.x(x):.1f}" '
        f'y1="{place.y(low):.1f}" y2="{place.y(high):.1f}"/>'
        for x, low, high in bars
    ]
    for number, points in enumerate(drawn.values()):
        path = " ".join(f"{place.x(x):.1f},{place.y(y):.1f}" for x, y in points)
        shade = CLASSES[number % len(CLASSES)]
        parts.append(f'<polyline class="line {shade}" points="{path}"/>')
        if len(points) == 1:
            x, y = points[0]
            parts.append(
                f'<circle class="dot {shade}" cx="{place.x(x):.1f}" cy="{place.y(y):.1f}" r="3"/>'
            )
    return "".join([*parts, "</svg>"])


def legend(names: Sequence[str]) -> str:
    """The names of a chart's lines in their colours; nothing for one line."""
    if len(names) < 2:
        return ""
    keys = "".join(
        f'<span class="key {CLASSES[i % len(CLASSES)]}">{escape(name)}</span>'
        for i, name in enumerate(names)
    )
    return f'<p class="legend">{keys}</p>'


def ticks(low: float, high: float, most: int = 4) -> list[float]:
    """A few round numbers from low to high."""
    span = high - low
    if not span > 0:
        return [low]
    base = 10.0 ** math.floor(math.log10(span / most))
    step = next(base * scale for scale in (1, 2, 5, 10) if span / (base * scale) <= most)
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]


class _Frame:
    """From numbers to places."""

    def __init__(self, first: float, last: float, low: float, high: float) -> None:
        self.first, self.last, self.low, self.high = first, last, low, high

    def x(self, value: float) -> float:
        span = self.last - self.first
        share = (value - self.first) / span if span else 0.5
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return TOP + (1 - share) * (HEIGHT - TOP - BOTTOM)


def _padded(low: float, high: float) -> tuple[float, float]:
    if high > low:
        room = 0.06 * (high - low)
        return low - room, high + room
    room = abs(low) * 0.1 or 1.0
    return low - room, high + room


def _tick(place: _Frame, value: float) -> str:
    y = place.y(value)
    return (
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="axis" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>'
    )


def _ends(place: _Frame) -> list[tuple[float, str]]:
    if place.first == place.last:
        return [(place.first, "middle")]
    return [(place.first, "start"), (place.last, "end")]
