"""Benchmarks of worked solutions with the first wrong step: BIG-Bench Mistake, MR-GSM8K, ProcessBench.

The first two are checked against real rows; ProcessBench (`problem`, `steps`, `label`, -1 where all
steps are right) follows its public description.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from burnish.bench.items import Item, message, responses_of
from burnish.bench.loaders.reading import Source, read_rows, text_of, texts_of, unknown_label
from burnish.errors import UserError


def load_bigbench_mistake(path: Path) -> list[Item]:
    """Solutions of five BIG-Bench tasks; the subset is the task."""
    shape = ("input", "steps", "mistake_index")
    rows = read_rows(path, "BIG-Bench Mistake", [shape])
    return [
        _item(row, "input", "steps", row.values["mistake_index"], "mistake_index", "task", "id")
        for row in rows
    ]


def load_mr_gsm8k(path: Path) -> list[Item]:
    """Solutions of GSM8K and its variants; the subset is the kind of question.

    Steps are counted from 1 in the file.
    """
    column, grade = "model_output_solution_first_error_step", "model_output_solution_correctness"
    shape = ("question", "model_output_steps", grade, column)
    found = []
    for row in read_rows(path, "MR-GSM8K", [shape]):
        first: Any = None
        if row.values[grade] not in ("correct", "wrong"):
            raise unknown_label(row, grade, row.values[grade], "correct or wrong")
        if row.values[grade] == "wrong":
            text = str(row.values[column])
            if not text.isdecimal():
                raise unknown_label(row, column, row.values[column], "the number of a step, from 1")
            first = int(text) - 1
        steps, kind, id = "model_output_steps", "question_type", "uuid"
        found.append(_item(row, "question", steps, first, column, kind, id))
    return found


def load_processbench(path: Path) -> list[Item]:
    """Solutions of mathematical problems; the subset is what the id begins with, such as gsm8k."""
    found = []
    for row in read_rows(path, "ProcessBench", [("problem", "steps", "label")]):
        label = row.values["label"]
        first = None if label == -1 else label
        item = _item(row, "problem", "steps", first, "label", "split", "id")
        found.append(item)
    return found


def _item(
    row: Source, prompt: str, steps: str, first: Any, column: str, subset: str, id_column: str
) -> Item:
    texts = texts_of(row, steps)
    if not texts or not all(text.strip() for text in texts):
        raise UserError(f"{row.where}: column '{steps}' has no steps, or an empty one.")
    if first is not None:
        is_whole = isinstance(first, int | float) and not isinstance(first, bool)
        if not is_whole or first not in range(len(texts)):
            raise unknown_label(row, column, first, f"a step of {len(texts)}, or none")
        first = int(first)
    id = str(row.values.get(id_column) or row.number)
    kind = str(row.values.get(subset) or id.rpartition("-")[0])
    return Item(
        id,
        message(text_of(row, prompt)),
        responses_of(id, ["\n\n".join(texts)]),
        subset=kind,
        hidden={"steps": texts, "first_wrong": first},
    )
