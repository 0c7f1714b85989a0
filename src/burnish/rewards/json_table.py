"""A SQLite table from keys to JSON values, shared by threads and processes.

table = JsonTable(path, ("replies", "reply"), Reply, "the judge's cache {path} cannot be {verb}: {error}")
table.write({key: reply})
table.read([key])               # {key: reply}; a key that is not there is left out
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from burnish.errors import StoreError

T = TypeVar("T")


class JsonTable(Generic[T]):
    """One table of one file; `problem` is the message of its `StoreError`."""

    def __init__(self, path: Path, names: tuple[str, str], kind: type[T], problem: str) -> None:
        """`names` are those of the table and of the column with the values."""
        self.path, self._kind, self._problem = path, kind, problem
        self._table, self._value = names
        self._lock = threading.Lock()  # invariant: one statement at a time on the connection
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, check_same_thread=False, timeout=30)
            with self._db as db:
                db.execute("PRAGMA journal_mode=WAL")
                # A power cut may lose the last rows, never the file.
                db.execute("PRAGMA synchronous=NORMAL")
                db.execute(
                    f"CREATE TABLE IF NOT EXISTS {self._table} "
                    f"(key TEXT PRIMARY KEY, {self._value} TEXT NOT NULL)"
                )
        except (sqlite3.Error, OSError) as error:
            raise self._error("opened", error) from error

    def read(self, keys: Iterable[str]) -> dict[str, T]:
        """The values of those keys that are there."""
        wanted = list(keys)
        marks = ",".join("?" * len(wanted))
        query = f"SELECT key, {self._value} FROM {self._table} WHERE key IN ({marks})"
        try:
            with self._lock:
                rows = self._db.execute(query, wanted).fetchall()
            return {key: msgspec.json.decode(text, type=self._kind) for key, text in rows}
        except (sqlite3.Error, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise self._error("read", error) from error

    def write(self, values: Mapping[str, T]) -> None:
        """Add or replace values."""
        rows = [(key, msgspec.json.encode(value).decode()) for key, value in values.items()]
        self._change(f"INSERT OR REPLACE INTO {self._table} VALUES (?, ?)", rows)

    def keep_only(self, prefix: str) -> None:
        """Delete the rows whose key does not begin with the prefix."""
        query = f"DELETE FROM {self._table} WHERE substr(key, 1, ?) != ?"
        self._change(query, [(len(prefix), prefix)])

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    def _change(self, query: str, rows: list[tuple[Any, ...]]) -> None:
        try:
            with self._lock, self._db as db:
                db.executemany(query, rows)
        except sqlite3.Error as error:
            raise self._error("written", error) from error

    def _error(self, verb: str, error: Exception) -> StoreError:
        return StoreError(self._problem.format(path=self.path, verb=verb, error=error))
