"""Intervals and paired tests for small evaluations; pure Python, seeded.

A bootstrap of values that are all equal has no width: it cannot see a spread that was not sampled.
Not from scipy, whose import takes 1.9 s of processor time; Wilson's interval, McNemar's test and the t
quantile equal scipy 1.17's within 1e-13, relative.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from msgspec import Meta

from burnish.arguments import refused, same_length
from burnish.boundary import Count, Number, PositiveInt, public
from burnish.intervals import interval_doubt, interval_text
from burnish.seeds import Seeds

Observed = Annotated[Sequence[Number], Meta(min_length=1)]
"""An interval around nothing says nothing."""
Z95 = 1.959963984540054

EXACT_FLIPS = 14
"""Up to this many differences every sign pattern is tried: 2^14 of them."""
FLIP_ROUNDS = 10_000
"""Sign patterns that are drawn where there are too many to try."""
EXACT_ITEMS = 10_000
"""Up to this many items McNemar's test counts in whole numbers; beyond it, which would take minutes,
in floats, right to 1e-5 of the p-value."""


class Estimate(NamedTuple):
    value: float
    low: float
    high: float
    size: int

    @property
    def doubt(self) -> str:
        """Why the interval should not be believed; empty where nothing speaks against it."""
        return interval_doubt(self.low, self.high, self.size)

    def __str__(self) -> str:
        return interval_text(*self)


def as_record(value: Any) -> Any:
    """Named tuples as objects with names, however deep: for `--json`."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {key: as_record(one) for key, one in value.items()}
    return [as_record(one) for one in value] if isinstance(value, list | tuple) else value


def estimate_of(values: Iterable[float | None]) -> Estimate | None:
    """The mean of the values that are there with its interval; None where none is."""
    known = [value for value in values if value is not None]
    return mean_estimate.plain(known) if known else None


@public
def wilson(successes: Count, count: PositiveInt) -> Estimate:
    """Share of successes with Wilson's score interval."""
    if successes > count:
        raise refused("successes", successes, f"a whole number from 0 to count, {count}")
    p = successes / count
    spread = Z95 * math.sqrt(p * (1 - p) / count + Z95**2 / (4 * count**2))
    centre = p + Z95**2 / (2 * count)
    scale = 1 + Z95**2 / count
    low = (centre - spread) / scale if successes else 0.0
    high = (centre + spread) / scale if successes < count else 1.0
    return Estimate(p, low, high, count)


@public
def mean_estimate(values: Observed) -> Estimate:
    """Mean of marks with an interval: Wilson's where all are 0 or 1, else the bootstrap's.

    Not for wins minus losses: Wilson's interval holds no number below 0.
    """
    if all(v in (0.0, 1.0) for v in values):
        return wilson.plain(round(sum(values)), len(values))
    return signed_estimate.plain(values)


@public
def grouped_estimate(values: Observed, groups: Sequence[str]) -> Estimate:
    """Mean over groups of the mean of their values, with the interval over groups.

    For values that are not independent within a group, such as the steps of a prompt's solutions.

    >>> grouped_estimate([1.0, 1.0, 1.0, 0.0], ["a", "a", "a", "b"]).value
    0.5
    """
    same_length("groups", groups, len(values), "values")
    members: dict[str, list[float]] = {}
    for group, value in zip(groups, values, strict=True):
        members.setdefault(group, []).append(value)
    return mean_estimate.plain([math.fsum(own) / len(own) for own in members.values()])


@public
def signed_estimate(
    values: Observed, rounds: Annotated[int, Meta(ge=2, le=1_000_000)] = 2000
) -> Estimate:
    """Mean of values of any sign with the bootstrap's interval; `sign_flip` tests it against 0."""
    rng = Seeds(0).rng("bootstrap", len(values))
    count = len(values)
    means = sorted(sum(rng.choices(values, k=count)) / count for _ in range(rounds))
    low, high = means[int(0.025 * rounds)], means[int(0.975 * rounds) - 1]
    return Estimate(sum(values) / count, low, high, count)


@public
def t_estimate(values: Annotated[Sequence[Number], Meta(min_length=2)]) -> Estimate:
    """Mean of a few independent values, such as one score a seed, with Student's t interval.

    Two values at least: one has no spread. Values that are all equal give an interval of no width.
    """
    count = len(values)
    mean = math.fsum(values) / count
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    reach = _t_quantile(count - 1) * math.sqrt(variance / count)
    return Estimate(mean, mean - reach, mean + reach, count)


@public
def paired_difference(before: Observed, after: Observed) -> Estimate:
    """Mean change on the same items: Newcombe's interval for 0/1 marks, else the bootstrap's."""
    same_length("after", after, len(before), "values before")
    if all(v in (0.0, 1.0) for v in (*before, *after)):
        return _paired_shares(before, after)
    return signed_estimate.plain([b - a for a, b in zip(before, after, strict=True)])


def _paired_shares(before: Sequence[float], after: Sequence[float]) -> Estimate:
    """Difference of two shares over the same items, Newcombe's method 10.

    Wilson's intervals of the two shares, combined with their correlation; unlike the bootstrap it
    is not empty when every item changed the same way.
    """
    count = len(before)
    both = sum(a == b == 1.0 for a, b in zip(before, after, strict=True))
    old, new = wilson.plain(round(sum(before)), count), wilson.plain(round(sum(after)), count)
    gained, lost = new.value * count - both, old.value * count - both
    neither = count - both - gained - lost
    spread = math.sqrt((both + gained) * (lost + neither) * (both + lost) * (gained + neither))
    correlation = (both * neither - gained * lost) / spread if spread else 0.0
    value = new.value - old.value
    down = _joined(new.value - new.low, old.high - old.value, correlation)
    up = _joined(new.high - new.value, old.value - old.low, correlation)
    return Estimate(value, max(value - down, -1.0), min(value + up, 1.0), count)


@public
def mcnemar(only_first: Count, only_second: Count) -> float:
    """Exact two-sided McNemar test: the p-value of two counts of disagreement.

    Without a difference each of the n = only_first + only_second items falls on either side with
    probability 1/2: p = min(1, 2 P[Binomial(n, 1/2) <= min(only_first, only_second)]).
    """
    count, fewer = only_first + only_second, min(only_first, only_second)
    if count > EXACT_ITEMS:
        return min(1.0, 2 * _half_binomial_tail(count, fewer))
    # Whole numbers throughout: a float would overflow from about 1,000 items on.
    ways, tail = 1, 0
    for chosen in range(fewer + 1):
        tail += ways
        ways = ways * (count - chosen) // (chosen + 1)
    return min(1.0, 2 * tail / (1 << count))


def _half_binomial_tail(count: int, most: int) -> float:
    """P[Binomial(count, 1/2) <= most] for most <= count / 2, from its largest term downwards.

    The terms fall faster the further they are from the middle, so few times sqrt(count) are added.
    """
    ways = math.lgamma(count + 1) - math.lgamma(most + 1) - math.lgamma(count - most + 1)
    total = term = 1.0
    for chosen in range(most, 0, -1):
        term *= chosen / (count - chosen + 1)
        total += term
        if term < 1e-17 * total:
            break
    return math.exp(ways - count * math.log(2)) * total


@public
def sign_flip(differences: Sequence[float]) -> float:
    """Two-sided p-value of a mean paired difference, by flipping the signs of the differences.

    Without a difference each pair could as well have come the other way round. All sign patterns
    are tried for up to 14 differences that are not 0; beyond that 10,000 seeded ones are drawn, and
    the observed one counts as one of them, so that p is never 0. Swapping the two sides changes
    nothing.
    """
    changed = [d for d in differences if d]
    total = abs(math.fsum(changed))
    # Patterns that tie with the observed one must count, however their sums were rounded.
    reached = total - 1e-12 * math.fsum(map(abs, changed))
    if len(changed) <= EXACT_FLIPS:
        sums = _signed_sums(changed)
        return sum(abs(s) >= reached for s in sums) / len(sums)
    # A random byte picks the signs of eight differences at once from a table of their sums.
    changed += [0.0] * (-len(changed) % 8)
    tables = [_signed_sums(changed[i : i + 8]) for i in range(0, len(changed), 8)]
    rng = Seeds(0).rng("sign_flip", len(changed))
    hits = 0
    for _ in range(FLIP_ROUNDS):
        drawn = zip(tables, rng.randbytes(len(tables)), strict=True)
        hits += abs(sum(table[byte] for table, byte in drawn)) >= reached
    return (hits + 1) / (FLIP_ROUNDS + 1)


def _t_quantile(freedom: int) -> float:
    """The t for which Student's distribution has 95 % of its mass between -t and t."""
    low, high = Z95, 13.0
    # The mass is exact, so halving the interval until it is a float wide is exact too.
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if _t_mass(middle, freedom) < 0.95 else (low, middle)
    return high


def _t_mass(t: float, freedom: int) -> float:
    """P(-t < T < t) for a whole number of degrees of freedom: a finite sum (Abramowitz and Stegun
    26.7.3 and 26.7.4), so that reading runs needs no numerical library."""
    angle = math.atan2(t, math.sqrt(freedom))
    square = math.cos(angle) ** 2
    first = 2 if freedom % 2 else 1
    term, total = (math.cos(angle), 0.0) if freedom % 2 else (1.0, 0.0)
    for factor in range(first, freedom, 2):
        total += term
        term *= square * factor / (factor + 1)
    if freedom % 2 == 0:
        return math.sin(angle) * total
    return 2 / math.pi * (angle + math.sin(angle) * total)


def _signed_sums(values: Sequence[float]) -> list[float]:
    """The sums of all 2^n ways to give the values a sign."""
    sums = [0.0]
    for value in values:
        sums = [s + value for s in sums] + [s - value for s in sums]
    return sums


def _joined(first: float, second: float, correlation: float) -> float:
    return math.sqrt(max(first**2 - 2 * correlation * first * second + second**2, 0.0))
