"""The curves of a run: read from its store, drawn in the terminal and as a picture.

curves = curves_of(store)
text_plot(curves.reward, width=60, height=8)      # lines of braille
draw_picture(curves, store.folder / "plots" / "curves.png")
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from burnish.errors import UserError
from burnish.metrics import ENTROPY, GROUPS, LENGTH, REWARD, USEFUL, main_reward, reward_parts
from burnish.store import STAGE, MetricPoint
from burnish.store.durable import make_folder, store_errors
from burnish.store.reader import RunReader

Point = tuple[float, float]


class HeldOutPoint(NamedTuple):
    step: int
    value: float
    low: float
    high: float
    prompts: int


@dataclass(frozen=True)
class RunCurves:
    """What is worth looking at, step by step; a step without a value is left out."""

    name: str
    reward: list[Point] = field(default_factory=list)
    """The total, or the only reward."""
    parts: dict[str, list[Point]] = field(default_factory=dict)
    length: list[Point] = field(default_factory=list)
    useful: list[Point] = field(default_factory=list)
    """Share of groups that teach something."""
    entropy: list[Point] = field(default_factory=list)
    held_out: list[HeldOutPoint] = field(default_factory=list)
    learned: dict[str, list[Point]] = field(default_factory=dict)
    """By title: what each stage shows, and a main training without rewards: loss, margin, accuracy,
    divergence."""


def curves_of(store: RunReader) -> RunCurves:
    metrics = store.metrics()
    parts = {part: _points(metrics[name]) for part, name in reward_parts(metrics).items()}
    total = _points(metrics.get(main_reward(metrics) or REWARD, []))
    groups = dict(metrics.get(GROUPS, []))
    return RunCurves(
        name=store.name,
        reward=total,
        parts=parts,
        length=_points(metrics.get(LENGTH, [])),
        useful=[
            (step + 1, value / of)
            for step, value in metrics.get(USEFUL, [])
            if value is not None and (of := groups.get(step))
        ],
        entropy=_points(metrics.get(ENTROPY, [])),
        held_out=[
            HeldOutPoint(e.step, *e.summary["score"])
            for e in store.evaluations("held_out")
            if e.summary.get("score")
        ],
        learned=_learned(metrics, rewarded=bool(total or parts)),
    )


LEARNED = {
    "loss/total": "loss",
    "rewards/margins": "reward margin",
    "rewards/accuracies": "preference accuracy",
    "kl/teacher": "divergence to the teacher",
}
"""Metrics of algorithms that learn without rewards, with the titles of their curves."""


def _learned(
    metrics: Mapping[str, Sequence[MetricPoint]], *, rewarded: bool
) -> dict[str, list[Point]]:
    found: dict[str, list[Point]] = {}
    for name, points in metrics.items():
        stage, own = "", name
        if name.startswith(STAGE):
            stage, _, own = name.removeprefix(STAGE).partition("/")
        if own in LEARNED and (stage or not rewarded) and points:
            title = f"stage {stage}: {LEARNED[own]}" if stage else LEARNED[own]
            found[title] = _points(points)
    return found


def _points(points: Sequence[MetricPoint]) -> list[Point]:
    """Steps count from 1, as everywhere that people look."""
    return [(step + 1, value) for step, value in points if value is not None]


# --- in the terminal

BRAILLE = 0x2800
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bit of each dot of a braille cell, by row and column."""


def text_plot(
    points: Sequence[Point], *, width: int = 60, height: int = 8, ascii_only: bool = False
) -> str:
    """A line plot as `height` + 1 lines, at most `width` characters wide, with its axes labelled.

    Each character holds 2 x 4 dots; `ascii_only` draws stars for terminals without braille. Values
    that are not finite are left out.
    """
    drawn = _drawn(points)
    if not drawn:
        return "(nothing to plot)"
    xs, ys = [x for x, _ in drawn], [y for _, y in drawn]
    low, high = min(ys), max(ys)
    labels = [_label(high), _label(low)] if high > low else [_label(high)]
    margin = max(map(len, labels)) + 2
    columns = max(width - margin, 4)
    cells = _rasterise(drawn, columns, height)
    dots = [[cells.get((row, column), 0) for column in range(columns)] for row in range(height)]
    rows = ["".join(_dot(bits, ascii_only) for bits in row) for row in dots]
    names = [""] * height
    if high > low:
        names[0], names[-1] = labels
    else:
        names[height // 2] = labels[0]
    wall = "|" if ascii_only else "┤"
    body = [f"{n:>{margin - 2}} {wall}{r}".rstrip() for n, r in zip(names, rows, strict=True)]
    first, last = _label(min(xs)), _label(max(xs))
    gap = max(columns - len(first) - len(last), 1)
    foot = f"{'':{margin}}{first}{'':{gap}}{last}" if first != last else f"{'':{margin}}{first}"
    return "\n".join([*body, foot])


def _rasterise(points: Sequence[Point], columns: int, height: int) -> dict[tuple[int, int], int]:
    """Dots of the line through the points, as braille bits by (row, column)."""
    across, down = 2 * columns - 1, 4 * height - 1
    xs, ys = [x for x, _ in points], [y for _, y in points]
    middle = 4 * (height // 2) + 1
    dots = [
        (
            round(_share(x, min(xs), max(xs), 0.0) * across),
            down - round(_share(y, min(ys), max(ys), 1 - middle / down) * down),
        )
        for x, y in points
    ]
    cells: dict[tuple[int, int], int] = {}
    for (x0, y0), (x1, y1) in zip(dots, dots[1:] or dots, strict=False):
        reach = max(abs(x1 - x0), abs(y1 - y0), 1)
        for i in range(reach + 1):
            x = round(x0 + (x1 - x0) * i / reach)
            y = round(y0 + (y1 - y0) * i / reach)
            key = (y // 4, x // 2)
            cells[key] = cells.get(key, 0) | DOTS[y % 4][x % 2]
    return cells


def _share(value: float, low: float, high: float, flat: float) -> float:
    """Where a value lies between two others, 0 to 1; `flat` where they do not differ.

    Halved first: the difference of two very large floats would be infinite.
    """
    span = high / 2 - low / 2
    return (value / 2 - low / 2) / span if span else flat


def _dot(bits: int, ascii_only: bool) -> str:
    if not bits:
        return " "
    return "*" if ascii_only else chr(BRAILLE + bits)


def _label(value: float) -> str:
    return f"{value:.4g}"


# --- as a picture

COLOURS = ("#1b6ca8", "#d1495b", "#66a182", "#edae49", "#7b5ea7", "#00798c")


def draw_picture(curves: RunCurves, path: Path) -> None:
    """Write `path` (PNG, SVG or PDF by its suffix): reward, held-out, length, useful, entropy."""
    figure = draw_figure(curves)
    make_folder(path.parent)
    with store_errors(f"write {path}", path):
        figure.savefig(path)


def draw_figure(curves: RunCurves) -> Any:
    """The same as a matplotlib figure."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise UserError(
            "no picture of the curves: it needs matplotlib. Install it: pip install 'burnish[plot]'"
        ) from None

    class ShownFigure(Figure):
        """Shows itself in a notebook, which otherwise knows the figures of pyplot only."""

        def _repr_png_(self) -> bytes:
            picture = io.BytesIO()
            self.savefig(picture, format="png", dpi=72)
            return picture.getvalue()

    # A figure without pyplot: no window system, no global state.
    figure = ShownFigure(figsize=(9.0, 6.0), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    (reward, held_out), (length, groups) = figure.subplots(2, 2)
    figure.suptitle(curves.name, fontsize=11)
    if curves.reward or curves.parts or not curves.learned:
        if len(curves.parts) == 1:
            (name,) = curves.parts
            _draw_lines(reward, f"reward: {name} (mean of the step)", {"": curves.parts[name]})
        else:
            _draw_lines(
                reward, "reward (mean of the step)", {"total": curves.reward} | curves.parts
            )
    else:
        _draw_lines(reward, " and ".join(curves.learned), curves.learned)
    _draw_held_out(held_out, curves.held_out)
    _draw_lines(length, "mean length (tokens)", {"": curves.length})
    _draw_lines(groups, "useful groups (share)", {"": curves.useful})
    groups.set_ylim(-0.02, 1.02)
    if curves.entropy:
        beside = groups.twinx()
        beside.plot(*zip(*curves.entropy, strict=True), color=COLOURS[1], linewidth=1.2)
        beside.set_ylabel("entropy (nats a token)", color=COLOURS[1], fontsize=8)
        beside.tick_params(labelsize=8)
        beside.spines["top"].set_visible(False)
    return figure


def _draw_lines(axes: Any, title: str, lines: dict[str, list[Point]]) -> None:
    for position, (name, points) in enumerate(lines.items()):
        if points:
            axes.plot(
                *zip(*points, strict=True),
                color=COLOURS[position % len(COLOURS)],
                linewidth=1.0 if position else 1.8,
                marker="o" if len(points) == 1 else "",
                label=name,
            )
    _plain(axes, title)
    if sum(bool(points) for points in lines.values()) > 1:
        axes.legend(fontsize=8, frameon=False)


def _draw_held_out(axes: Any, points: Sequence[HeldOutPoint]) -> None:
    if points:
        spread = [
            [max(p.value - p.low, 0.0) for p in points],
            [max(p.high - p.value, 0.0) for p in points],
        ]
        axes.errorbar(
            [p.step for p in points],
            [p.value for p in points],
            yerr=spread,
            color=COLOURS[0],
            marker="o",
            markersize=4,
            capsize=3,
            linewidth=1.2,
        )
    _plain(axes, "held-out score, 95 % interval")


def _plain(axes: Any, title: str) -> None:
    axes.set_title(title, fontsize=9, loc="left")
    axes.set_xlabel("step", fontsize=8)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)


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
        across = _share(x, scale.first, scale.last, 0.0)
        cells.setdefault(min(int(across * columns), columns - 1), []).append(y)
    line = [" "] * columns
    for column, ys in cells.items():
        mean = sum(y / len(ys) for y in ys)
        height = round(_share(mean, scale.low, scale.high, 4 / 7) * 7)
        line[column] = (PLAIN if ascii_only else BLOCKS)[min(max(height, 0), 7)]
    return "".join(line).rstrip()


def _drawn(points: Sequence[Point]) -> list[Point]:
    return [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
