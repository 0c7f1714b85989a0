"""A run opened only to read, with a deadline on everything that is asked of it.

    with open_run(folder, seconds=2.0) as run:
        run.steps()

Each request opens its own connection and closes it: no read transaction outlives an answer, so the
writer's log can be folded in at any time, and a viewer left open overnight holds nothing.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from burnish.errors import StoreError
from burnish.store import manifest
from burnish.store.database import Database
from burnish.store.reader import DATABASE, RunReader

QUERY_S = 3.0
"""How long the queries of one request may take together."""
INSTRUCTIONS = 20_000
"""Virtual machine steps of SQLite between two looks at the clock: well under a millisecond."""
CACHE_KIB = 4096


class TookTooLong(StoreError):
    """A question was given up at its deadline."""


class TimedDatabase(Database):
    """A read-only connection whose queries stop at a deadline."""

    def __init__(self, path: Path, seconds: float) -> None:
        super().__init__(path, read_only=True)
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        self._connection.set_progress_handler(self._is_late, INSTRUCTIONS)

    @contextlib.contextmanager
    def failing(self, doing: str) -> Iterator[None]:
        """As in `Database`; a query stopped by the deadline is told apart."""
        try:
            with super().failing(doing):
                yield
        except StoreError as error:
            cause = error.__cause__
            if isinstance(cause, sqlite3.Error) and _name(cause) == "SQLITE_INTERRUPT":
                raise TookTooLong(
                    f"{self.path.parent.name}: given up after {self._seconds:g} s of reading; ask "
                    "for less, or wait for the search index."
                ) from error
            raise

    def _is_late(self) -> bool:
        return time.monotonic() > self._deadline


@contextlib.contextmanager
def open_run(folder: Path, seconds: float = QUERY_S) -> Iterator[RunReader]:
    """The run in a folder, whose queries may take so many seconds together."""
    about = manifest.read(folder)
    path = folder / DATABASE
    if not path.is_file():
        raise StoreError(f"{folder} has no {DATABASE}; the run's samples are gone.")
    database = TimedDatabase(path, seconds)
    try:
        yield RunReader(folder, database, about)
    finally:
        database.close()


def _name(error: sqlite3.Error) -> str:
    return getattr(error, "sqlite_errorname", None) or ""
