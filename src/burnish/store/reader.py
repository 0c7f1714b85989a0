"""What can be asked of a run, while it is written or years later."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from burnish.arguments import as_text
from burnish.errors import StoreError, UserError
from burnish.numbers import grouped
from burnish.store import manifest
from burnish.store.blobs import Blobs
from burnish.store.database import APPEND_ONLY, OF_TASK, Database, Row
from burnish.store.durable import is_held
from burnish.store.manifest import Manifest
from burnish.store.processes import death_line, deaths
from burnish.store.sample import COLUMNS, StoredSample, decode, sample_id
from burnish.store.sample_name import EXAMPLES, find_place, sample_names

DATABASE = "run.db"
LOCK = "writer.lock"
STAGE = "stage/"
"""Metrics of a stage before the main training are `stage/NAME/...`, with the stage's own steps."""
UNSCORED = "unscored"
"""Evaluation with the answers of a step that was given up because too many had no reward; a second
attempt at a step is `unscored-2`."""
_NO_ANSWERS = {
    "pretrain": ": pretrain reads text and samples nothing. What it measures is the bits that a byte of "
    "text takes (metric text/bits_per_byte)",
    "sft": ": sft learns given answers, which have no reward. What it measures is the loss, the mean "
    "of -log p over the tokens of those answers (metric loss/total, in nats a token)",
}
_SELECT = f"SELECT {', '.join(COLUMNS)} FROM samples"


class RunStatus(StrEnum):
    """Where a run stands."""

    RUNNING = "running"
    """A living process is writing it."""
    FINISHED = "finished"
    """It came to its planned end."""
    STOPPED = "stopped"
    """It was ended early, on purpose: by a person or a guard, or what it was given was refused."""
    CRASHED = "crashed"
    """An error ended it, or its writer is gone without a word; resuming continues it."""
    UNREADABLE = "unreadable"
    """The folder is damaged; listings only."""


class MetricPoint(NamedTuple):
    step: int
    value: float | None


class StoredEvaluation(Struct, frozen=True):
    """The figures of one evaluation; its samples are under split `eval:<name>`."""

    step: int
    name: str
    samples: int
    summary: dict[str, Any]
    time: str


class StoredEvent(Struct, frozen=True):
    """Something the run said."""

    time: str
    step: int | None
    kind: str
    message: str
    data: dict[str, Any]


class RunEnd(Struct, frozen=True):
    """How the last start of a run ended and why: what listings, pages and Python show."""

    status: RunStatus
    reason: str = ""
    """Empty for a run that goes on or came to its planned end."""
    step: int | None = None
    """The step that was under way, from 0; `reason` counts from 1. None where it is not known."""
    time: str = ""
    """When it ended; of one that was killed, its last sign of life."""
    exception: str = ""
    """Type of the exception that ended it; `SIGTERM` where the signal did."""


class _Ending(Struct, frozen=True):
    """What is read of the record that a start leaves at its end."""

    reason: str | None = None
    step: int | None = None
    exception: str | None = None


class RunSummary(Struct, frozen=True):
    status: RunStatus
    created: str
    sessions: int
    """How often it was started."""
    steps: int
    samples: dict[str, int]
    """How many, by split."""
    statuses: dict[str, int]
    """How many rewards, by status."""
    result: dict[str, Any]
    """What the run said as it finished."""
    end: RunEnd
    """Why it is not finished, where it is not."""


def manifest_of(folder: Path) -> Manifest:
    """The manifest of a run whose database is there."""
    about = manifest.read(folder)
    if not (folder / DATABASE).is_file():
        raise StoreError(f"{folder} has no {DATABASE}; the run's samples are gone.")
    return about


class RunReader:
    """The reading half of a `RunStore`."""

    def __init__(self, folder: Path, database: Database, about: Manifest) -> None:
        self.folder = folder
        self.about = about
        self._database = database

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def blobs(self) -> Blobs:
        return Blobs(self.folder / "blobs")

    def samples(
        self,
        *,
        step: int | None = None,
        split: str | None = None,
        task_id: str | None = None,
        group: str | None = None,
        status: str | None = None,
        limit: int = -1,
    ) -> Iterator[StoredSample]:
        """Samples in the order they were stored, filtered by whatever is given."""
        given = {"step": step, "split": split, "task_id": task_id, "group_key": group}
        asked = {k: v for k, v in (given | {"status": status}).items() if v is not None}
        conditions = [OF_TASK if column == "task_id" else f"{column} = ?" for column in asked]
        where = " AND ".join(conditions) or "1"
        query = f"{_SELECT} WHERE {where} ORDER BY rowid LIMIT ?"
        for row in self._database.rows(query, [*asked.values(), limit]):
            yield decode(row)

    def sample(self, reference: str) -> StoredSample:
        """One sample by its name (`train-3-2-4`), the store's key (`2/train/11`) or a trajectory's id.

        The beginning of a key will do where one sample has it.
        """
        place = find_place(self, as_text("reference", reference))
        if place is not None:
            reference = sample_id(*place)
        exact = f"{_SELECT} WHERE id = ? OR trajectory_id = ? ORDER BY rowid LIMIT 9"
        rows = list(self._database.rows(exact, (reference, reference)))
        if not rows and reference:
            beginning = f"{_SELECT} WHERE id BETWEEN ? AND ? ORDER BY rowid LIMIT 9"
            rows = list(self._database.rows(beginning, (reference, reference + "\U0010ffff")))
        found = [decode(row) for row in rows]
        if len(found) == 1:
            return found[0]
        if found:
            several = ", ".join(self.names(found[:8])) + (", ..." if len(found) > 8 else "")
            line = f"'{reference}' means several samples of run '{self.name}': {several}"
        elif self._database.row("SELECT 1 FROM samples LIMIT 1") is None:
            why = _NO_ANSWERS.get(str(self.about.config.get("train.kind")), " yet")
            line = f"run '{self.name}' has no stored answers{why}"
        else:
            line = (
                f"run '{self.name}' has no sample '{reference}'; expected a name such as {EXAMPLES}"
            )
        raise UserError(f"{line}.")

    def names(self, samples: Sequence[StoredSample]) -> list[str]:
        """The names of samples for people, such as `train-3-2-4`; `sample` finds them again."""
        return list(sample_names(self, ((s.step, s.split, s.index) for s in samples)))

    def rollouts(self, step: int) -> list[StoredSample] | None:
        """All rollouts of a stored step, kept and dropped, as they were appended; else None."""
        counted = self._database.row("SELECT samples FROM rollouts WHERE step = ?", (step,))
        if counted is None:
            return None
        query = f"{_SELECT} WHERE step = ? AND split NOT LIKE 'eval:%' ORDER BY rowid"
        found = [decode(row) for row in self._database.rows(query, (step,))]
        if len(found) != counted[0]:
            place, has = self.folder / DATABASE, f"{len(found)} of its {counted[0]} samples"
            raise StoreError(f"{place}: step {step + 1} has {has}; the file is damaged.")
        return found

    def token_values(self, sample: str) -> dict[str, list[float]]:
        """Numbers of a sample's trained tokens by name, such as `entropy`; none in older runs."""
        if not self._has("token_values"):
            return {}
        query = "SELECT name, numbers FROM token_values WHERE sample_id = ?"
        return {
            name: msgspec.json.decode(text) for name, text in self._database.rows(query, [sample])
        }

    @property
    def identity(self) -> str:
        """When the store was begun and by which process: no other store has the same."""
        row = self._database.row("SELECT started, pid FROM sessions ORDER BY id LIMIT 1")
        return "" if row is None else f"{row[0]} by process {row[1]}"

    def rows(self) -> dict[str, int]:
        """How many rows each append-only table holds."""
        return {
            name: int(found[0])
            for name in APPEND_ONLY
            if self._has(name)
            and (found := self._database.row(f"SELECT count(*) FROM {name}")) is not None
        }

    def missing_before(self, step: int, stage: str = "") -> str:
        """What is missing of the steps before `step`, in words; an empty text where nothing is.

        Every finished step has its metrics. Where a run has rollouts, every step of its main
        training has, and all the samples that these count.
        """
        before = [row[0] for row in self.query("SELECT step FROM rollouts WHERE step < ?", [step])]
        lost = sorted(set(range(step)) - set(before)) if before and not stage else []
        if lost:
            return (
                f"the rollouts of {len(lost):,} of {step:,} steps (the first is step {lost[0] + 1})"
            )
        if lost_samples := self.missing_samples():
            return lost_samples
        like = f"{STAGE}{stage}/%" if stage else f"{STAGE}%"
        which = f"SELECT DISTINCT step FROM metrics WHERE name {'' if stage else 'NOT '}LIKE ?"
        found = {row[0] for row in self.query(which, [like])}
        without = sorted(set(range(step)) - found)
        return f"the metrics of {len(without):,} of {step:,} steps" if without else ""

    def missing_samples(self) -> str:
        """What the first step lacks that has lost some of its samples, in words."""
        counted = (
            "SELECT r.step, r.samples, count(s.id) FROM rollouts r LEFT JOIN samples s "
            "ON s.step = r.step AND s.split NOT LIKE 'eval:%' "
            "GROUP BY r.step HAVING count(s.id) <> r.samples ORDER BY r.step LIMIT 1"
        )
        row = self._database.row(counted)
        return (
            "" if row is None else f"{row[1] - row[2]:,} of {row[1]:,} samples of step {row[0] + 1}"
        )

    def _has(self, table: str) -> bool:
        """Runs of earlier versions lack the tables that came later."""
        known = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
        return self._database.row(known, [table]) is not None

    def steps(self) -> list[int]:
        """The steps whose rollouts are stored, in order; without any, those that have metrics."""
        found = [row[0] for row in self._database.rows("SELECT step FROM rollouts ORDER BY step")]
        if found:
            return found
        query = "SELECT DISTINCT step FROM metrics WHERE name NOT LIKE ? ORDER BY step"
        return [row[0] for row in self._database.rows(query, [f"{STAGE}%"])]

    def steps_done(self) -> int:
        """How many steps of the main training are completed: those that have their metrics.

        The step under way, or one that was interrupted, may have its rollouts stored already.
        """
        # Read from the end of the table's key: quick however long the run is.
        query = "SELECT step FROM metrics WHERE name NOT LIKE ? ORDER BY step DESC LIMIT 1"
        row = self._database.row(query, [f"{STAGE}%"])
        return int(row[0]) + 1 if row is not None else 0

    def last_step(self) -> int | None:
        """The highest of `steps()`; None where there is none."""
        return steps[-1] if (steps := self.steps()) else None

    def metrics(self, name: str | None = None) -> dict[str, list[MetricPoint]]:
        """Curves by name, each in the order of its steps; all of them, or one."""
        query = "SELECT name, step, value FROM metrics"
        query += " ORDER BY name, step" if name is None else " WHERE name = ? ORDER BY step"
        rows = self._database.rows(query, [] if name is None else [name])
        return grouped((metric, MetricPoint(step, value)) for metric, step, value in rows)

    def evaluations(self, name: str | None = None) -> list[StoredEvaluation]:
        """All evaluations in the order they were made, or those of one name."""
        query = "SELECT step, name, samples, summary, time FROM evaluations ORDER BY rowid"
        return [
            StoredEvaluation(step, which, samples, msgspec.json.decode(summary), time)
            for step, which, samples, summary, time in self._database.rows(query)
            if name in (None, which)
        ]

    def events(self, kind: str | None = None) -> list[StoredEvent]:
        """What the run said, in order; all of it, or one kind."""
        query = "SELECT time, step, kind, message, data FROM events ORDER BY id"
        return [
            StoredEvent(time, step, which, message, msgspec.json.decode(data))
            for time, step, which, message, data in self._database.rows(query)
            if kind in (None, which)
        ]

    def query(self, sql: str, values: Sequence[Any] = ()) -> Iterator[Row]:
        """The rows of any SELECT over the tables of docs/store.md, one by one."""
        return self._database.rows(sql, values)

    def table(self, name: str, columns: Sequence[str]) -> Generator[Row, None, None]:
        """The rows of one table of `run.db`, one by one, in a stable order."""
        order = "step, name" if name == "metrics" else "rowid"
        return self._database.rows(f"SELECT {', '.join(columns)} FROM {name} ORDER BY {order}")

    def status(self) -> RunStatus:
        """Where the run stands now."""
        return self.end().status

    def end(self) -> RunEnd:
        """How the last start ended and why; of a run that goes on, only its status."""
        query = "SELECT status, ended, summary, started FROM sessions ORDER BY id DESC LIMIT 1"
        row = self._database.row(query)
        if row is not None and row[0] is not None:
            try:
                said = msgspec.json.decode(row[2], type=_Ending)
                status = RunStatus(row[0])
            except (msgspec.MsgspecError, TypeError, ValueError) as error:
                raise StoreError(f"{self.folder}: how it ended cannot be read: {error}") from error
            ended, exception = row[1] or "", said.exception or ""
            return RunEnd(status, said.reason or "", said.step, ended, exception)
        return self._unsaid_end(row[3] if row is not None else "")

    def _unsaid_end(self, started: str) -> RunEnd:
        """How a start ended whose end is not stored: its processes tell, or that it still runs."""
        if is_held(self.folder / LOCK):
            return RunEnd(RunStatus.RUNNING, time=self._last_sign())
        # What lies there from before the last start does not say how that one ended.
        died = deaths(self.folder, since=started)
        if died:
            first, words = died[0], died[0].words
            # SIGTERM is how a person or a scheduler ends a run on purpose, as with Ctrl-C.
            status = RunStatus.STOPPED if words.kind == "signal" else RunStatus.CRASHED
            reason = "; then ".join(death_line(one) for one in died[:3])
            return RunEnd(status, reason, first.step, words.time, words.exception)
        step, seen = self.steps_done(), self._last_sign()
        reason = f"its process ended without a word at step {step + 1}; last sign of life {seen[11:16]} UTC"
        return RunEnd(RunStatus.CRASHED, reason, step, seen)

    def _last_sign(self) -> str:
        """When the run last stored something."""
        tables = {
            "sessions": "started",
            "rollouts": "time",
            "evaluations": "time",
            "events": "time",
        }
        queries = [f"SELECT max({column}) FROM {table}" for table, column in tables.items()]
        found = [row[0] for query in queries if (row := self._database.row(query)) and row[0]]
        return max(found, default="")

    def summary(self) -> RunSummary:
        last = self._database.row(
            "SELECT summary, (SELECT count(*) FROM sessions) FROM sessions ORDER BY id DESC LIMIT 1"
        )
        if last is None:
            raise StoreError(f"{self.folder / DATABASE} has no session; the run is damaged.")
        end = self.end()  # refuses a damaged record
        counted = "SELECT {0}, count(*) FROM samples GROUP BY {0} ORDER BY {0}"
        return RunSummary(
            status=end.status,
            created=self.about.created,
            sessions=last[1],
            steps=self.steps_done(),
            samples=dict(self._database.rows(counted.format("split"))),
            statuses=dict(self._database.rows(counted.format("status"))),
            result=msgspec.json.decode(last[0]),
            end=end,
        )
