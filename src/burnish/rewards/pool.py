"""A few child processes that can be killed, for work that hostile input may never let end.

    pool = default_pool()
    outcomes = pool.run("package.module:function", [{"text": a}, {"text": b}], timeout_s=5)

Functions are addressed by import path and take JSON-able keyword arguments: no pickles. A batch
goes to one child in one message and comes back job by job. A job past its wall clock costs its
child its life; a new child takes the rest of the batch. Children start at first use and stay
warm, never import what the parent imported, and die on their own if the parent is gone.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any, NamedTuple

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

from burnish.records import Status
from burnish.rewards import child as child_process
from burnish.rewards.child import read_frame, write_frame


class Outcome(NamedTuple):
    """What became of one job: status `ok` with a value, or `timeout` / `infra_error` and why."""

    status: Status
    value: Any = None
    reason: str = ""


class _DeathError(Exception):
    """The child ended or was killed; the text says how."""


class _Child:
    """One process, started when first needed, and again after each death."""

    def __init__(self, memory_mb: int) -> None:
        self.memory_mb = memory_mb
        self.process: subprocess.Popen[bytes] | None = None
        self.jobs_done = 0

    def start(self) -> None:
        if self.process is not None:
            if self.process.poll() is None:
                return
            self.kill()
        ours, theirs = socket.socketpair()
        self.words: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (lives with the child)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
            "PYTHONHASHSEED": "0",
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-P", child_process.__file__]  # -P: our folder is no import root
        with theirs:
            self.process = subprocess.Popen(
                [*command, str(theirs.fileno()), str(self.memory_mb)],
                stdin=subprocess.DEVNULL,
                stdout=self.words,
                stderr=self.words,
                env=environment,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self.socket, self.jobs_done = ours, 0

    def send(self, message: Any, within_s: float) -> None:
        self.socket.settimeout(within_s)
        try:
            write_frame(self.socket, json.dumps(message).encode())
        except TimeoutError:
            raise
        except OSError:
            raise _DeathError(self.last_words()) from None

    def receive(self, within_s: float) -> Any:
        """The next message; `TimeoutError` past the wall clock."""
        try:
            return json.loads(read_frame(self.socket, time.monotonic() + within_s))
        except TimeoutError:
            raise
        except (OSError, EOFError, ValueError):
            raise _DeathError(self.last_words()) from None

    def last_words(self) -> str:
        """How the process ended, with the end of what it wrote."""
        if self.process is None:
            return "the checking process was not running"
        try:
            code = self.process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            return "the checking process broke off its connection"
        self.words.seek(max(0, self.words.seek(0, os.SEEK_END) - 2000))
        lines = self.words.read().decode(errors="replace").strip().splitlines()
        how = f"signal {-code}" if code < 0 else f"exit status {code}"
        return f"the checking process ended ({how})" + (f": {lines[-1][:300]}" if lines else "")

    def kill(self) -> None:
        if self.process is None:
            return
        self.process.kill()
        self.process.wait()
        self.socket.close()
        self.words.close()
        self.process = None


class Pool:
    """`size` killable children. Safe from any thread; each batch is served by one child."""

    def __init__(
        self,
        size: int = 2,
        *,
        memory_mb: int = 2048,
        start_timeout_s: float = 60.0,
        jobs_per_child: int = 10_000,
    ) -> None:
        """`jobs_per_child` bounds slow leaks in libraries: an old child is replaced."""
        self.size = size
        self.start_timeout_s = start_timeout_s
        self.jobs_per_child = jobs_per_child
        self._owner = os.getpid()
        self._closed = False
        self._children = [_Child(memory_mb) for _ in range(size)]
        self._idle: queue.LifoQueue[_Child] = queue.LifoQueue()
        for child in self._children:
            self._idle.put(child)
        atexit.register(self.close)

    def run(
        self, function: str, jobs: Sequence[Mapping[str, Any]], *, timeout_s: float
    ) -> list[Outcome]:
        """One outcome a job, in order. `timeout_s` is the wall clock of each job, not of all."""
        if not jobs:
            return []
        child = self._idle.get()
        try:
            return self._serve(child, function, jobs, timeout_s)
        finally:
            if not self._closed:
                child.start()  # a replacement boots while nobody waits for it
            self._idle.put(child)

    async def run_async(
        self, function: str, jobs: Sequence[Mapping[str, Any]], *, timeout_s: float
    ) -> list[Outcome]:
        """`run` from an event loop. A cancelled caller leaves at once; the children end the batch."""
        if not jobs:
            return []
        return await anyio.to_thread.run_sync(
            lambda: self.run(function, jobs, timeout_s=timeout_s),
            abandon_on_cancel=True,
            limiter=_waiters(),
        )

    def pids(self) -> list[int]:
        """Process ids of the children that are alive now."""
        running = [child.process for child in self._children if child.process is not None]
        return [process.pid for process in running if process.poll() is None]

    def close(self) -> None:
        """Kill every child, for good. A forked copy of the pool kills none."""
        self._closed = True
        if os.getpid() == self._owner:
            for child in self._children:
                child.kill()

    def _serve(
        self, child: _Child, function: str, jobs: Sequence[Mapping[str, Any]], timeout_s: float
    ) -> list[Outcome]:
        outcomes: list[Outcome] = []
        while len(outcomes) < len(jobs):
            rest = jobs[len(outcomes) :]
            if self._closed:
                return outcomes + [_failed("the pool of checking processes was closed")] * len(rest)
            if child.jobs_done >= self.jobs_per_child:
                child.kill()
            started = False
            try:
                child.start()
                order = {"function": function, "jobs": rest, "timeout_s": timeout_s}
                child.send(order, self.start_timeout_s)
                ready = child.receive(self.start_timeout_s)
                if "error" in ready:
                    return outcomes + [_failed(ready["error"])] * len(rest)
                started = True
                for _ in rest:
                    message = child.receive(timeout_s)
                    outcomes.append(_outcome(message))
                    child.jobs_done += 1
                    if "last" in message:
                        child.kill()
                        break
            except TimeoutError:
                child.kill()
                if not started:
                    late = f"the checking process was not ready in {self.start_timeout_s:g} s"
                    return outcomes + [_failed(late)] * len(rest)
                outcomes.append(Outcome(Status.TIMEOUT, None, f"killed after {timeout_s:g} s"))
            except _DeathError as death:
                child.kill()
                if not started:
                    return outcomes + [_failed(str(death))] * len(rest)
                outcomes.append(_failed(str(death)))
        return outcomes


def _outcome(message: dict[str, Any]) -> Outcome:
    if "error" in message:
        return _failed(message["error"])
    return Outcome(Status.OK, message["value"])


def _failed(reason: str) -> Outcome:
    return Outcome(Status.INFRA_ERROR, None, reason)


_default: tuple[int, Pool] | None = None
_making = threading.Lock()  # invariant: at most one default pool in a process


def default_pool() -> Pool:
    """The process's own pool, made on first use with one child a core (at most 8)."""
    global _default
    with _making:
        if _default is None or _default[0] != os.getpid():
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2
            _default = (os.getpid(), Pool(max(1, min(8, cores))))
        return _default[1]


_waiting: RunVar[anyio.CapacityLimiter] = RunVar("burnish_pool_waiters")


def _waiters() -> anyio.CapacityLimiter:
    """Threads that wait for children are counted apart, so that they starve nobody else's."""
    try:
        return _waiting.get()
    except LookupError:
        limiter = anyio.CapacityLimiter(32)
        _waiting.set(limiter)
        return limiter
