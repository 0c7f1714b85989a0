"""SpreadsheetBench's scorer under both rules: gold against itself, and the input left untouched.

python -m lab.trace2skill.spreadsheetbench --data shared/data/spreadsheetbench
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from burnish.tools.spreadsheet import compare_workbooks


def rows(folder: Path) -> Iterator[dict[str, Any]]:
    """Tasks of every Parquet file: workbooks as bytes."""
    import pyarrow.parquet as parquet

    for path in sorted(folder.glob("*.parquet")):
        yield from parquet.read_table(path).to_pylist()


def main() -> None:
    """Print the counts of both rules."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    tasks = list(rows(parser.parse_args().data))
    warnings.simplefilter("ignore")  # openpyxl names every part that it leaves out
    print("| rule | tasks | gold passes | untouched passes | of the verified 400 | no verdict |")
    print("|---|---|---|---|---|---|")
    for rule in ("reference", "fixed"):
        count: Counter[str] = Counter()
        for task in tasks:
            place = (task["answer_position"], task["answer_sheet"])
            gold = compare_workbooks(task["answer_xlsx"], task["answer_xlsx"], *place, rule=rule)
            same = compare_workbooks(task["answer_xlsx"], task["input_xlsx"], *place, rule=rule)
            count["gold"] += gold.passed is True
            count["none"] += gold.passed is None
            count["same"] += same.passed is True
            count["verified"] += same.passed is True and bool(task["in_verified_400"])
        cells = (rule, len(tasks), *(count[name] for name in ("gold", "same", "verified", "none")))
        print(f"| {' | '.join(map(str, cells))} |")


if __name__ == "__main__":
    main()
