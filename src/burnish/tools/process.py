"""Feed a sandboxed process, listen to it, and end it: the parent's side of a run.

Nothing here trusts what it hears: output is cut at a limit, the report comes over a pipe that the
foreign code does not hold, and at the end the whole process group is killed whatever it said.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import math
import os
import selectors
import signal
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from burnish.errors import SandboxError
from burnish.tools.inside.confine import KEEPERS, NOBODY
from burnish.tools.inside.descend import below, remove
from burnish.tools.inside.run_spec import RunSpec, to_json
from burnish.tools.isolation import (
    Layer,
    Limit,
    Mounts,
    Plan,
    Ran,
    RunStatus,
    SandboxLimits,
    bubblewrap,
)
from burnish.tools.supervisor import ChildProcess

WORK = "/sandbox"
"""The work folder of a run that has its own root."""

SCRIPT = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from inside.entry import main; main(*map(int, sys.argv[2:]))"
)


@dataclass(frozen=True)
class Started:
    process: ChildProcess
    stdin: int
    spec: int
    stdout: int
    stderr: int
    report: int


@contextlib.contextmanager
def work_folder(plan: Plan) -> Iterator[str]:
    """A folder for one run; on the host's disk only where the run has no mount namespace."""
    if plan.has_own_root:
        yield WORK
        return
    folder = os.path.realpath(tempfile.mkdtemp(prefix="burnish-sandbox-"))
    try:
        if Layer.NOBODY in plan.layers:
            os.chown(folder, NOBODY, NOBODY)
        yield folder
    finally:
        try:
            remove(folder)
        except OSError as error:
            raise SandboxError(f"the folder of a run cannot be removed: {error}") from error


def run_spec(
    plan: Plan,
    mounts: Mounts,
    limits: SandboxLimits,
    work: str,
    role: str,
    code: str,
    files: Mapping[str, str] | None = None,
    import_paths: Iterable[str] = (),
) -> RunSpec:
    """One run under a plan; `files` are put into its work folder."""
    return RunSpec(
        role=role,
        code=code,
        bounds=limits.bounds(),
        layers=tuple(layer.value for layer in plan.layers),
        user_namespace=plan.user_namespace,
        readable=mounts.readable,
        hidden=mounts.hidden,
        links=mounts.links,
        import_paths=tuple(import_paths),
        work=work,
        files=tuple((files or {}).items()),
    )


def start(plan: Plan, spec: RunSpec, mounts: Mounts) -> Started:
    """Start the process; it waits for its spec. `SandboxError` where it cannot be started."""
    pipes = {name: os.pipe() for name in ("stdin", "spec", "stdout", "stderr", "report")}
    told = ("stdin", "spec")
    theirs = {name: ends[name not in told] for name, ends in pipes.items()}
    ours = {name: ends[name in told] for name, ends in pipes.items()}
    passed = [*(spec.talk or ()), *(() if spec.answer is None else (spec.answer,))]
    try:
        process = ChildProcess(
            command(plan, spec, mounts, theirs["spec"], theirs["report"]),
            stdin=theirs["stdin"],
            stdout=theirs["stdout"],
            stderr=theirs["stderr"],
            pass_fds=(theirs["spec"], theirs["report"], *passed),
            env={"PATH": "", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"},
            cwd="/",
        )
    except OSError as error:
        for end in ours.values():
            os.close(end)
        raise SandboxError(f"the sandboxed process cannot be started: {error}") from error
    finally:
        for end in theirs.values():
            os.close(end)
    return Started(process, **ours)


def command(plan: Plan, spec: RunSpec, mounts: Mounts, spec_end: int, report_end: int) -> list[str]:
    """The command line: a bare interpreter, inside bwrap where that is the plan.

    The hash seed is fixed and nothing of the user's environment is read: the same code runs alike.
    """
    here = str(Path(__file__).parent)
    interpreter = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    python = [interpreter, "-s", "-P", "-S", "-X", "utf8", "-c", SCRIPT, here]
    python += [str(spec_end), str(report_end)]
    program = bubblewrap()
    if Layer.BUBBLEWRAP not in plan.layers or program is None:
        return python
    words = [program, "--unshare-all", "--die-with-parent", "--cap-drop", "ALL"]
    for path in [*mounts.readable, interpreter, os.path.join(here, "inside")]:
        words += ["--dev-bind" if path.startswith("/dev/") else "--ro-bind", path, path]
    for link, target in mounts.links:
        words += ["--symlink", target, link]
    for path in mounts.hidden:
        words += ["--tmpfs", path, "--remount-ro", path]
    words += ["--bind", spec.work, spec.work, "--remount-ro", "/"]
    return [*words, "--chdir", spec.work, "--", *python]


def is_too_full(spec: RunSpec, process: int) -> bool:
    """Whether a run has more on the host's disk than it may: in its folder, or without a name."""
    size = count = 0
    folders = [spec.work]
    while folders:
        try:
            entries = list(os.scandir(folders.pop()))
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return True  # deeper than any path: nothing honest is
            continue  # it has just been removed, or locked by the code itself
        count += len(entries)
        for entry in entries:
            with contextlib.suppress(OSError):  # it has just been removed
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                size += entry.stat(follow_symlinks=False).st_blocks * 512
        if size > spec.bounds.disk_bytes or count > spec.bounds.files:
            return True
    with _eyes_of_nobody(spec):
        unnamed = _unnamed_bytes(spec, below(process))
    return size + unnamed > spec.bounds.disk_bytes


def has_too_many_tasks(spec: RunSpec, process: int) -> bool:
    """Whether a run has more threads than it may, where the kernel does not count them: as root."""
    count = 0
    for pid in below(process):
        with contextlib.suppress(OSError):  # it has just ended
            count += len(os.listdir(f"/proc/{pid}/task"))
    return count > spec.bounds.processes + spec.bounds.threads + KEEPERS


@contextlib.contextmanager
def _eyes_of_nobody(spec: RunSpec) -> Iterator[None]:
    """Look at files as the user nobody: a container's root may not look into others' processes.

    The change is this thread's own, and only for file systems.
    """
    if "nobody" not in spec.layers or "namespaces" in spec.layers:
        yield
        return
    library = ctypes.CDLL(None)
    library.setfsgid(NOBODY)
    library.setfsuid(NOBODY)
    try:
        yield
    finally:
        library.setfsuid(os.geteuid())
        library.setfsgid(os.getegid())


def _unnamed_bytes(spec: RunSpec, pids: Iterable[int]) -> float:
    """Bytes of files that were removed but are still open, or mapped (then without a known size)."""
    sizes: dict[int, int] = {}
    mapped: set[int] = set()
    try:
        disk = os.stat(spec.work).st_dev
    except OSError:  # nothing honest removes its own folder
        return math.inf
    for pid in pids:
        # It may have ended, or belong to a user whose files this one may not look at.
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):  # it has just been closed
                    status = os.stat(f"/proc/{pid}/fd/{name}")
                    is_there = stat.S_ISREG(status.st_mode) and status.st_dev == disk
                    if is_there and not status.st_nlink:
                        sizes[status.st_ino] = status.st_blocks * 512
            with open(f"/proc/{pid}/maps") as file:
                gone = [line.split(maxsplit=5) for line in file if line.endswith(" (deleted)\n")]
            mapped |= {int(parts[4]) for parts in gone if parts[5].startswith(spec.work)}
    # Python's own `mmap` keeps the file open. Who closes it hides how large it is.
    return math.inf if mapped - set(sizes) else sum(sizes.values())


START_S = 30.0
"""Seconds until the process must be ready; a loaded machine is slow, not broken."""
LOOK_S = 0.05
"""How often a run is looked at where nothing happens."""
NOTES = 16 << 20
"""Bytes of an examiner's notes; they are our own words, one line a test."""
LEAVE_S = 1.0
"""Seconds after the kill in which every pipe must have closed."""


class Finished(NamedTuple):
    ran: Ran
    notes: bytes
    is_clean: bool
    """False where something still held the run's output after everything was killed."""


class Stopped(SandboxError):
    """Nobody waits for this run any more."""


class Run:
    """One process from its start to its end."""

    def __init__(
        self,
        plan: Plan,
        spec: RunSpec,
        mounts: Mounts,
        limits: SandboxLimits,
        *,
        stdin: bytes = b"",
        notes: int | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        self.plan, self.spec, self.limits = plan, spec, limits
        self.stop = stop or threading.Event()
        self.started: Started = start(plan, spec, mounts)
        self.notes = notes
        out, err, report = self.started.stdout, self.started.stderr, self.started.report
        self.heard = {end: bytearray() for end in (out, err, report)}
        if notes is not None:
            self.heard[notes] = bytearray()
        self.unsaid = {
            self.started.spec: memoryview(to_json(spec)),
            self.started.stdin: memoryview(stdin),
        }
        self.selector = selectors.DefaultSelector()
        for ends, event in (
            (self.heard, selectors.EVENT_READ),
            (self.unsaid, selectors.EVENT_WRITE),
        ):
            for end in ends:
                os.set_blocking(end, False)
                self.selector.register(end, event)
        self.killed_by: Limit | None = None
        self.ready_at: float | None = None

    def finish(self) -> Finished:
        """Wait until the run ends or a limit ends it; kills what is left of it in any case."""
        try:
            self._listen()
            seconds = time.monotonic() - (self.ready_at or time.monotonic())
        finally:
            self._kill()
            is_clean = self._drain()
            for end in [*self.heard, *self.unsaid]:
                os.close(end)
            self.selector.close()
        return Finished(self._ran(seconds), bytes(self.heard.get(self.notes or -1, b"")), is_clean)

    def _listen(self) -> None:
        process, report = self.started.process.pid, self.started.report
        deadline = time.monotonic() + START_S
        next_look = 0.0
        # Until the keeper has reported the end, or is gone without a word.
        while self.heard[report].count(b"\n") < 2 and report in self.selector.get_map():
            now = time.monotonic()
            if self.stop.is_set():
                raise Stopped("the run was stopped: nobody waits for it")
            if now >= deadline:
                self.killed_by = Limit.WALL
                return
            for key, _ in self.selector.select(min(deadline - now, LOOK_S)):
                if key.fd in self.unsaid:
                    self._say(key.fd)
                elif not self._hear(key.fd):
                    self.killed_by = Limit.OUTPUT
            if self.ready_at is None and b"\n" in self.heard[report]:
                self.ready_at = time.monotonic()
                deadline = self.ready_at + self.limits.wall_s
            if self.ready_at and now >= next_look and self.killed_by is None:
                next_look = now + LOOK_S
                # Of the limits those that the kernel does not hold.
                is_watched = self.plan.has_uncounted_threads and self.spec.bounds.processes == 1
                if not self.plan.has_own_root and is_too_full(self.spec, process):
                    self.killed_by = Limit.DISK
                elif is_watched and has_too_many_tasks(self.spec, process):
                    self.killed_by = Limit.THREADS
            if self.killed_by is not None:
                return

    def _say(self, end: int) -> None:
        data = self.unsaid[end]
        try:
            data = data[os.write(end, data[:65536]) :] if data else data
        except BlockingIOError:
            return
        except BrokenPipeError:  # it does not want to hear more
            data = data[:0]
        self.unsaid[end] = data
        if not data:
            self.selector.unregister(end)
            del self.unsaid[end]
            os.close(end)

    def _hear(self, end: int) -> bool:
        """Read once; False when a stream is over its limit."""
        try:
            chunk = os.read(end, 65536)
        except BlockingIOError:
            return True
        if not chunk:
            self.selector.unregister(end)
            return True
        most = NOTES if end == self.notes else self.limits.output_kb << 10
        room = most - len(self.heard[end])
        self.heard[end] += chunk[:room]
        return len(chunk) <= room

    def _kill(self) -> None:
        """Kill all of it: the kernel does with namespaces, else everything below the keeper."""
        process = self.started.process
        is_cut_short = self.killed_by is not None or self.stop.is_set()
        if is_cut_short and self.spec.has_own_table:
            process.terminate()  # it takes the keeper with it, and is gone when all others are
        elif is_cut_short:
            process.kill_descendants()
        has_ended = process.wait(LEAVE_S) is not None
        if not self.spec.has_own_table and not has_ended:
            process.kill_descendants()
        process.kill()

    def _drain(self) -> bool:
        """Read what was written before the end; an output still open after it has a survivor."""
        deadline = time.monotonic() + LEAVE_S
        for end in self.unsaid:
            self.selector.unregister(end)
        outputs = {self.started.stdout, self.started.stderr}
        while outputs & set(self.selector.get_map()) and time.monotonic() < deadline:
            for key, _ in self.selector.select(max(0.0, deadline - time.monotonic())):
                if not self._hear(key.fd):
                    self.selector.unregister(key.fd)
        return not outputs & set(self.selector.get_map())

    def _ran(self, seconds: float) -> Ran:
        lines = [json.loads(line) for line in self.heard[self.started.report].splitlines()]
        said: dict[str, Any] = {key: value for line in lines for key, value in line.items()}
        if "problem" in said:
            raise SandboxError(f"a layer cannot be put on ({self.plan}): {said['problem']}")
        if self.ready_at is None:
            words = self._text(self.started.stderr).strip().splitlines()
            why = words[-1] if words else f"it was not ready in {START_S:g} s"
            raise SandboxError(f"the sandboxed process did not start ({self.plan}): {why[:300]}")
        code: int | None = said.get("exit")
        cpu_s = float(said.get("cpu_s", 0.0))
        if code is None and self.killed_by is None:
            raise SandboxError("the sandboxed process was killed by something outside")
        if code in (-signal.SIGXCPU, -signal.SIGKILL) and cpu_s >= self.spec.bounds.cpu_s - 0.5:
            self.killed_by, code = Limit.CPU, None
        status = RunStatus.OK if code == 0 else RunStatus.FAILED
        if self.killed_by is not None:
            status, code = RunStatus.KILLED, None
        elif code is not None and code < 0:
            status = RunStatus.CRASHED
        return Ran(
            stdout=self._text(self.started.stdout),
            stderr=self._text(self.started.stderr),
            status=status,
            exit_code=code,
            seconds=seconds,
            killed_by=self.killed_by,
            cpu_s=cpu_s,
            peak_mb=said.get("peak_kb", 0) / 1024,
        )

    def _text(self, end: int) -> str:
        return self.heard[end].decode("utf-8", "replace")
