"""Tables and a picture of the grid study's CSV files; needs no torch.

python -m lab.gap.report [CSV ...]
"""

from __future__ import annotations

import csv
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from burnish.bench.statistics import t_estimate

RESULTS = Path(__file__).parent / "results"
PLAYED = ("zero", "mean", "noise", "shuffle", "skip", "oracle")
FAKES = ("zero", "mean", "noise", "shuffle")
"""Latents without the right content: what generated ones have to beat."""
LITTLE = 0.05
"""Accuracy below which a gain is as good as none."""
Row = dict[str, Any]


def read(file: Path) -> list[Row]:
    """Rows of the study, numbers as numbers, None where a cell is empty."""
    with file.open(encoding="utf-8", newline="") as lines:
        found = list(csv.DictReader(lines))
    words = ("size", "arm", "by_operations")
    return [
        {k: v if k in words else float(v) if v else None for k, v in row.items()} for row in found
    ]


def spread(values: Sequence[float | None]) -> str:
    """Mean and standard deviation over seeds."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    wide = f" ± {statistics.stdev(known):.2f}" if len(known) > 1 else ""
    return f"{statistics.mean(known):.2f}{wide}"


def arms_of(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["arm"] for row in rows))


def table(rows: Sequence[Row]) -> str:
    """One line an arm: accuracy, latents, interventions."""
    names = ("accuracy", "spans", "fed/true norm", "R2", *PLAYED, "positions")
    lines = [f"| arm | seeds | {' | '.join(names)} |", "|---" * (len(names) + 2) + "|"]
    for arm in arms_of(rows):
        own = [row for row in rows if row["arm"] == arm]
        keys = ("accuracy", "spans", "fed_ratio", "r2", *PLAYED)
        cells = [spread([row[key] for row in own]) for key in keys]
        cells.append(f"{statistics.mean(row['positions'] for row in own) / 1e6:.2g} M")
        lines.append(f"| {arm} | {len(own)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def by_operations(rows: Sequence[Row]) -> str:
    """Accuracy by the number of operations."""
    numbers = sorted({n for row in rows for n in json.loads(row["by_operations"])})
    lines = [f"| arm | {' | '.join(numbers)} |", "|---" * (len(numbers) + 1) + "|"]
    for arm in arms_of(rows):
        own = [json.loads(row["by_operations"]) for row in rows if row["arm"] == arm]
        cells = [spread([one[number] for one in own]) for number in numbers]
        lines.append(f"| {arm} | {' | '.join(cells)} |")
    return "\n".join(lines)


def paired(rows: Sequence[Row], base: str) -> list[str]:
    """Differences to a control over the same seeds, one line an arm."""
    of = {(row["arm"], row["seed"]): row["accuracy"] for row in rows}
    lines = []
    for arm in arms_of(rows):
        seeds = [s for a, s in of if a == arm and (base, s) in of]
        if arm != base and seeds:
            gaps = [of[arm, seed] - of[base, seed] for seed in seeds]
            wide = f" ± {statistics.stdev(gaps):.3f}" if len(gaps) > 1 else ""
            lines.append(f"- {arm} - {base}: {statistics.mean(gaps):+.3f}{wide}, {len(gaps)} seeds")
    return lines


def matters(rows: Sequence[Row]) -> list[str]:
    """Whether the model uses its latents, by arm: its accuracy with them less that with the best of
    those without content, seed by seed, with Student's t interval over seeds."""
    lines = []
    for arm in arms_of(rows):
        own = [row for row in rows if row["arm"] == arm and row["mean"] is not None]
        gains = [
            row["accuracy"] - max(row[fake] for fake in FAKES if row[fake] is not None)
            for row in own
        ]
        if not gains:
            continue
        gain, shown, word = statistics.mean(gains), "no interval", "not shown"
        if len(gains) > 1:
            _, low, high, *_ = t_estimate(gains)
            shown = f"95 % interval {low:+.3f} to {high:+.3f}"
            word = "used" if low > 0 else "not used" if high < LITTLE else "not shown"
        lines.append(f"- {arm}: {gain:+.3f}, {shown}, {len(gains)} seeds: {word}")
    return lines


def write(file: Path) -> str:
    """The Markdown and the picture beside a CSV; returns the Markdown."""
    rows = read(file)
    gap = statistics.mean(row["gap"] for row in rows)
    start = statistics.mean(row["start_accuracy"] for row in rows)
    text = "\n\n".join(
        [
            f"# GAP on the grid world, {file.stem}",
            f"After stage 1 hidden states are {gap:.0f} times as long as vision embeddings, and "
            f"{start:.2f} of the questions are answered at once. Accuracy of {rows[0]['held']:.0f} held-out "
            "questions, mean and standard deviation over seeds; chance is 0.17.",
            table(rows),
            "Accuracy by the number of operations:",
            by_operations(rows),
            "Do latents matter? Accuracy with the model's own latents less that with the best of "
            f"{', '.join(FAKES)}, seed by seed. Used: the interval over seeds is above 0; not used: it "
            f"is below {LITTLE}; else not shown.\n\n" + "\n".join(matters(rows)),
            "Differences, paired by seed:\n\n"
            + "\n".join([*paired(rows, "none_long"), *paired(rows, "raw"), *paired(rows, "pca")]),
        ]
    )
    file.with_suffix(".md").write_text(text + "\n", encoding="utf-8")
    draw(rows, file.with_suffix(".png"))
    return text


def draw(rows: Sequence[Row], file: Path) -> None:
    """Accuracy of every arm, and of its interventions."""
    try:
        import matplotlib
    except ImportError:
        return
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    arms = arms_of(rows)
    figure, axis = plt.subplots(figsize=(1.0 * len(arms) + 2, 3.6))
    marks = {"accuracy": "s", "oracle": "^", "mean": "_", "noise": "x", "shuffle": "o", "zero": "."}
    for key, mark in marks.items():
        places, values = [], []
        for place, arm in enumerate(arms):
            own = [r[key] for r in rows if r["arm"] == arm and r[key] is not None]
            places += [place] * len(own)
            values += own
        label = "own latents, or none" if key == "accuracy" else key
        axis.scatter(places, values, marker=mark, label=label, s=70 if key == "accuracy" else 30)
    axis.axhline(1 / 6, color="grey", linewidth=0.8)
    axis.set_xticks(range(len(arms)), arms, rotation=30, ha="right")
    axis.set_ylabel("held-out accuracy")
    axis.legend(fontsize=7, frameon=False, ncol=2)
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    given = [Path(one) for one in sys.argv[1:]]
    for one in given or sorted(RESULTS.glob("*.csv")):
        print(write(one))
