"""Best-of-N against a gold score: does more choice by a reward still help, or only please it?

    curve = best_of_n_curve(proxy, gold)             # (prompts, answers) each
    [(point.n, point.kl, point.gold) for point in curve]

From n answers drawn without replacement the one with the highest reward is taken; its expected gold
score is computed over all draws, not sampled. Picking the best of n moves the policy by at most
log n - (n - 1) / n nats, which is the axis that over-optimisation is drawn against.
"""

from __future__ import annotations

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
    wanted = [as_whole("sizes", n, low=1, high=most) for n in sizes] or _doublings(most)
    return [
        Point(
            n,
            math.log(n) - (n - 1) / n,
            mean_estimate([_expected(mine, mine, n) for mine in prompts]),
            mean_estimate([_expected(*both, n) for both in zip(prompts, truths, strict=True)]),
        )
        for n in wanted
    ]


def _doublings(most: int) -> list[int]:
    return [2**power for power in range(int(math.log2(most)) + 1)]


def _expected(rewards: Sequence[float], values: Sequence[float], n: int) -> float:
    """The mean value of the answer with the highest reward, over all draws of n answers."""
    order = sorted(range(len(rewards)), key=lambda i: rewards[i])
    draws = math.comb(len(rewards), n)
    total, place = 0.0, 0
    while place < len(order):
        # Answers with one reward: drawn together with lower ones only, each is as likely.
        tied = [i for i in order[place:] if rewards[i] == rewards[order[place]]]
        upto = place + len(tied)
        share = (math.comb(upto, n) - math.comb(place, n)) / draws
        total += share * sum(values[i] for i in tied) / len(tied)
        place = upto
    return total
