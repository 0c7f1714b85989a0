"""The table of a distillation: CSV, a row a model and seed, and Markdown over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from studies.collect import Row
from studies.figures import spread
from studies.plan import Column
from studies.tables import write_rows

FIGURES = (
    Column("accuracy", "accuracy"),
    Column("macro_accuracy", "macro accuracy"),
    Column("ordinal_score", "ordinal score"),
    Column("agreement", "agreement with teacher"),
)
TIMES = (
    Column("ms_one_1", "ms one token, batch 1", 2),
    Column("ms_full_1", "ms full text, batch 1", 2),
    Column("ms_one_32", "ms one token, batch 32", 3),
    Column("ms_full_32", "ms full text, batch 32", 3),
    Column("tokens_full_32", "tokens of a text", 1),
)
ABOUT = (
    "Mean ± standard deviation over seeds. Grades by the first token, among the four labels; "
    "milliseconds are of one query, the median over batches of held-out prompts, teacher and "
    "student in turns."
)


def write_table(
    folder: Path, task: str, rows: Sequence[Row], notes: Sequence[str], command: str
) -> str:
    """Write `distil_TASK.csv` and `distil_TASK.md`; the table's text."""
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(folder / f"distil_{task}.csv", rows)
    headings = ["model", "seeds", "weights", *(column.label for column in (*FIGURES, *TIMES))]
    models = dict.fromkeys(str(row["model"]) for row in rows)
    lines = [headings, ["---"] * len(headings), *(_cells(model, rows) for model in models)]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    title = f"# Distillation of the first token: {task}"
    text = "\n\n".join([title, "\n".join(notes), table, ABOUT, f"Repeat: `{command}`\n"])
    (folder / f"distil_{task}.md").write_text(text, encoding="utf-8")
    return text


def _cells(model: str, rows: Sequence[Row]) -> list[str]:
    own = [row for row in rows if row["model"] == model]
    weights = own[0]["weights"]
    cells = [model, str(len(own)), f"{weights / 1e6:.2f} M" if weights else ""]
    for column in (*FIGURES, *TIMES):
        found = spread([row[column.key] for row in own if column.key in row])
        cell = "" if found is None else f"{found.mean:.{column.digits}f}"
        if found is not None and found.deviation is not None:
            cell += f" ± {found.deviation:.{column.digits}f}"
        cells.append(cell)
    return cells
