"""What a judging job will cost, said before it starts.

    ahead = forecast(questions, prices=Prices(prompt_usd=0.5, completion_usd=1.5), concurrency=32)
    str(ahead)      # '400 calls, about 280k tokens read and 80k written, $0.26, 4 min'
    ahead.warning(budget)   # '' or 'the budget of 300 calls ends after 75 % of it'

Tokens of a prompt are taken from its length, four characters each, until something was counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from burnish.arguments import as_number, as_whole
from burnish.lm.meter import CHARACTERS_A_TOKEN
from burnish.rewards.judges.budget import Budget
from burnish.rewards.judges.questions import Question


class HasPrices(Protocol):
    """Dollars for a million tokens, as `burnish.lm.http.Prices` has them."""

    @property
    def prompt_usd(self) -> float: ...

    @property
    def completion_usd(self) -> float: ...


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
        return ", ".join(parts if self.seconds is None else [*parts, _time(self.seconds)])

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


def forecast(
    questions: Sequence[Question] | int,
    *,
    prompt_tokens: float | None = None,
    completion_tokens: float = 256,
    prices: HasPrices | None = None,
    concurrency: int = 16,
    call_s: float | None = None,
) -> Forecast:
    """From the questions themselves, or from their number and mean tokens.

    `completion_tokens` is the mean length of a reply, `call_s` the mean time of a call.
    """
    completion_tokens = as_number("completion_tokens", completion_tokens, low=0)
    concurrency = as_whole("concurrency", concurrency, low=1)
    if prompt_tokens is not None:
        as_number("prompt_tokens", prompt_tokens, low=0)
    if call_s is not None:
        as_number("call_s", call_s, low=0)
    if isinstance(questions, str) or not isinstance(questions, Sequence):
        questions = as_whole("questions", questions, low=0)
    for price in ("prompt_usd", "completion_usd") if prices is not None else ():
        as_number("prices", getattr(prices, price, None), low=0)
    if isinstance(questions, int):
        calls, read = questions, (prompt_tokens or 0) * questions
    else:
        calls = len(questions)
        characters = sum(len(m.content) for q in questions for m in q.messages)
        read = characters / CHARACTERS_A_TOKEN if prompt_tokens is None else prompt_tokens * calls
    written = completion_tokens * calls
    usd = 0.0
    if prices is not None:
        usd = (read * prices.prompt_usd + written * prices.completion_usd) / 1e6
    rounds = math.ceil(calls / max(1, concurrency))
    seconds = None if call_s is None else rounds * call_s
    return Forecast(calls, math.ceil(read), math.ceil(written), usd, seconds)


def _short(count: int) -> str:
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if count >= size:
            return f"{count / size:.3g}{letter}"
    return str(count)


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
