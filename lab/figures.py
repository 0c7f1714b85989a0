"""Means and spreads over seeds, differences paired by seed, and comparisons at equal cost."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from lab.collect import Row

WINDOW = 5
"""Steps over which curves are smoothed before they are compared."""


class Spread(NamedTuple):
    """A mean over seeds."""

    mean: float
    deviation: float | None
    """Standard deviation over seeds (n - 1); None for one seed."""
    seeds: int


def spread(values: Sequence[float]) -> Spread | None:
    """Mean and deviation; None without values."""
    if not values:
        return None
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Spread(statistics.fmean(values), deviation, len(values))


def by_seed(runs: Sequence[Row], arm: str, key: str) -> dict[int, float]:
    """One figure of an arm's finished runs."""
    return {
        row["seed"]: row[key]
        for row in runs
        if row["arm"] == arm and row["status"] == "finished" and row.get(key) is not None
    }


def differences(runs: Sequence[Row], arm: str, baseline: str, key: str) -> list[float]:
    """Arm minus baseline for each seed that both have finished."""
    own, other = by_seed(runs, arm, key), by_seed(runs, baseline, key)
    return [own[seed] - other[seed] for seed in sorted(own.keys() & other.keys())]


Curves = Mapping[tuple[str, int], Sequence[Row]]
"""(arm, seed) -> the rows of its curves in order."""


def curves_of(rows: Sequence[Row]) -> dict[tuple[str, int], list[Row]]:
    """Rows of a study by run."""
    found: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        found.setdefault((row["arm"], row["seed"]), []).append(row)
    return {key: sorted(run, key=lambda row: row["done"]) for key, run in found.items()}


def scores_at_equal_tokens(curves: Curves) -> dict[tuple[str, int], float]:
    """Held-out score of each run when it had trained on as many tokens as the thriftiest arm.

    Of each seed the arm with the fewest trained tokens sets the number; the scores of the others
    are interpolated between the two evaluations around it.
    """
    found: dict[tuple[str, int], float] = {}
    paths = {key: _score_path(run) for key, run in curves.items()}
    for seed in {seed for _, seed in curves}:
        of_seed = {key: path for key, path in paths.items() if key[1] == seed and len(path) > 1}
        if not of_seed:
            continue
        budget = min(path[-1][0] for path in of_seed.values())
        found |= {key: _at(path, budget) for key, path in of_seed.items()}
    return found


def entropies_at_equal_reward(curves: Curves) -> dict[tuple[str, int], float]:
    """Entropy of each run when its smoothed reward first reached what every arm reaches.

    Of each seed the arm that ends lowest sets the level.
    """
    found: dict[tuple[str, int], float] = {}
    for seed in {seed for _, seed in curves}:
        paths = {key: _reward_path(run) for key, run in curves.items() if key[1] == seed}
        paths = {key: path for key, path in paths.items() if path}
        if not paths:
            continue
        level = min(path[-1][0] for path in paths.values())
        found |= {
            key: next(entropy for reward, entropy in path if reward >= level)
            for key, path in paths.items()
        }
    return found


def cumulative(run: Sequence[Row], key: str) -> list[float]:
    """Running total of a curve; a step without it adds nothing."""
    return list(accumulate(row.get(key) or 0.0 for row in run))


def smoothed(values: Sequence[float], window: int = WINDOW) -> list[float]:
    """Mean over the last `window` values at each place."""
    return [statistics.fmean(values[max(0, k + 1 - window) : k + 1]) for k in range(len(values))]


def _score_path(run: Sequence[Row]) -> list[tuple[float, float]]:
    totals = cumulative(run, "trained_tokens")
    return [
        (total, row["score"])
        for total, row in zip(totals, run, strict=True)
        if row.get("score") is not None
    ]


def _reward_path(run: Sequence[Row]) -> list[tuple[float, float]]:
    steps = [
        row
        for row in run
        if row.get("reward/total") is not None and row.get("policy/entropy") is not None
    ]
    rewards = smoothed([row["reward/total"] for row in steps])
    entropies = smoothed([row["policy/entropy"] for row in steps])
    return list(zip(rewards, entropies, strict=True))


def _at(path: Sequence[tuple[float, float]], x: float) -> float:
    """Linear interpolation on a path whose first coordinate never falls."""
    for (left, low), (right, high) in pairwise(path):
        if left <= x <= right:
            share = (x - left) / (right - left) if right > left else 1.0
            return low + share * (high - low)
    return path[-1][1] if x > path[-1][0] else math.nan
