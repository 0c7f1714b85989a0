"""The nouns of the pool: what is to be done, under which limits, and what came of it."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Annotated, Generic, TypeVar

import anyio
from msgspec import Meta, Struct

from burnish.boundary import Count, NonNegative, Positive, PositiveInt, Settings

T = TypeVar("T")


Rate = Annotated[float, Meta(ge=1.0, le=1e12)]


class Limits(Settings, frozen=True, kw_only=True):
    """How hard one endpoint may be driven, and how long anything may take."""

    concurrency: PositiveInt = 16
    requests_per_minute: Rate | None = None
    tokens_per_minute: Rate | None = None
    attempt_s: Positive = 120.0
    """Deadline of one request."""
    deadline_s: Positive = 300.0
    """Deadline of one job with all its attempts and waits, from its first request on."""
    batch_deadline_s: Positive = 3600.0
    """Deadline of one job, queueing included."""
    retries: Count = 4
    """Further requests that one job may send, for whatever reason, a hedge included."""
    retry_share: NonNegative = 0.5
    """Further requests of the whole pool, as a share of the jobs it has started ..."""
    retry_floor: Count = 16
    """... on top of this many."""
    backoff_base_s: NonNegative = 0.5
    backoff_cap_s: NonNegative = 30.0
    hedge_after_s: Positive | None = None
    """Send a second copy of a request that has taken this long; the first answer wins."""


class Job(Struct, frozen=True):
    """One piece of work."""

    id: str
    tokens: int = 0
    """Estimate for the tokens-per-minute limit; replaced by the real count when known."""


class Answer(Struct, Generic[T], frozen=True):
    """What a worker returns: a value and what it cost."""

    value: T
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


class Totals(Struct, kw_only=True):
    """What a pool has done and spent so far in this process."""

    ok: int = 0
    failed: int = 0
    attempts: int = 0
    hedges: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0


WINDOW_S = 60.0


class Clock:
    """Time as the pool sees it, by the event loop's own timers; tests pass one that does not wait."""

    def now(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)

    def limit(self, seconds: float) -> AbstractContextManager[anyio.CancelScope]:
        return anyio.move_on_after(seconds)


class Reservation:
    """One request's place in the order; a pause may move `start` while the request waits."""

    __slots__ = ("in_window", "start", "tokens")

    def __init__(self, tokens: int) -> None:
        self.start = 0.0
        self.tokens = tokens
        self.in_window = False


class Pace:
    """Sliding window: at most so many requests and tokens begin in any 60 seconds.

    Reservations are first come, first served: a small request never overtakes a large one that
    waits, so a large one cannot starve.
    """

    def __init__(self, requests: float | None, tokens: float | None) -> None:
        self._requests = requests
        self._tokens = tokens
        self._log: deque[Reservation] = deque()
        """Begun within the last minute, then those that still wait, in the order of `start`."""
        self._window: deque[Reservation] = deque()
        """The end of the log: what shares a minute with the place given last."""
        self._tokens_in_window = 0
        self._latest = float("-inf")
        self._paused_until = float("-inf")

    def reserve(self, now: float, tokens: int) -> Reservation:
        """Take the next free place; the caller waits until its `start`."""
        while self._log and self._log[0].start + WINDOW_S <= now:
            self._log.popleft()
        place = Reservation(tokens)
        self._put(place, now)
        return place

    def settle(self, place: Reservation, tokens: int) -> None:
        """Replace the estimate by what the request really used."""
        if place.in_window:
            self._tokens_in_window += tokens - place.tokens
        place.tokens = tokens

    def pause(self, now: float, until: float) -> None:
        """Honour Retry-After: nothing starts before `until`, and waiting requests follow in their
        order instead of all at once."""
        if until <= self._paused_until:
            return
        self._paused_until = until
        places = list(self._log)
        self._log.clear()
        while self._window:
            self._drop_oldest()
        self._latest = float("-inf")
        for place in places:
            if place.start <= now:
                self._append(place)
            else:
                self._put(place, now)

    def _put(self, place: Reservation, now: float) -> None:
        start = max(now, self._latest, self._paused_until)
        while self._window and self._window[0].start + WINDOW_S <= start:
            self._drop_oldest()
        while self._window and not self._fits(place.tokens):
            start = max(start, self._drop_oldest().start + WINDOW_S)
        place.start = start
        is_limited = self._requests is not None or self._tokens is not None
        if is_limited or start > now:
            self._append(place)

    def _append(self, place: Reservation) -> None:
        self._log.append(place)
        self._window.append(place)
        place.in_window = True
        self._tokens_in_window += place.tokens
        self._latest = place.start

    def _fits(self, tokens: int) -> bool:
        is_few = self._requests is None or len(self._window) + 1 <= self._requests
        is_small = self._tokens is None or self._tokens_in_window + tokens <= self._tokens
        return is_few and is_small

    def _drop_oldest(self) -> Reservation:
        oldest = self._window.popleft()
        oldest.in_window = False
        self._tokens_in_window -= oldest.tokens
        return oldest


class RetryBudget:
    """Second copies of any kind (retries and hedges) that a whole pool may send.

    A dead server then costs `floor + share * jobs` extra requests, not `retries * jobs`.
    """

    def __init__(self, share: float, floor: int) -> None:
        self._share = share
        self._floor = floor
        self.started = 0
        self.spent = 0

    @property
    def allowed(self) -> float:
        return self._floor + self._share * self.started

    def take(self) -> bool:
        """Spend one, if there is one."""
        if self.spent + 1 > self.allowed:
            return False
        self.spent += 1
        return True


def backoff_s(attempt: int, *, base_s: float, cap_s: float, rng: random.Random) -> float:
    """Wait after failed attempt number `attempt` (from 1): half fixed, half jitter, doubling."""
    full = min(cap_s, base_s * 2.0 ** min(attempt - 1, 63))
    return full / 2 + rng.random() * full / 2


class Call:
    """One job on its way: what it waits for, and what it has cost so far."""

    def __init__(self, job: Job, now: float) -> None:
        self.job = job
        self.started = now
        self.attempts = 0
        self.place: Reservation | None = None
        self.failed_with: BaseException | None = None
        self.label = ""
        """The wait that began last."""

    @property
    def last_failure(self) -> str:
        """The failure before this attempt, ready to end a message with."""
        return f"; before that: {self.failed_with}" if self.failed_with else ""


class EndpointLimiter:
    """Slots and rates of one endpoint, shared by every call of a pool."""

    def __init__(self, limits: Limits, clock: Clock) -> None:
        self.limits = limits
        self.pace = Pace(limits.requests_per_minute, limits.tokens_per_minute)
        self._clock = clock
        self._slots = anyio.Semaphore(limits.concurrency)

    @asynccontextmanager
    async def slot(self, call: Call) -> AsyncIterator[None]:
        """Hold one of the endpoint's slots; kept while backing off, which eases a busy server."""
        call.label = f"waiting for one of {self.limits.concurrency} slots"
        async with self._slots:
            yield

    async def turn(self, call: Call) -> None:
        """Wait until the rates (and a pause that the server asked for) let a request out."""
        place = self.pace.reserve(self._clock.now(), call.job.tokens)
        call.place = place
        while (wait_s := place.start - self._clock.now()) > 0:
            call.label = f"waiting {wait_s:.1f} s for the rate limit"
            await self._clock.sleep(wait_s)
