"""The index on disk: a SQLite file in the cache folder, and a flat file of texts beside it.

    file = IndexFile.open(run)
    for chunk in file.chunks(): ...
    file.add(chunk, words, behind=0)

A chunk holds the compact rows, the folded texts of the answers end to end with where each one ends,
and the folded prompts, each once. Texts are written first and the chunk is one transaction, so a
viewer that is killed goes on where it was: texts that no chunk names are written over. An index
that does not belong to the run as it is now is thrown away.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from burnish.errors import StoreError
from burnish.numbers import grouped
from burnish.store.blobs import cache_folder
from burnish.store.reader import RunReader
from burnish.view.index.columns import (
    ROW,
    SEPARATOR,
    Array,
    Chunk,
    Flags,
    Snapshot,
    StoredChunk,
    Texts,
    fold,
    joined,
)

VERSION = 1
KEPT = 32
"""Index files that stay in the cache; the least recently used go."""

_TABLES = """
CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE words (kind TEXT NOT NULL, code INTEGER NOT NULL, word TEXT NOT NULL,
                    PRIMARY KEY (kind, code));
CREATE TABLE chunks (
    number INTEGER PRIMARY KEY,
    first_row INTEGER NOT NULL,
    count INTEGER NOT NULL,
    last_n INTEGER NOT NULL,
    last_id TEXT NOT NULL,
    rows BLOB NOT NULL,
    parts BLOB NOT NULL
);
CREATE TABLE texts (
    number INTEGER NOT NULL,
    kind TEXT NOT NULL,
    place INTEGER NOT NULL,
    size INTEGER NOT NULL,
    ends BLOB NOT NULL,
    PRIMARY KEY (number, kind)
);
"""


class IndexFile:
    """One index file. A connection is opened for each use, so that threads share nothing."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        # Where the cache cannot be written, SQLite keeps the index in a temporary file that is
        # this connection's own, and the texts lie in another.
        self._own: sqlite3.Connection | None = None
        if path is None:
            self._own = _connect("")
            self._own_texts: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115

    @classmethod
    def open(cls, run: RunReader) -> IndexFile:
        """The index of a run: the one in the cache where it fits, else an empty one."""
        # What tells this run from another that lies in the same folder.
        started = [row[0] for row in run.query("SELECT started FROM sessions ORDER BY id LIMIT 1")]
        identity = {
            "version": str(VERSION),
            "created": run.about.created,
            "config_hash": run.about.config_hash,
            "first_session": "".join(started),
        }
        folder = cache_folder() / "view"
        name = hashlib.sha256(str(run.folder.resolve()).encode("utf-8", "replace")).hexdigest()
        path = folder / f"{name[:24]}.db"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            others = (one for one in folder.glob("*.db") if one != path)
            newest = sorted(others, key=lambda one: one.stat().st_mtime, reverse=True)
            for old in newest[KEPT - 1 :]:
                cls(old).discard()
            file = cls(path)
            if path.exists():
                with contextlib.suppress(StoreError):
                    if file._fits(identity, run):
                        os.utime(path)
                        return file
                file.discard()
            file._create(identity)
        except (OSError, StoreError):
            file = cls(None)
            file._create(identity)
        return file

    def discard(self) -> None:
        if self.path is None:
            return
        for suffix in ("", "-wal", "-shm", "-journal", ".text"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)

    def last(self) -> tuple[int, str]:
        """The rowid and the id of the newest indexed sample; (0, "") where there is none."""
        with self._connection() as connection:
            return _last(connection)

    def words(self) -> dict[str, list[str]]:
        with self._connection() as connection:
            return grouped(connection.execute("SELECT kind, word FROM words ORDER BY kind, code"))

    def count(self) -> int:
        with self._connection() as connection:
            return _next(connection)[1]

    def chunks(self) -> Iterator[StoredChunk]:
        query = "SELECT number, first_row, rows, parts, count FROM chunks ORDER BY number"
        with self._connection() as connection:
            for number, first, rows, parts, count in connection.execute(query):
                matrix = np.frombuffer(parts, np.float64).reshape(count, -1)
                yield StoredChunk(number, first, np.frombuffer(rows, ROW), matrix)

    def add(
        self, chunk: Chunk, words: Mapping[str, Sequence[str]], *, behind: int
    ) -> StoredChunk | None:
        """Store a chunk behind the sample with rowid `behind`; None where another viewer was first."""
        with self._transaction() as connection:
            if _last(connection)[0] != behind:
                return None
            number, first = _next(connection)
            self._insert(connection, number, first, chunk, _text_end(connection))
            connection.executemany(
                "INSERT OR REPLACE INTO words VALUES (?, ?, ?)",
                [(k, code, w) for k, ws in words.items() for code, w in enumerate(ws)],
            )
        return StoredChunk(number, first, chunk.rows, chunk.parts)

    def merge(self, numbers: Sequence[int]) -> StoredChunk | None:
        """Make one chunk of the last few; None where another viewer has changed them.

        A run that is watched while it trains is indexed step by step, and thousands of tiny chunks
        would make every scan slow.
        """
        with self._transaction() as connection:
            query = "SELECT number FROM chunks WHERE number >= ? ORDER BY number"
            found = [row[0] for row in connection.execute(query, (numbers[0],))]
            if found != list(numbers):
                return None
            query = "SELECT first_row FROM chunks WHERE number = ?"
            ((first,),) = connection.execute(query, (numbers[0],))
            chunk = joined([self._chunk(connection, number) for number in numbers])
            # Behind the old texts, which stay as they are until this is committed.
            end = _text_end(connection)
            for table in ("chunks", "texts"):
                connection.execute(f"DELETE FROM {table} WHERE number >= ?", (numbers[0],))
            self._insert(connection, numbers[-1] + 1, first, chunk, end)
        return StoredChunk(numbers[-1] + 1, first, chunk.rows, chunk.parts)

    def _chunk(self, connection: sqlite3.Connection, number: int) -> Chunk:
        query = "SELECT rows, parts, count, last_id FROM chunks WHERE number = ?"
        ((rows, parts, count, last_id),) = connection.execute(query, (number,))
        matrix = np.frombuffer(parts, np.float64).reshape(count, -1)
        with self._text_file() as file:
            texts = [_texts(connection, file, number, kind) for kind in ("answers", "prompts")]
        return Chunk(np.frombuffer(rows, ROW), matrix, last_id, *texts)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Callable[[int, str], Texts]]:
        """A function that gives the `answers` or the `prompts` of a chunk by its number."""
        with self._connection() as connection, self._text_file() as file:

            def texts(number: int, kind: str) -> Texts:
                return _texts(connection, file, number, kind)

            yield texts

    def _insert(
        self, connection: sqlite3.Connection, number: int, first: int, chunk: Chunk, end: int
    ) -> None:
        connection.execute(
            "INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                number,
                first,
                len(chunk.rows),
                int(chunk.rows["n"][-1]),
                chunk.last_id,
                chunk.rows.tobytes(),
                chunk.parts.tobytes(),
            ),
        )
        with self._text_file() as file:
            file.seek(end)
            for kind, texts in (("answers", chunk.answers), ("prompts", chunk.prompts)):
                file.write(texts.text.tobytes())
                size = len(texts.text)
                connection.execute(
                    "INSERT INTO texts VALUES (?, ?, ?, ?, ?)",
                    (number, kind, end, size, texts.ends.tobytes()),
                )
                end += size
            file.flush()

    @contextlib.contextmanager
    def _text_file(self) -> Iterator[IO[bytes]]:
        if self.path is None:
            yield self._own_texts
            return
        path = self.path.with_name(self.path.name + ".text")
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0) as file:
            yield file

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        connection = self._own
        try:
            if connection is None:
                connection = _connect(str(self.path))
            yield connection
        except sqlite3.Error as error:
            raise StoreError(f"the search index cannot be used: {error}.") from error
        finally:
            if connection is not None and connection is not self._own:
                connection.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise

    def _create(self, identity: Mapping[str, str]) -> None:
        with self._connection() as connection:
            connection.execute("PRAGMA page_size = 65536")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("BEGIN IMMEDIATE")
            for statement in _TABLES.split(";\n"):
                if statement.strip():
                    connection.execute(statement)
            connection.executemany("INSERT INTO about VALUES (?, ?)", identity.items())
            connection.execute("COMMIT")

    def _fits(self, identity: Mapping[str, str], run: RunReader) -> bool:
        """True where the index is of this run, and the run still has what was indexed last."""
        with self._connection() as connection:
            if dict(connection.execute("SELECT key, value FROM about")) != dict(identity):
                return False
            n, name = _last(connection)
        return is_there(run, n, name)


def _texts(connection: sqlite3.Connection, file: IO[bytes], number: int, kind: str) -> Texts:
    query = "SELECT place, size, ends FROM texts WHERE number = ? AND kind = ?"
    found = connection.execute(query, (number, kind)).fetchone()
    place, size, ends = found or (0, 0, b"")
    file.seek(place)
    text = file.read(size)
    if found is None or len(text) != size:
        raise StoreError(f"the search index lost the texts of chunk {number}.")
    return Texts(np.frombuffer(text, np.uint8), np.frombuffer(ends, np.int64))


def is_there(run: RunReader, n: int, name: str) -> bool:
    """True where the run has the sample `name` at rowid `n`; always for nothing (0)."""
    if n == 0:
        return True
    return list(run.query("SELECT id FROM samples WHERE rowid = ?", (n,))) == [(name,)]


def _last(connection: sqlite3.Connection) -> tuple[int, str]:
    query = "SELECT last_n, last_id FROM chunks ORDER BY number DESC LIMIT 1"
    found: tuple[int, str] | None = connection.execute(query).fetchone()
    return found or (0, "")


def _next(connection: sqlite3.Connection) -> tuple[int, int]:
    """The number and the first row of the chunk to come."""
    query = "SELECT number + 1, first_row + count FROM chunks ORDER BY number DESC LIMIT 1"
    found: tuple[int, int] | None = connection.execute(query).fetchone()
    return found or (1, 0)


def _text_end(connection: sqlite3.Connection) -> int:
    ((end,),) = connection.execute("SELECT coalesce(max(place + size), 0) FROM texts")
    return int(end)


def _connect(where: str) -> sqlite3.Connection:
    connection = sqlite3.connect(where, timeout=10.0, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection


PROBE = 65_536
"""Bytes of a chunk that tell which bytes are frequent."""


class Scope(StrEnum):
    """Where a text is looked for."""

    ALL = "all"
    """In prompts and answers."""
    ANSWERS = "response"
    """In answers."""
    PROMPTS = "prompt"
    """In prompts."""


class ChunkSpan(NamedTuple):
    number: int
    first: int
    end: int
    prompts: Array
    """The place of each row's prompt among those of the chunk."""


class TextHits:
    """The rows that hold a text, as far as they were looked at. One thread at a time."""

    def __init__(self, text: str, scope: Scope) -> None:
        self._needle = fold(text).replace(SEPARATOR, "").encode("utf-8", "replace")
        self._scope = scope
        self._done: set[int] = set()
        self.share = 0.0
        self.mask: Flags = np.zeros(0, np.bool_)
        """True at the rows that hold the text."""

    def look(
        self, file: IndexFile, rows: Snapshot, spans: Sequence[ChunkSpan], seconds: float
    ) -> None:
        """Go through the chunks that were not looked at yet, newest first, at least one."""
        if len(self.mask) < rows.rows:
            grown = np.zeros(rows.rows, np.bool_)
            grown[: len(self.mask)] = self.mask
            self.mask = grown
        deadline = time.monotonic() + seconds
        left = [span for span in reversed(spans) if span.number not in self._done]
        missing = sum(span.end - span.first for span in left)
        if left:
            with file.reading() as texts:
                for span in left:
                    found = self.mask[span.first : span.end]
                    if self._scope is not Scope.PROMPTS:
                        found[holding(texts(span.number, "answers"), self._needle)] = True
                    if self._scope is not Scope.ANSWERS:
                        asked = texts(span.number, "prompts")
                        holds = np.zeros(len(asked.ends), np.bool_)
                        holds[holding(asked, self._needle)] = True
                        found |= holds[span.prompts]
                    self._done.add(span.number)
                    missing -= span.end - span.first
                    if time.monotonic() > deadline:
                        break
        self.share = 1.0 - missing / rows.rows if rows.rows else 1.0


def holding(texts: Texts, needle: bytes) -> Array:
    """Numbers of the texts that hold the needle; a text may be named several times.

    The rarest 1, 2 or 4 bytes of it are compared as whole numbers, once for each alignment: several
    times as quick as a search character by character, and numpy lets other threads work.
    """
    text, length = texts.text, len(needle)
    if length == 0 or length > len(text):
        return np.zeros(0, np.int64)
    width = next(w for w in (4, 2, 1) if w <= length)
    frequency = np.bincount(text[:PROBE], minlength=256)
    starts = range(length - width + 1)
    first = min(starts, key=lambda i: int(frequency[list(needle[i : i + width])].min()))
    word = int.from_bytes(needle[first : first + width], "little")
    found = []
    for shift in range(width):
        count = (len(text) - shift) // width
        numbers = text[shift : shift + count * width].view(f"<u{width}")
        found.append(np.flatnonzero(numbers == word) * width + shift)
    places = np.concatenate(found) - first
    places = places[(places >= 0) & (places <= len(text) - length)]
    for i in range(length):
        if not first <= i < first + width:
            places = places[text[places + i] == needle[i]]
    behind: Array = np.searchsorted(texts.ends, places, side="right")
    return behind
