"""What the studies of OpenRS share: where data lies, and how a table is shown and kept."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
DATA = Path(__file__).parents[3] / "shared" / "data"


def read_rows(data: Path, name: str) -> list[dict[str, Any]]:
    """The rows of one Parquet file of the data folder."""
    import pyarrow.parquet

    path = data / f"{name}.parquet"
    if not path.is_file():
        raise SystemExit(f"{path} is not there; give the folder with --data")
    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
    return rows


def arguments(about: str) -> argparse.ArgumentParser:
    """A parser with the options of every study."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--data", type=Path, default=DATA, help="folder with the Parquet files")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where table and CSV go")
    return parser


def share(value: float | None, digits: int = 3) -> str:
    """A share as text; empty where there is none."""
    return "" if value is None else f"{value:.{digits}f}"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def keep(
    out: Path, name: str, text: str, head: Sequence[str], rows: Sequence[Sequence[object]]
) -> None:
    """Write `name.md` and `name.csv`, and show the first."""
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.md").write_text(text + "\n", encoding="utf-8")
    with (out / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([head, *rows])
    print(text)
