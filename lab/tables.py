"""The raw numbers of studies as CSV: `runs.csv`, a row a run, and `curves.csv`, a row a step."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from lab.collect import Row
from lab.slots import Record

RUNS = "runs.csv"
CURVES = "curves.csv"
TEXTS = ("study", "arm", "status", "reason", "start", "method", "baseline")
"""Columns that are not numbers."""
_KEY = ("study", "arm", "seed")


@dataclass(frozen=True)
class Tables:
    """Runs and curves; a value that is not known is None."""

    runs: list[Row]
    curves: list[Row]

    @classmethod
    def of(cls, records: Sequence[Record], jobs: int) -> Tables:
        """From the records of runs, `jobs` of which shared the device."""
        runs, curves = [], []
        for record in records:
            key: Row = {"study": record.study, "arm": record.arm, "seed": record.seed}
            state: Row = {"status": record.status, "reason": record.reason, "jobs": jobs}
            runs.append({**key, **state, **record.row})
            curves += [{**key, **row} for row in record.curves]
        return cls(runs, curves)

    @classmethod
    def read(cls, folder: Path) -> Tables:
        """What an earlier `write` left; empty tables where there was none."""
        return cls(_read(folder / RUNS), _read(folder / CURVES))

    def write(self, folder: Path, studies: Iterable[str]) -> None:
        """Write both, beside the runs of other studies and seeds that are already there."""
        folder.mkdir(parents=True, exist_ok=True)
        before = Tables.read(folder)
        new = {_key(row) for row in self.runs}
        order = list(studies)
        for name, old, own in (
            (RUNS, before.runs, self.runs),
            (CURVES, before.curves, self.curves),
        ):
            rows = [row for row in old if _key(row) not in new] + own
            rows.sort(key=lambda row: order.index(row["study"]) if row["study"] in order else -1)
            write_rows(folder / name, rows)


def _key(row: Row) -> tuple[str, str, int]:
    return str(row["study"]), str(row["arm"]), int(row["seed"])


def _read(file: Path) -> list[Row]:
    if not file.is_file():
        return []
    with file.open(newline="", encoding="utf-8") as stream:
        return [
            {name: _value(name, text) for name, text in row.items()}
            for row in csv.DictReader(stream)
        ]


def _value(name: str, text: str) -> Any:
    if name in TEXTS:
        return text
    if not text:
        return None
    return int(text) if name in ("seed", "done", "jobs") else float(text)


def write_rows(file: Path, rows: Sequence[Row]) -> None:
    """A CSV with every column that any row has; what a row has not stays empty."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    draft = file.with_suffix(".draft")
    with draft.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_text(row.get(name)) for name in columns] for row in rows)
    draft.replace(file)


def mean_text(values: Sequence[float]) -> str:
    """Mean and standard deviation over seeds."""
    if not values:
        return "-"
    return f"{fmean(values):.3f} ± {stdev(values):.3f}" if len(values) > 1 else f"{values[0]:.3f}"


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
