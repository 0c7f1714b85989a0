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
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, Self

import msgspec

from burnish.errors import StoreError
from burnish.store import manifest
from burnish.store.blobs import held_messages, shared_blobs
from burnish.store.database import Database, Row
from burnish.store.durable import WriterLock, store_errors, sync
from burnish.store.manifest import Manifest, now
from burnish.store.reader import DATABASE, LOCK, RunReader, RunStatus
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
        self._session = 0 if lock is None else self._begin_session()
        self._rows: dict[str, int] | None = None
        """Rows of each table, counted once and then added up."""

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
        try:
            for name in FOLDERS:
                (folder / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{folder}: cannot make the run folder: {error.strerror}.") from error
        with ExitStack() as undo:
            lock = WriterLock(folder / LOCK)
            undo.callback(lock.release)
            if (folder / manifest.FILE).exists():
                raise StoreError(
                    f"{folder} already holds a run. Resume it or choose another run name."
                )
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
        about = manifest.read(folder)
        if not (folder / DATABASE).is_file():
            raise StoreError(f"{folder} has no {DATABASE}; the run's samples are gone.")
        with ExitStack() as undo:
            lock = None
            if not read_only:
                lock = WriterLock(folder / LOCK)
                undo.callback(lock.release)
            database = Database(folder / DATABASE, read_only=read_only)
            undo.callback(database.close)
            RunReader(folder, database, about)._check_identity()
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
        if self._lock is None:
            raise StoreError(f"{self.folder}: cannot discard the run: it was opened only to read.")
        self._database.close()
        try:
            # The manifest first: a folder without it is no run, whatever else is in there.
            for name in (manifest.FILE, DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm"):
                (self.folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"{self.folder}: cannot discard the run: {error.strerror}.") from error
        finally:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def rows(self) -> dict[str, int]:
        """How many rows each append-only table holds; a writer counts them once and then adds up."""
        if self._rows is None or self._lock is None:
            self._rows = super().rows()
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

    def _added(self, table: str, count: int) -> None:
        if self._rows is not None:
            self._rows[table] = self._rows.get(table, 0) + count

    def append_rollouts(self, step: int, samples: Sequence[StoredSample]) -> None:
        """All rollouts of a step, kept and dropped, in one transaction."""
        for sample in samples:
            if sample.step != step or sample.split.startswith("eval:"):
                raise ValueError(
                    f"sample {sample.trajectory.id} is of step {sample.step}, split "
                    f"'{sample.split}'; expected a rollout of step {step}"
                )
        self._keep_media(samples)
        encoded = encode(samples)
        with self._writing(f"store the rollouts of step {step + 1}") as connection:
            if _exists(connection, "SELECT 1 FROM rollouts WHERE step = ?", step):
                where = "step = ? AND split NOT LIKE 'eval:%'"
                _same_samples(connection, f"step {step + 1}", where, [step], encoded)
                return
            connection.execute(
                "INSERT INTO rollouts (step, samples, time) VALUES (?, ?, ?)",
                (step, len(samples), now()),
            )
            _insert(connection, encoded)
        self._added("rollouts", 1)
        self._added_samples(encoded)

    def append_evaluation(
        self, step: int, name: str, samples: Sequence[StoredSample], summary: Mapping[str, Any]
    ) -> None:
        """One evaluation, its samples and its figures, in one transaction.

        The summary holds what the samples decide; seconds and rates belong to the metrics.
        """
        split = f"eval:{name}"
        for sample in samples:
            if sample.step != step or sample.split != split:
                raise ValueError(
                    f"sample {sample.trajectory.id} is of step {sample.step}, split "
                    f"'{sample.split}'; expected step {step}, split '{split}'"
                )
        self._keep_media(samples)
        encoded = encode(samples)
        text = _json(summary, f"the summary of evaluation '{name}'")
        with self._writing(f"store evaluation '{name}' of step {step}") as connection:
            query = "SELECT summary FROM evaluations WHERE step = ? AND name = ?"
            found = connection.execute(query, (step, name)).fetchone()
            if found is not None:
                what = f"evaluation '{name}' of step {step}"
                if found[0] != text:
                    raise StoreError(_diverged(what, "summary", found[0], text))
                _same_samples(connection, what, "step = ? AND split = ?", [step, split], encoded)
                return
            connection.execute(
                "INSERT INTO evaluations (step, name, samples, summary, time) "
                "VALUES (?, ?, ?, ?, ?)",
                (step, name, len(samples), text, now()),
            )
            _insert(connection, encoded)
        self._added("evaluations", 1)
        self._added_samples(encoded)

    def _keep_media(self, samples: Sequence[StoredSample]) -> None:
        """Before the samples: a sample in the database never lacks its media."""
        held = [m for sample in samples for m in held_messages(sample.task, sample.trajectory.info)]
        if held:
            self.blobs.collect(held, shared_blobs())

    def _added_samples(self, encoded: EncodedSamples) -> None:
        self._added("samples", len(encoded.samples))
        self._added("reward_parts", len(encoded.parts))
        self._added("evidence", len(encoded.evidence))

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
            for name, value in own.items():
                if name in stored and stored[name] != value:
                    raise StoreError(_diverged(f"step {step + 1}", name, stored[name], value))
            new = [(step, n, v) for n, v in (timed | own).items() if n not in stored]
            connection.executemany("INSERT INTO metrics (step, name, value) VALUES (?, ?, ?)", new)
        self._added("metrics", len(new))

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
            done = connection.executemany(
                "INSERT OR IGNORE INTO token_values (sample_id, name, numbers) VALUES (?, ?, ?)",
                rows,
            )
        self._added("token_values", max(done.rowcount, 0))

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
            connection.execute(
                "INSERT INTO events (time, step, kind, message, data) VALUES (?, ?, ?, ?, ?)",
                (now(), step, kind, whole_characters(message), text),
            )
        self._added("events", 1)

    def finish(self, status: str, summary: Mapping[str, Any] | None = None) -> None:
        """Say how the run ended; one that never does counts as crashed.

        `summary` of one that is `stopped` or `crashed` has its reason, and may have the step and
        the type of the exception: `RunReader.end` reads them.
        """
        if status not in (RunStatus.FINISHED, RunStatus.STOPPED, RunStatus.CRASHED):
            raise ValueError(f"a run ends finished, stopped or crashed, not '{status}'")
        text = _json(summary or {}, "the summary of the run")
        with self._writing("finish the run") as connection:
            connection.execute(
                "UPDATE sessions SET ended = ?, status = ?, summary = ? WHERE id = ?",
                (now(), str(status), text, self._session),
            )

    def _begin_session(self) -> int:
        with self._writing("begin a session") as connection:
            cursor = connection.execute(
                "INSERT INTO sessions (started, pid) VALUES (?, ?)", (now(), os.getpid())
            )
        return cursor.lastrowid or 0

    def _writing(self, doing: str) -> AbstractContextManager[sqlite3.Connection]:
        if self._lock is None:
            raise StoreError(f"{self.folder}: cannot {doing}: the run was opened only to read.")
        # SQLite would go on writing into a file that no longer has a name, and all would be lost.
        if not (self.folder / DATABASE).is_file():
            raise StoreError(
                f"{self.folder}: cannot {doing}: {DATABASE} is gone; was the folder moved or removed "
                "while the run was writing it?"
            )
        return self._database.transaction(doing)


def _insert(connection: sqlite3.Connection, encoded: EncodedSamples) -> None:
    connection.executemany(_INSERT_SAMPLE, encoded.samples)
    connection.executemany(_INSERT_PART, encoded.parts)
    connection.executemany(_INSERT_EVIDENCE, encoded.evidence)


def _insertion(table: str, columns: Sequence[str]) -> str:
    marks = ", ".join("?" * len(columns))
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})"


_INSERT_SAMPLE = _insertion("samples", COLUMNS)
_INSERT_PART = _insertion("reward_parts", PART_COLUMNS)
_INSERT_EVIDENCE = _insertion("evidence", EVIDENCE_COLUMNS)


def _exists(connection: sqlite3.Connection, query: str, *values: Any) -> bool:
    return connection.execute(query, values).fetchone() is not None


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
    if len(stored) != len(encoded.samples):
        raise StoreError(_diverged(what, "samples", len(stored), len(encoded.samples)))
    for old, new in zip(stored, encoded.samples, strict=True):
        for column, before, after in zip(COLUMNS, old, new, strict=True):
            if before != after:
                raise StoreError(_diverged(f"{what}, sample {old[1]}", column, before, after))


def _diverged(where: str, name: str, before: Any, after: Any) -> str:
    return (
        f"run diverged at {where}: '{name}' is stored as {_short(before)} and came again as "
        f"{_short(after)}. The same config, data and machine give the same numbers; start a new "
        "run if one of them changed."
    )


def _short(value: Any, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _numbers(metrics: Mapping[str, float | None]) -> dict[str, float | None]:
    # SQLite has no NaN: it would become NULL by itself and then differ from what came.
    return {n: None if v is None or v != v else float(v) for n, v in metrics.items()}


def _json(value: Mapping[str, Any], what: str) -> str:
    try:
        return as_json(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise StoreError(f"{what} cannot be stored: {error}.") from error
