"""Feed a sandboxed process, listen to it, and end it: the parent's side of a run.

Nothing here trusts what it hears: output is cut at a limit, the report comes over a pipe that the
foreign code does not hold, and at the end the whole process group is killed whatever it said.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import threading
import time
from typing import Any, NamedTuple

from burnish.errors import SandboxError
from burnish.tools.inside.run_spec import RunSpec, to_json
from burnish.tools.isolation import Mounts, Plan
from burnish.tools.launch import Started, has_too_many_tasks, is_too_full, start
from burnish.tools.limits import Limit, Ran, RunStatus, SandboxLimits

START_S = 30.0
"""Seconds until the process must be ready; a loaded machine is slow, not broken."""
LOOK_S = 0.05
"""How often a run is looked at where nothing happens."""
NOTES = 16 << 20
"""Bytes of an examiner's notes; they are our own words, one line a test."""
LEAVE_S = 1.0
"""Seconds after the kill in which every pipe must have closed."""


class Finished(NamedTuple):
    """A run as seen from outside, and the examiner's notes where there were any."""

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
        deadline = time.monotonic() + START_S
        next_look = 0.0
        while not self._is_over():
            now = time.monotonic()
            if self.stop.is_set():
                raise Stopped("the run was stopped: nobody waits for it")
            if now >= deadline:
                self.killed_by = Limit.WALL
                return
            self._turn(min(deadline - now, LOOK_S))
            if self.ready_at is None and b"\n" in self.heard[self.started.report]:
                self.ready_at = time.monotonic()
                deadline = self.ready_at + self.limits.wall_s
            if self.killed_by is not None:
                return
            if self.ready_at and now >= next_look:
                next_look = now + LOOK_S
                self.killed_by = self._look()
                if self.killed_by is not None:
                    return

    def _look(self) -> Limit | None:
        """The limit that is reached, of those that the kernel does not hold."""
        process = self.started.process.pid
        if not self.plan.has_own_root and is_too_full(self.spec, process):
            return Limit.DISK
        is_watched = self.plan.has_uncounted_threads and self.spec.bounds.processes == 1
        if is_watched and has_too_many_tasks(self.spec, process):
            return Limit.THREADS
        return None

    def _is_over(self) -> bool:
        """Whether the keeper has reported the end, or is gone without a word."""
        report = self.started.report
        return self.heard[report].count(b"\n") >= 2 or report not in self.selector.get_map()

    def _turn(self, wait_s: float) -> None:
        for key, _ in self.selector.select(wait_s):
            if key.fd in self.unsaid:
                self._say(key.fd)
            elif not self._hear(key.fd):
                self.killed_by = Limit.OUTPUT

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
        if self.killed_by is not None:
            status, code = RunStatus.KILLED, None
        else:
            status = RunStatus.OK if code == 0 else RunStatus.FAILED
            status = RunStatus.CRASHED if code is not None and code < 0 else status
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
