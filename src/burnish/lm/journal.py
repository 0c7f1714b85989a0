"""The fleet's memory on disk: finished jobs are not done again after a restart.

One JSON line per outcome. A line carries a digest of the job's payload, so that an answer is
never handed to a different question that happens to have the same id.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
from msgspec import Struct

from burnish.errors import UserError
from burnish.lm.jobs import Job, Outcome
from burnish.lm.lines import LineFile, read_lines
from burnish.records import Status
from burnish.seeds import digest


class Line(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One outcome on disk."""

    id: str
    payload: str
    """Digest of the job's payload."""
    status: Status
    value: Any = None
    error: str = ""
    attempts: int = 0
    seconds: float = 0.0
    tokens: int = 0
    cost_usd: float = 0.0


class Journal:
    """The journal of one run, held open and locked while the run lasts."""

    def __init__(self, path: Path, value_type: Any = Any) -> None:
        self._file = LineFile(path)
        self._value_type = value_type
        self._done: dict[str, Line] = {}

    def __enter__(self) -> Self:
        self._file.__enter__()
        try:
            for line in read_lines(self._file.path, Line):
                if line.status is Status.OK:
                    self._done[line.id] = line
        except BaseException:
            self._file.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.__exit__(kind, error, trace)

    def finished(self, jobs: Sequence[Job]) -> dict[str, Outcome[Any]]:
        """Outcomes of those jobs that an earlier run finished with success."""
        found = {}
        for job in jobs:
            key = self._key(job)
            line = self._done.get(job.id)
            if line is None:
                continue
            if line.payload != key:
                raise UserError(
                    f"{self._file.path}: job '{job.id}' is recorded with another payload "
                    f"({line.payload}, now {key}); use a new journal or new job ids"
                )
            found[job.id] = self._outcome(line)
        return found

    def write(self, job: Job, outcome: Outcome[Any]) -> None:
        """Append one outcome."""
        line = Line(
            id=outcome.id,
            payload=self._key(job),
            status=outcome.status,
            value=outcome.value,
            error=outcome.error,
            attempts=outcome.attempts,
            seconds=outcome.seconds,
            tokens=outcome.tokens,
            cost_usd=outcome.cost_usd,
        )
        try:
            self._file.append(line)
        except TypeError as error:
            raise UserError(
                f"job '{job.id}': its value cannot be written to the journal ({error}); "
                "return something JSON-able or run without a journal"
            ) from error

    def _outcome(self, line: Line) -> Outcome[Any]:
        try:
            value = msgspec.convert(line.value, self._value_type)
        except msgspec.ValidationError as error:
            raise UserError(
                f"{self._file.path}: the value of job '{line.id}' is not a "
                f"{self._value_type} ({error}); use a new journal"
            ) from error
        return Outcome(
            id=line.id,
            value=value,
            status=line.status,
            attempts=line.attempts,
            seconds=line.seconds,
            tokens=line.tokens,
            cost_usd=line.cost_usd,
            from_journal=True,
        )

    def _key(self, job: Job) -> str:
        try:
            return digest(msgspec.json.encode(job.payload, order="deterministic"))
        except TypeError as error:
            raise UserError(
                f"job '{job.id}': its payload cannot be written as JSON ({error}); "
                "a journal needs that to know the job again"
            ) from error
