"""Tables and pictures from the CSVs of studies; needs no torch.

python -m lab.report afrl etr       or: all
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from lab.collect import Row
from lab.figures import (
    Spread,
    by_seed,
    curves_of,
    differences,
    entropies_at_equal_reward,
    scores_at_equal_tokens,
    spread,
)
from lab.plan import COMMON, METHODS, WITH_DATA, Column, Study, studies_of
from lab.tables import Tables

EQUAL_TOKENS = Column("score_at_equal_tokens", "score at equal trained tokens")
EQUAL_REWARD = Column("entropy_at_equal_reward", "entropy at equal reward")
START_ARM = "(start)"


def write_report(method: str, studies: Sequence[Study], folder: Path) -> str:
    """Write `table.md` and, where matplotlib is there, `curves.png`; the table's text."""
    tables = Tables.read(folder)
    text = "\n".join([f"# {method}\n", *(_section(study, tables) for study in studies)])
    text += f"\nRepeat: `python -m lab.run {method} --jobs 6` on a GPU.\n"
    (folder / "table.md").write_text(text, encoding="utf-8")
    if importlib.util.find_spec("matplotlib"):
        from lab.picture import draw

        draw(studies, tables, folder / "curves.png")
    return text


def _section(study: Study, tables: Tables) -> str:
    runs = with_comparisons(study, tables)
    if not runs:
        return f"## {study.name}\n\n{study.about}\n\nNot run yet.\n"
    columns = columns_of(study, runs)
    finished = [row for row in runs if row["status"] == "finished"]
    jobs = max((row["jobs"] for row in runs if row.get("jobs")), default=1)
    present = {row["arm"] for row in runs}
    arms = [name for name in (START_ARM, *(arm.name for arm in study.arms)) if name in present]
    body = []
    for arm in arms:
        seeds = sum(row["arm"] == arm and row["status"] == "finished" for row in runs)
        means = [spread(list(by_seed(runs, arm, c.key).values())) for c in columns]
        label = "the start model" if arm == START_ARM else arm
        shown = [cell(found, c.digits) for found, c in zip(means, columns, strict=True)]
        body.append([label, str(seeds), *shown])
    parts = [
        f"## {study.name}\n",
        f"{study.about}\n",
        table(["arm", "seeds", *(column.label for column in columns)], body),
        f"\nMinus `{study.arms[0].name}`, paired by seed (in brackets: seeds above / below 0):\n",
        _changes(study, runs, columns),
        "\nMean ± standard deviation over seeds; the seeds themselves are in `runs.csv`. Entropy, "
        "clipped share, length, useful groups and share of rollouts trained: last 10 training steps"
        + (f". Seconds with up to {jobs} runs sharing the device." if jobs > 1 else "."),
    ]
    failed = [row for row in runs if row["status"] != "finished"]
    parts += [f"\nFailed: {row['arm']}, seed {row['seed']}: {row['reason']}" for row in failed]
    starts = {row["start"] for row in finished if row.get("start")}
    if len(starts) > 1:
        parts.append(
            f"\nThese runs began with {len(starts)} different start weights (column `start` of "
            "`runs.csv`): differences between them are not all due to the arms."
        )
    if not finished:
        parts.append("\nNo run finished.")
    return "\n".join(parts) + "\n"


def with_comparisons(study: Study, tables: Tables) -> list[Row]:
    """The study's runs, with the figures that need all arms at once."""
    runs = [dict(row) for row in tables.runs if row["study"] == study.name]
    curves = curves_of([row for row in tables.curves if row["study"] == study.name])
    tokens = scores_at_equal_tokens(curves) if study.at_equal_tokens else {}
    entropies = entropies_at_equal_reward(curves) if study.at_equal_reward else {}
    for row in runs:
        key = row["arm"], row["seed"]
        row[EQUAL_TOKENS.key] = tokens.get(key)
        row[EQUAL_REWARD.key] = entropies.get(key)
    return runs


def columns_of(study: Study, runs: Sequence[Row]) -> list[Column]:
    """Columns that at least one run has a figure for."""
    extra = [EQUAL_TOKENS] * study.at_equal_tokens + [EQUAL_REWARD] * study.at_equal_reward
    known = {name for row in runs for name, value in row.items() if value is not None}
    ordered = {column.key: column for column in (*COMMON, *extra, *study.columns)}
    first = [column for column in (*study.columns, *extra) if column.key in known]
    rest = [c for key, c in ordered.items() if key in known and c not in first]
    return [*first, *rest]


def _changes(study: Study, runs: Sequence[Row], columns: Sequence[Column]) -> str:
    baseline = study.arms[0].name
    body = []
    for arm in study.arms[1:]:
        changes = [differences(runs, arm.name, baseline, column.key) for column in columns]
        shown = [change(values, c.digits) for values, c in zip(changes, columns, strict=True)]
        body.append([arm.name, *shown])
    return table(["arm", *(column.label for column in columns)], body)


def write_summary(folder: Path) -> str:
    """One table over all methods, `results/summary.md`; its text."""
    body = []
    jobs = 1
    for method in (*METHODS, *WITH_DATA):
        tables = Tables.read(folder / method / "results")
        jobs = max([jobs, *(int(row["jobs"]) for row in tables.runs if row.get("jobs"))])
        for study in studies_of(method):
            body += _summary_rows(study, with_comparisons(study, tables))
    head = ["study", "figure", "arm", "seeds", "mean", "minus the first arm", "training s"]
    shared = f"\nSeconds of training steps, with up to {jobs} runs sharing the device.\n"
    text = f"# All methods\n\n{table(head, body)}\n{shared if jobs > 1 else ''}"
    place = folder / "results"
    place.mkdir(exist_ok=True)
    (place / "summary.md").write_text(text, encoding="utf-8")
    return text


def _summary_rows(study: Study, runs: Sequence[Row]) -> list[list[str]]:
    known = columns_of(study, runs)
    wanted = study.headline or study.columns[0].key
    column = next((column for column in known if column.key == wanted), None)
    if column is None:
        return [[study.name, "not run yet", "", "", "", "", ""]]
    rows = []
    for arm in study.arms:
        values = list(by_seed(runs, arm.name, column.key).values())
        times = list(by_seed(runs, arm.name, "train_s").values())
        changes = differences(runs, arm.name, study.arms[0].name, column.key)
        rows.append(
            [
                study.name,
                column.label,
                arm.name,
                str(len(values)),
                cell(spread(values), column.digits),
                "" if arm == study.arms[0] else change(changes, column.digits),
                cell(spread(times), 1),
            ]
        )
    return rows


def cell(found: Spread | None, digits: int) -> str:
    if found is None:
        return ""
    around = "" if found.deviation is None else f" ± {found.deviation:,.{digits}f}"
    return f"{found.mean:,.{digits}f}{around}"


def change(values: Sequence[float], digits: int) -> str:
    found = spread(values)
    if found is None:
        return ""
    around = "" if found.deviation is None else f" ± {found.deviation:,.{digits}f}"
    above, below = sum(v > 0 for v in values), sum(v < 0 for v in values)
    return f"{found.mean:+,.{digits}f}{around} ({above}/{below})"


def table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    escaped = [[text.replace("|", "\\|").replace("\n", " ") for text in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in escaped)


def main(words: Sequence[str] | None = None) -> int:
    """Write the reports of the named methods from their CSVs."""
    parser = argparse.ArgumentParser(prog="python -m lab.report", description=__doc__)
    parser.add_argument(
        "methods", nargs="+", choices=("all", *METHODS, *WITH_DATA), metavar="METHOD"
    )
    parser.add_argument("--folder", type=Path, help="results of one method that lie elsewhere")
    asked = parser.parse_args(words)
    methods = METHODS if "all" in asked.methods else asked.methods
    for method in methods:
        folder = asked.folder or Path(__file__).resolve().parent / method / "results"
        if not folder.is_dir():
            print(f"{method}: no results yet in {folder}; python -m lab.run {method}")
            continue
        print(write_report(method, studies_of(method), folder))
    if methods is METHODS:
        print(write_summary(Path(__file__).resolve().parent))
    return 0


if __name__ == "__main__":
    sys.exit(main())
