"""Best-of-N against a gold score: does more choice by a reward still help, or only please it?

    curve = best_of_n_curve(proxy, gold)             # (prompts, answers) each
    [(point.n, point.kl, point.gold) for point in curve]

From n answers drawn without replacement the one with the highest reward is taken; its expected gold
score is computed over all draws, not sampled. Picking the best of n moves the policy by at most
log n - (n - 1) / n nats, which is the axis that over-optimisation is drawn against.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from burnish.arguments import as_list, as_numbers, as_whole, refused, same_length
from burnish.bench.statistics import Estimate, mean_estimate


class Point(NamedTuple):
    """The best of `n` answers by the reward, as a mean over prompts."""

    n: int
    kl: float
    """Nats between picking the best of n and the policy itself, at most."""
    reward: Estimate
    gold: Estimate


def best_of_n_curve(
    rewards: Sequence[Any], gold: Sequence[Any], sizes: Sequence[int] = ()
) -> list[Point]:
    """Reward and gold score of the best of n for each size; 1, 2, 4, ... where none is given.

    Every prompt has its own list of answers, as many in both. Equal rewards share a pick.
    """
    prompts = [as_numbers("rewards", one) for one in as_list("rewards", rewards, least=1)]
    truths = [as_numbers("gold", one) for one in as_list("gold", gold)]
    same_length("gold", truths, len(prompts), "prompts")
    for mine, true in zip(prompts, truths, strict=True):
        same_length("gold", true, len(mine), "answers of its prompt")
    most = min(len(mine) for mine in prompts)
    if not most:
        raise refused("rewards", rewards, "at least one answer a prompt")
    given = as_list("sizes", sizes)
    wanted = [as_whole("sizes", n, low=1, high=most) for n in given] or _doublings(most)
    picked = [_picked(*both) for both in zip(prompts, truths, strict=True)]
    points = []
    for n in wanted:
        each = [_expected(places, n) for places in picked]
        distance = math.log(n) - (n - 1) / n
        means = ([pair[side] for pair in each] for side in (0, 1))
        points.append(Point(n, distance, *map(mean_estimate, means)))
    return points


def _doublings(most: int) -> list[int]:
    return [2**power for power in range(int(math.log2(most)) + 1)]


class _Picked(NamedTuple):
    """Answers with one reward, lowest first: how many there are up to them, and their means."""

    upto: int
    reward: float
    gold: float


def _picked(rewards: Sequence[float], gold: Sequence[float]) -> list[_Picked]:
    """A prompt's answers by their reward; those with equal rewards are one entry."""
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
