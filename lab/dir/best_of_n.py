"""Reward and gold score of the best of n answers, over all draws of n."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from burnish.bench.statistics import Estimate, mean_estimate


class Point(NamedTuple):
    n: int
    kl: float
    """Nats between picking the best of n and the policy itself, at most."""
    reward: Estimate
    gold: Estimate


def best_of_n_curve(
    rewards: Sequence[Sequence[float]],
    gold: Sequence[Sequence[float]],
    sizes: Sequence[int] = (),
) -> list[Point]:
    """Reward and gold score of the best of n for each size; 1, 2, 4, ... where none is given.

    Every prompt has its own list of answers, as many in both. Equal rewards share a pick.
    """
    most = min(map(len, rewards))
    wanted = sizes or [2**power for power in range(int(math.log2(most)) + 1)]
    picked = [_picked(*both) for both in zip(rewards, gold, strict=True)]
    points = []
    for n in wanted:
        each = [_expected(places, n) for places in picked]
        distance = math.log(n) - (n - 1) / n
        means = ([pair[side] for pair in each] for side in (0, 1))
        points.append(Point(n, distance, *map(mean_estimate.plain, means)))
    return points


class _Picked(NamedTuple):
    """Answers with one reward, lowest first: how many there are up to them, and their means."""

    upto: int
    reward: float
    gold: float


def _picked(rewards: Sequence[float], gold: Sequence[float]) -> list[_Picked]:
    pairs = sorted(zip(rewards, gold, strict=True), key=lambda pair: pair[0])
    found: list[_Picked] = []
    for reward, tied in itertools.groupby(pairs, key=lambda pair: pair[0]):
        values = [value for _, value in tied]
        before = found[-1].upto if found else 0
        found.append(_Picked(before + len(values), reward, math.fsum(values) / len(values)))
    return found


def _expected(places: Sequence[_Picked], n: int) -> tuple[float, float]:
    """Mean reward and gold score of the answer with the highest reward, over all draws of n.

    All of n draws lie among the lowest m of N answers with the chance `C(m, n) / C(N, n)`, which a
    walk down from m = N multiplies up, `C(m - 1, n) / C(m, n) = (m - n) / m`: no large numbers.
    """
    rewards, golds, chance = [], [], 1.0
    for place in range(len(places) - 1, -1, -1):
        below, share = places[place - 1].upto if place else 0, chance
        for m in range(places[place].upto, below, -1):
            chance *= max(m - n, 0) / m
        if not below:
            chance = 0.0
        rewards.append((share - chance) * places[place].reward)
        golds.append((share - chance) * places[place].gold)
        if not chance:
            break
    return math.fsum(rewards), math.fsum(golds)
