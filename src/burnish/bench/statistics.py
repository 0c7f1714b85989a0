"""Intervals and paired tests for small evaluations; pure Python, seeded."""

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
    """Mean change on the same items, with a bootstrap interval over items."""
    if len(before) != len(after):
        raise ValueError(f"paired values differ in number: {len(before)} and {len(after)}")
    return _bootstrap([b - a for a, b in zip(before, after, strict=True)])


def _bootstrap(values: Sequence[float], rounds: int = 2000) -> Estimate:
    rng = Seeds(0).rng("bootstrap", len(values))
    count = len(values)
    means = sorted(sum(rng.choices(values, k=count)) / count for _ in range(rounds))
    low, high = means[int(0.025 * rounds)], means[int(0.975 * rounds) - 1]
    return Estimate(sum(values) / count, low, high, count)
