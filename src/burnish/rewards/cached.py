"""Scores that are not asked for twice: in memory, or in a SQLite file that outlives the run."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from burnish.errors import StoreError
from burnish.records import Response, Reward, Status, Task
from burnish.rewards.combine import Combination
from burnish.rewards.scorer import Scope, Scorer, checked, fingerprint
from burnish.seeds import digest

logger = logging.getLogger(__name__)

KEPT = frozenset({Status.OK, Status.ABSTAIN})
"""What says something about the response; the rest says something about the moment."""


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
        self._memory: dict[str, Reward] = {}
        self._table = None if path is None else RewardTable(Path(path))

    @property
    def fingerprint(self) -> str:
        """A cache changes no score: it is the scorer's own."""
        return self._identity

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        keys = self._keys(task, responses)
        found = {key: self._memory[key] for key in keys if key in self._memory}
        if self._table:
            found = self._table.read(keys)
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
        if not self._table:
            self._memory |= rewards
            return
        try:
            self._table.write(rewards)
        except StoreError as error:
            if not self._told:
                logger.warning("%s Scores go on without it.", error)
            self._told = True

    def _keys(self, task: Task, responses: Sequence[Response]) -> list[str]:
        content = msgspec.json.encode((task.id, task.messages, task.fields), order="deterministic")
        texts = [f"{r.finish.value} {r.tokens} {r.text}" for r in responses]
        each = [text.encode("utf-8", "surrogatepass") for text in texts]
        if self.scope is Scope.POINT:
            return [digest(self._identity, content, text) for text in each]
        together = digest(self._identity, content, *each)
        return [f"{together}/{position}" for position in range(len(each))]


class RewardTable:
    """Rewards by key in one file, shared by threads and processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()  # invariant: one statement at a time on the connection
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, check_same_thread=False, timeout=30)
            with self._db as db:
                db.execute("PRAGMA journal_mode=WAL")
                # A power cut may lose the last rows, never the file.
                db.execute("PRAGMA synchronous=NORMAL")
                db.execute(
                    "CREATE TABLE IF NOT EXISTS rewards "
                    "(key TEXT PRIMARY KEY, reward TEXT NOT NULL)"
                )
        except (sqlite3.Error, OSError) as error:
            raise self._error("opened", error) from error

    def read(self, keys: Sequence[str]) -> dict[str, Reward]:
        marks = ",".join("?" * len(keys))
        query = f"SELECT key, reward FROM rewards WHERE key IN ({marks})"
        try:
            with self._lock:
                rows = self._db.execute(query, keys).fetchall()
            return {key: msgspec.json.decode(text, type=Reward) for key, text in rows}
        except (sqlite3.Error, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise self._error("read", error) from error

    def write(self, rewards: Mapping[str, Reward]) -> None:
        rows = [(key, msgspec.json.encode(reward).decode()) for key, reward in rewards.items()]
        try:
            with self._lock, self._db as db:
                db.executemany("INSERT OR REPLACE INTO rewards VALUES (?, ?)", rows)
        except sqlite3.Error as error:
            raise self._error("written", error) from error

    def _error(self, verb: str, error: Exception) -> StoreError:
        return StoreError(f"the reward cache {self.path} cannot be {verb}: {error}.")
