"""The table of a distillation: CSV, a row a model and seed, and Markdown over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lab.collect import Row
from lab.figures import spread
from lab.plan import Column
from lab.tables import write_rows

FIGURES = (
    Column("accuracy", "accuracy"),
    Column("macro_accuracy", "macro accuracy"),
    Column("ordinal_score", "ordinal score"),
    Column("agreement", "agreement with teacher"),
)
ABOUT = (
    "Mean ± standard deviation over seeds. Grades by the first token, among the four labels; "
    "milliseconds are of one query, the median over batches of held-out prompts, teacher and "
    "student in turns."
)


def write_table(
    folder: Path,
    task: str,
    rows: Sequence[Row],
    notes: Sequence[str],
    command: str,
    batches: Sequence[int],
) -> str:
    """Write `distil_TASK.csv` and `distil_TASK.md`; the table's text."""
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(folder / f"distil_{task}.csv", rows)
    found = []
    for batch in batches:
        found.append(Column(f"ms_one_{batch}", f"ms one token, batch {batch}", 3))
        found.append(Column(f"ms_full_{batch}", f"ms full text, batch {batch}", 3))
    columns = (*FIGURES, *[*found, Column(f"tokens_full_{batches[-1]}", "tokens of a text", 1)])
    headings = ["model", "seeds", "weights", *(column.label for column in columns)]
    models = dict.fromkeys(str(row["model"]) for row in rows)
    lines = [headings, ["---"] * len(headings), *(_cells(model, rows, columns) for model in models)]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    title = f"# Distillation of the first token: {task}"
    text = "\n\n".join([title, "\n".join(notes), table, ABOUT, f"Repeat: `{command}`\n"])
    (folder / f"distil_{task}.md").write_text(text, encoding="utf-8")
    return text


def _cells(model: str, rows: Sequence[Row], columns: Sequence[Column]) -> list[str]:
    own = [row for row in rows if row["model"] == model]
    weights = own[0]["weights"]
    cells = [model, str(len(own)), f"{weights / 1e6:.2f} M" if weights else ""]
    for column in columns:
        found = spread([row[column.key] for row in own if column.key in row])
        cell = "" if found is None else f"{found.mean:.{column.digits}f}"
        if found is not None and found.deviation is not None:
            cell += f" ± {found.deviation:.{column.digits}f}"
        cells.append(cell)
    return cells
