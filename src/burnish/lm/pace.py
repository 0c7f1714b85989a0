"""When the next request may go out: clocks, rates per minute, back-off and retry budgets.

Everything here is bookkeeping over a time that is passed in; only `Clock.sleep` waits.
"""

from __future__ import annotations

import random
import time
from collections import deque
from contextlib import AbstractContextManager
from typing import Protocol

import anyio

WINDOW_S = 60.0


class Clock(Protocol):
    """Time as the fleet sees it; tests pass one that does not wait."""

    def now(self) -> float:
        """Seconds on a scale that never goes backwards."""
        ...

    async def sleep(self, seconds: float) -> None: ...

    def limit(self, seconds: float) -> AbstractContextManager[anyio.CancelScope]:
        """Cancel the body after `seconds`; `scope.cancelled_caught` tells that it happened."""
        ...


class SystemClock:
    """The event loop's own timers."""

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
        """The server asked for quiet: nothing starts before `until`, and those who wait line up
        behind it in their order instead of all going out at once."""
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
    """Second copies of any kind (retries and hedges) that a whole fleet may send.

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
