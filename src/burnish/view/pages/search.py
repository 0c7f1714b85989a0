"""Samples by text and filters: pages, exact counts, and what can be filtered by.

    question = Question(filter=Filter(status=("ok",)), text="42")
    search(indexer, folder, question)

The newest samples without any filter come straight from `run.db`; everything else goes through the
search index. Where that is still being built, the answer says how much of the run it covers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from burnish.errors import UserError
from burnish.store.database import OF_TASK
from burnish.store.reader import RunReader
from burnish.store.sample_name import sample_names
from burnish.view.index.columns import Array, Filter, Position, Snapshot, parts_of, shown_steps
from burnish.view.index.index_file import Scope
from burnish.view.index.run_index import NEWEST, Indexer, RunIndex, SortOrder
from burnish.view.pages.runs import Page, counts, open_run

EXCERPT = 300
"""Characters of a text in a list."""
LEAD = 80
"""Characters that stand before what was searched for."""

COLUMNS = (
    "rowid, id, step, split, idx, task_id, group_key, role, finish, reward, status, advantage, "
    "response_tokens, keep, prompt, response, reward_tree"
)
_PLAIN = (
    *("id", "step", "split", "index", "task", "group", "role"),
    *("finish", "reward", "status", "advantage", "length"),
)
"""Fields of a row that are shown as they are stored, in the order of `COLUMNS`."""


def select(run: RunReader, rest: str, values: Sequence[Any]) -> list[Page]:
    """Samples as rows of a list, by the end of a SELECT."""
    rows = run.query(f"SELECT {COLUMNS} FROM samples {rest}", values)
    return _named(run, [_row(row) for row in rows])


def rows_by_number(
    run: RunReader, numbers: Sequence[int], text: str, signals: Sequence[str]
) -> list[Page]:
    """Samples by their rowids, in that order, with what their groups can teach."""
    marks = ", ".join("?" * len(numbers))
    query = f"SELECT {COLUMNS} FROM samples WHERE rowid IN ({marks})"
    found = {row[0]: row for row in run.query(query, numbers)}
    both = zip(numbers, signals, strict=True)
    return _named(run, [_row(found[n], text, signal) for n, signal in both if n in found])


def _named(run: RunReader, rows: list[Page]) -> list[Page]:
    names = sample_names(run, ((row["step"], row["split"], row["index"]) for row in rows))
    return [row | {"name": name} for name, row in zip(names, rows, strict=True)]


def _row(row: Sequence[Any], text: str = "", signal: str | None = None) -> Page:
    """A row of `COLUMNS`; without a signal it is not known yet what the group can teach."""
    _, *plain, keep, prompt, response, tree = row
    return {
        **dict(zip(_PLAIN, plain, strict=True)),
        "keep": bool(keep),
        "prompt": excerpt(prompt, text),
        "response": excerpt(response, text),
        "parts": {part.name: part.value for part in parts_of(tree)},
        "signal": signal,
    }


def excerpt(whole: str, text: str = "") -> Page:
    """The beginning of a text, or the part around what was searched for."""
    # Folding can change a text's length, so the hit is looked for in the text as it is shown.
    hit = re.search(re.escape(text), whole, re.IGNORECASE) if text else None
    start = max(0, hit.start() - LEAD) if hit and hit.end() > EXCERPT else 0
    shown = whole[start : start + EXCERPT]
    match = hit and (hit.start() - start, min(hit.end() - start, len(shown)))
    return {"text": shown, "start": start, "of": len(whole), "match": match}


WAIT_S = 0.15
"""A search waits so long for the index to take in what was stored since."""
FIRST_WAIT_S = 2.0
"""So long where nothing is indexed yet: small runs are done by then."""


class Question(NamedTuple):
    filter: Filter = Filter()
    order: SortOrder = NEWEST
    text: str = ""
    scope: Scope = Scope.ALL
    task: str = ""
    after: str = ""
    limit: int = 50

    @property
    def is_plain(self) -> bool:
        """True where the newest or oldest samples are asked for, whatever they are."""
        narrowed = self.filter != Filter() or self.text or self.task
        return not narrowed and self.order.by == "step"


BINS = 24


def search(indexer: Indexer, folder: Path, question: Question) -> Page:
    """One page of a search, and how much of the run it covers; `next` goes into `after`."""
    position = _position(question.after)
    with open_run(folder) as run:
        if question.is_plain:
            indexer.want(folder)
            return _plain(run, question, position)
        index = _index(indexer, folder)
        only = None
        if question.task:
            query = f"SELECT rowid FROM samples WHERE {OF_TASK}"
            only = [row[0] for row in run.query(query, (question.task,))]
        found = index.search(
            question.filter,
            question.order,
            text=question.text,
            scope=question.scope,
            only=only,
            after=position,
            limit=question.limit,
        )
        rows = rows_by_number(run, found.n, question.text, found.signals)
        _, total = counts(run)
    problem, texts = index.progress.problem, found.text_share
    lines = [f"the search index cannot go on: {problem}"] if problem else []
    if found.rows < total:
        lines.append(f"the search index has {found.rows} of {total} samples so far, oldest first")
    if texts < 1.0:
        lines.append(f"{texts:.0%} of the texts were searched, newest first; ask again for more")
    covered = {
        "samples": found.rows,
        "of": max(total, found.rows),
        "texts": texts,
        "complete": not lines,
        "line": "; ".join(lines),
    }
    after = _cursor(found.values[-1], found.n[-1]) if found.has_more else None
    return {"samples": rows, "count": found.total, "next": after, "searched": covered}


def facets(indexer: Indexer, folder: Path) -> Page:
    """What the samples that are indexed by now can be filtered by."""
    index = _index(indexer, folder)
    rows = index.snapshot()
    kinds = {"splits": "split", "roles": "role", "statuses": "status", "finishes": "finish"}
    return {
        **{field: _words(rows, kind) for field, kind in kinds.items()},
        "signals": _words(rows, "signal"),
        "kept": int(np.count_nonzero(rows.column("keep"))),
        "step": numbers(shown_steps(rows)),
        **{name: numbers(rows.column(name)) for name in ("reward", "length", "advantage")},
        "parts": {name: numbers(rows.part(name)) for name in rows.words["part"]},
        "index": index.progress,
    }


def _cursor(value: float | None, n: int) -> str:
    """The place of a row in an order, as text for the next request."""
    return f"{'' if value is None else repr(value)}~{n}"


def numbers(values: Array) -> Page:
    """Range and histogram of a column; missing values are left out."""
    present = values[~np.isnan(values)] if values.dtype.kind == "f" else values
    if not len(present):
        return {"low": None, "high": None, "count": 0, "bins": []}
    low, high = float(present.min()), float(present.max())
    bins = [len(present)]
    if math.isfinite(high - low) and high > low:
        # Not np.histogram, which takes ten times as long over a million values.
        places = ((present - low) * (BINS / (high - low))).astype(np.int64)
        bins = np.bincount(np.minimum(places, BINS - 1), minlength=BINS).tolist()
    return {"low": low, "high": high, "count": len(present), "bins": bins}


def _index(indexer: Indexer, folder: Path) -> RunIndex:
    index = indexer.want(folder)
    indexer.wait(index, WAIT_S if index.progress.rows else FIRST_WAIT_S)
    return index


def _plain(run: RunReader, question: Question, position: Position | None) -> Page:
    """The newest (or oldest) samples, from the store itself."""
    sign, order = ("<", "DESC") if question.order.descending else (">", "ASC")
    where = "" if position is None else f"WHERE rowid {sign} {position.n}"
    query = f"SELECT {COLUMNS} FROM samples {where} ORDER BY rowid {order} LIMIT ?"
    rows = list(run.query(query, (question.limit + 1,)))
    shown = rows[: question.limit]
    _, total = counts(run)
    after = _cursor(float(shown[-1][0]), shown[-1][0]) if len(rows) > question.limit else None
    whole = {"samples": total, "of": total, "texts": 1.0, "complete": True, "line": ""}
    page = _named(run, [_row(row) for row in shown])
    return {"samples": page, "count": total, "next": after, "searched": whole}


def _position(text: str) -> Position | None:
    if not text:
        return None
    value, _, n = text.partition("~")
    try:
        position = Position(float(value) if value else None, int(n))
    except ValueError:
        position = None
    if position is None or position.value != position.value:
        raise UserError(f"after is '{text}'; expected the 'next' of an answer before.")
    return position


def _words(rows: Snapshot, kind: str) -> dict[str, int]:
    words = rows.words[kind]
    found = np.bincount(rows.column(kind), minlength=len(words))
    return {word: int(found[code]) for code, word in enumerate(words)}
