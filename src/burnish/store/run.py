"""`RunStore`: one run = one folder, written step by step and readable by anyone at any time.

    with RunStore.create(Path("runs/first"), config, origins) as store:
        store.append_rollouts(0, samples)
        store.append_metrics(0, {"loss": 0.3, "kl": None})
        store.finish("finished", {"accuracy": 0.8})

    with RunStore.open(Path("runs/first"), read_only=True) as store:
        store.metrics("loss")["loss"]           # [(0, 0.3)]

Each append is one transaction: it is there whole when the call returns, also after a `kill -9`, or
not at all. Appending the same again changes nothing and appending something else under the same
step raises, so a run that repeats steps after a crash neither loses nor doubles a sample.
"""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import msgspec

from burnish.errors import StoreError
from burnish.store import manifest
from burnish.store.blobs import held_messages, shared_blobs
from burnish.store.database import Database, Row
from burnish.store.durable import WriterLock, store_errors, sync
from burnish.store.manifest import Manifest, now
from burnish.store.reader import DATABASE, LOCK, RunReader, RunStatus, manifest_of
from burnish.store.sample import (
    COLUMNS,
    EVIDENCE_COLUMNS,
    PART_COLUMNS,
    EncodedSamples,
    StoredSample,
    as_json,
    encode,
    sample_id,
)
from burnish.texts import whole_characters

FOLDERS = ("checkpoints", "plots")

DATA = "data"
"""Kind of the events that say what became of rows: skipped, repeated, left out."""


class RunStore(RunReader):
    """The folder of one run. Made by `create` or `open`; closes itself as a context manager."""

    def __init__(
        self, folder: Path, database: Database, about: Manifest, lock: WriterLock | None = None
    ) -> None:
        super().__init__(folder, database, about)
        self._lock = lock
        self._rows: Counter[str] | None = None
        """Rows of each table, counted once and then added up."""
        self._new: Counter[str] = Counter()
        """Rows of the transaction that is being written."""
        self._session = 0
        if lock is not None:
            with self._writing("begin a session") as connection:
                query = "INSERT INTO sessions (started, pid) VALUES (?, ?)"
                self._session = connection.execute(query, (now(), os.getpid())).lastrowid or 0

    @classmethod
    def create(
        cls,
        folder: Path,
        config: Mapping[str, Any],
        origins: Mapping[str, str],
        *,
        config_hash: str = "",
        data_hash: str = "",
        recipe: str = "",
    ) -> RunStore:
        """A new run; refuses a folder that holds one already.

        The hashes are kept for whoever continues it to compare; `recipe` is for listings.
        """
        with store_errors(f"make the run folder {folder}", folder):
            for name in FOLDERS:
                (folder / name).mkdir(parents=True, exist_ok=True)
        with ExitStack() as undo:
            lock = WriterLock(folder / LOCK)
            undo.callback(lock.release)
            if (folder / manifest.FILE).exists():
                raise StoreError(f"{folder} already holds a run. Resume it or choose another name.")
            about = manifest.make(
                config, origins, config_hash=config_hash, data_hash=data_hash, recipe=recipe
            )
            database = Database(folder / DATABASE, read_only=False)
            undo.callback(database.close)
            store = cls(folder, database, about, lock)
            store.about = msgspec.structs.replace(about, store=store.identity)
            manifest.write(folder, store.about)
            undo.pop_all()
        return store

    @classmethod
    def open(cls, folder: Path, *, read_only: bool = False) -> RunStore:
        """An existing run, to go on writing it (one process at a time) or only to read."""
        about = manifest_of(folder)
        with ExitStack() as undo:
            lock = None
            if not read_only:
                lock = WriterLock(folder / LOCK)
                undo.callback(lock.release)
            database = Database(folder / DATABASE, read_only=read_only)
            undo.callback(database.close)
            found = RunReader(folder, database, about).identity
            if about.store not in ("", found):
                other = f"that of another run (begun {found or 'never'}; expected {about.store})"
                raise StoreError(f"{folder / DATABASE} is {other}. Put this run's own file back.")
            store = cls(folder, database, about, lock)
            undo.pop_all()
        return store

    def close(self) -> None:
        """Let go of the folder. A run that was not finished counts as crashed from here on."""
        self._database.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def discard(self) -> None:
        """Take the run out of its folder, for one that came to nothing; other files stay."""
        self._database.close()
        with ExitStack() as last, store_errors(f"discard the run {self.folder}", self.folder):
            last.callback(self.close)
            # The manifest first: a folder without it is no run, whatever else is in there.
            for name in (manifest.FILE, DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm"):
                (self.folder / name).unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def rows(self) -> dict[str, int]:
        """How many rows each append-only table holds; a writer counts them once and then adds up."""
        if self._rows is None or self._lock is None:
            self._rows = Counter(super().rows())
        return dict(self._rows)

    def flush(self) -> None:
        """Let everything that is stored survive a power cut too, not only the death of the process."""
        database = self.folder / DATABASE
        with store_errors(f"flush {database}", database):
            log = self.folder / f"{DATABASE}-wal"
            # SQLite locks the database and its shared memory, never the log: closing a second
            # descriptor of the log lets go of no lock.
            if log.exists():
                sync(log)
            sync(self.folder)

    def append_rollouts(self, step: int, samples: Sequence[StoredSample]) -> None:
        """All rollouts of a step, kept and dropped, in one transaction."""
        encoded = self._encoded(samples)
        with self._writing(f"store the rollouts of step {step + 1}") as connection:
            query = "SELECT 1 FROM rollouts WHERE step = ?"
            if connection.execute(query, (step,)).fetchone() is not None:
                where = "step = ? AND split NOT LIKE 'eval:%'"
                _same_samples(connection, f"step {step + 1}", where, [step], encoded)
                return
            row = (step, len(samples), now())
            self._insert(connection, "rollouts", ("step", "samples", "time"), [row])
            self._insert_samples(connection, encoded)

    def append_evaluation(
        self, step: int, name: str, samples: Sequence[StoredSample], summary: Mapping[str, Any]
    ) -> None:
        """One evaluation, its samples and its figures, in one transaction.

        The summary holds what the samples decide; seconds and rates belong to the metrics.
        """
        encoded = self._encoded(samples)
        text = _json(summary, f"the summary of evaluation '{name}'")
        what = f"evaluation '{name}' of step {step}"
        with self._writing(f"store {what}") as connection:
            query = "SELECT summary FROM evaluations WHERE step = ? AND name = ?"
            found = connection.execute(query, (step, name)).fetchone()
            if found is not None:
                _check_same(what, "summary", found[0], text)
                where = "step = ? AND split = ?"
                _same_samples(connection, what, where, [step, f"eval:{name}"], encoded)
                return
            columns = ("step", "name", "samples", "summary", "time")
            row = (step, name, len(samples), text, now())
            self._insert(connection, "evaluations", columns, [row])
            self._insert_samples(connection, encoded)

    def _encoded(self, samples: Sequence[StoredSample]) -> EncodedSamples:
        # Media before the samples: a sample in the database never lacks its media.
        held = [m for sample in samples for m in held_messages(sample.task, sample.trajectory.info)]
        if held:
            self.blobs.collect(held, shared_blobs())
        return encode(samples)

    def _insert_samples(self, connection: sqlite3.Connection, encoded: EncodedSamples) -> None:
        self._insert(connection, "samples", COLUMNS, encoded.samples)
        self._insert(connection, "reward_parts", PART_COLUMNS, encoded.parts)
        self._insert(connection, "evidence", EVIDENCE_COLUMNS, encoded.evidence)

    def _insert(
        self,
        connection: sqlite3.Connection,
        table: str,
        columns: Sequence[str],
        rows: Sequence[Row],
        instead: str = "",
    ) -> None:
        marks = ", ".join("?" * len(columns))
        query = f"INSERT {instead} INTO {table} ({', '.join(columns)}) VALUES ({marks})"
        done = connection.executemany(query, rows)
        self._new[table] = self._new.get(table, 0) + max(done.rowcount, 0)

    def append_metrics(
        self,
        step: int,
        metrics: Mapping[str, float | None],
        *,
        timings: Mapping[str, float | None] | None = None,
    ) -> None:
        """The numbers of a step, in one transaction; NaN is no value and is stored as None.

        `metrics` follow from config and seed, so a repeated step must bring the same ones.
        `timings` (seconds, tokens a second) are the machine's: what was stored first stays.
        """
        own, timed = _numbers(metrics), _numbers(timings or {})
        with self._writing(f"store the metrics of step {step + 1}") as connection:
            query = "SELECT name, value FROM metrics WHERE step = ?"
            stored = dict(connection.execute(query, (step,)).fetchall())
            for name in own.keys() & stored.keys():
                _check_same(f"step {step + 1}", name, stored[name], own[name])
            new = [(step, n, v) for n, v in (timed | own).items() if n not in stored]
            self._insert(connection, "metrics", ("step", "name", "value"), new)

    def append_token_values(
        self, step: int, name: str, values: Mapping[int, Sequence[float]]
    ) -> None:
        """Numbers of the trained tokens of a step's rollouts, by the rollout's index.

        A machine may sum them in another order when a step is repeated: what was stored first stays.
        """
        rows = [
            (sample_id(step, "train", index), name, msgspec.json.encode(list(numbers)).decode())
            for index, numbers in values.items()
        ]
        with self._writing(f"store the {name} of the tokens of step {step + 1}") as connection:
            columns = ("sample_id", "name", "numbers")
            self._insert(connection, "token_values", columns, rows, "OR IGNORE")

    def append_event(
        self,
        kind: str,
        message: str,
        data: Mapping[str, Any] | None = None,
        step: int | None = None,
    ) -> None:
        """Something worth telling: a resume, a guard, a warning."""
        text = _json(data or {}, f"the data of event '{kind}'")
        with self._writing(f"store event '{kind}'") as connection:
            columns = ("time", "step", "kind", "message", "data")
            row = (now(), step, kind, whole_characters(message), text)
            self._insert(connection, "events", columns, [row])

    def finish(self, status: str, summary: Mapping[str, Any] | None = None) -> None:
        """Say how the run ended; one that never does counts as crashed.

        `summary` of one that is `stopped` or `crashed` has its reason, and may have the step and
        the type of the exception: `RunReader.end` reads them.
        """
        text = _json(summary or {}, "the summary of the run")
        with self._writing("finish the run") as connection:
            connection.execute(
                "UPDATE sessions SET ended = ?, status = ?, summary = ? WHERE id = ?",
                (now(), str(RunStatus(status)), text, self._session),
            )

    @contextmanager
    def _writing(self, doing: str) -> Iterator[sqlite3.Connection]:
        if self._lock is None:
            raise StoreError(f"{self.folder}: cannot {doing}: the run was opened only to read.")
        # SQLite would go on writing into a file that no longer has a name, and all would be lost.
        if not (self.folder / DATABASE).is_file():
            line = f"{DATABASE} is gone; was the folder moved or removed meanwhile?"
            raise StoreError(f"{self.folder}: cannot {doing}: {line}")
        with self._database.transaction(doing) as connection:
            self._new = Counter()
            new = self._new
            yield connection
        if self._rows is not None:
            self._rows.update(new)


def _same_samples(
    connection: sqlite3.Connection,
    what: str,
    where: str,
    values: Sequence[Any],
    encoded: EncodedSamples,
) -> None:
    """Raise where the stored samples are not the given ones, naming the first difference."""
    query = f"SELECT {', '.join(COLUMNS)} FROM samples WHERE {where} ORDER BY rowid"
    stored: list[Row] = connection.execute(query, values).fetchall()
    _check_same(what, "samples", len(stored), len(encoded.samples))
    for old, new in zip(stored, encoded.samples, strict=True):
        if old != new:
            for column, before, after in zip(COLUMNS, old, new, strict=True):
                _check_same(f"{what}, sample {old[1]}", column, before, after)


def _check_same(where: str, name: str, before: Any, after: Any) -> None:
    if before != after:
        was, came = (
            text if len(text) <= 80 else f"{text[:77]}..." for text in map(repr, (before, after))
        )
        both = f"'{name}' is stored as {was} and came again as {came}"
        hint = "Start a new run if the config, the data or the machine changed."
        raise StoreError(f"run diverged at {where}: {both}. {hint}")


def _numbers(metrics: Mapping[str, float | None]) -> dict[str, float | None]:
    # SQLite has no NaN: it would become NULL by itself and then differ from what came.
    return {n: None if v is None or v != v else float(v) for n, v in metrics.items()}


def _json(value: Mapping[str, Any], what: str) -> str:
    try:
        return as_json(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise StoreError(f"{what} cannot be stored: {error}.") from error
