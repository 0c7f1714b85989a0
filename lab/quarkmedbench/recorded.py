"""Recorded marks of HealthBench answers, scored by its own points and in four tiers.

    python -m lab.quarkmedbench.recorded ../shared/data/healthbench_sample/test.parquet

Only numbers are written: the benchmark carries a canary and its texts belong in no repository. The
table says what the two mechanisms do to real rubrics at several thresholds, before anyone uses them
as a reward.
"""

from __future__ import annotations

import ast
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from burnish.rewards.judges.rubric import Interval, Truncation, bootstrap_interval, explain
from burnish.rewards.judges.rubric.formula import MarkedItem
from burnish.rewards.judges.rubric.items import tier_of

THRESHOLDS = (0.25, 0.5, 0.75)
RESULTS = Path(__file__).resolve().parent / "results"


class PointsItem(NamedTuple):
    """An item worth points where it is met."""

    points: float
    is_met: bool | None
    """None where nobody marked it."""
    tag: str = ""


def points_score(items: Sequence[PointsItem]) -> float | None:
    """Points of the items that are met, over all positive points; None without any, or a mark."""
    possible = math.fsum(item.points for item in items if item.points > 0)
    if possible <= 0 or any(item.is_met is None for item in items):
        return None
    return math.fsum(item.points for item in items if item.is_met) / possible


def tiered(items: Sequence[PointsItem]) -> list[MarkedItem]:
    """The items in tiers, each of weight 1: met is level 2, not met level 0."""
    return [
        MarkedItem(
            tier_of(item.points).value,
            None if item.is_met is None else 2.0 * item.is_met,
            tag=item.tag,
            id=str(number),
        )
        for number, item in enumerate(items)
    ]


def read(file: Path) -> list[list[PointsItem]]:
    """The marked items of every answer; the axis of an item is its tag."""
    from pyarrow import parquet

    return [
        [
            PointsItem(
                mark["points"],
                mark["response_dict"]["criteria_met"],
                next((tag for tag in mark["tags"] if tag.startswith("axis:")), ""),
            )
            for mark in _opened(row["responses"])
        ]
        for row in parquet.read_table(file, columns=["responses"]).to_pylist()
    ]


def table(answers: Sequence[Sequence[PointsItem]]) -> str:
    """Means with intervals, and on how many answers a mechanism fired."""
    own = bootstrap_interval([points_score(items) for items in answers])
    lines = [
        "# quarkmedbench: recorded marks", "",
        f"{len(answers)} answers, {sum(map(len, answers))} items of HealthBench with recorded marks. "
        "Points of 8 and more are essentials, 5 to 7 important, 1 to 4 highlights, below 0 pitfalls.",
        "", "| score | mean, 95 % interval | mechanism fired |", "| --- | --- | --- |",
        f"| the benchmark's own points | {_shown(own)} | |",
    ]  # fmt: skip
    by_threshold = {
        f"tiers, truncation below {share:g} of the essentials or above {1 - share:g} of the "
        "pitfalls": {"truncation": Truncation(share, 1 - share)}
        for share in THRESHOLDS
    }
    both = {"truncation": True, "saturation": True}
    for name, settings in {
        "tiers": {},
        **by_threshold,
        "tiers, saturation": {"saturation": True},
        "both": both,
    }.items():
        found = [explain(tiered(items), **settings) for items in answers]
        fired = sum(bool(one.fired) for one in found)
        mean = bootstrap_interval([one.score for one in found])
        lines.append(f"| {name} | {_shown(mean)} | {fired if settings else ''} |")
    lines += ["", "Repeat: `python -m lab.quarkmedbench.recorded FILE.parquet`.", ""]
    return "\n".join(lines)


def _shown(found: Interval | None) -> str:
    return "none" if found is None else f"{found.mean:.3f} [{found.low:.3f}, {found.high:.3f}]"


def _opened(text: str) -> Any:
    """The columns hold JSON in some rows and Python's own notation in others."""
    try:
        return json.loads(text)
    except ValueError:
        return ast.literal_eval(text)


def main(words: Sequence[str]) -> int:
    """Read the file that is named, write and print the table."""
    if len(words) != 1 or not Path(words[0]).is_file():
        print(f"got {' '.join(words) or 'nothing'}; expected the Parquet file of the sample")
        return 2
    text = table(read(Path(words[0])))
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "recorded.md").write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
