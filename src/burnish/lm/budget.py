"""How much a judge may spend, and what it has spent: calls, tokens, dollars.

    budget = Budget(calls=1000, usd=5.0)
    judge = JudgeModel(lm, budget=budget)       # several judges may share one budget
    budget.spent                                # Spent(calls=12, cached=3, ...)

Calls are counted before they are sent, so their limit is exact, over threads too. What a call costs
in tokens and dollars is known only afterwards: each holds back the most that it may cost, with all
its retries and hedged copies, until it ends, and one that might pass a limit waits for those under way. The first call goes alone, because
only its reply shows what the server counts. So a limit is passed by one call at most, however many
are asked at once (its retries are part of it).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from burnish.boundary import Count, NonNegative, PositiveInt, public
from burnish.errors import JudgeError, UserError
from burnish.records import Message
from burnish.texts import duration

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
        """The sum."""
        return Cost(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.usd + other.usd,
        )

    def minus(self, other: Cost) -> Cost:
        """The difference."""
        return self.plus(Cost(-other.prompt_tokens, -other.completion_tokens, -other.usd))

    def at_least(self, other: Cost) -> Cost:
        """The larger of both, number by number."""
        return Cost(
            max(self.prompt_tokens, other.prompt_tokens),
            max(self.completion_tokens, other.completion_tokens),
            max(self.usd, other.usd),
        )


@dataclass
class Meter:
    """The sum of all charges inside `metered`."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    usd: float = 0.0
    is_estimated: bool = False
    """Whether any of it is estimated."""
    is_used: bool = False
    """Whether the model counts its tokens at all."""

    @property
    def cost(self) -> Cost:
        return Cost(self.prompt_tokens, self.completion_tokens, self.usd)

    def charge(self, cost: Cost, *, is_estimated: bool = False) -> None:
        self.prompt_tokens += cost.prompt_tokens
        self.completion_tokens += cost.completion_tokens
        self.usd += cost.usd
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
    """Answered without a call."""
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


class Budget:
    """Limits and what was used of them; None is no limit."""

    def __init__(
        self, *, calls: int | None = None, tokens: int | None = None, usd: float | None = None
    ) -> None:
        for name, limit in (("calls", calls), ("tokens", tokens), ("usd", usd)):
            kind = int | float if name == "usd" else int
            is_number = isinstance(limit, kind) and not isinstance(limit, bool)
            if limit is not None and not (is_number and 0 <= limit < math.inf):
                whole = "" if name == "usd" else "a whole number, "
                raise UserError(f"budget: {name} is {limit!r}; expected {whole}0 or more, or None")
        self.calls, self.tokens, self.usd = calls, tokens, usd
        self.spent = Spent()
        self.changed: Callable[[Spent, Cost, int], None] | None = None
        """Told of every change: what is spent, what calls under way hold back, and their number."""
        self.is_estimate_warned = False
        """Whether it was said that tokens are estimated."""
        self._under_way = 0
        self._held = Cost()
        self._largest = Cost()
        """The most that one call has cost so far, number by number."""
        self._ended = 0
        self._is_known = False
        """Whether a call has shown what the server counts."""
        # invariant: `spent` is read and replaced in one step, so calls never pass their limit
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Budget(calls={self.calls}, tokens={self.tokens}, usd={self.usd})"

    @property
    def exhausted(self) -> str:
        """What has run out, in words; empty where a call is still allowed."""
        if self.calls is not None and self.spent.calls >= self.calls:
            return f"the budget of {self.calls} calls is spent"
        if self.tokens is not None and self.spent.tokens >= self.tokens:
            return f"the budget of {self.tokens} tokens is spent"
        if self.usd is not None and self.spent.usd >= self.usd:
            return f"the budget of ${self.usd:g} is spent"
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
        if not paid.is_possible:
            raise ValueError(f"a call cannot cost {paid}; expected numbers of at least 0")
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


class HasPrices(Protocol):
    """Dollars for a million tokens, as `burnish.lm.http.Prices` has them."""

    @property
    def prompt_usd(self) -> float: ...

    @property
    def completion_usd(self) -> float: ...


class HasMessages(Protocol):
    """A question, as `burnish.rewards.judges.Question` is one."""

    @property
    def messages(self) -> Sequence[Message]: ...


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
            ("calls", budget.calls, self.calls, f"{budget.calls} calls"),
            ("tokens", budget.tokens, self.tokens, f"{budget.tokens} tokens"),
            ("usd", budget.usd, self.usd, f"${budget.usd or 0:g}"),
        )
        shares = [
            (have / need, words)
            for _, have, need, words in limits
            if have is not None and need > have
        ]
        if not shares:
            return ""
        share, words = min(shares)
        return f"the budget of {words} ends after about {share:.0%} of it"


@public
def forecast(
    questions: Sequence[HasMessages] | Count,
    *,
    prompt_tokens: NonNegative | None = None,
    completion_tokens: NonNegative = 256,
    prices: HasPrices | None = None,
    concurrency: PositiveInt = 16,
    call_s: NonNegative | None = None,
) -> Forecast:
    """From the questions themselves, or from their number and mean tokens.

    `completion_tokens` is the mean length of a reply, `call_s` the mean time of a call.
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
