"""Replies that are not paid for twice, by what was asked: model, messages and sampling.

    cache = ReplyCache("judge_cache.sqlite")    # outlives the run; ReplyCache() is in memory
    judge = JudgeModel(lm, cache=cache)

Only replies are kept, never failures and never verdicts: a reader that has changed reads the same
words anew.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from pathlib import Path

import msgspec

from burnish.errors import StoreError
from burnish.rewards.judges.questions import Reply

logger = logging.getLogger(__name__)

MOST_IN_MEMORY = 20_000
"""Replies that a cache in memory holds; the oldest goes first."""


class ReplyCache:
    """Replies by key: in a SQLite file that several processes may share, or in memory."""

    def __init__(self, path: str | Path | None = None, *, most: int = MOST_IN_MEMORY) -> None:
        self.path = None if path is None else Path(path).expanduser()
        self._most = most
        self._memory: dict[str, Reply] = {}
        self._lock = threading.Lock()  # invariant: one statement at a time on the connection
        self._told = False
        self._connection = None if self.path is None else _open(self.path)

    def read(self, key: str) -> Reply | None:
        """The reply to the same question, if one is kept."""
        if self._connection is None:
            return self._memory.get(key)
        try:
            with self._lock:
                query = "SELECT reply FROM replies WHERE key = ?"
                row = self._connection.execute(query, (key,)).fetchone()
            return None if row is None else msgspec.json.decode(row[0], type=Reply)
        except (sqlite3.Error, msgspec.MsgspecError) as error:
            raise StoreError(f"the judge's cache {self.path} cannot be read: {error}") from error

    def write(self, key: str, reply: Reply) -> None:
        """Keep a reply; where the file cannot be written the judge goes on without, and says so.

        It is not tried again: a file that another process locks would hold up every reply.
        """
        if self._told:
            return
        if self._connection is None:
            self._memory[key] = reply
            if len(self._memory) > self._most:
                del self._memory[next(iter(self._memory))]
            return
        try:
            with self._lock, self._connection as db:
                row = (key, msgspec.json.encode(reply).decode())
                db.execute("INSERT OR REPLACE INTO replies VALUES (?, ?)", row)
        except sqlite3.Error as error:
            self._told = True
            logger.warning("The judge's cache %s is not written any more: %s.", self.path, error)

    def close(self) -> None:
        """Close the file; a cache in memory has nothing to close."""
        if self._connection is not None:
            self._connection.close()


def _open(path: Path) -> sqlite3.Connection:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(path, check_same_thread=False, timeout=30)
        with connection as db:
            db.execute("PRAGMA journal_mode=WAL")
            # A power cut may lose the last replies, never the file; they are asked for again.
            db.execute("PRAGMA synchronous=NORMAL")
            db.execute(
                "CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, reply TEXT NOT NULL)"
            )
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"the judge's cache {path} cannot be opened: {error}") from error
    return connection
