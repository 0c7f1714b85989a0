"""Accuracy of pair judges, counted the same way in every study here, and the files it goes to."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HOME = Path(__file__).resolve().parent
RESULTS = HOME / "results"
DATA = HOME.parents[1].parent / "shared" / "data"
"""Public data beside the checkout; never part of it."""


class Tally(NamedTuple):
    """How many pairs a judge got right, got wrong and left open."""

    right: int
    wrong: int
    open: int

    @property
    def all(self) -> int:
        return self.right + self.wrong + self.open

    @property
    def decided(self) -> float:
        return (self.right + self.wrong) / self.all

    @property
    def accuracy(self) -> float:
        """Over all pairs; what is left open is not right."""
        return self.right / self.all

    @property
    def accuracy_of_decided(self) -> float:
        return self.right / (self.right + self.wrong) if self.right + self.wrong else math.nan


def tally(sides: Sequence[float | None]) -> Tally:
    """From values that are positive where the better response won."""
    right = sum(side is not None and side > 0 for side in sides)
    wrong = sum(side is not None and side < 0 for side in sides)
    return Tally(right, wrong, len(sides) - right - wrong)


def interval(share: float, count: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's interval of a share."""
    if not count:
        return math.nan, math.nan
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    spread = share * (1 - share) / count + z * z / (4 * count * count)
    half = z * math.sqrt(spread) / (1 + z * z / count)
    return middle - half, middle + half


def row(name: str, found: Tally) -> dict[str, Any]:
    """One line of a table of judges."""
    low, high = interval(found.accuracy, found.all)
    return {
        "judge": name,
        "pairs": found.all,
        "decided": found.decided,
        "accuracy of decided": found.accuracy_of_decided,
        "accuracy over all": found.accuracy,
        "low": low,
        "high": high,
    }


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table; shares as percentages."""
    head = [name for name in rows[0] if name not in ("low", "high")]
    lines = [head, ["---"] * len(head)]
    for one in rows:
        cells = [_cell(one[name]) for name in head]
        if "low" in one:
            cells[-1] += f" [{100 * one['low']:.1f}, {100 * one['high']:.1f}]"
        lines.append(cells)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write(name: str, text: str, rows: Sequence[Mapping[str, Any]], folder: Path = RESULTS) -> None:
    """`NAME.md` and `NAME.csv`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(text, encoding="utf-8")
    columns = list(dict.fromkeys(key for one in rows for key in one))
    with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {k: f"{v:.5g}" if isinstance(v, float) else v for k, v in one.items()} for one in rows
        )


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "-" if math.isnan(value) else f"{100 * value:.1f} %"
    return str(value)
