"""The background thread that keeps the indexes of looked-at runs up to date.

    indexer = Indexer()
    index = indexer.want(folder)      # begins or goes on; returns at once
    indexer.wait(index, seconds=0.5)  # until it has caught up, or so long

It works only on request: a viewer without requests reads nothing. A run that
is being written is indexed at a fifth of the thread's time, so that training keeps its cores.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import OrderedDict
from pathlib import Path

from burnish.errors import BurnishError
from burnish.store.lock import is_held
from burnish.store.reader import LOCK
from burnish.view.index.run_index import RunIndex

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
        while (folder := self._next()) is not None:
            start = time.monotonic()
            index = self._indexes[folder]
            is_behind = self._advance(index)
            with self._state:
                if not is_behind:
                    self._wanted.pop(folder, None)
                elif folder in self._wanted:
                    self._wanted.move_to_end(folder)
                self._forget()
                self._state.notify_all()
            if is_behind and is_held(folder / LOCK):
                self._rest(REST * (time.monotonic() - start))

    def _next(self) -> Path | None:
        with self._state:
            self._state.wait_for(lambda: self._wanted or self._is_over)
            return None if self._is_over else next(iter(self._wanted))

    def _advance(self, index: RunIndex) -> bool:
        """One chunk more; False where the index has caught up or the run cannot be read."""
        try:
            index.refresh()
            if index.progress.ready:
                return False
            index.advance()
        # Boundary: the thread must outlive whatever a damaged run or a full disk does.
        except (
            BurnishError,
            sqlite3.Error,
            OSError,
            ArithmeticError,
            ValueError,
            TypeError,
        ) as error:
            index.problem = str(error) or type(error).__name__
            self._failed_at[index.folder] = time.monotonic()
            return False
        index.problem = ""
        return True

    def _rest(self, seconds: float) -> None:
        with self._state:
            self._state.wait_for(lambda: self._is_over, min(seconds, 10.0))

    def _forget(self) -> None:
        """Drop the indexes that were not asked for longest, where there are too many rows."""
        rows = {folder: index.progress.rows for folder, index in self._indexes.items()}
        for folder in list(self._indexes)[:-1]:
            if sum(rows.values()) <= ROWS:
                return
            if folder not in self._wanted:
                del self._indexes[folder]
                rows.pop(folder)
