"""A few child processes that can be killed, for work that hostile input may never let end.

    pool = default_pool()
    outcomes = pool.run("package.module:function", [{"text": a}, {"text": b}], timeout_s=5)

Functions are addressed by import path and take JSON-able keyword arguments: no pickles. Children
take one job at a time, in turns from all callers. A job's clock is the processor time that it uses:
on a busy machine it takes longer, but fails no more often. A job past its clock costs its child its
life and no other job its result. Children are forked at first use from a server that has imported
the function's module, stay warm, have nothing of the parent in them, and die on their own if it is
gone.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import anyio

from burnish.records import Status
from burnish.tools.supervisor import (
    ChildDeath,
    ForkedChild,
    ForkServer,
    ImportFailed,
    available_cores,
    wait_in_thread,
)

LEAVE_S = 0.5
"""At most this long before a caller's deadline it is given what is finished."""
WALL_PER_S = 10.0
"""Seconds on the wall for each second of a job's clock: the end of a job that does not compute."""
WAITING_CALLERS = 32
"""Threads of one event loop that wait for outcomes."""
CLOSED = "the pool of checking processes was closed"


class Outcome(NamedTuple):
    """What became of one job: status `ok` with a value, or `timeout` / `infra_error` and why."""

    status: Status
    value: Any = None
    reason: str = ""


LATE = Outcome(Status.TIMEOUT, None, "not finished by the deadline of its group")


class _Call:
    """One caller's jobs: those that wait, and what became of the others."""

    def __init__(self, function: str, frames: Sequence[bytes], timeout_s: float) -> None:
        self.function, self.timeout_s = function, timeout_s
        self.waiting = deque(enumerate(frames))
        self.outcomes: list[Outcome | None] = [None] * len(frames)
        self.open = len(frames)
        self.used_s = 0.0
        self.done = threading.Event()

    def settle(self, index: int, outcome: Outcome) -> None:
        if self.outcomes[index] is None:
            self.outcomes[index] = outcome
            self.open -= 1
        if not self.open:
            self.done.set()

    def settle_waiting(self, outcome: Outcome) -> None:
        while self.waiting:
            self.settle(self.waiting.popleft()[0], outcome)


class Pool:
    """`size` killable children. Safe from any thread; callers take turns, job by job.

    The next turn goes to the caller that has used the children least, so that one whose jobs all
    run into their clock does not hold up the others.
    """

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
        self._server = ForkServer(start_timeout_s)
        self._children = [ForkedChild(self._server, memory_mb) for _ in range(size)]
        self._idle = list(self._children)  # the last is the one used last: it is warm
        self._calls: list[_Call] = []  # those with jobs that wait
        self._lock = threading.Lock()  # guards the two lists above and what is inside the calls
        atexit.register(self.close)

    def run(
        self, function: str, jobs: Sequence[Mapping[str, Any]], *, timeout_s: float
    ) -> list[Outcome]:
        """One outcome a job, in order.

        `timeout_s` is the processor time of each job, not of all; one that does not use it up is
        killed after `WALL_PER_S` times as long on the wall.
        """
        call = self._submit(function, jobs, timeout_s)
        try:
            call.done.wait()
        finally:
            outcomes = self._leave(call)
        return outcomes

    async def run_async(
        self, function: str, jobs: Sequence[Mapping[str, Any]], *, timeout_s: float
    ) -> list[Outcome]:
        """`run` from an event loop.

        Just before the deadline of a cancel scope around it, the call returns with what is
        finished; the other jobs are `timeout`. Jobs of a cancelled caller are dropped.
        """
        if not jobs:
            return []
        left = anyio.current_effective_deadline() - anyio.current_time()
        call = self._submit(function, jobs, timeout_s)
        try:
            with anyio.move_on_after(left - min(LEAVE_S, max(left, 0) / 10)):
                await wait_in_thread(call.done.wait, "pool", WAITING_CALLERS)
        finally:
            outcomes = self._leave(call)
        return outcomes

    def pids(self) -> list[int]:
        return [pid for child in self._children if (pid := child.pid) is not None]

    def close(self) -> None:
        """Kill every child, for good. A forked copy of the pool kills none."""
        self._closed = True
        if os.getpid() != self._owner:
            return
        with self._lock:
            idle, self._idle = self._idle, []
            for call in self._calls:
                call.settle_waiting(_failed(CLOSED))
        for child in self._children:
            child.interrupt()  # its thread sees the end of the connection and tidies up
        self._server.close()
        for child in idle:
            child.kill()

    def _submit(self, function: str, jobs: Sequence[Mapping[str, Any]], timeout_s: float) -> _Call:
        clock = {"cpu_s": timeout_s, "wall_s": timeout_s * WALL_PER_S}
        orders = [{"function": function, "job": job, **clock} for job in jobs]
        call = _Call(function, [json.dumps(order).encode() for order in orders], timeout_s)
        if not jobs:
            call.done.set()
            return call
        if os.getpid() != self._owner:
            call.settle_waiting(_failed("the pool of checking processes belongs to the parent"))
            return call
        with self._lock:
            if self._closed:
                call.settle_waiting(_failed(CLOSED))
                return call
            # A newcomer starts level with the caller that is furthest behind, not at zero:
            # a stream of newcomers cannot keep an older caller waiting for ever.
            call.used_s = min((other.used_s for other in self._calls), default=0.0)
            self._calls.append(call)
            woken = [self._idle.pop() for _ in range(min(len(jobs), len(self._idle)))]
        for position, child in enumerate(woken):
            try:
                threading.Thread(target=self._work, args=(child,), daemon=True).start()
            except RuntimeError as error:  # no thread left in the system
                with self._lock:
                    self._idle += woken[position:]
                    call.settle_waiting(_failed(f"no thread for a checking process: {error}"))
                break
        return call

    def _leave(self, call: _Call) -> list[Outcome]:
        """Say what became of each job; drop those that wait and kill those that run."""
        with self._lock:
            call.settle_waiting(LATE)
            for child in self._children:
                if child.serves is call:
                    child.interrupt()
            if call in self._calls:
                self._calls.remove(call)
            call.done.set()  # also wakes a thread that a cancelled caller left behind
            return [LATE if outcome is None else outcome for outcome in call.outcomes]

    def _next(self) -> _Call | None:
        """The caller whose turn it is. To be called with the lock held."""
        self._calls = [call for call in self._calls if call.waiting]
        return min(self._calls, key=lambda call: call.used_s, default=None)

    def _work(self, child: ForkedChild) -> None:
        """Serve turns with this child until no job waits, then put it back."""
        while True:
            with self._lock:
                if self._closed:
                    break
                call = self._next()
                if call is None:
                    self._idle.append(child)
                    return
            try:
                self._turn(child, call)
            except Exception as error:  # boundary: a lost turn must not lose the child or hang
                child.kill()
                with self._lock:
                    call.settle_waiting(_failed(f"{type(error).__name__}: {error}"))
        child.kill()

    def _turn(self, child: ForkedChild, call: _Call) -> None:
        """Make the child ready, then take one job: a child that starts holds up no job."""
        problem = self._ready(child, call.function)
        with self._lock:
            if problem:
                call.settle_waiting(_failed(problem))
            if not call.waiting:
                return
            index, frame = call.waiting.popleft()
            child.serves = call
        started = time.monotonic()
        outcome = _failed("the checking process was lost")
        try:
            outcome = self._ask(child, call, frame)
        finally:
            with self._lock:
                call.used_s += time.monotonic() - started
                call.settle(index, outcome)
                child.serves = None
            if child.interrupted:  # perhaps just after it had answered
                self._replace(child, call.function)

    def _ready(self, child: ForkedChild, function: str) -> str:
        """An empty text once the child runs and has imported the function, else what is wrong."""
        try:
            if child.jobs_done >= self.jobs_per_child:
                child.kill()
            child.start(function)
            if function not in child.ready:
                child.send(json.dumps({"function": function}).encode(), self.start_timeout_s)
                answer = child.receive(self.start_timeout_s)
                if "error" in answer:
                    return str(answer["error"])
                child.ready.add(function)
        except TimeoutError:
            child.kill()
            return f"the checking process was not ready in {self.start_timeout_s:g} s"
        except ChildDeath as death:
            child.kill()
            return str(death)
        except ImportFailed as failure:
            return str(failure)
        return ""

    def _ask(self, child: ForkedChild, call: _Call, frame: bytes) -> Outcome:
        timeout_s = call.timeout_s
        try:
            child.send(frame, self.start_timeout_s)
            message = child.receive(timeout_s * WALL_PER_S)
        except TimeoutError:
            waited = f"killed after {timeout_s * WALL_PER_S:g} s on the wall"
            outcome = Outcome(Status.TIMEOUT, None, waited)
        except ChildDeath as death:
            late = Outcome(Status.TIMEOUT, None, f"killed after {timeout_s:g} s of computing")
            outcome = late if death.is_late else _failed(str(death))
        else:
            child.jobs_done += 1
            if "last" not in message:
                return _outcome(message)
            outcome = _outcome(message)
        self._replace(child, call.function)
        return outcome

    def _replace(self, child: ForkedChild, function: str) -> None:
        """A new process in the place of one that is of no use any more."""
        child.kill()
        if not self._closed:
            # An error here is reported to the next job, if it happens again.
            with contextlib.suppress(ChildDeath, ImportFailed, TimeoutError):
                child.start(function)


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
            _default = (os.getpid(), Pool(min(8, available_cores())))
        return _default[1]
