"""`RUN/processes/N.json`: where process N of a run stands, and its last words if it died.

    record = ProcessRecord(folder, rank=0)
    record.beat(step=7, doing="reward my_judge, 12 of 64 answers")
    record.die("exception", "ZeroDivisionError: division by zero (my_rewards.py:18 in score)")

    deaths(folder)[0]       # of several processes, the one that died first

The file is written in place and has its full size from the start, so that a full disk does not
silence a process. A process that was killed cannot write: whoever reads finds that it is gone and
has said nothing, and when it last gave a sign of life.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import resource
import threading
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from burnish.store.manifest import now
from burnish.texts import whole_characters

FOLDER = "processes"
FILE_BYTES = 4096
"""Size of a file: one page, so that a reader never sees half of a writing."""
LINE_BYTES, DOING_BYTES = 2200, 400
"""Of the texts in it, so that they always fit."""
OOM_KILLS = Path("/sys/fs/cgroup/memory.events")
"""Where Linux counts the processes of this container that it killed for their memory."""
logger = logging.getLogger(__name__)


class LastWords(Struct, frozen=True, kw_only=True):
    kind: str
    """`exception`, `exit` (os._exit), `signal`, `memory` or `silence` (killed, or lost)."""
    line: str
    exception: str = ""
    """Type of the exception."""
    sample: str = ""
    """The sample that it names."""
    time: str = ""


class ProcessState(Struct, frozen=True, kw_only=True):
    rank: int
    size: int
    """How many processes the run has."""
    pid: int
    host: str
    born: str
    """When the process began, in the words of its machine; another process may get its number."""
    time: str
    """Its last sign of life."""
    step: int | None = None
    doing: str = ""
    memory_bytes: int = 0
    """The most that it held so far."""
    oom_kills: int = 0
    """Processes of its container that were killed for their memory before it began."""
    is_over: bool = False
    """It left at the planned end, or after a stop that the run's store tells of."""
    words: LastWords | None = None


class ProcessRecord:
    """The file of this process. Safe from any thread; a file that cannot be written is let be."""

    def __init__(self, folder: Path, rank: int = 0, size: int = 1) -> None:
        self.folder, self.started = folder, now()
        self._path = folder / FOLDER / f"{rank}.json"
        self._lock = (
            threading.RLock()
        )  # one writing at a time; a signal may come in the middle of one
        self._descriptor = -1
        self.state = ProcessState(
            rank=rank,
            size=size,
            pid=os.getpid(),
            host=platform.node(),
            born=_born(os.getpid()),
            time=now(),
            oom_kills=_oom_kills(),
        )
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if rank == 0:
                for path in self._path.parent.glob("*.json"):
                    if path.stem.isdecimal() and int(path.stem) >= size:
                        path.unlink(missing_ok=True)
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            logger.warning("%s: cannot write: %s.", self._path, error.strerror)
        self._write()

    def beat(self, *, step: int | None, doing: str) -> None:
        """A sign of life, with what the process is at."""
        with self._lock:
            if self.state.words is None and not self.state.is_over:
                self.state = replace(self.state, step=step, doing=_short(doing, DOING_BYTES))
                self._write()

    def die(self, kind: str, line: str, *, exception: str = "", sample: str = "") -> None:
        """Write last words; the first ones stay."""
        with self._lock:
            if self.state.words is None and not self.state.is_over:
                words = LastWords(
                    kind=kind,
                    line=_short(line, LINE_BYTES),
                    exception=_short(exception, DOING_BYTES),
                    sample=_short(sample, DOING_BYTES),
                    time=now(),
                )
                self.state = replace(self.state, words=words)
                self._write()

    def leave(self) -> None:
        """Close the file; a process without last words has left as planned."""
        with self._lock:
            if self.state.words is None:
                self.state = replace(self.state, is_over=True)
                self._write()
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    def _write(self) -> None:
        if self._descriptor < 0 or os.getpid() != self.state.pid:
            return
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self.state = replace(self.state, time=now(), memory_bytes=peak)
        text = msgspec.json.encode(self.state)
        if len(text) < FILE_BYTES:
            # Boundary: the disk. The run itself is told by its store.
            with contextlib.suppress(OSError):
                os.pwrite(self._descriptor, text.ljust(FILE_BYTES - 1) + b"\n", 0)


def read_processes(folder: Path) -> list[ProcessState]:
    """The processes of a run's last start, by rank; those whose file cannot be read are left out."""
    found = []
    for path in sorted((folder / FOLDER).glob("*.json")):
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            found.append(msgspec.json.decode(path.read_bytes(), type=ProcessState))
    return sorted(found, key=lambda state: state.rank)


class Death(NamedTuple):
    """A process that died, and its last words or what is known instead."""

    state: ProcessState
    words: LastWords

    @property
    def step(self) -> int | None:
        return self.state.step


def deaths(folder: Path, since: str = "") -> list[Death]:
    """Processes of the last start that died, none before `since`, the first to die first."""
    found = []
    for state in read_processes(folder):
        if state.words is not None:
            found.append(Death(state, state.words))
        elif not state.is_over and not is_alive(state):
            found.append(Death(state, _silence(state)))
    dead = [death for death in found if death.words.time >= since]
    return sorted(dead, key=lambda death: death.words.time)


def death_line(death: Death) -> str:
    """`process 1 of 2, at step 3: MemoryError: no room`; a process alone has no number."""
    state, words = death
    which = f"process {state.rank} of {state.size}" if state.size > 1 else "its process"
    if words.kind == "silence":
        return f"{which} {words.line}"
    sample = f", sample {words.sample}" if words.sample else ""
    begin = f"{which}, {_where(state)}{sample}: " if state.size > 1 else ""
    held = f" (it held {state.memory_bytes / 2**30:.1f} GiB)" if words.kind == "memory" else ""
    return f"{begin}{words.line}{held}"


def _where(state: ProcessState) -> str:
    return f"at step {state.step + 1}" if state.step is not None else "before its first step"


def is_alive(state: ProcessState) -> bool:
    """Whether a process still runs; one on another machine is taken to run."""
    if state.host != platform.node():
        return True
    return state.born == _born(state.pid)


def _silence(state: ProcessState) -> LastWords:
    """What is known of a process that is gone and said nothing."""
    doing = f" ({state.doing})" if state.doing else ""
    line = f"ended without a word {_where(state)}{doing}; last sign of life {state.time[11:19]} UTC"
    if state.host == platform.node() and _oom_kills() > state.oom_kills:
        line += (
            ". Linux has killed a process here for its memory since it began; it held "
            f"{state.memory_bytes / 2**30:.1f} GiB"
        )
        return LastWords(kind="silence", line=line, exception="killed", time=state.time)
    return LastWords(kind="silence", line=f"{line} (kill -9?)", exception="killed", time=state.time)


def _born(pid: int) -> str:
    """When a process began, as Linux counts; empty for one that is gone or only waits to be reaped."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "" if Path("/proc/self/stat").exists() else _runs(pid)
    fields = text.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]


def _runs(pid: int) -> str:
    """Without /proc: only whether there is such a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except OSError:
        pass
    return "runs"


def _oom_kills() -> int:
    try:
        lines = OOM_KILLS.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def _short(text: str, most: int) -> str:
    """The text in whole characters, cut to so many bytes of JSON."""
    text = whole_characters(text)
    while (size := len(msgspec.json.encode(text))) > most:
        text = text[: len(text) * most // size - 1]
    return text
