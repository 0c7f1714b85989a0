"""Samples by text and filters: pages, exact counts, and what can be filtered by.

    question = Question(filter=Filter(status=("ok",)), text="42")
    search(indexer, folder, question)

The newest samples without any filter come straight from `run.db`; everything else goes through the
search index. Where that is still being built, the answer says how much of the run it covers.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from burnish.errors import UserError
from burnish.store.reader import RunReader
from burnish.store.sample_name import sample_names
from burnish.view.index import (
    INDEXES,
    NEWEST,
    Filter,
    Found,
    Indexer,
    Position,
    Row,
    RunIndex,
    Scope,
    Signal,
    SortOrder,
)
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


def rows_by_number(run: RunReader, rows: Sequence[Row], text: str) -> list[Page]:
    """Samples by their rowids, in that order, with what their groups can teach."""
    marks = ", ".join("?" * len(rows))
    query = f"SELECT {COLUMNS} FROM samples WHERE rowid IN ({marks})"
    found = {row[0]: row for row in run.query(query, [row.n for row in rows])}
    return _named(run, [_row(found[r.n], text, r.signal) for r in rows if r.n in found])


def _named(run: RunReader, rows: list[Page]) -> list[Page]:
    names = sample_names(run, ((row["step"], row["split"], row["index"]) for row in rows))
    return [row | {"name": name} for name, row in zip(names, rows, strict=True)]


class _Part(Struct, frozen=True, gc=False):
    name: str
    value: float | None = None


class _Tree(Struct, frozen=True, gc=False):
    """The direct parts of a reward tree."""

    parts: tuple[_Part, ...] = ()


_TREE = msgspec.json.Decoder(_Tree)


def _row(row: Sequence[Any], text: str = "", signal: str | None = None) -> Page:
    """A row of `COLUMNS`; without a signal it is not known yet what the group can teach."""
    _, *plain, keep, prompt, response, tree = row
    try:
        parts = _TREE.decode(tree).parts
    except msgspec.MsgspecError:
        parts = ()  # damaged
    return {
        **dict(zip(_PLAIN, plain, strict=True)),
        "keep": bool(keep),
        "prompt": excerpt(prompt, text),
        "response": excerpt(response, text),
        "parts": {part.name: part.value for part in parts},
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
    after: str = ""
    limit: int = 50


BINS = 24
MAX_PARTS = 24
"""Reward parts that can be filtered by. A judge that invents criteria may have thousands."""


def search(indexer: Indexer, folder: Path, question: Question) -> Page:
    """One page of a search, and how much of the run it covers; `next` goes into `after`."""
    position = _position(question.after)
    with open_run(folder) as run:
        if question.filter == Filter() and not question.text and question.order.by == "step":
            indexer.want(folder)
            return _plain(run, question, position)
        index = _index(indexer, folder)
        found = index.search(
            question.filter,
            question.order,
            text=question.text,
            scope=question.scope,
            after=position,
            limit=question.limit,
        )
        rows = rows_by_number(run, found.rows, question.text)
        _, total = counts(run)
    after = _cursor(found.rows[-1].value, found.rows[-1].n) if found.has_more else None
    covered = _covered(found, total, index.progress.problem)
    return {"samples": rows, "count": found.total, "next": after, "searched": covered}


def _covered(found: Found, total: int, problem: str) -> Page:
    lines = [f"the search index cannot go on: {problem}"] if problem else []
    if found.samples < total:
        lines.append(
            f"the search index has {found.samples} of {total} samples so far, oldest first"
        )
    if found.text_share < 1.0:
        share = f"{found.text_share:.0%}"
        lines.append(f"{share} of the texts were searched, newest first; ask again for more")
    return {
        "samples": found.samples,
        "of": max(total, found.samples),
        "texts": found.text_share,
        "complete": not lines,
        "line": "; ".join(lines),
    }


def facets(indexer: Indexer, folder: Path) -> Page:
    """What the samples that are indexed by now can be filtered by."""
    index = _index(indexer, folder)
    kinds = {"splits": 0, "roles": 1, "statuses": 2, "finishes": 3, "signals": 4}
    counted: dict[str, Counter[str]] = {field: Counter() for field in kinds}
    counted["signals"].update(dict.fromkeys(Signal, 0))
    kept = 0
    for (*words, keep), count in index.words.copy().items():
        kept += count if keep else 0
        for field, place in kinds.items():
            counted[field][words[place]] += count
    now = index.progress
    return {**counted, **_ranges(index, now.rows), "kept": kept, "index": now}


@lru_cache(INDEXES)  # seconds of work where there are a million rows
def _ranges(index: RunIndex, rows: int) -> Page:
    query = f"SELECT name FROM parts GROUP BY name ORDER BY min(row), name LIMIT {MAX_PARTS}"
    columns = ("step", "reward", "length", "advantage")
    return {
        **{name: numbers(index, name, "rows") for name in columns},
        "parts": {
            name: numbers(index, "value", "parts WHERE name = ?", name)
            for (name,) in index.query(query)
        },
    }


def numbers(index: RunIndex, column: str, source: str, *values: str) -> Page:
    """Range and histogram of a column; missing values are left out."""
    query = f"SELECT min({column}) + 0.0, max({column}) + 0.0, count({column}) FROM {source}"
    ((low, high, count),) = index.query(query, values)
    bins = [count] if count else []
    if count and math.isfinite(high - low) and high > low:
        place = f"min(CAST(({column} - ?) * ? AS INTEGER), {BINS - 1})"
        query = f"SELECT {place}, count({column}) FROM {source} GROUP BY 1"
        found = dict(index.query(query, (low, BINS / (high - low), *values)))
        bins = [found.get(number, 0) for number in range(BINS)]
    return {"low": low, "high": high, "count": count, "bins": bins}


def _cursor(value: float | None, n: int) -> str:
    """The place of a row in an order, as text for the next request."""
    return f"{'' if value is None else repr(float(value))}~{n}"


def _index(indexer: Indexer, folder: Path) -> RunIndex:
    index = indexer.want(folder)
    return indexer.want(folder, WAIT_S if index.progress.rows else FIRST_WAIT_S)


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
