"""Small arithmetic and grouping that several rooms need, without any library."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Annotated, Any, TypeVar

from msgspec import Meta

NUMBER_WORDS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    *("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen"),
    *("eighteen", "nineteen"),
)
"""In English, from 0 to 19."""
TENS_WORDS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


def sigmoid(log_odds: float) -> float:
    """The probability of log-odds, without overflow."""
    if log_odds >= 0:
        return 1.0 / (1.0 + math.exp(-log_odds))
    small = math.exp(log_odds)
    return small / (1.0 + small)


def solve(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """The x of `matrix x = right`: Gaussian elimination with pivots, for a regular matrix."""
    size = len(right)
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(rows[row][column]))
        rows[column], rows[pivot] = rows[pivot], rows[column]
        for below in range(column + 1, size):
            factor = rows[below][column] / rows[column][column]
            if factor:
                pairs = zip(rows[column], rows[below], strict=True)
                rows[below] = [b - factor * a for a, b in pairs]
    found = [0.0] * size
    for row in reversed(range(size)):
        known = math.fsum(rows[row][c] * found[c] for c in range(row + 1, size))
        found[row] = (rows[row][size] - known) / rows[row][row]
    return found


def plain(numbers: Any) -> Any:
    """Tensors and arrays as lists or numbers; anything else as it is."""
    as_list = getattr(numbers, "tolist", None)
    return as_list() if callable(as_list) else numbers


Multiple = Annotated[str, Meta(pattern=r"^[0-9]{1,6}(\.[0-9]{1,6})?x$")]


def in_steps(setting: int | Multiple, steps: int) -> int:
    """The number of steps that a setting means in a run of `steps`."""
    if isinstance(setting, int):
        return setting
    return round(float(setting.removesuffix("x")) * steps)


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The values of each key; keys and values keep the order in which they first came."""
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found
