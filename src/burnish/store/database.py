"""The SQLite file of a run: how it is opened, written in whole transactions, and how it fails.

The file is in write-ahead mode with `synchronous=NORMAL`: a killed process loses nothing that was
committed, any number of readers look on while it is written, and a commit costs no disk flush. A
power cut may lose the newest commits, never the file; `RunStore.flush` makes them safe, and a
checkpoint asks for it. A background thread folds the log into the file now and then: that flushes
the disk and takes longer the larger the file is, which no training step should wait for.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

from burnish.errors import StoreError

Row = tuple[Any, ...]

BUSY_TIMEOUT_S = 10.0

PAGE_BYTES = 16_384
"""Page size of a new file. A rollout's row has a few KB: SQLite's own 4 KB would hold one or two of
them and waste the rest."""
CACHE_KIB = 32_768
"""Pages that a writer keeps, so that a large step is not written in parts and then again."""

FOLD_EVERY_S = 5.0
"""Seconds from one folding of the log into the file to the next, while something is written."""
FOLD_ROUNDS = 4
"""How often a folding goes on with what was written meanwhile; a log that is folded in whole begins
again at its start, another grows."""
LOG_PAGES = 16_384
"""Pages in the log (256 MiB) at which a commit folds them itself: the thread does not keep up."""

_HINTS = {
    "SQLITE_FULL": "free some space; nothing of this call was stored",
    "SQLITE_IOERR": "the disk refused; nothing of this call was stored",
    "SQLITE_READONLY": "the file or its folder is read-only",
    "SQLITE_CANTOPEN": "is it there, and may you write in its folder?",
    "SQLITE_CORRUPT": "the file is damaged; `sqlite3 run.db .recover` may save its rows",
    "SQLITE_NOTADB": "the file is damaged or is something else",
    "SQLITE_BUSY": "another program holds the file",
    "SQLITE_LOCKED": "another program holds the file",
    "SQLITE_TOOBIG": "one value is larger than SQLite can hold",
}


class Database:
    """One connection. Writes take `_writing`, which keeps to one transaction at a time."""

    def __init__(self, path: Path, *, read_only: bool) -> None:
        self.path = path
        self._writing = threading.RLock()
        self._folding: threading.Thread | None = None
        self._folded_at = time.monotonic()
        with self.failing("open"):
            self._connection = _connect(path, read_only=read_only)
        try:
            if not read_only:
                self._create()
            self._check_version()
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """Close the file; the last one out folds the write-ahead log into it."""
        if self._folding is not None:
            self._folding.join()
        with self.failing("close"):
            self._connection.close()

    @contextlib.contextmanager
    def transaction(self, doing: str) -> Iterator[sqlite3.Connection]:
        """All of the block's writes, or none of them."""
        with self._writing, self.failing(doing):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                # SQLite has rolled back by itself where the disk was full.
                with contextlib.suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                raise
            self._fold_beside()

    def rows(self, sql: str, values: Sequence[Any] = ()) -> Generator[Row, None, None]:
        """The rows of a query, one by one."""
        with self.failing("read"):
            yield from self._connection.execute(sql, values)

    def row(self, sql: str, values: Sequence[Any] = ()) -> Row | None:
        """The first row of a query, or None."""
        with self.failing("read"):
            found: Row | None = self._connection.execute(sql, values).fetchone()
        return found

    @contextlib.contextmanager
    def failing(self, doing: str) -> Iterator[None]:
        """Turn what SQLite raises into one line that names the file and the deed."""
        try:
            yield
        except sqlite3.Error as error:
            name = "_".join((getattr(error, "sqlite_errorname", None) or "").split("_")[:2])
            hint = f" ({_HINTS[name]})" if name in _HINTS else ""
            told = f"{self.path}: cannot {doing}: {str(error).rstrip('.')}{hint}."
            raise StoreError(told) from error
        except UnicodeEncodeError as error:
            half = f"a text holds {error.object[error.start]!a}, half of a surrogate pair"
            raise StoreError(f"{self.path}: cannot {doing}: {half}.") from error

    def _fold_beside(self) -> None:
        """Fold the log into the file in a thread, if the last time is long enough ago."""
        is_busy = self._folding is not None and self._folding.is_alive()
        if is_busy or time.monotonic() - self._folded_at < FOLD_EVERY_S:
            return
        self._folded_at = time.monotonic()
        thread = threading.Thread(target=_fold, args=(self.path,), daemon=True)
        # No thread left in the system: a later commit tries again, or folds by itself.
        with contextlib.suppress(RuntimeError):
            thread.start()
            self._folding = thread

    def _create(self) -> None:
        """Lay the tables that are missing, in one transaction: all in a new file, and those that
        came later in the file of an older version."""
        query = "SELECT name FROM sqlite_master WHERE type = 'table'"
        found = {name for (name,) in self.rows(query)}
        if found.issuperset(APPEND_ONLY):
            return
        if found:
            self._check_version()
        with self.transaction("create the tables") as connection:
            for statement in statements():
                connection.execute(statement)

    def _check_version(self) -> None:
        identity = self.row("PRAGMA application_id")
        version = self.row("PRAGMA user_version") or (0,)
        if identity != (APPLICATION_ID,):
            raise StoreError(f"{self.path} is not a burnish run; expected a database made by it.")
        if version[0] > VERSION:
            newer = f"has schema version {version[0]}; this burnish reads up to {VERSION}"
            raise StoreError(f"{self.path} {newer}. Update burnish to open it.")


def _connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    where = path.resolve().as_uri()
    if not read_only:
        connection = _open(f"{where}?mode=rwc")
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
        return connection
    connection = _open(f"{where}?mode=ro")
    try:
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        connection.close()
        log = path.with_name(path.name + "-wal")
        # A reader makes a shared-memory file beside the database. Where the folder forbids that
        # and the log is folded in, nobody can be writing, and the file can be read as it lies.
        if not path.is_file() or (log.exists() and log.stat().st_size):
            raise
        connection = _open(f"{where}?mode=ro&immutable=1")
    return connection


def _fold(path: Path) -> None:
    """Write what is in the log to its place in the file, without holding up readers or the writer."""
    # Boundary: the disk. What it refuses here stays in the log, and the writer is told by its own
    # next commit.
    with contextlib.suppress(sqlite3.Error):
        connection = _open(f"{path.resolve().as_uri()}?mode=rw")
        try:
            for _ in range(FOLD_ROUNDS):
                _, logged, folded = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                if logged == folded:
                    return
        finally:
            connection.close()


def _open(uri: str) -> sqlite3.Connection:
    return sqlite3.connect(
        uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )


VERSION = 1
"""Kept in `PRAGMA user_version`; a file with a higher number was written by a newer burnish."""

APPLICATION_ID = 0x62726E73
"""Kept in `PRAGMA application_id`: the letters "brns"."""

_TABLES = """
CREATE TABLE IF NOT EXISTS sessions (
    id INTEGER PRIMARY KEY,
    started TEXT NOT NULL,
    pid INTEGER NOT NULL,
    ended TEXT,
    status TEXT,
    summary TEXT NOT NULL DEFAULT '{}'
);
CREATE TABLE IF NOT EXISTS rollouts (
    step INTEGER PRIMARY KEY,
    samples INTEGER NOT NULL,
    time TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS evaluations (
    step INTEGER NOT NULL,
    name TEXT NOT NULL,
    samples INTEGER NOT NULL,
    summary TEXT NOT NULL,
    time TEXT NOT NULL,
    PRIMARY KEY (step, name)
);
CREATE TABLE IF NOT EXISTS samples (
    id TEXT PRIMARY KEY,
    trajectory_id TEXT NOT NULL,
    step INTEGER NOT NULL,
    split TEXT NOT NULL,
    idx INTEGER NOT NULL,
    task_id TEXT NOT NULL,
    group_key TEXT NOT NULL,
    role TEXT NOT NULL,
    prompt TEXT NOT NULL,
    response TEXT NOT NULL,
    finish TEXT NOT NULL,
    weight_version INTEGER NOT NULL,
    reward REAL,
    status TEXT NOT NULL,
    advantage REAL,
    keep INTEGER NOT NULL CHECK (keep IN (0, 1)),
    prompt_tokens INTEGER NOT NULL,
    response_tokens INTEGER NOT NULL,
    token_ids TEXT NOT NULL,
    loss_mask TEXT NOT NULL,
    logprobs TEXT NOT NULL,
    spans TEXT NOT NULL,
    task TEXT NOT NULL,
    reward_tree TEXT NOT NULL,
    info TEXT NOT NULL,
    UNIQUE (step, split, idx),
    CHECK ((reward IS NULL) = (status <> 'ok'))
);
CREATE INDEX IF NOT EXISTS samples_by_task ON samples (step / 16, task_id);
CREATE INDEX IF NOT EXISTS samples_by_trajectory ON samples (trajectory_id);
CREATE TABLE IF NOT EXISTS reward_parts (
    sample_id TEXT NOT NULL REFERENCES samples (id),
    name TEXT NOT NULL,
    value REAL,
    weight REAL NOT NULL,
    status TEXT NOT NULL,
    reason TEXT NOT NULL,
    PRIMARY KEY (sample_id, name),
    CHECK ((value IS NULL) = (status <> 'ok'))
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS evidence (
    sample_id TEXT NOT NULL REFERENCES samples (id),
    part TEXT NOT NULL,
    source TEXT NOT NULL,
    observation TEXT NOT NULL,
    visibility TEXT NOT NULL,
    error TEXT
);
CREATE INDEX IF NOT EXISTS evidence_by_sample ON evidence (sample_id);
CREATE TABLE IF NOT EXISTS token_values (
    sample_id TEXT NOT NULL REFERENCES samples (id),
    name TEXT NOT NULL,
    numbers TEXT NOT NULL,
    PRIMARY KEY (sample_id, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS metrics (
    step INTEGER NOT NULL,
    name TEXT NOT NULL,
    value REAL,
    PRIMARY KEY (step, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY,
    time TEXT NOT NULL,
    step INTEGER,
    kind TEXT NOT NULL,
    message TEXT NOT NULL,
    data TEXT NOT NULL
);
"""

OF_TASK = (
    "task_id = ? AND step / 16 IN "
    "(SELECT step / 16 FROM rollouts UNION SELECT step / 16 FROM evaluations)"
)
"""The condition on samples of one task, in the words of the index `samples_by_task`.

Tasks come in random order: in an index by task alone every prompt of a step would change a page of
its own, and the larger the file the more of them. Sixteen steps at a time share a few pages, and
looking a task up takes one search for each sixteen steps.
"""

APPEND_ONLY = (
    "rollouts",
    "evaluations",
    "samples",
    "reward_parts",
    "evidence",
    "token_values",
    "metrics",
    "events",
)


def statements() -> list[str]:
    """Everything that makes an empty file a `run.db`, for one transaction; safe to repeat."""
    tables = [statement for statement in _TABLES.split(";\n") if statement.strip()]
    triggers = [
        f"CREATE TRIGGER IF NOT EXISTS {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
        f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
        for table in APPEND_ONLY
        for verb in ("UPDATE", "DELETE")
    ]
    marks = [f"PRAGMA application_id = {APPLICATION_ID}", f"PRAGMA user_version = {VERSION}"]
    return [*tables, *triggers, *marks]
