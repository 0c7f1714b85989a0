"""The samples of a run as a table of SQLite: filtered, sorted, counted, and searched by text.

    index = RunIndex(folder)
    while index.advance(): ...
    index.search(Filter(status=("ok",)), text="42")

The table holds the columns of `run.db` that are filtered and sorted by, without the texts, so that
counts are exact and every order can be paged through. It stands in the cache folder, held by one
viewer; another one, or one that cannot write there, keeps it in memory. Texts are read from the run itself.

All samples of a step (or of an evaluation) are stored in one transaction and lie together, so a
group is whole when its step is, and a chunk ends where a step does.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from burnish.errors import BurnishError
from burnish.seeds import digest
from burnish.store.blobs import cache_folder
from burnish.view.pages.runs import open_run

CHUNK_ROWS = 8192
READ_S = 10.0
"""Deadline of reading one chunk."""
SCAN_S = 0.7
"""How long one request scans texts; what is left is scanned by the next."""
SCAN_ROWS = 1024
"""Rows scanned between two looks at the clock."""
VERSION = 1
"""Of the tables in the cache."""
KEPT = 32
"""Runs whose tables stay in the cache; the least recently written go."""
REMEMBERED = 8
"""Texts whose hits are kept, the most recently asked for."""


class Signal(StrEnum):
    """What a group of answers can teach."""

    MIXED = "mixed"
    """At least two of its rewards differ."""
    EQUAL = "equal"
    """It has two rewards or more, all the same."""
    NONE = "none"
    """It has fewer than two rewards: nothing to compare."""


def signal_of(rewards: Sequence[float | None]) -> Signal:
    """What a group with these rewards can teach; by their range, as training does."""
    values = [value for value in rewards if value is not None]
    if len(values) < 2:
        return Signal.NONE
    return Signal.MIXED if max(values) > min(values) else Signal.EQUAL


class Range(NamedTuple):
    """From `low` to `high`, both included; None is no limit."""

    low: float | None = None
    high: float | None = None


class Filter(NamedTuple):
    """Which samples are asked for; several words of one kind mean any of them."""

    split: tuple[str, ...] = ()
    role: tuple[str, ...] = ()
    status: tuple[str, ...] = ()
    finish: tuple[str, ...] = ()
    signal: tuple[str, ...] = ()
    task: tuple[str, ...] = ()
    keep: bool | None = None
    step: Range = Range()
    """As people count: training from 1, an evaluation by the steps before it."""
    reward: Range = Range()
    length: Range = Range()
    advantage: Range = Range()
    part: str = ""
    value: Range = Range()
    """Of the part."""


class Position(NamedTuple):
    """The last row of a page: its value in the order asked for (None where missing), and its n."""

    value: float | None
    n: int


class SortOrder(NamedTuple):
    """By what the rows are sorted: a column, or `part` for the part of the filter."""

    by: str = "step"
    descending: bool = True


NEWEST = SortOrder()


class Scope(StrEnum):
    """Where a text is looked for."""

    ALL = "all"
    """In prompts and answers."""
    ANSWERS = "response"
    """In answers."""
    PROMPTS = "prompt"
    """In prompts."""


class Progress(Struct, frozen=True):
    rows: int
    total: int
    ready: bool
    problem: str = ""


class Row(NamedTuple):
    n: int
    """Its rowid in `run.db`."""
    value: float | None
    """What it is sorted by."""
    signal: str


class Found(NamedTuple):
    rows: list[Row]
    """In the order asked for."""
    total: int
    """How many fit, over all pages."""
    has_more: bool
    samples: int
    """Samples that were indexed when the search was made."""
    text_share: float
    """How much of their texts was looked at, 0 to 1."""


_TABLES = """
CREATE TABLE IF NOT EXISTS rows (n INTEGER PRIMARY KEY, step INTEGER, split TEXT, task TEXT, role TEXT,
    status TEXT, finish TEXT, keep INTEGER, length INTEGER, reward REAL, advantage REAL, signal TEXT);
CREATE TABLE IF NOT EXISTS parts (name TEXT, row INTEGER, value REAL, PRIMARY KEY (name, row))
    WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS about (one INTEGER PRIMARY KEY, behind INTEGER, last_id TEXT, made TEXT,
    words BLOB);
CREATE TEMP TABLE hits (text TEXT, row INTEGER, PRIMARY KEY (text, row)) WITHOUT ROWID;
"""
_BLOCK = "CASE WHEN {0}.split LIKE 'eval:%' THEN {0}.split ELSE '' END"
"""With the step, what was stored in one transaction."""
_CHUNK_END = (
    "SELECT max(b.rowid) FROM samples a JOIN samples b ON b.step = a.step "
    f"AND {_BLOCK.format('b')} = {_BLOCK.format('a')} "
    "WHERE a.rowid = (SELECT max(rowid) FROM samples WHERE rowid <= ?)"
)
_ROWS = (
    "SELECT rowid, step + (split NOT LIKE 'eval:%'), split, task_id, role, status, finish, keep, "
    "response_tokens, reward, advantage, CASE WHEN count(reward) OVER same < 2 THEN 'none' "
    "WHEN max(reward) OVER same > min(reward) OVER same THEN 'mixed' ELSE 'equal' END "
    "FROM samples s WHERE rowid > ? AND rowid <= ? "
    f"WINDOW same AS (PARTITION BY step, {_BLOCK.format('s')}, group_key)"
)
_PARTS = (
    "SELECT json_extract(part.value, '$.name'), s.rowid, json_extract(part.value, '$.value') "
    "FROM samples s, json_each(iif(json_valid(reward_tree), reward_tree, '{}'), '$.parts') part "
    "WHERE s.rowid > ? AND s.rowid <= ? AND json_extract(part.value, '$.value') IS NOT NULL"
)
_ID = "SELECT id FROM samples WHERE rowid = ?"


class _Scan:
    """How far the texts were searched for one text: rowids after the first up to the second."""

    def __init__(self) -> None:
        self.end = 0
        self.left: list[tuple[int, int]] = []


class RunIndex:
    """One run's table. `advance` is called by one thread, all else by any."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problem = ""
        self.is_over = False
        self.thread = threading.Thread()
        self._lock = threading.Lock()
        """Guards the table and what is known of it."""
        self._behind, self._last_id, self._made, self._end = 0, "", "", -1
        self.words: Counter[tuple[str, str, str, str, str, int]] = Counter()
        """How many rows have each split, role, status, finish, signal and `keep`."""
        self._scans: OrderedDict[str, _Scan] = OrderedDict()
        self._table = self._opened()

    def _opened(self) -> sqlite3.Connection:
        """The table in the cache, with what it holds already; where that cannot be had, one in memory."""
        home = cache_folder() / "view"
        file = home / f"{digest('view', str(self.folder.resolve()))[:24]}-{VERSION}.db"
        try:
            home.mkdir(parents=True, exist_ok=True)
            written = sorted(home.glob("*.db"), key=lambda one: one.stat().st_mtime)
            for old in {*written[:-KEPT]} - {file}:
                old.unlink(missing_ok=True)
            table = sqlite3.connect(file, timeout=0.1, check_same_thread=False)
            table.execute("PRAGMA locking_mode = EXCLUSIVE")
            table.executescript(_TABLES)
            with table:  # takes the lock
                table.execute("INSERT OR IGNORE INTO about VALUES (1, 0, '', '', '[]')")
            query = "SELECT behind, last_id, made, words FROM about"
            ((self._behind, self._last_id, self._made, words),) = table.execute(query)
            self.words.update({tuple(key): n for key, n in msgspec.json.decode(words)})
            return table
        except (sqlite3.OperationalError, OSError):
            pass  # another viewer holds it, or nothing can be written there
        except sqlite3.DatabaseError:
            file.unlink(missing_ok=True)  # damaged
        table = sqlite3.connect(":memory:", check_same_thread=False)
        table.executescript(_TABLES)
        return table

    def _reset(self) -> None:
        for name in ("rows", "parts", "hits"):
            self._table.execute(f"DELETE FROM {name}")
        self._behind, self._end = 0, -1
        self.words.clear()
        self._scans.clear()

    @property
    def progress(self) -> Progress:
        """How far it is; `total` as of the last look at the run."""
        behind, end = self._behind, self._end
        return Progress(behind, max(end, behind), 0 <= end <= behind, self.problem)

    def advance(self) -> bool:
        """Take in one more chunk; False where the run holds nothing new."""
        with open_run(self.folder, READ_S) as run:
            same = run.about.created == self._made
            same = same and list(run.query(_ID, (self._behind,))) == [(self._last_id,)]
            if self._behind and not same:
                with self._lock, self._table:
                    self._reset()  # another run lies under the same name by now
            ((end,),) = run.query("SELECT coalesce(max(rowid), 0) FROM samples")
            chunk: list[tuple[list[Any], list[Any]]] = []
            last, last_id = self._behind, self._last_id
            if end > last:
                ((last,),) = run.query(_CHUNK_END, (last + CHUNK_ROWS,))
                ((last_id,),) = run.query(_ID, (last,))
                bounds = self._behind, last
                chunk = [(list(run.query(_ROWS, bounds)), list(run.query(_PARTS, bounds)))]
            self._made = run.about.created
        with self._lock, self._table:
            for rows, parts in chunk:
                marks = ", ".join("?" * len(rows[0]))
                self._table.executemany(f"INSERT INTO rows VALUES ({marks})", rows)
                self.words.update((row[2], *row[4:7], row[11], row[7]) for row in rows)
                self._table.executemany("INSERT OR REPLACE INTO parts VALUES (?, ?, ?)", parts)
                told = (last, last_id, self._made, msgspec.json.encode([*self.words.items()]))
                self._table.execute("REPLACE INTO about VALUES (1, ?, ?, ?, ?)", told)
            self._behind, self._last_id, self._end = last, last_id, end
        return bool(chunk)

    def catch_up(self) -> None:
        """Take in all that is stored; why it cannot go on stands in `problem`."""
        try:
            while not self.is_over and self.advance():
                pass
            self.problem = ""
        # Boundary: the thread must outlive whatever a damaged run does.
        except (BurnishError, sqlite3.Error, OSError, ValueError, TypeError) as error:
            self.problem = str(error) or type(error).__name__

    def query(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Rows of a query on the tables `rows` and `parts`."""
        with self._lock:
            return list(self._table.execute(sql, values))

    def search(
        self,
        wanted: Filter,
        order: SortOrder = NEWEST,
        *,
        text: str = "",
        scope: Scope = Scope.ALL,
        after: Position | None = None,
        limit: int = 50,
    ) -> Found:
        """One page of the samples that fit, with their exact count.

        Rows of one value come oldest first, or newest first where the order descends; rows without
        a value come last either way.
        """
        source, conditions, values = _conditions(wanted)
        share = 1.0
        key = {"step": "n", "part": "value" if wanted.part else "NULL"}.get(order.by, order.by)
        with self._lock:
            if text:
                name = f"{scope}: {text.casefold()}"
                share = self._look(name, text.casefold(), scope)
                conditions.append("n IN (SELECT row FROM hits WHERE text = ?)")
                values.append(name)
            query = f"SELECT count(*) FROM {source} WHERE {' AND '.join(conditions)}"
            ((total,),) = self._table.execute(query, values)
            sign, down = ("<", "DESC") if order.descending else (">", "ASC")
            if after is not None:  # IS: a missing value equals a missing one
                same, rest = f"{key} IS ? AND n {sign} ?", f"{key} IS NULL AND ? IS NOT NULL"
                conditions.append(f"({key} {sign} ? OR {same} OR {rest})")
                values += [after.value, *after, after.value]
            # Rows come in the order of `n` without sorting them.
            first = "" if key == "n" else f"{key} IS NULL, {key} {down}, "
            query = (
                f"SELECT n, {key}, signal FROM {source} WHERE {' AND '.join(conditions)} "
                f"ORDER BY {first}n {down} LIMIT ?"
            )
            rows = [Row(*row) for row in self._table.execute(query, [*values, limit + 1])]
            return Found(rows[:limit], total, len(rows) > limit, self._behind, share)

    def _look(self, name: str, needle: str, scope: Scope) -> float:
        """Go on scanning for a text, newest rows first; the share that was looked at."""
        scan = self._scans.setdefault(name, _Scan())
        self._scans.move_to_end(name)
        with self._table:
            if len(self._scans) > REMEMBERED:
                oldest, _ = self._scans.popitem(last=False)
                self._table.execute("DELETE FROM hits WHERE text = ?", (oldest,))
            if scan.end < self._behind:
                scan.left.append((scan.end, self._behind))
                scan.end = self._behind
            columns = "prompt, response" if scope is Scope.ALL else scope.value
            query = f"SELECT rowid, {columns} FROM samples WHERE rowid > ? AND rowid <= ?"
            deadline = time.monotonic() + SCAN_S
            with open_run(self.folder, READ_S) as run:
                while scan.left:
                    low, high = scan.left[-1]
                    start = max(low, high - SCAN_ROWS)
                    rows = run.query(query, (start, high))
                    found = [
                        (name, n)
                        for n, *texts in rows
                        if any(needle in text.casefold() for text in texts)
                    ]
                    self._table.executemany("INSERT INTO hits VALUES (?, ?)", found)
                    scan.left[-1:] = [(low, start)] if start > low else []
                    if time.monotonic() > deadline:
                        break
        return 1.0 - sum(high - low for low, high in scan.left) / max(self._behind, 1)


def _conditions(wanted: Filter) -> tuple[str, list[str], list[Any]]:
    """The tables, the conditions and their values; a range never holds a missing value."""
    source, conditions, values = "rows", ["1"], []
    if wanted.part:
        source = "rows JOIN parts ON row = n AND name = ?"
        values.append(wanted.part)
    for kind in ("split", "role", "status", "finish", "signal", "task"):
        if words := getattr(wanted, kind):
            conditions.append(f"{kind} IN ({', '.join('?' * len(words))})")
            values += words
    if wanted.keep is not None:
        conditions.append(f"keep = {int(wanted.keep)}")
    for name in ("step", "reward", "length", "advantage", *(["value"] if wanted.part else [])):
        for sign, bound in zip((">=", "<="), getattr(wanted, name), strict=True):
            if bound is not None:
                conditions.append(f"{name} {sign} ?")
                values.append(bound)
    return source, conditions, values


INDEXES = 4
"""Runs whose tables stay in memory; the one that was not asked for longest goes."""


class Indexer:
    """Indexes by folder, each brought up to date by a thread of its own when it is asked for."""

    def __init__(self) -> None:
        self._indexes: OrderedDict[Path, RunIndex] = OrderedDict()
        self._lock = threading.Lock()
        """Guards the indexes and the start of their threads."""

    def want(self, folder: Path, seconds: float = 0.0) -> RunIndex:
        """The index of a run; up to date, unless that takes longer than so many seconds."""
        with self._lock:
            index = self._indexes.pop(folder, None) or RunIndex(folder)
            self._indexes[folder] = index  # the last asked for stands last
            if len(self._indexes) > INDEXES:
                self._indexes.popitem(last=False)[1].is_over = True
            if not index.thread.is_alive():
                index.thread = threading.Thread(target=index.catch_up, name="index", daemon=True)
                index.thread.start()
        index.thread.join(seconds)
        return index

    def close(self) -> None:
        """Stop after the chunk that is being made."""
        for index in self._indexes.values():
            index.is_over = True
        for index in self._indexes.values():
            index.thread.join(timeout=5.0)
