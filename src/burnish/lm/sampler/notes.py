"""What the host knows of each seat: what was asked of its row, and what the row has drawn so far.

Arrays and not objects, because the host must keep up with a device that draws hundreds of thousands
of tokens a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from burnish.lm.sampler.rows import Row

Ints = NDArray[np.int64]


class News(NamedTuple):
    """What some results meant for the rows they belong to, one entry a row."""

    counts: Ints
    """How many of the drawn tokens are the row's: up to its end or its budget."""
    ended: NDArray[np.bool_]
    """Whether the last of them is an end token."""
    is_full: NDArray[np.bool_]
    """Whether the row's budget is spent."""


class Notes:
    """One line a seat."""

    def __init__(self, seats: int, steps: int, burst: int, ends: Sequence[int]) -> None:
        # A burst may run past the end of a line.
        shape = (seats, steps + burst)
        self._tokens = np.zeros(shape, dtype=np.int64)
        self._logprobs = np.zeros(shape, dtype=np.float32)
        self._raw = np.zeros(shape, dtype=np.float32)
        self._ends = np.array(ends, dtype=np.int64)
        self.budget: Ints = np.zeros(seats, dtype=np.int64)
        """Tokens the row may draw; 0: nobody sits here."""
        self.asked: Ints = np.zeros(seats, dtype=np.int64)
        """Tokens whose drawing has been started."""
        self.drawn: Ints = np.zeros(seats, dtype=np.int64)

    def open(self, seats: Sequence[int], budgets: Sequence[int]) -> None:
        """Rows with these budgets sit down, and are asked for their first token."""
        self.budget[seats] = budgets
        self.asked[seats] = 1
        self.drawn[seats] = 0

    def close(self, seat: int) -> None:
        """The row leaves."""
        self.budget[seat] = self.asked[seat] = self.drawn[seat] = 0

    def move(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Rows change seats; those they leave are empty."""
        for lines in (self._tokens, self._logprobs, self._raw, self.budget, self.asked, self.drawn):
            lines[target] = lines[source]
        self.budget[source] = self.asked[source] = self.drawn[source] = 0

    @property
    def left(self) -> int:
        """Most tokens that any row may still be asked for."""
        return int((self.budget - self.asked).max())

    def ask(self, steps: int) -> None:
        """Everyone is asked for this many tokens more, within the budget."""
        np.minimum(self.asked + steps, self.budget, out=self.asked)

    def add(
        self, seats: Ints, tokens_NK: Ints, logprobs_NK: NDArray[Any], raw_NK: NDArray[Any]
    ) -> News:
        """Write down what the rows in these seats have drawn."""
        steps = tokens_NK.shape[1]
        before = self.drawn[seats]
        place = before[:, None] + np.arange(steps)
        line = seats[:, None]
        self._tokens[line, place] = tokens_NK
        self._logprobs[line, place] = logprobs_NK
        self._raw[line, place] = raw_NK
        is_end = (tokens_NK[:, :, None] == self._ends).any(axis=2)
        first = np.where(is_end.any(axis=1), is_end.argmax(axis=1) + 1, steps + 1)
        room = self.budget[seats] - before
        count = np.minimum(np.minimum(first, steps), room)
        self.drawn[seats] = before + count
        return News(count, first <= count, count == room)

    def last(self, seat: int, count: int) -> list[int]:
        """The newest tokens of a row, `count` at most."""
        end = int(self.drawn[seat])
        found: list[int] = self._tokens[seat, max(0, end - count) : end].tolist()
        return found

    def write(self, row: Row, seat: int) -> None:
        """Hand a row everything it has drawn."""
        length = self.drawn[seat]
        row.tokens = self._tokens[seat, :length].tolist()
        row.logprobs = self._logprobs[seat, :length].tolist()
        row.raw_logprobs = self._raw[seat, :length].tolist()
