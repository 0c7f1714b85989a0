"""Figures of a trust region apart for hard and easy prompts: groups in buckets of their pass rate.

A clipped share over all tokens hides where the clip acts. Groups are put into five buckets by their
pass rate, and tokens are counted for each bucket. A pass rate is known only where the range of the
reward is: the least and the greatest reward of a batch are not its range, so that none is guessed.
Sums stay on the device they are given on; nothing here waits for it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from burnish.arguments import plain_number, shown
from burnish.errors import ArgumentError
from burnish.policy.groups import as_groups, as_rewards, group_sum
from burnish.policy.tensors import as_finite, as_float64, check_shape, check_tensor

if TYPE_CHECKING:
    from burnish.policy.groups import GroupLabels
    from burnish.policy.tensors import Numbers

PASS_BUCKETS = ("pass_0_0.2", "pass_0.2_0.4", "pass_0.4_0.6", "pass_0.6_0.8", "pass_0.8_1")
"""A rate on an edge belongs to the upper of the two; 1 to the last."""
EDGES = (0.2, 0.4, 0.6, 0.8)
ROUNDING = 1e-9
"""Sums of weighted rewards miss an edge, or the end of their range, by less than this."""


def pass_rates(
    rewards: Numbers, groups: GroupLabels, r_min: float = 0.0, r_max: float = 1.0
) -> Tensor:
    """The mean reward of each rollout's group, from 0 to 1 within its range: (B,) -> (B,) float64.

    Missing rewards leave the mean. NaN for a group without a reward, and for one with a reward
    outside the range, which then is not its range.
    """
    r_min, r_max = as_range(r_min, r_max)
    rewards_B1 = one_reward(rewards)
    numbered = as_groups(groups, rewards_B1)
    # Divided once, at the end: a rate such as 3 of 5 comes out as the nearest number to it.
    risen_B1 = rewards_B1 - r_min
    slack = ROUNDING * (r_max - r_min)
    is_outside_B1 = (risen_B1 < -slack) | (risen_B1 > r_max - r_min + slack)
    columns_B3 = torch.cat(
        [risen_B1.nan_to_num(nan=0.0), (~rewards_B1.isnan()).double(), is_outside_B1.double()], 1
    )
    total_B, count_B, outside_B = group_sum(columns_B3, numbered).unbind(1)
    rates_B = (total_B / (count_B * (r_max - r_min))).clamp(0.0, 1.0)
    return rates_B.masked_fill((count_B == 0) | (outside_B > 0), torch.nan)


def as_range(r_min: float | None, r_max: float | None) -> tuple[float, float]:
    """The two as numbers; refuse what is not the least and the greatest reward that is possible."""
    both = [plain_number(bound) for bound in (r_min, r_max)]
    low, high = (math.nan if bound is None else bound for bound in both)
    if not -math.inf < low < high < math.inf:
        raise ArgumentError(
            f"r_min and r_max: got {shown(r_min)} and {shown(r_max)}, expected the least and the "
            "greatest reward that is possible; a pass rate and a spread need both"
        )
    return low, high


def one_reward(rewards: Numbers) -> Tensor:
    """A single reward as a column, (B, 1) float64."""
    rewards_B1 = as_rewards(rewards)
    if rewards_B1.shape[1] != 1:
        raise ArgumentError(f"rewards: got shape {tuple(rewards_B1.shape)}, expected (B,)")
    return rewards_B1


def pass_buckets(rates: Numbers) -> Tensor:
    """The number of each rate's bucket in `PASS_BUCKETS`, -1 for NaN: (B,) -> (B,) int64."""
    rates_B = as_float64(rates, "rates")
    if ((rates_B < 0) | (rates_B > 1)).any():
        raise ArgumentError("rates: got a number outside 0 to 1, expected pass rates")
    edges_P = torch.tensor(EDGES, dtype=torch.float64, device=rates_B.device)
    found_B = torch.bucketize(rates_B + ROUNDING, edges_P, right=True)
    return found_B.masked_fill(rates_B.isnan(), -1)


def bucket_sums(is_clipped: Tensor, used: Tensor, buckets: Tensor) -> Tensor:
    """Clipped tokens and all tokens of each bucket: (B, T), (B, T), (B,) -> (2, P) float64.

    Only tokens that are `used` count, and only those of rollouts with a bucket from 0 on.
    """
    check_tensor(is_clipped, "is_clipped", "(B, T)", 2)
    check_tensor(used, "used", "(B, T)")
    check_shape(used, "used", tuple(is_clipped.shape))
    check_tensor(buckets, "buckets", "(B,)")
    check_shape(buckets, "buckets", (len(is_clipped),))
    counts_2B = torch.stack([(is_clipped & used).sum(1), used.sum(1)])
    number_P = torch.arange(len(PASS_BUCKETS), device=buckets.device)
    return counts_2B.double() @ (buckets[:, None] == number_P).double()


def bucket_shares(sums: Numbers) -> dict[str, float]:
    """The clipped share of each bucket by its name, from (2, P); a bucket without tokens has none."""
    read_2P = as_finite(sums, "sums")
    check_shape(read_2P, "sums", (2, len(PASS_BUCKETS)))
    clipped, tokens = read_2P.tolist()
    return {
        name: share / of
        for name, share, of in zip(PASS_BUCKETS, clipped, tokens, strict=True)
        if of
    }
