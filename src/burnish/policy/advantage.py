"""Piece 2: from rewards to advantages, inside the groups of rollouts that share a prompt.

`grpo_advantage` sums the rewards and normalises the sum (GRPO, arXiv 2402.03300; without the
standard deviation Dr.GRPO, arXiv 2503.20783). `normalise_then_sum` normalises each reward first, so
that no reward dominates by its scale (GDPO, arXiv 2601.05242; whole in `gdpo`). Where we differ
from the common code: constant groups are found by range, a group of one gets 0, and missing rewards
leave the statistics (see `groups`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from burnish.arguments import as_word
from burnish.policy.groups import (
    as_groups,
    as_rewards,
    as_weights,
    centre,
    check_statistics,
    is_constant,
    standardise,
)

if TYPE_CHECKING:
    from burnish.policy.groups import GroupLabels
    from burnish.policy.tensors import Numbers

SCALES = ("group_std", "batch_std", "none")


def grpo_advantage(
    rewards: Numbers,
    groups: GroupLabels,
    scale: Literal["group_std", "batch_std", "none"] = "group_std",
    eps: float = 1e-6,
    ddof: int = 1,
    *,
    weights: Numbers | None = None,
) -> Tensor:
    """The summed reward, centred in its group and scaled: (B,) or (B, K) -> (B,).

    `group_std` divides by the deviation of the group, `batch_std` by that of the summed rewards of
    the whole batch, each plus `eps`; `none` only centres. A rollout that lacks a reward of non-zero
    weight has no sum: it leaves the statistics and gets 0.
    """
    check_statistics(eps, ddof)
    as_word("scale", scale, SCALES)
    total_B1 = weighted_sum(rewards, weights)[:, None]
    numbered = as_groups(groups, total_B1)
    if scale == "group_std":
        return standardise(total_B1, numbered, eps=eps, ddof=ddof)[:, 0]
    centred_B = centre(total_B1, numbered)[:, 0]
    if scale == "none":
        return centred_B
    present = total_B1[~total_B1.isnan()]
    deviation = present.std(correction=ddof) if len(present) > ddof else present.new_zeros(())
    return torch.where(centred_B == 0, 0.0, centred_B / (deviation + eps))


def per_reward_advantages(
    rewards: Numbers, groups: GroupLabels, eps: float = 1e-6, ddof: int = 1
) -> Tensor:
    """Each reward standardised in its group on its own: (B, K) -> (B, K), (B,) -> (B, 1).

    `a_ik = (R_ik - mean_g) / (std_g + eps)`; 0 where the reward is missing or the same for all.
    """
    rewards_BK = as_rewards(rewards)
    return standardise(rewards_BK, as_groups(groups, rewards_BK), eps=eps, ddof=ddof)


def normalise_then_sum(
    rewards: Numbers,
    groups: GroupLabels,
    eps: float = 1e-6,
    ddof: int = 1,
    *,
    weights: Numbers | None = None,
) -> Tensor:
    """`S_i = sum_k w_k a_ik`, before any whitening: (B, K) -> (B,); a missing reward adds nothing.

    Where the rewards of a group cancel for every rollout the sum is exactly 0, not rounding noise.
    """
    rewards_BK = as_rewards(rewards)
    weights_K = as_weights(weights, rewards_BK)
    sum_B = per_reward_advantages(rewards_BK, groups, eps, ddof) @ weights_K
    cancels_B = is_constant(sum_B[:, None], as_groups(groups, sum_B))[:, 0]
    return sum_B.masked_fill(cancels_B, 0.0)


def raw_advantage(
    rewards: Numbers, groups: GroupLabels, *, weights: Numbers | None = None
) -> Tensor:
    """The weighted sum itself, for outcomes that already compare rollouts: (B,) or (B, K) -> (B,).

    The edge rules hold here too: 0 where a value is missing, where the whole group got the same
    outcome, and for a group of one.
    """
    total_B1 = weighted_sum(rewards, weights)[:, None]
    is_flat_B1 = is_constant(total_B1, as_groups(groups, total_B1))
    return total_B1.nan_to_num(nan=0.0).masked_fill(is_flat_B1, 0.0)[:, 0]


def weighted_sum(rewards: Numbers, weights: Numbers | None = None) -> Tensor:
    """`sum_k w_k R_ik`, (B,); NaN where a reward of non-zero weight is missing."""
    rewards_BK = as_rewards(rewards)
    weights_K = as_weights(weights, rewards_BK)
    # A reward of weight 0 is ignored even where it is missing: 0 * NaN would be NaN.
    return (rewards_BK.masked_fill(weights_K == 0, 0.0) * weights_K).sum(1)
