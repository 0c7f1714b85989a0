"""What one question costs, the attempts that failed included.

    with metered() as meter:
        completions = await lm.sample(messages, sampling)
    meter.usd, meter.tokens, meter.is_estimated

A model behind a server charges each request as it ends, well or badly, to the meter of the task
that asks. Models that charge nothing leave the meter `is_used = False`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple

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
