"""Tables and pictures of EVPV's studies: mean over seeds, with the lowest and the highest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple


class Row(NamedTuple):
    """A figure of each seed, beside what the method's description has."""

    name: str
    values: Sequence[float]
    published: float | None = None


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def write_table(file: Path, title: str, told: str, rows: Sequence[Row], note: str = "") -> None:
    """A Markdown table."""
    has_published = any(one.published is not None for one in rows)
    lines = [f"# {title}\n", f"{told}.\n"]
    lines += (
        ["| | ours | described |", "|---|---|---|"] if has_published else ["| | |", "|---|---|"]
    )
    for name, values, published in rows:
        ours = f"{mean(values):.3f} [{min(values):.3f}, {max(values):.3f}]" if values else "-"
        described = f" {'' if published is None else f'{published:.3f}'} |" if has_published else ""
        lines.append(f"| {name} | {ours} |{described}")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join([*lines, *(["", note] if note else [])]) + "\n", encoding="utf-8")


def draw_curves(
    file: Path,
    label: str,
    curves: Mapping[str, Sequence[tuple[float, Sequence[float]]]],
    levels: Mapping[str, float],
) -> None:
    """Accuracy of the best of 8 against one setting, a band from the lowest to the highest seed."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(5, 3.4))
    for name, points in curves.items():
        places = [place for place, _ in points]
        (line,) = axis.plot(places, [mean(values) for _, values in points], marker="o", label=name)
        low, high = ([side(values) for _, values in points] for side in (min, max))
        axis.fill_between(places, low, high, color=line.get_color(), alpha=0.2)
    for number, (name, level) in enumerate(levels.items()):
        axis.axhline(level, color="0.4", linestyle=("--", ":", "-.")[number % 3], label=name)
    axis.set_xlabel(label)
    axis.set_ylabel("accuracy of the best of 8")
    axis.legend(fontsize=8, frameon=False)
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    plt.close(figure)
