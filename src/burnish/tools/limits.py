"""How much a sandboxed run may use, and how it ended.

SandboxLimits(cpu_s=5, memory_mb=256)
ran.status, ran.killed_by, ran.stdout
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from burnish.errors import UserError
from burnish.tools.inside.run_spec import Bounds


@dataclass(frozen=True)
class SandboxLimits:
    """Limits of one run. Every one is a ceiling; none is a promise."""

    cpu_s: float = 10.0
    """Processor seconds of each process; rounded up to whole ones."""
    wall_s: float = 15.0
    """Seconds on the clock from the moment the code starts."""
    memory_mb: int = 512
    """Address space of each process, the interpreter's own 30 MB included."""
    disk_mb: int = 16
    """All that is written to the work folder."""
    files: int = 256
    """Files and folders in the work folder."""
    processes: int = 1
    """Processes at one time, the first included; 1 forbids to start others."""
    threads: int = 16
    """Threads beside the processes."""
    open_files: int = 64
    output_kb: int = 1024
    """What is kept of stdout and of stderr; a run that prints more is killed."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            floor = 0 if field.name == "threads" else 1e-3
            if isinstance(value, bool) or not (floor <= value < math.inf):
                raise UserError(
                    f"sandbox limit {field.name} is {value}; expected a finite number above 0."
                )
        if self.open_files < 16:
            raise UserError(f"sandbox limit open_files is {self.open_files}; expected at least 16.")
        if self.memory_mb < 64:
            raise UserError(f"sandbox limit memory_mb is {self.memory_mb}; expected at least 64.")

    def bounds(self) -> Bounds:
        """The same in the units of the kernel."""
        return Bounds(
            cpu_s=math.ceil(self.cpu_s),
            memory_bytes=self.memory_mb << 20,
            disk_bytes=self.disk_mb << 20,
            files=self.files,
            processes=self.processes,
            threads=self.threads,
            open_files=self.open_files,
            socket_pairs=2 * self.open_files * _socket_buffer() <= self.memory_mb << 20,
        )


def _socket_buffer() -> float:
    """Bytes that the kernel keeps for one socket; infinite where that cannot be read."""
    try:
        return int(Path("/proc/sys/net/core/wmem_default").read_text())
    except (OSError, ValueError):
        return math.inf


class RunStatus(StrEnum):
    """How a run of foreign code ended; none of these is trouble of the sandbox itself."""

    OK = "ok"
    """It ended by itself with exit code 0. What it printed is still only its own word."""
    FAILED = "failed"
    """It ended by itself with another exit code."""
    CRASHED = "crashed"
    """A signal ended it: a segmentation fault, an abort."""
    KILLED = "killed"
    """It reached a limit; `killed_by` says which."""


class Limit(StrEnum):
    """The limit that ended a run."""

    CPU = "cpu"
    """Processor seconds."""
    WALL = "wall"
    """Seconds on the clock."""
    OUTPUT = "output"
    """It printed too much."""
    DISK = "disk"
    """It wrote too much or too many files (watched where the folder's file system has no limit)."""
    THREADS = "threads"
    """It started too many threads (watched where it runs as root, whose threads the kernel does not count)."""


class Ran(NamedTuple):
    """What came of one run. Texts are the run's own: data, never instructions."""

    stdout: str
    stderr: str
    status: RunStatus
    exit_code: int | None
    """The exit code, minus the signal's number, or None where it was killed."""
    seconds: float
    """Seconds on the clock, from the start of the code."""
    killed_by: Limit | None = None
    cpu_s: float = 0.0
    peak_mb: float = 0.0

    def __str__(self) -> str:
        if self.killed_by is not None:
            return f"killed by the {self.killed_by.value} limit after {self.seconds:.1f} s"
        if self.status is RunStatus.CRASHED:
            return f"ended by signal {-(self.exit_code or 0)}"
        return f"ended with exit code {self.exit_code}"
