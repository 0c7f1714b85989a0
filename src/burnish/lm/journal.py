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
from burnish.lm.lines import LineFile, Place
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
    """The journal of a fleet, open and locked while any of its runs and calls lasts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: LineFile[Line] | None = None
        self._known = Place()
        self._users = 0
        self._done: dict[str, Line] = {}

    def __enter__(self) -> Self:
        if self._file is None:
            file = LineFile(self._path, Line, self._known).__enter__()
            self._done |= {line.id: line for line in file.records if line.status is Status.OK}
            self._known, self._file = file.end, file
        self._users += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._users -= 1
        if self._users == 0 and self._file is not None:
            file, self._file = self._file, None
            file.__exit__(kind, error, trace)

    def finished(self, jobs: Sequence[Job], value_type: Any = Any) -> dict[str, Outcome[Any]]:
        """Outcomes of those jobs that finished with success before the journal was opened."""
        found = {}
        for job in jobs:
            key = self._key(job)
            line = self._done.get(job.id)
            if line is None:
                continue
            if line.payload != key:
                raise UserError(
                    f"{self._path}: job '{job.id}' is recorded with another payload "
                    f"({line.payload}, now {key}); use a new journal or new job ids"
                )
            found[job.id] = self._outcome(line, value_type)
        return found

    def write(self, job: Job, outcome: Outcome[Any]) -> None:
        """Append one outcome."""
        if self._file is None:
            raise ValueError("the journal is not open")
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
        except (TypeError, UnicodeEncodeError) as error:
            raise UserError(
                f"job '{job.id}': its value cannot be written to the journal ({error}); "
                "return something JSON-able or run without a journal"
            ) from error

    def _outcome(self, line: Line, value_type: Any) -> Outcome[Any]:
        try:
            value = msgspec.convert(line.value, value_type, str_keys=True)
        except msgspec.ValidationError as error:
            raise UserError(
                f"{self._path}: the value of job '{line.id}' is not a "
                f"{value_type} ({error}); use a new journal"
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
        except (TypeError, UnicodeEncodeError) as error:
            raise UserError(
                f"job '{job.id}': its payload cannot be written as JSON ({error}); "
                "a journal needs that to know the job again"
            ) from error
