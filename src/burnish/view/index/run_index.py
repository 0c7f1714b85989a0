"""The index of one run in memory, kept in step with `run.db` by whoever calls `advance`.

index = RunIndex(folder)
while index.advance(): ...
index.search(Filter(status=("ok",)), text="42")
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from burnish.errors import StoreError
from burnish.view.index.build import Sample, StoredChunk, newest, read_batch, read_chunk
from burnish.view.index.columns import (
    Columns,
    Filter,
    Flags,
    Position,
    Snapshot,
    chosen,
    page,
)
from burnish.view.index.index_file import IndexFile, is_there
from burnish.view.index.text import ChunkSpan, Scope, TextHits
from burnish.view.pages.runs import open_run

SCAN_S = 0.7
"""How long one request scans texts; what is left is scanned by the next."""
REMEMBERED = 8
"""Texts whose hits are kept, the most recently asked for."""
SMALL = 1024
"""Rows of a chunk that is worth merging with its neighbours."""
TAIL = 64
"""Small chunks at the end of an index that are made one."""
READ_S = 10.0
"""Deadline of one batch of the background reader."""


class Progress(Struct, frozen=True):
    """How far the index is."""

    rows: int
    total: int
    ready: bool
    problem: str = ""


class SortOrder(NamedTuple):
    """By what the rows are sorted: a column, or `part` for the part of the filter."""

    by: str = "step"
    descending: bool = True


NEWEST = SortOrder()


class Found(NamedTuple):
    """One page of a search."""

    n: list[int]
    """Rowids in `run.db`, in the order asked for."""
    values: list[float | None]
    """What they are sorted by."""
    signals: list[str]
    total: int
    """How many fit, over all pages."""
    has_more: bool
    rows: int
    """Samples that were indexed when the search was made."""
    text_share: float
    """How much of their texts was looked at, 0 to 1."""


class _State(NamedTuple):
    """What a search looks at; replaced as a whole, so that no search sees half a change."""

    generation: int
    file: IndexFile | None
    rows: Snapshot
    spans: tuple[ChunkSpan, ...]


class RunIndex:
    """One run's index. `advance` and `refresh` are called by one thread, all else by any."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problem = ""
        self._columns = Columns()
        self._state = _State(0, None, self._columns.snapshot(), ())
        self._behind = 0
        self._last_id = ""
        self._total = 0
        self._is_ready = False
        self._texts: OrderedDict[tuple[int, str, Scope], TextHits] = OrderedDict()
        self._scanning = threading.Lock()
        """Held while the hits of a text grow: two threads would do the same work twice."""

    @property
    def progress(self) -> Progress:
        """How far it is; `total` as of the last look at the run."""
        rows = self._state.rows.rows
        return Progress(rows, max(self._total, rows), self._is_ready, self.problem)

    def refresh(self) -> None:
        """Look whether the run has grown, or is another one under the same name by now."""
        with open_run(self.folder, READ_S) as run:
            end = newest(run)
            if not is_there(run, self._behind, self._last_id):
                self._begin_again(discard=True)
        self._total = self._state.rows.rows + max(end - self._behind, 0)
        self._is_ready = self._state.file is not None and end <= self._behind

    def advance(self) -> bool:
        """Index one more chunk; False where the run holds nothing new."""
        file = self._state.file
        if file is None:
            self._open()
            return True
        chunk = read_chunk(self._batch, self._columns, self._behind)
        if chunk is None:
            return False
        stored = file.add(chunk, self._columns.words(), behind=self._behind)
        if stored is None:
            self._begin_again()  # another viewer wrote first: take what it made
        else:
            self._take(file, [stored])
            self._behind, self._last_id = int(chunk.rows["n"][-1]), chunk.last_id
            self._tidy(file)
        return True

    def snapshot(self) -> Snapshot:
        """The rows that are indexed by now."""
        return self._state.rows

    def search(
        self,
        wanted: Filter,
        order: SortOrder = NEWEST,
        *,
        text: str = "",
        scope: Scope = Scope.ALL,
        only: Sequence[int] | None = None,
        after: Position | None = None,
        limit: int = 50,
    ) -> Found:
        """One page of the samples that fit, with their exact count; `only` names rowids."""
        hits, share, rows = self._hits(text, scope)
        mask = chosen(rows, wanted)
        if only is not None:
            mask &= np.isin(rows.column("n"), only)
        if hits is not None:
            mask &= hits
        values = _values(rows, wanted, order)
        n = rows.column("n")
        is_down = order.descending
        taken = page(values, n, mask, after=after, limit=limit + 1, descending=is_down)
        shown = taken[:limit]
        signals = rows.words["signal"]
        return Found(
            n=[int(n[i]) for i in shown],
            values=[None if np.isnan(values[i]) else float(values[i]) for i in shown],
            signals=[signals[rows.column("signal")[i]] for i in shown],
            total=int(np.count_nonzero(mask)),
            has_more=len(taken) > limit,
            rows=rows.rows,
            text_share=share,
        )

    def _hits(self, text: str, scope: Scope) -> tuple[Flags | None, float, Snapshot]:
        """The rows that hold a text, how much was looked at, and the rows it is about."""
        state = self._state
        if not text:
            return None, 1.0, state.rows
        if state.file is None:
            return np.zeros(state.rows.rows, np.bool_), 0.0, state.rows
        with self._scanning:
            try:
                hits = self._look(text, scope, state)
            except StoreError:
                if state is self._state:
                    raise
                # Chunks were merged or thrown away while they were read.
                return np.zeros(state.rows.rows, np.bool_), 0.0, state.rows
            return hits.mask[: state.rows.rows], hits.share, state.rows

    def _look(self, text: str, scope: Scope, state: _State) -> TextHits:
        key = (state.generation, text, scope)
        hits = self._texts.setdefault(key, TextHits(text, scope))
        self._texts.move_to_end(key)
        while len(self._texts) > REMEMBERED:
            self._texts.popitem(last=False)
        if state.file is not None:
            hits.look(state.file, state.rows, state.spans, SCAN_S)
        return hits

    def _open(self) -> None:
        with open_run(self.folder, READ_S) as run:
            file = IndexFile.open(run)
        for kind, words in file.words().items():
            for word in words:
                self._columns.code(kind, word)
        behind = file.last()
        self._columns.reserve(file.count())
        self._take(file, file.chunks())
        self._behind, self._last_id = behind

    def _begin_again(self, *, discard: bool = False) -> None:
        """Begin again from the file, or from nothing."""
        if discard and self._state.file is not None:
            self._state.file.discard()
        self._columns = Columns()
        self._state = _State(self._state.generation + 1, None, self._columns.snapshot(), ())
        self._is_ready = False
        self._behind, self._last_id = 0, ""

    def _take(self, file: IndexFile, chunks: Iterable[StoredChunk]) -> None:
        spans = list(self._state.spans)
        for stored in chunks:
            self._columns.append(stored.rows, stored.parts)
            spans.append(_span(stored))
        rows = self._columns.snapshot()
        self._state = _State(self._state.generation, file, rows, tuple(spans))

    def _tidy(self, file: IndexFile) -> None:
        """Make one chunk of many small ones at the end; the rows stay what they are."""
        spans = self._state.spans
        large = (
            i for i in range(len(spans), 0, -1) if spans[i - 1].end - spans[i - 1].first >= SMALL
        )
        start = next(large, 0)
        if len(spans) - start < TAIL:
            return
        merged = file.merge([span.number for span in spans[start:]])
        if merged is not None:
            self._state = self._state._replace(spans=(*spans[:start], _span(merged)))

    def _batch(self, after: int) -> list[Sample]:
        with open_run(self.folder, READ_S) as run:
            return read_batch(run, after)


def _span(stored: StoredChunk) -> ChunkSpan:
    end = stored.first_row + len(stored.rows)
    # A copy: a view would keep the whole chunk in memory.
    return ChunkSpan(stored.number, stored.first_row, end, stored.rows["prompt"].copy())


def _values(
    rows: Snapshot, wanted: Filter, order: SortOrder
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    if order.by == "step":
        values = rows.column("n")
    elif order.by == "part":
        if wanted.part not in rows.words["part"]:
            return np.full(rows.rows, np.nan)
        values = rows.part(wanted.part)
    else:
        values = rows.column(order.by)
    return values.astype(np.float64, copy=False)
