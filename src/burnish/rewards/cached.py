"""Scores that are not asked for twice: in memory, or in a SQLite file that outlives the run.

table = JsonTable(path, ("replies", "reply"), Reply, "the judge's cache {path} cannot be {verb}: {error}")
table.write({key: reply})       # shared by threads and processes
table.read([key])               # {key: reply}; a key that is not there is left out
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from burnish.errors import StoreError
from burnish.records import Response, Reward, Status, Task
from burnish.rewards.combine import Combination
from burnish.rewards.scorer import Scope, Scorer, checked, fingerprint
from burnish.seeds import digest

logger = logging.getLogger(__name__)

KEPT = frozenset({Status.OK, Status.ABSTAIN})
"""What says something about the response; the rest says something about the moment."""

PROBLEM = "the reward cache {path} cannot be {verb}: {error}."


class Cached(Combination):
    """A scorer whose answers are kept under its fingerprint, the task and the response's text.

    Finish and token count are part of the key, `Response.info` is not: do not cache a scorer that
    reads it. A scorer that compares responses is kept for the whole list that it saw.
    """

    def __init__(self, scorer: Scorer, path: str | Path | None = None) -> None:
        super().__init__(scorer.name, (scorer,), scorer.scope)
        self._identity = fingerprint(scorer)
        self.weight: float = getattr(scorer, "weight", 1.0)
        self.hits = 0
        self.misses = 0
        self._told = False
        self._kept: _Memory | JsonTable[Reward] = (
            _Memory()
            if path is None
            else JsonTable(Path(path), ("rewards", "reward"), Reward, PROBLEM)
        )

    @property
    def fingerprint(self) -> str:
        """A cache changes no score: it is the scorer's own."""
        return self._identity

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        keys = self._keys(task, responses)
        found = self._kept.read(keys)
        open_keys = [key for key in dict.fromkeys(keys) if key not in found]
        if open_keys and self.scope is not Scope.POINT:
            open_keys = keys
        self.misses += len(open_keys)
        self.hits += len(keys) - len(open_keys)
        if open_keys:
            asked = [responses[keys.index(key)] for key in open_keys]
            new = dict(zip(open_keys, await checked(self.children[0], task, asked), strict=True))
            self._keep({key: reward for key, reward in new.items() if reward.status in KEPT})
            found |= new
        return [found[key] for key in keys]

    def _keep(self, rewards: dict[str, Reward]) -> None:
        """Write; where that fails the scores are still good, and asked for again next time."""
        try:
            self._kept.write(rewards)
        except StoreError as error:
            if not self._told:
                logger.warning("%s Scores go on without it.", error)
            self._told = True

    def _keys(self, task: Task, responses: Sequence[Response]) -> list[str]:
        content = msgspec.json.encode((task.id, task.messages, task.fields), order="deterministic")
        each = [f"{r.finish.value} {r.tokens} {r.text}" for r in responses]
        if self.scope is Scope.POINT:
            return [digest(self._identity, content, _bytes(text)) for text in each]
        together = digest(self._identity, content, *map(_bytes, each))
        return [f"{together}/{position}" for position in range(len(each))]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


class _Memory:
    """A dictionary, read and written like a file."""

    def __init__(self) -> None:
        self.rewards: dict[str, Reward] = {}

    def read(self, keys: Sequence[str]) -> dict[str, Reward]:
        return {key: self.rewards[key] for key in keys if key in self.rewards}

    def write(self, rewards: dict[str, Reward]) -> None:
        self.rewards |= rewards


# --- the table


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
