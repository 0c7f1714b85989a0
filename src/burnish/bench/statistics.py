"""Intervals for small evaluations, single and paired; pure Python, seeded.

A bootstrap of values that are all equal has no width: it cannot see a spread that was not sampled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from burnish.seeds import Seeds

Z95 = 1.959963984540054


class Estimate(NamedTuple):
    """A mean with its 95 % interval."""

    value: float
    low: float
    high: float
    size: int
    """Observations."""


def wilson(successes: int, count: int) -> Estimate:
    """Share of successes with Wilson's score interval."""
    if count == 0:
        raise ValueError("an interval needs at least one observation")
    p = successes / count
    spread = Z95 * math.sqrt(p * (1 - p) / count + Z95**2 / (4 * count**2))
    centre = p + Z95**2 / (2 * count)
    scale = 1 + Z95**2 / count
    low = (centre - spread) / scale if successes else 0.0
    high = (centre + spread) / scale if successes < count else 1.0
    return Estimate(p, low, high, count)


def mean_estimate(values: Sequence[float]) -> Estimate:
    """Mean with an interval: Wilson's where all values are 0 or 1, else the bootstrap's."""
    if all(v in (0.0, 1.0) for v in values):
        return wilson(round(sum(values)), len(values))
    return _bootstrap(values)


def paired_difference(before: Sequence[float], after: Sequence[float]) -> Estimate:
    """Mean change on the same items: Newcombe's interval for 0/1 marks, else the bootstrap's."""
    if len(before) != len(after):
        raise ValueError(f"paired values differ in number: {len(before)} and {len(after)}")
    if all(v in (0.0, 1.0) for v in (*before, *after)):
        return _paired_shares(before, after)
    return _bootstrap([b - a for a, b in zip(before, after, strict=True)])


def _paired_shares(before: Sequence[float], after: Sequence[float]) -> Estimate:
    """Difference of two shares over the same items, Newcombe's method 10.

    Wilson's intervals of the two shares, combined with their correlation; unlike the bootstrap it
    is not empty when every item changed the same way.
    """
    count = len(before)
    both = sum(a == b == 1.0 for a, b in zip(before, after, strict=True))
    old, new = wilson(round(sum(before)), count), wilson(round(sum(after)), count)
    gained, lost = new.value * count - both, old.value * count - both
    neither = count - both - gained - lost
    spread = math.sqrt((both + gained) * (lost + neither) * (both + lost) * (gained + neither))
    correlation = (both * neither - gained * lost) / spread if spread else 0.0
    value = new.value - old.value
    down = _joined(new.value - new.low, old.high - old.value, correlation)
    up = _joined(new.high - new.value, old.value - old.low, correlation)
    return Estimate(value, max(value - down, -1.0), min(value + up, 1.0), count)


def _joined(first: float, second: float, correlation: float) -> float:
    return math.sqrt(max(first**2 - 2 * correlation * first * second + second**2, 0.0))


def _bootstrap(values: Sequence[float], rounds: int = 2000) -> Estimate:
    rng = Seeds(0).rng("bootstrap", len(values))
    count = len(values)
    means = sorted(sum(rng.choices(values, k=count)) / count for _ in range(rounds))
    low, high = means[int(0.025 * rounds)], means[int(0.975 * rounds) - 1]
    return Estimate(sum(values) / count, low, high, count)
