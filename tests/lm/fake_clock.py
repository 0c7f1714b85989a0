"""A clock that jumps to the next timer whenever every task waits, so that minutes take no time."""

import heapq
import itertools
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import anyio
from anyio.lowlevel import checkpoint

from burnish.lm.failures import EXPECTED, classify, unwrapped_errors
from burnish.lm.jobs import Job
from burnish.lm.request_pool import RequestPool, Worker
from burnish.records import Status

SETTLE_PASSES = 30
"""Turns of the event loop after which every task has come to its next wait."""


class Outcome(NamedTuple):
    value: Any
    status: Status
    error: str
    attempts: int


async def run_jobs(pool: RequestPool, jobs: list[Job], worker: Worker[Any]) -> list[Outcome]:
    """All jobs at once through `pool.call`, and what came of each."""
    outcomes: dict[str, Outcome] = {}

    async def one(job: Job) -> None:
        try:
            outcomes[job.id] = Outcome(await pool.call(job, worker), Status.OK, "", 0)
        except EXPECTED as error:
            attempts = getattr(error, "attempts", 1)
            outcomes[job.id] = Outcome(None, classify(error).status, str(error), attempts)

    with unwrapped_errors():
        async with anyio.create_task_group() as group:
            for job in jobs:
                group.start_soon(one, job)
    return [outcomes[job.id] for job in jobs]


class FakeClock:
    def __init__(self) -> None:
        self.time = 0.0
        self._timers: list[tuple[float, int, Callable[[], Any]]] = []
        self._dead: set[int] = set()
        self._numbers = itertools.count()

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await checkpoint()
            return
        event = anyio.Event()
        self._set_timer(seconds, event.set)
        await event.wait()

    @contextmanager
    def limit(self, seconds: float) -> Iterator[anyio.CancelScope]:
        with anyio.CancelScope() as scope:
            number = self._set_timer(seconds, scope.cancel)
            try:
                yield scope
            finally:
                self._dead.add(number)

    def run(self, main: Callable[[], Awaitable[Any]]) -> Any:
        """`anyio.run` under this clock."""

        async def driven() -> Any:
            async with anyio.create_task_group() as group:
                group.start_soon(self._drive)
                result = await main()
                group.cancel_scope.cancel()
            return result

        return anyio.run(driven)

    async def _drive(self) -> None:
        while True:
            for _ in range(SETTLE_PASSES):
                await checkpoint()
            due = self._next_time()
            while self._timers and self._timers[0][0] <= due:
                _, number, wake = heapq.heappop(self._timers)
                if number not in self._dead:
                    self.time = due
                    wake()

    def _next_time(self) -> float:
        """When the next timer that still counts is due; all of that moment go off together."""
        return min((when for when, n, _ in self._timers if n not in self._dead), default=0.0)

    def _set_timer(self, seconds: float, wake: Callable[[], Any]) -> int:
        number = next(self._numbers)
        if seconds != float("inf"):
            heapq.heappush(self._timers, (self.time + seconds, number, wake))
        return number
