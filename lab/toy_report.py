"""The results of toys: `toy_runs.csv`, `toy_curves.csv`, `toy_table.md` and `toy_curves.png`."""

from __future__ import annotations

import csv
import importlib.util
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.collect import Row
from lab.figures import Spread, by_seed, curves_of, differences, spread
from lab.plan import Column
from lab.toy import Toy, ToyRun

Runs = Mapping[tuple[str, str, int], ToyRun]
"""(toy, arm, seed) -> what it gave."""
TIMING = "cpu_s"
"""The one figure that is not the same every time."""
POINTS = 30
"""Rows of a run in the curves, about."""


def write_toys(method: str, toys: Sequence[Toy], runs: Runs, folder: Path) -> str:
    """Write all four files; the table's text."""
    folder.mkdir(parents=True, exist_ok=True)
    every = {toy.name: max(1, toy.steps // POINTS) for toy in toys}
    rows, curves = (
        (
            [
                {"study": toy, "arm": arm, "seed": seed, "status": "finished", **run.row}
                for (toy, arm, seed), run in runs.items()
            ]
        ),
        (
            [
                {"study": toy, "arm": arm, "seed": seed, **row}
                for (toy, arm, seed), run in runs.items()
                for row in run.curves
                if row["done"] % every[toy] == 0 or row is run.curves[-1]
            ]
        ),
    )
    _write(folder / "toy_runs.csv", rows)
    _write(folder / "toy_curves.csv", curves)
    seconds = sum(run.row[TIMING] for run in runs.values())
    parts = [f"# {method}: toys\n", *(_section(toy, rows) for toy in toys)]
    parts.append(
        "Mean ± standard deviation over seeds; the seeds themselves are in `toy_runs.csv`.\n\n"
        f"Repeat: `python -m lab.run_toys {method}` ({seconds:.0f} CPU seconds).\n"
    )
    text = "\n".join(parts)
    (folder / "toy_table.md").write_text(text, encoding="utf-8")
    if importlib.util.find_spec("matplotlib"):
        _draw(toys, curves, folder / "toy_curves.png")
    return text


def _section(toy: Toy, rows: Sequence[Row]) -> str:
    runs = [row for row in rows if row["study"] == toy.name]
    baseline = toy.arms[0].name
    start = [_cell(_spread_of(runs, baseline, f"start/{c.key}"), c.digits) for c in toy.columns]
    body = [["(start)", *start]]
    changes = []
    for arm in toy.arms:
        cells = [_cell(_spread_of(runs, arm.name, c.key), c.digits) for c in toy.columns]
        body.append([arm.name, *cells])
        if arm.name != baseline:
            found = [differences(runs, arm.name, baseline, c.key) for c in toy.columns]
            shown = [
                _change(values, c.digits) for values, c in zip(found, toy.columns, strict=True)
            ]
            changes.append([arm.name, *shown])
    head = ["arm", *(column.label for column in toy.columns)]
    return "\n".join(
        [
            f"## {toy.name}\n\n{toy.about}\n",
            _table(head, body),
            f"\nMinus `{baseline}`, paired by seed (in brackets: seeds above / below 0):\n",
            _table(head, changes),
            "",
        ]
    )


def _spread_of(runs: Sequence[Row], arm: str, key: str) -> Spread | None:
    return spread(list(by_seed(runs, arm, key).values()))


def _cell(found: Spread | None, digits: int) -> str:
    if found is None:
        return ""
    around = "" if found.deviation is None else f" ± {found.deviation:,.{digits}f}"
    return f"{found.mean:,.{digits}f}{around}"


def _change(values: Sequence[float], digits: int) -> str:
    found = spread(values)
    if found is None:
        return ""
    above, below = sum(v > 0 for v in values), sum(v < 0 for v in values)
    around = "" if found.deviation is None else f" ± {found.deviation:,.{digits}f}"
    return f"{found.mean:+,.{digits}f}{around} ({above}/{below})"


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _write(file: Path, rows: Sequence[Row]) -> None:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_text(row.get(name)) for name in columns] for row in rows)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _draw(toys: Sequence[Toy], curves: Sequence[Row], file: Path) -> None:
    """One row of panels a toy: mean over seeds with the band from the lowest to the highest."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = max(len(toy.panels) for toy in toys)
    size = (4.2 * columns, 3.4 * len(toys))
    figure, axes = plt.subplots(len(toys), columns, figsize=size, squeeze=False)
    for toy, row in zip(toys, axes, strict=True):
        runs = curves_of([found for found in curves if found["study"] == toy.name])
        for panel, axis in zip(toy.panels, row, strict=False):
            _panel(axis, toy, runs, panel)
        for axis in row[len(toy.panels) :]:
            axis.axis("off")
        row[0].legend(fontsize=6, frameon=False)
        row[0].set_title(toy.name, fontsize=9, loc="left")
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    plt.close(figure)


def _panel(
    axis: Any, toy: Toy, runs: Mapping[tuple[str, int], Sequence[Row]], panel: Column
) -> None:
    by_rollouts = bool(toy.equal_rollouts) and panel.key == toy.equal_rollouts
    for number, arm in enumerate(toy.arms):
        paths = [
            _path(run, panel.key, by_rollouts)
            for (name, _), run in runs.items()
            if name == arm.name
        ]
        points = list(zip(*paths, strict=False))
        if not points:
            continue
        xs = [statistics.fmean(x for x, _ in point) for point in points]
        ys = [[y for _, y in point] for point in points]
        # By its place, not by its turn: an arm keeps its colour where another has no such curve.
        colour = f"C{number}"
        means = [statistics.fmean(y) for y in ys]
        axis.plot(xs, means, label=arm.name, linewidth=1.1, color=colour)
        low, high = [min(y) for y in ys], [max(y) for y in ys]
        axis.fill_between(xs, low, high, alpha=0.12, color=colour, linewidth=0)
    axis.set_xlabel("trained rollouts" if by_rollouts else "steps", fontsize=8)
    axis.set_ylabel(panel.label, fontsize=8)
    axis.tick_params(labelsize=7)


def _path(run: Sequence[Row], key: str, by_rollouts: bool) -> list[tuple[float, float]]:
    x = "trained" if by_rollouts else "done"
    return [(row[x], row[key]) for row in run if row.get(key) is not None]
