"""Curves of a method's studies: mean over seeds with the band from the lowest to the highest."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.collect import Row
from lab.figures import cumulative, curves_of, smoothed
from lab.plan import Study
from lab.tables import Tables

LABELS = {
    "score": "held-out score",
    "reward/total": "training reward",
    "policy/entropy": "entropy of trained tokens",
    "policy/clipped_share": "clipped share",
    "length/mean": "tokens of an answer",
    "useful_groups": "share of useful groups",
    "trained_share": "share of rollouts trained",
}


def draw(studies: Sequence[Study], tables: Tables, file: Path) -> None:
    """One row of panels a study."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = [study for study in studies if any(r["study"] == study.name for r in tables.curves)]
    if not shown:
        return
    columns = max(len(_panels(study)) for study in shown)
    size = (4.2 * columns, 3.2 * len(shown))
    figure, axes = plt.subplots(len(shown), columns, figsize=size, squeeze=False)
    for study, row in zip(shown, axes, strict=True):
        rows = [r for r in tables.curves if r["study"] == study.name]
        for panel, axis in zip(_panels(study), row, strict=False):
            _panel(axis, study, rows, panel)
        for axis in row[len(_panels(study)) :]:
            axis.axis("off")
        row[0].legend(fontsize=7, frameon=False)
        row[0].set_title(study.name, fontsize=9, loc="left")
    figure.tight_layout()
    figure.savefig(file, dpi=130)
    plt.close(figure)


def _panels(study: Study) -> tuple[str, ...]:
    return ("score", *study.panels)


def _panel(axis: Any, study: Study, rows: Sequence[Row], panel: str) -> None:
    runs = curves_of(rows)
    by_tokens = study.at_equal_tokens and panel == "score"
    for arm in study.arms:
        paths = [
            _path(run, panel, by_tokens) for (name, _), run in runs.items() if name == arm.name
        ]
        paths = [path for path in paths if path]
        if not paths:
            continue
        length = min(len(path) for path in paths)
        xs = [statistics.fmean(path[k][0] for path in paths) for k in range(length)]
        ys = [[path[k][1] for path in paths] for k in range(length)]
        (line,) = axis.plot(xs, [statistics.fmean(y) for y in ys], label=arm.name, linewidth=1.2)
        low, high = [min(y) for y in ys], [max(y) for y in ys]
        axis.fill_between(xs, low, high, alpha=0.15, color=line.get_color(), linewidth=0)
    axis.set_xlabel("trained tokens" if by_tokens else "steps", fontsize=8)
    axis.set_ylabel(
        LABELS.get(panel) or f"reward: {panel.removeprefix('reward/').removesuffix('/mean')}",
        fontsize=8,
    )
    axis.tick_params(labelsize=7)


def _path(run: Sequence[Row], panel: str, by_tokens: bool) -> list[tuple[float, float]]:
    totals = cumulative(run, "trained_tokens")
    points = [
        (total if by_tokens else row["done"], row[panel])
        for total, row in zip(totals, run, strict=True)
        if row.get(panel) is not None
    ]
    if panel == "score":
        return points
    ys = smoothed([y for _, y in points])
    return [(x, y) for (x, _), y in zip(points, ys, strict=True)]
