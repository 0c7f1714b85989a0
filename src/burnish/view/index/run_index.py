"""The index of one run in memory, kept in step with `run.db` by whoever calls `advance`.

index = RunIndex(folder)
while index.advance(): ...
index.search(Filter(status=("ok",)), text="42")
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from burnish.errors import BurnishError, StoreError
from burnish.store.durable import is_held
from burnish.store.reader import LOCK
from burnish.view.index.columns import (
    Columns,
    Filter,
    Flags,
    Position,
    Sample,
    Snapshot,
    StoredChunk,
    chosen,
    newest,
    page,
    read_batch,
    read_chunk,
)
from burnish.view.index.index_file import ChunkSpan, IndexFile, Scope, TextHits, is_there
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

        def batch(after: int) -> list[Sample]:
            with open_run(self.folder, READ_S) as run:
                return read_batch(run, after)

        file = self._state.file
        if file is None:
            self._open()
            return True
        chunk = read_chunk(batch, self._columns, self._behind)
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
        key = (state.generation, text, scope)
        with self._scanning:
            hits = self._texts.setdefault(key, TextHits(text, scope))
            self._texts.move_to_end(key)
            while len(self._texts) > REMEMBERED:
                self._texts.popitem(last=False)
            try:
                hits.look(state.file, state.rows, state.spans, SCAN_S)
            except StoreError:
                if state is self._state:
                    raise
                # Chunks were merged or thrown away while they were read.
                return np.zeros(state.rows.rows, np.bool_), 0.0, state.rows
            return hits.mask[: state.rows.rows].copy(), hits.share, state.rows

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


ROWS = 3_000_000
"""Indexed samples in memory, over all runs; the run that was not asked for longest goes."""
REST = 4.0
"""Seconds of rest for each second of work on a run that is being written."""
RETRY_S = 5.0
"""A run that could not be read is left alone so long."""


class Indexer:
    """Indexes by folder, and one thread that brings them up to date in turn."""

    def __init__(self) -> None:
        self._indexes: OrderedDict[Path, RunIndex] = OrderedDict()
        self._wanted: OrderedDict[Path, None] = OrderedDict()
        self._failed_at: dict[Path, float] = {}
        self._state = threading.Condition()
        """Guards the three above; notified whenever an index moved."""
        self._is_over = False
        self._thread: threading.Thread | None = None

    def want(self, folder: Path) -> RunIndex:
        """The index of a run, as far as it is; asks for it to be brought up to date."""
        with self._state:
            index = self._indexes.setdefault(folder, RunIndex(folder))
            self._indexes.move_to_end(folder)
            if time.monotonic() - self._failed_at.get(folder, -RETRY_S) >= RETRY_S:
                self._wanted[folder] = None
            if self._thread is None and not self._is_over:
                self._thread = threading.Thread(target=self._work, name="index", daemon=True)
                self._thread.start()
            self._state.notify_all()
            return index

    def wait(self, index: RunIndex, seconds: float) -> bool:
        """Wait until the index has all that is stored; False where it takes longer."""
        with self._state:
            return self._state.wait_for(
                lambda: index.folder not in self._wanted or self._is_over, seconds
            )

    def close(self) -> None:
        """Stop after the chunk that is being made."""
        with self._state:
            self._is_over = True
            self._state.notify_all()
        if self._thread is not None:
            self._thread.join(timeout=5.0)

    def _work(self) -> None:
        while True:
            with self._state:
                self._state.wait_for(lambda: self._wanted or self._is_over)
                if self._is_over:
                    return
                folder = next(iter(self._wanted))
            start = time.monotonic()
            is_behind = self._advance(self._indexes[folder])
            with self._state:
                if not is_behind:
                    self._wanted.pop(folder, None)
                elif folder in self._wanted:
                    self._wanted.move_to_end(folder)
                # Where there are too many rows, those that were not asked for longest go.
                rows = {folder: index.progress.rows for folder, index in self._indexes.items()}
                for old in list(self._indexes)[:-1]:
                    if sum(rows.values()) > ROWS and old not in self._wanted:
                        del self._indexes[old], rows[old]
                self._state.notify_all()
                if is_behind and is_held(folder / LOCK):
                    rest = min(REST * (time.monotonic() - start), 10.0)
                    self._state.wait_for(lambda: self._is_over, rest)

    def _advance(self, index: RunIndex) -> bool:
        """One chunk more; False where the index has caught up or the run cannot be read."""
        try:
            index.refresh()
            if index.progress.ready:
                return False
            index.advance()
        # Boundary: the thread must outlive whatever a damaged run or a full disk does.
        except (BurnishError, sqlite3.Error, OSError, ArithmeticError, ValueError, TypeError) as e:
            index.problem = str(e) or type(e).__name__
            self._failed_at[index.folder] = time.monotonic()
            return False
        index.problem = ""
        return True
