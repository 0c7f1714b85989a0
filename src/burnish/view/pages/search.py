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
from msgspec import Struct
from msgspec.structs import replace

from burnish.errors import UserError
from burnish.store.database import OF_TASK
from burnish.store.reader import RunReader
from burnish.store.sample_name import sample_names
from burnish.view.index.build import parts_of
from burnish.view.index.columns import Array, Filter, Position, Snapshot, shown_steps
from burnish.view.index.index_file import Scope
from burnish.view.index.run_index import NEWEST, Indexer, Progress, RunIndex, SortOrder
from burnish.view.pages.runs import counts, open_run

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


class Excerpt(Struct, frozen=True):
    """Part of a text: where it begins, how long the whole is, and where the search hit in it."""

    text: str
    start: int
    of: int
    match: tuple[int, int] | None = None
    """First and behind the last character of the hit, within `text`."""


class SampleRow(Struct, frozen=True, kw_only=True):
    id: str
    name: str = ""
    """What people call it, such as `train-3-2-4`."""
    step: int
    split: str
    index: int
    task: str
    group: str
    role: str
    prompt: Excerpt
    response: Excerpt
    finish: str
    reward: float | None
    status: str
    advantage: float | None
    keep: bool
    length: int
    """Tokens that the model wrote."""
    parts: dict[str, float | None]
    """Direct parts of the reward; null where one has no value."""
    signal: str | None = None
    """What its group can teach; null where that is not known yet."""


def rows_by_number(
    run: RunReader, numbers: Sequence[int], text: str = "", signals: Sequence[str] = ()
) -> list[SampleRow]:
    """Samples by their rowids, in that order; `signals` go with them."""
    marks = ", ".join("?" * len(numbers))
    query = f"SELECT {COLUMNS} FROM samples WHERE rowid IN ({marks})"
    found = {row[0]: row for row in run.query(query, numbers)}
    known = dict(zip(numbers, signals, strict=True)) if signals else {}
    return named(run, [row_of(found[n], text, known.get(n)) for n in numbers if n in found])


def named(run: RunReader, rows: Sequence[SampleRow]) -> list[SampleRow]:
    names = sample_names(run, ((row.step, row.split, row.index) for row in rows))
    return [replace(row, name=name) for name, row in zip(names, rows, strict=True)]


def row_of(row: Sequence[Any], text: str = "", signal: str | None = None) -> SampleRow:
    """A row of `COLUMNS` as a record."""
    _, *plain, keep, prompt, response, tree = row
    return SampleRow(
        **dict(zip(_PLAIN, plain, strict=True)),
        keep=bool(keep),
        prompt=excerpt(prompt, text),
        response=excerpt(response, text),
        parts={part.name: part.value for part in parts_of(tree)},
        signal=signal,
    )


def excerpt(whole: str, text: str = "") -> Excerpt:
    """The beginning of a text, or the part around what was searched for."""
    # Folding can change a text's length, so the hit is looked for in the text as it is shown.
    hit = re.search(re.escape(text), whole, re.IGNORECASE) if text else None
    if hit is None:
        return Excerpt(whole[:EXCERPT], 0, len(whole))
    start = max(0, hit.start() - LEAD) if hit.end() > EXCERPT else 0
    shown = whole[start : start + EXCERPT]
    match = (hit.start() - start, min(hit.end() - start, len(shown)))
    return Excerpt(shown, start, len(whole), match)


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


class Searched(Struct, frozen=True):
    """How much of the run an answer covers."""

    samples: int
    of: int
    texts: float
    """Share of the samples' texts that was looked at, 0 to 1."""
    complete: bool
    line: str
    """Empty where it is complete."""


class SearchPage(Struct, frozen=True):
    """One page of a search; `next` goes into `after`."""

    samples: list[SampleRow]
    count: int
    next: str | None
    searched: Searched


class Numbers(Struct, frozen=True):
    """The range of a column and how often it has a value."""

    low: float | None
    high: float | None
    count: int
    bins: list[int]
    """How many lie in each of equal parts of the range."""


class Facets(Struct, frozen=True):
    """What samples can be filtered by, with how many have each word."""

    splits: dict[str, int]
    roles: dict[str, int]
    statuses: dict[str, int]
    finishes: dict[str, int]
    signals: dict[str, int]
    kept: int
    step: Numbers
    reward: Numbers
    length: Numbers
    advantage: Numbers
    parts: dict[str, Numbers]
    index: Progress


BINS = 24


def search(indexer: Indexer, folder: Path, question: Question) -> SearchPage:
    with open_run(folder) as run:
        if question.is_plain:
            indexer.want(folder)
            return _plain(run, question)
        index = _index(indexer, folder)
        only = _numbers_of(run, question.task) if question.task else None
        found = index.search(
            question.filter,
            question.order,
            text=question.text,
            scope=question.scope,
            only=only,
            after=_position(question.after),
            limit=question.limit,
        )
        rows = rows_by_number(run, found.n, question.text, found.signals)
        _, total = counts(run)
    after = cursor(found.values[-1], found.n[-1]) if found.has_more else None
    covered = _searched(found.rows, total, found.text_share, index.progress.problem)
    return SearchPage(rows, found.total, after, covered)


def facets(indexer: Indexer, folder: Path) -> Facets:
    """What the samples that are indexed by now can be filtered by."""
    index = _index(indexer, folder)
    rows = index.snapshot()
    return Facets(
        splits=_words(rows, "split"),
        roles=_words(rows, "role"),
        statuses=_words(rows, "status"),
        finishes=_words(rows, "finish"),
        signals=_words(rows, "signal"),
        kept=int(np.count_nonzero(rows.column("keep"))),
        step=numbers(shown_steps(rows)),
        reward=numbers(rows.column("reward")),
        length=numbers(rows.column("length")),
        advantage=numbers(rows.column("advantage")),
        parts={name: numbers(rows.part(name)) for name in rows.words["part"]},
        index=index.progress,
    )


def cursor(value: float | None, n: int) -> str:
    """The place of a row in an order, as text for the next request."""
    return f"{'' if value is None else repr(value)}~{n}"


def numbers(values: Array) -> Numbers:
    """Range and histogram of a column; missing values are left out."""
    present = values[~np.isnan(values)] if values.dtype.kind == "f" else values
    if not len(present):
        return Numbers(None, None, 0, [])
    low, high = float(present.min()), float(present.max())
    if not math.isfinite(high - low) or high == low:
        return Numbers(low, high, len(present), [len(present)])
    # Not np.histogram, which takes ten times as long over a million values.
    places = ((present - low) * (BINS / (high - low))).astype(np.int64)
    bins = np.bincount(np.minimum(places, BINS - 1), minlength=BINS)
    return Numbers(low, high, len(present), bins.tolist())


def _index(indexer: Indexer, folder: Path) -> RunIndex:
    index = indexer.want(folder)
    indexer.wait(index, WAIT_S if index.progress.rows else FIRST_WAIT_S)
    return index


def _plain(run: RunReader, question: Question) -> SearchPage:
    """The newest (or oldest) samples, from the store itself."""
    position = _position(question.after)
    down = question.order.descending
    where = "" if position is None else f"WHERE rowid {'<' if down else '>'} {position.n}"
    query = (
        f"SELECT {COLUMNS} FROM samples {where} ORDER BY rowid {'DESC' if down else 'ASC'} LIMIT ?"
    )
    rows = list(run.query(query, (question.limit + 1,)))
    shown = rows[: question.limit]
    _, total = counts(run)
    after = cursor(float(shown[-1][0]), shown[-1][0]) if len(rows) > question.limit else None
    whole = Searched(total, total, 1.0, complete=True, line="")
    return SearchPage(named(run, [row_of(row) for row in shown]), total, after, whole)


def _numbers_of(run: RunReader, task: str) -> list[int]:
    return [row[0] for row in run.query(f"SELECT rowid FROM samples WHERE {OF_TASK}", (task,))]


def _position(text: str) -> Position | None:
    if not text:
        return None
    value, mark, n = text.partition("~")
    try:
        position = Position(float(value) if value else None, int(n))
    except ValueError:
        position = None
    if (
        not mark
        or position is None
        or (position.value is not None and position.value != position.value)
    ):
        raise UserError(f"after is '{text}'; expected the 'next' of an answer before.")
    return position


def _searched(rows: int, total: int, texts: float, problem: str) -> Searched:
    behind = max(total - rows, 0)
    lines = [f"the search index cannot go on: {problem}"] if problem else []
    if behind:
        lines.append(f"the search index has {rows} of {total} samples so far, oldest first")
    if texts < 1.0:
        lines.append(f"{texts:.0%} of the texts were searched, newest first; ask again for more")
    return Searched(rows, max(total, rows), texts, complete=not lines, line="; ".join(lines))


def _words(rows: Snapshot, kind: str) -> dict[str, int]:
    words = rows.words[kind]
    found = np.bincount(rows.column(kind), minlength=len(words))
    return {word: int(found[code]) for code, word in enumerate(words)}
