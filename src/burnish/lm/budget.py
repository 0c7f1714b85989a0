"""How much a judge may spend, and what it has spent: calls, tokens, dollars.

Calls are counted before they are sent, so their limit is exact, over threads too. What a call costs
in tokens and dollars is known only afterwards: each holds back the most that it may cost, with all
its retries and hedged copies, until it ends, and one that might pass a limit waits for those under way. The first call goes alone, because
only its reply shows what the server counts. So a limit is passed by one call at most, however many
are asked at once (its retries are part of it).
"""

from __future__ import annotations

import math
import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, NamedTuple, Protocol

from msgspec import Meta

from burnish.boundary import Count, NonNegative, PositiveInt, public, public_method
from burnish.errors import JudgeError
from burnish.texts import duration

if TYPE_CHECKING:
    from burnish.records import Message

CHARACTERS_A_TOKEN = 4
"""For models that do not count: a rough rule for English."""
SAFETY = 1.5
"""Estimated tokens are priced at so much more: a limit in dollars must hold where they are few."""


class Cost(NamedTuple):
    """Tokens read and written, and their price."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    usd: float = 0.0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    @property
    def is_possible(self) -> bool:
        """Whether all three are numbers that something can cost."""
        return min(self.prompt_tokens, self.completion_tokens) >= 0 and 0 <= self.usd < math.inf

    def plus(self, other: Cost) -> Cost:
        return Cost._make(map(operator.add, self, other))

    def minus(self, other: Cost) -> Cost:
        return Cost._make(map(operator.sub, self, other))

    def at_least(self, other: Cost) -> Cost:
        """The larger of both, number by number."""
        return Cost._make(map(max, self, other))


@dataclass
class Meter:
    """The sum of all charges inside `metered`."""

    cost: Cost = field(default_factory=Cost)
    is_estimated: bool = False
    is_used: bool = False
    """Whether the model counts its tokens at all."""

    def charge(self, cost: Cost, *, is_estimated: bool = False) -> None:
        self.cost = self.cost.plus(cost)
        self.is_estimated |= is_estimated


_open: ContextVar[Meter | None] = ContextVar("burnish_meter", default=None)


@contextmanager
def metered() -> Iterator[Meter]:
    """A meter for what is asked inside, also by tasks that are started there."""
    meter = Meter()
    token = _open.set(meter)
    try:
        yield meter
    finally:
        _open.reset(token)


def current_meter() -> Meter | None:
    """The meter of the calling task; None outside `metered`."""
    return _open.get()


def estimate_tokens(text: str) -> int:
    """Estimated tokens of a text: one for four ASCII characters, one for each other character."""
    others = sum(not character.isascii() for character in text) if not text.isascii() else 0
    return -(-(len(text) - others) // CHARACTERS_A_TOKEN) + others


class BudgetSpent(JudgeError):
    """There is nothing left to ask with; no call was made."""


class Spent(NamedTuple):
    """Totals of one budget."""

    calls: int = 0
    """Sent, the failed ones included; retries inside a pool are not counted."""
    failed: int = 0
    cached: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    usd: float = 0.0
    estimated: int = 0
    """Calls whose tokens nobody counted, or not all of them: taken from the length of the texts."""

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def plus(self, cost: Cost, **counts: int) -> Spent:
        """With a cost and counts added."""
        added = {name: getattr(self, name) + count for name, count in counts.items()}
        return self._replace(
            prompt_tokens=self.prompt_tokens + cost.prompt_tokens,
            completion_tokens=self.completion_tokens + cost.completion_tokens,
            usd=self.usd + cost.usd,
            **added,
        )


Calls = Annotated[int, Meta(ge=0, le=2**53)]


class Budget:
    """Limits and what was used of them; None is no limit."""

    @public_method
    def __init__(
        self,
        *,
        calls: Calls | None = None,
        tokens: Calls | None = None,
        usd: NonNegative | None = None,
    ) -> None:
        self.calls, self.tokens, self.usd = calls, tokens, usd
        self.spent = Spent()
        self.changed: Callable[[Spent, Cost, int], None] | None = None
        """Told of every change: what is spent, what calls under way hold back, and their number."""
        self.is_estimate_warned = False
        self._under_way = 0
        self._held = Cost()
        self._largest = Cost()
        """The most that one call has cost so far, number by number."""
        self._ended = 0
        self._is_known = False
        # invariant: `spent` is read and replaced in one step, so calls never pass their limit
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Budget(calls={self.calls}, tokens={self.tokens}, usd={self.usd})"

    @property
    def exhausted(self) -> str:
        """What has run out, in words; empty where a call is still allowed."""
        for limit, used, words in (
            (self.calls, self.spent.calls, f"{self.calls} calls"),
            (self.tokens, self.spent.tokens, f"{self.tokens} tokens"),
            (self.usd, self.spent.usd, f"${self.usd or 0:g}"),
        ):
            if limit is not None and used >= limit:
                return f"the budget of {words} is spent"
        return ""

    def take(self, most: Cost | None = None) -> Cost | None:
        """Count one call and hold back the `most` that it may cost; raises `BudgetSpent`.

        The amount to give back when the call ends; None: it must wait for those under way.
        """
        with self._lock:
            if why := self.exhausted:
                raise BudgetSpent(why)
            held = (most or Cost()).at_least(self._largest)
            if most is not None and not self._fits(held):
                return None
            self._under_way += 1
            self._held = self._held.plus(held)
            self._set(self.spent.plus(Cost(), calls=1))
            return held

    def settle(self, paid: Cost, held: Cost, *, is_estimated: bool = False) -> None:
        """Add what a call turned out to cost and give back what it held."""
        self._end(paid, held, estimated=int(is_estimated))

    def fail(
        self, paid: Cost | None = None, held: Cost | None = None, *, is_estimated: bool = False
    ) -> None:
        """Note that a call brought no reply, and what it cost all the same."""
        self._end(paid or Cost(), held or Cost(), failed=1, estimated=int(is_estimated))

    def save(self) -> None:
        """Note a question that was answered without a call."""
        with self._lock:
            self._set(self.spent.plus(Cost(), cached=1))

    def resume(self, spent: Spent) -> None:
        """Go on from what was spent before, in an earlier process."""
        with self._lock:
            paid = Cost(spent.prompt_tokens, spent.completion_tokens, spent.usd)
            counts = ("calls", "failed", "cached", "estimated")
            self._set(self.spent.plus(paid, **{name: getattr(spent, name) for name in counts}))

    def _fits(self, held: Cost) -> bool:
        """Whether a call may start beside those under way; one alone always may."""
        if self._under_way == 0 or (self.tokens is None and self.usd is None):
            return True
        if not self._is_known and self._under_way > self._ended:
            return False  # while all calls fail they double, so that a dead server is soon known
        ahead = self.spent.plus(self._held.plus(held))
        is_within = self.tokens is None or ahead.tokens <= self.tokens
        return is_within and (self.usd is None or ahead.usd <= self.usd)

    def _end(self, paid: Cost, held: Cost, **counts: int) -> None:
        with self._lock:
            self._under_way -= 1
            self._ended += 1
            self._held = self._held.minus(held)
            if self._under_way == 0:
                self._held = Cost()  # sums of floats leave crumbs
            self._largest = self._largest.at_least(paid)
            self._is_known = self._is_known or paid.tokens > 0
            self._set(self.spent.plus(paid, **counts))

    def _set(self, spent: Spent) -> None:
        self.spent = spent
        if self.changed is not None:
            self.changed(spent, self._held, self._under_way)


class Forecast(NamedTuple):
    """Calls, tokens, money and time; a repair of an unreadable reply comes on top."""

    calls: int
    prompt_tokens: int
    completion_tokens: int
    usd: float
    seconds: float | None = None
    """None where the time of a call is not known."""

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def __str__(self) -> str:
        parts = [
            f"{self.calls:,} call{'' if self.calls == 1 else 's'}",
            f"about {_short(self.prompt_tokens)} tokens read and "
            f"{_short(self.completion_tokens)} written",
            f"${self.usd:.2f}" if self.usd else "no price given",
        ]
        return ", ".join(parts if self.seconds is None else [*parts, duration(self.seconds)])

    def warning(self, budget: Budget) -> str:
        """One line where the budget will not last; empty where it will."""
        limits = (
            (budget.calls, self.calls, f"{budget.calls} calls"),
            (budget.tokens, self.tokens, f"{budget.tokens} tokens"),
            (budget.usd, self.usd, f"${budget.usd or 0:g}"),
        )
        shares = [
            (have / need, words) for have, need, words in limits if have is not None and need > have
        ]
        if not shares:
            return ""
        share, words = min(shares)
        return f"the budget of {words} ends after about {share:.0%} of it"


class Asks(Protocol):
    @property
    def messages(self) -> Sequence[Message]: ...


class Prices(Protocol):
    """Dollars for a million tokens."""

    @property
    def prompt_usd(self) -> float: ...
    @property
    def completion_usd(self) -> float: ...


@public
def forecast(
    questions: Sequence[Asks] | Count,
    *,
    prompt_tokens: NonNegative | None = None,
    completion_tokens: NonNegative = 256,
    prices: Prices | None = None,
    concurrency: PositiveInt = 16,
    call_s: NonNegative | None = None,
) -> Forecast:
    """From the questions themselves (with `messages`), or from their number and mean tokens.

    `prices` are those of `OpenAILM`, `completion_tokens` is the mean length of a reply, `call_s` the mean time of a call.
    """
    if isinstance(questions, int):
        calls, read = questions, (prompt_tokens or 0) * questions
    else:
        calls = len(questions)
        characters = sum(len(m.text) for q in questions for m in q.messages)
        read = characters / CHARACTERS_A_TOKEN if prompt_tokens is None else prompt_tokens * calls
    written = completion_tokens * calls
    usd = 0.0
    if prices is not None:
        usd = (read * prices.prompt_usd + written * prices.completion_usd) / 1e6
    rounds = math.ceil(calls / concurrency)
    seconds = None if call_s is None else rounds * call_s
    return Forecast(calls, math.ceil(read), math.ceil(written), usd, seconds)


def _short(count: int) -> str:
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if count >= size:
            return f"{count / size:.3g}{letter}"
    return str(count)
