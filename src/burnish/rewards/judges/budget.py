"""How much a judge may spend, and what it has spent: calls, tokens, dollars.

    budget = Budget(calls=1000, usd=5.0)
    judge = JudgeModel(lm, budget=budget)       # several judges may share one budget
    budget.spent                                # Spent(calls=12, cached=3, ...)

Calls are counted before they are sent, so their limit is exact, over threads too. Tokens and dollars are known only
afterwards: no call starts once they are spent, and those under way then are the most it overshoots.
"""

from __future__ import annotations

import math
import threading
from typing import NamedTuple

from burnish.errors import JudgeError, UserError
from burnish.rewards.judges.questions import Reply

CHARACTERS_A_TOKEN = 4
"""For models that do not count: a rough rule for English."""


class BudgetSpent(JudgeError):
    """There is nothing left to ask with; no call was made."""


class Spent(NamedTuple):
    """Totals of one budget."""

    calls: int = 0
    """Sent, the failed ones included; retries inside a fleet are not counted."""
    failed: int = 0
    cached: int = 0
    """Answered without a call."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    usd: float = 0.0
    estimated: int = 0
    """Calls whose tokens nobody counted: taken from the length of the texts."""

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


class Budget:
    """Limits and what was used of them; None is no limit."""

    def __init__(
        self, *, calls: int | None = None, tokens: int | None = None, usd: float | None = None
    ) -> None:
        for name, limit in (("calls", calls), ("tokens", tokens), ("usd", usd)):
            if limit is not None and not (0 <= limit < math.inf):
                raise UserError(f"budget: {name} is {limit}; expected 0 or more, or None")
        self.calls, self.tokens, self.usd = calls, tokens, usd
        self.spent = Spent()
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

    def take(self) -> None:
        """Count one call, or raise `BudgetSpent`."""
        with self._lock:
            if why := self.exhausted:
                raise BudgetSpent(why)
            self.spent = self.spent._replace(calls=self.spent.calls + 1)

    def settle(self, reply: Reply, prompt_characters: int) -> None:
        """Add what a call turned out to cost."""
        read, written = reply.prompt_tokens, reply.completion_tokens
        is_counted = read > 0 or written > 0
        if not is_counted:
            read = -(-prompt_characters // CHARACTERS_A_TOKEN)
            written = -(-len(reply.text) // CHARACTERS_A_TOKEN)
        with self._lock:
            spent = self.spent
            self.spent = spent._replace(
                prompt_tokens=spent.prompt_tokens + read,
                completion_tokens=spent.completion_tokens + written,
                usd=spent.usd + reply.cost_usd,
                estimated=spent.estimated + (not is_counted),
            )

    def fail(self) -> None:
        """Note that a call brought no reply."""
        with self._lock:
            self.spent = self.spent._replace(failed=self.spent.failed + 1)

    def save(self) -> None:
        """Note a question that was answered without a call."""
        with self._lock:
            self.spent = self.spent._replace(cached=self.spent.cached + 1)
