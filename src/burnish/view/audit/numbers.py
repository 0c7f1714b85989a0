"""The few numbers an audit is made of: shifts, rates within groups, who is paid for what."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from msgspec import Struct

from burnish.grouping import grouped
from burnish.numbers import solve

RIDGE = 0.05
"""Keeps features that move together from being paid with opposite signs."""


def mean(values: Sequence[float]) -> float | None:
    """None where there is nothing to average."""
    return math.fsum(values) / len(values) if values else None


def deviation(values: Sequence[float]) -> float:
    """Standard deviation; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    centre = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((v - centre) ** 2 for v in values) / (len(values) - 1))


def shift(early: Sequence[float], late: Sequence[float]) -> float:
    """How far the mean moved, in deviations of both halves together; 0 where nothing varies."""
    before, after = mean(early), mean(late)
    if before is None or after is None:
        return 0.0
    spread = math.sqrt((deviation(early) ** 2 + deviation(late) ** 2) / 2)
    if spread == 0:
        return 0.0 if before == after else math.copysign(10.0, after - before)
    return max(-10.0, min(10.0, (after - before) / spread))


def within(values: Sequence[float], groups: Sequence[Hashable]) -> list[float]:
    """Each value less its group's mean."""
    sums = grouped(zip(groups, values, strict=True))
    means = {group: math.fsum(found) / len(found) for group, found in sums.items()}
    return [value - means[group] for value, group in zip(values, groups, strict=True)]


def correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Pearson's; None where one side does not vary."""
    if len(first) < 2:
        return None
    mean_a, mean_b = math.fsum(first) / len(first), math.fsum(second) / len(second)
    a = [value - mean_a for value in first]
    b = [value - mean_b for value in second]
    scale = math.sqrt(math.fsum(x * x for x in a) * math.fsum(y * y for y in b))
    # Sums of rounding errors are not a spread.
    if scale < 1e-12 * len(first):
        return None
    return math.fsum(x * y for x, y in zip(a, b, strict=True)) / scale


def paid(columns: Sequence[Sequence[float]], reward: Sequence[float]) -> list[float]:
    """Standardised coefficients of a ridge regression: what each column earns, others held.

    Columns and reward are differences within groups. A column that does not vary earns 0.
    """
    target = _unit(reward)
    scaled = [_unit(column) for column in columns]
    if target is None:
        return [0.0] * len(columns)
    varying = [i for i, column in enumerate(scaled) if column is not None]
    shown = [column for column in scaled if column is not None]
    matrix = [
        [_dot(a, b) + (RIDGE if i == j else 0.0) for j, b in enumerate(shown)]
        for i, a in enumerate(shown)
    ]
    solved = solve(matrix, [_dot(column, target) for column in shown])
    found = [0.0] * len(columns)
    for place, coefficient in zip(varying, solved, strict=True):
        found[place] = coefficient
    return found


def _unit(values: Sequence[float]) -> list[float] | None:
    length = math.sqrt(math.fsum(value * value for value in values))
    return [value / length for value in values] if length > 1e-9 else None


def _dot(first: Sequence[float], second: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(first, second, strict=True))


SAMPLES = 10
"""Answers that a finding names."""


class Finding(Struct, frozen=True, omit_defaults=True):
    """Something that changed in a run in a way that a reader should look at."""

    monitor: str
    """length, format, phrase, ..."""
    title: str
    text: str
    """One sentence with its numbers."""
    strength: float
    """0 to 1, for the order of the list; no probability."""
    early: float | None = None
    """The figure in the first quarter of the run."""
    late: float | None = None
    """And in the last."""
    curve: tuple[tuple[int, float], ...] = ()
    """By step."""
    samples: tuple[str, ...] = ()
    """Names of the answers that moved it most."""


class Gold(Struct, frozen=True):
    """The reward that was trained on beside a score that was not."""

    reward: tuple[tuple[int, float], ...]
    gold: tuple[tuple[int, float], ...]
    reward_shift: float
    """From the first quarter to the last, in deviations."""
    gold_shift: float
    text: str
    samples: tuple[str, ...]
    """Late answers that are paid most and are worth least."""


class Audit(Struct, frozen=True):
    """All findings of a run, the strongest first."""

    run: str
    steps: int
    answers: int
    """Read, of the run's rollouts."""
    findings: tuple[Finding, ...]
    conflicts: dict[str, dict[str, float | None]]
    """Correlation of each two rewards within groups; None where one never varies."""
    gold: Gold | None
    note: str = ""
    """Why there is less to say than usual."""
