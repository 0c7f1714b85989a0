"""Corpora and answers beside the invented world: WikiTableQuestions, and lists of your own.

Every function here stands in a recipe by its path: `wikitq` as `corpus`, `wikitq_answers` and
`listed_answers` as task functions.
"""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from burnish.agents.ssp.rules import as_golds
from burnish.agents.ssp.searching import as_rows, proposer_messages
from burnish.errors import ArgumentError, UserError
from burnish.tasks.rows import read_table
from burnish.tools.search import Passage, PassageIndex

CELL = 200
"""Characters of a table's cell that are shown."""


@cache
def wikitq(path: str, split: str = "train") -> PassageIndex:
    """Tables of WikiTableQuestions, a passage for each row: `column: cell; column: cell`.

    `path` is a folder with `SPLIT_tables.parquet` (columns `context` and `csv`).
    """
    rows = [row.values for row in read_table(Path(path) / f"{split}_tables.parquet").rows]
    return PassageIndex(p for row in rows for p in table_passages(row["context"], row["csv"]))


def table_passages(name: str, text: str) -> Iterator[Passage]:
    """The rows of one table in CSV, the first line its columns.

    >>> [p.text for p in table_passages("csv/1.csv", "Year,Car\\n1956,14")]
    ['Year: 1956; Car: 14']
    """
    lines = csv.reader(io.StringIO(text))
    columns = [column.strip() for column in next(lines, [])]
    short = name.removeprefix("csv/").removesuffix(".csv")
    for number, cells in enumerate(lines, 1):
        named = zip(columns, cells, strict=False)
        shown = [f"{column}: {cell.strip()[:CELL]}" for column, cell in named if cell.strip()]
        if shown:
            yield Passage(
                f"{name}#{number}", "; ".join(shown), title=f"table {short}, row {number}"
            )


def wikitq_answers(
    rng: random.Random, path: str, split: str = "train", hops: Sequence[int] = (1, 2)
) -> dict[str, Any]:
    """An answer of WikiTableQuestions for the proposer, with its question for an evaluation.

    Answers of one table share a side, so that the held-out questions are of unseen tables.
    """
    rows = _questions(path, split)
    row = rows[rng.randrange(len(rows))]
    return {**_task(row["answer"], rng.choice(list(hops))), **row, "split_by": row["table"]}


@cache
def _questions(path: str, split: str) -> list[dict[str, Any]]:
    rows = [row.values for row in read_table(Path(path) / f"{split}.parquet").rows]
    found = []
    for row in rows:
        try:
            golds = as_golds("targetValue", row["targetValue"])
        except ArgumentError:
            continue
        # A list of cells is several answers at once, not aliases of one.
        if len(golds) == 1:
            question = str(row["utterance"])
            found.append({"question": question, "answer": golds[0], "table": row["context"]})
    return found


def listed_answers(rng: random.Random, path: str, hops: Sequence[int] = (1, 2)) -> dict[str, Any]:
    """An answer of your own list: rows with `answer`, and where you like `hops`, `examples`, `question`.

    A row's `answer` is a text or a list of aliases. Rows with a `question` can be evaluated.
    """
    rows = _answers(path)
    row = rows[rng.randrange(len(rows))]
    chosen = int(row.get("hops") or rng.choice(list(hops)))
    task = _task(row["answer"], chosen, str(row.get("examples") or ""))
    return {**task, "answer": row["answer"], "question": str(row.get("question") or "")}


@cache
def _answers(path: str) -> list[dict[str, Any]]:
    rows = [row.values for row in read_table(Path(path).expanduser()).rows]
    for number, row in enumerate(rows, 1):
        as_golds(f"{path}, row {number}: answer", row.get("answer"))
    if not rows:
        raise UserError(f"{path}: no rows; expected answers.")
    return rows


def _task(answer: Any, hops: int, examples: str = "") -> dict[str, Any]:
    shown = as_rows(proposer_messages(answer, hops, examples))
    return {"messages": shown, "hops": hops, "split_by": as_golds("answer", answer)[0]}
