"""Which runs may be looked at: names from a listing, never a path from a request.

runs = Runs(folder=Path("runs"))
runs.find("grpo-1f3a")       # the folder, or NotFound
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from burnish.errors import StoreError, UserError, did_you_mean
from burnish.store import manifest
from burnish.store.database import Database
from burnish.store.reader import DATABASE, RunReader

FRESH_S = 1.0
"""How long a listing of the folder is believed."""
SKIPPED = 50
"""Folders named as skipped; more of them are only counted."""


class NotFound(UserError):
    """What was asked for is not there."""


class Skipped(Struct, frozen=True):
    """A folder that is no readable run, and why."""

    name: str
    line: str


class Listing(NamedTuple):
    """The runs by key, and what else lay beside them."""

    folders: dict[str, Path]
    skipped: list[Skipped]
    skipped_total: int


class Runs:
    """The runs of one folder, or a chosen few."""

    def __init__(self, folder: Path | None = None, chosen: Sequence[Path] = ()) -> None:
        self.folder = folder
        self.chosen = list(chosen)
        self._listing: Listing | None = None
        self._listed_at = 0.0
        self._lock = threading.Lock()

    def listing(self) -> Listing:
        """What is there now, at most a second old."""
        with self._lock:
            age = time.monotonic() - self._listed_at
            if self._listing is None or age > FRESH_S:
                self._listing = self._look()
                self._listed_at = time.monotonic()
            return self._listing

    def find(self, key: str) -> Path:
        """The folder of a run by its key."""
        folders = self.listing().folders
        if key not in folders:
            hint = did_you_mean(key, folders)
            raise NotFound(f"no run '{key}' here; the list of runs has {len(folders)}.{hint}")
        return folders[key]

    def _look(self) -> Listing:
        if self.chosen:
            return Listing(keyed(self.chosen), [], 0)
        if self.folder is None or not self.folder.is_dir():
            return Listing({}, [], 0)
        try:
            entries = sorted(path for path in self.folder.iterdir() if path.is_dir())
        except OSError as error:
            raise StoreError(f"{self.folder}: cannot list the runs: {error.strerror}.") from error
        runs, skipped = [], []
        for entry in entries:
            line = _why_not(entry)
            if line is None:
                runs.append(entry)
            elif not entry.name.startswith("."):
                skipped.append(Skipped(readable(entry.name), line))
        return Listing(keyed(runs), skipped[:SKIPPED], len(skipped))


def readable(name: str) -> str:
    """A file's name as valid Unicode; bytes that are none become question marks."""
    return name.encode("utf-8", "replace").decode()


def keyed(folders: Sequence[Path]) -> dict[str, Path]:
    """Folders under their names; a namesake from another place gets `~2`."""
    keyed: dict[str, Path] = {}
    for folder in folders:
        name = readable(folder.resolve().name)
        key, count = name, 1
        while key in keyed:
            count += 1
            key = f"{name}~{count}"
        keyed[key] = folder
    return keyed


def _why_not(folder: Path) -> str | None:
    """One line why a folder is not a run; None where it is one, damaged or not."""
    has_database = (folder / DATABASE).is_file()
    if (folder / manifest.FILE).is_file():
        if has_database or manifest.is_ours(folder):
            return None
        return f"not a run: its {manifest.FILE} was not written by burnish"
    if has_database:
        return f"half made: it has {DATABASE} and no {manifest.FILE} yet"
    return "not a run: it has neither of a run's files"


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
        """As in `Database`; a query stopped by the deadline raises `TookTooLong`."""
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
