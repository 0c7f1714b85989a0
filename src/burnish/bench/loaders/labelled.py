"""Benchmarks of answers that are faithful to their documents or not: FaithBench, WiCE, HaluEval, RGB.

All four are checked against real rows. An item has one answer, its documents and question are shown,
and the hidden field `faithful` is the label; a row that people did not settle has none and is left
out. HaluEval's general part ships no documents: the user's request stands in their place, so that a
checker can confirm only what the request says.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from burnish.bench.items import Item, message, responses_of
from burnish.bench.loaders.reading import (
    Source,
    list_of,
    read_rows,
    text_of,
    texts_of,
    unknown_label,
)
from burnish.errors import UserError
from burnish.rewards.judges.march.roles import solver_messages

PART = 40
"""Sentences of a WiCE page that make one document."""


def load_faithbench(path: Path) -> list[Item]:
    """Summaries of news; unfaithful where people marked anything as unwanted.

    Rows that were only called questionable have no label and are left out.
    """
    rows = read_rows(path, "FaithBench", [("source", "summary", "annotations")])
    found = []
    for row in rows:
        labels = {str(word) for one in list_of(row, "annotations") for word in one["label"]}
        is_bad = any(word.startswith("Unwanted") for word in labels)
        if not is_bad and "Questionable" in labels:
            continue
        id = f"{row.values.get('batch', 0)}-{row.values.get('sample_id', row.number)}"
        documents = [text_of(row, "source")]
        model = str(json.loads(str(row.values.get("metadata") or "{}")).get("summarizer", ""))
        query = "Summarise the passage."
        found.append(_item(id, query, documents, text_of(row, "summary"), not is_bad, model))
    return found


def load_wice(path: Path) -> list[Item]:
    """Claims of Wikipedia and the page that they cite; faithful where all of it is supported."""
    known = {"supported": True, "partially_supported": False, "not_supported": False}
    found = []
    for row in read_rows(path, "WiCE", [("claim", "evidence", "label")]):
        label = row.values["label"]
        if label not in known:
            raise unknown_label(row, "label", label, ", ".join(known))
        lines = texts_of(row, "evidence")
        pages = [" ".join(lines[at : at + PART]) for at in range(0, len(lines), PART)]
        query, id = "What does the page say?", str(row.values.get("id") or row.number)
        found.append(_item(id, query, pages, text_of(row, "claim"), known[label], str(label)))
    return found


def load_halueval(path: Path) -> list[Item]:
    """Requests and ChatGPT's answers; unfaithful where people saw a hallucination."""
    found = []
    for row in read_rows(path, "HaluEval", [("user_query", "chatgpt_response", "hallucination")]):
        label = str(row.values["hallucination"]).strip().lower()
        if label not in ("yes", "no"):
            raise unknown_label(row, "hallucination", row.values["hallucination"], "yes or no")
        query, id = text_of(row, "user_query"), str(row.values.get("ID") or row.number)
        answer = text_of(row, "chatgpt_response")
        found.append(_item(id, query, [query], answer, label == "no"))
    return found


def load_rgb(path: Path) -> list[Item]:
    """Questions with retrieved snippets: the right answer, and a wrong one that they contradict."""
    found = []
    for row in read_rows(path, "RGB", [("query", "answer", "fakeanswer", "positive")]):
        documents = _texts(row, "positive")
        for column, is_faithful in (("answer", True), ("fakeanswer", False)):
            answer = row.values[column]
            text = answer if isinstance(answer, str) else " ".join(_texts(row, column))
            id = f"{row.values.get('id', row.number)}-{'right' if is_faithful else 'wrong'}"
            found.append(_item(id, text_of(row, "query"), documents, text, is_faithful))
    return [item for item in found if item.shown["documents"]]


def _texts(row: Source, column: str) -> list[str]:
    found: list[str] = []
    for one in list_of(row, column):
        found += [str(inner) for inner in one] if isinstance(one, list) else [str(one)]
    return [text for text in found if text.strip()]


def _item(
    id: str, query: str, documents: Sequence[str], answer: str, is_faithful: bool, subset: str = ""
) -> Item:
    return Item(
        id,
        solver_messages(query, documents),
        responses_of(id, [answer]),
        subset=subset,
        shown={"documents": list(documents), "query": query},
        hidden={"faithful": is_faithful},
    )


def load_bigbench_mistake(path: Path) -> list[Item]:
    """Solutions of five BIG-Bench tasks; the subset is the task."""
    shape = ("input", "steps", "mistake_index")
    rows = read_rows(path, "BIG-Bench Mistake", [shape])
    return [
        _solution_item(
            row, "input", "steps", row.values["mistake_index"], "mistake_index", "task", "id"
        )
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
        found.append(_solution_item(row, "question", steps, first, column, kind, id))
    return found


def load_processbench(path: Path) -> list[Item]:
    """Solutions of mathematical problems; the subset is what the id begins with, such as gsm8k."""
    found = []
    for row in read_rows(path, "ProcessBench", [("problem", "steps", "label")]):
        label = row.values["label"]
        first = None if label == -1 else label
        item = _solution_item(row, "problem", "steps", first, "label", "split", "id")
        found.append(item)
    return found


def _solution_item(
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
