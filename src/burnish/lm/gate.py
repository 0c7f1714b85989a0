"""The door of one endpoint (slots and rates), and the running record of one job that passes it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio

from burnish.lm.jobs import Answer, Job, Limits, Outcome
from burnish.lm.pace import Clock, Pace, Reservation
from burnish.records import Status

T = TypeVar("T")


class Call:
    """One job on its way: what it waits for, since when, and what it has cost so far."""

    def __init__(self, job: Job, now: float) -> None:
        self.job = job
        self.started = now
        self.attempts = 0
        self.place: Reservation | None = None
        self.failed_with: BaseException | None = None
        self.label = "waiting in the queue"
        self.since = now

    def wait_for(self, label: str, now: float) -> None:
        """Name the wait that begins now."""
        self.label = label
        self.since = now

    @property
    def last_failure(self) -> str:
        """The failure before this attempt, ready to end a message with."""
        return f"; before that: {self.failed_with}" if self.failed_with else ""

    def _seconds(self, now: float) -> float:
        """From the first request on; time in the queue says nothing about the job."""
        return now - self.started if self.attempts else 0.0

    def success(self, now: float, answer: Answer[T]) -> Outcome[T]:
        return Outcome(
            id=self.job.id,
            value=answer.value,
            status=Status.OK,
            attempts=self.attempts,
            seconds=self._seconds(now),
            tokens=answer.tokens,
            cost_usd=answer.cost_usd,
        )

    def failure(self, now: float, status: Status, error: str) -> Outcome[T]:
        return Outcome(
            id=self.job.id,
            value=None,
            status=status,
            error=error,
            attempts=self.attempts,
            seconds=self._seconds(now),
        )


class Gate:
    """Slots and rates of one endpoint, shared by every run and call of a fleet."""

    def __init__(self, endpoint: str, limits: Limits, clock: Clock) -> None:
        self.limits = limits
        self.pace = Pace(limits.requests_per_minute, limits.tokens_per_minute)
        self._clock = clock
        self._slots = anyio.Semaphore(limits.concurrency)
        self._where = f" of endpoint '{endpoint}'" if endpoint else ""

    @asynccontextmanager
    async def slot(self, call: Call) -> AsyncIterator[None]:
        """Hold one of the endpoint's slots; kept while backing off, which eases a busy server."""
        call.wait_for(
            f"waiting for one of {self.limits.concurrency} slots{self._where}", self._clock.now()
        )
        async with self._slots:
            yield

    async def turn(self, call: Call) -> None:
        """Wait until the rates (and a pause that the server asked for) let a request out."""
        place = self.pace.reserve(self._clock.now(), call.job.tokens)
        call.place = place
        while (wait_s := place.start - (now := self._clock.now())) > 0:
            call.wait_for(f"waiting {wait_s:.1f} s for the rate limit{self._where}", now)
            await self._clock.sleep(wait_s)
