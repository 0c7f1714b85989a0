"""Advantage `sum_then_normalise`: add the rewards, then normalise the sum in its group.

GRPO (arXiv 2402.03300); without the standard deviation Dr.GRPO (arXiv 2503.20783). Where we differ
from the common code: constant groups are found by range, a group of one gets 0 unless `singletons` says
otherwise, and missing rewards leave the statistics (see `groups`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from burnish.boundary import NonNegative, public
from burnish.policy.base import Component
from burnish.policy.batch import Estimate
from burnish.policy.groups import (
    Ddof,
    as_groups,
    centre,
    group_sum,
    one_group,
    per_reward_advantages,
    standardise,
    weighted_sum,
)
from burnish.tensors import torch

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.policy.batch import RewardBatch
    from burnish.policy.groups import GroupLabels, Lengths, Rewards, RewardWeights

Scale = Literal["group_std", "batch_std", "none"]
Singletons = Literal["zero", "raw", "batch_mean"]


class SumThenNormalise(Component, frozen=True, tag="sum_then_normalise"):
    """Weighted sum of the rewards, centred in its group, then scaled (GRPO, Dr.GRPO)."""

    ALIASES = ("grpo",)

    scale: Scale = "group_std"
    """What centred rewards are divided by: the group's deviation (GRPO), the batch's, or nothing
    (Dr.GRPO)."""
    eps: NonNegative = 1e-6
    """Added to the deviation."""
    ddof: Ddof = 1
    """1 divides the squares by n - 1, 0 by n."""
    singletons: Singletons = "zero"
    """Advantage of a group of one: 0, its reward (REINFORCE, as a proposer of self-play has it), or
    its reward less the mean over all groups of one of its role. A group of which one is left is none."""

    def estimate(self, batch: RewardBatch) -> Estimate:
        """Advantages of the rollouts that have every reward."""
        total_B = weighted_sum(batch.rewards_BK, batch.weights_K)
        return Estimate(
            grpo_advantage.plain(
                total_B,
                batch.groups_B,
                self.scale,
                self.eps,
                self.ddof,
                singletons=self.singletons,
                sizes=batch.sizes_B,
                roles=batch.roles_B,
            ),
            per_reward_advantages.plain(batch.rewards_BK, batch.groups_B, self.eps, self.ddof),
            ~total_B.isnan(),
        )


@public
def grpo_advantage(
    rewards: Rewards,
    groups: GroupLabels,
    scale: Scale = "group_std",
    eps: NonNegative = 1e-6,
    ddof: Ddof = 1,
    *,
    weights: RewardWeights | None = None,
    singletons: Singletons = "zero",
    sizes: Lengths | None = None,
    roles: GroupLabels | None = None,
) -> Tensor:
    """The summed reward, centred in its group and scaled: (B,) or (B, K) -> (B,).

    `group_std` divides by the deviation of the group, `batch_std` by that of the summed rewards of
    the whole batch, each plus `eps`; `none` only centres. A rollout that lacks a reward of non-zero
    weight has no sum: it leaves the statistics and gets 0.

    A group of one gets 0; with `singletons` `raw` it keeps its reward, with `batch_mean` its reward
    less the mean over all such groups of the same role (`roles`, a label for each rollout). A larger
    group of which one reward is left gets 0 all the same; `sizes` says how many rollouts each one's
    group began with, where lost ones are not among the rewards.

    >>> grpo_advantage([1.0, float("nan"), 0.5], [0, 0, 1], singletons="raw").tolist()
    [0.0, 0.0, 0.5]
    """
    total_B1 = weighted_sum(rewards, weights)[:, None]
    numbered = as_groups(groups)
    if scale == "group_std":
        values_B = standardise(total_B1, numbered, eps=eps, ddof=ddof)[:, 0]
    else:
        values_B = centre(total_B1, numbered)[:, 0]
    if scale == "batch_std":
        present = total_B1[~total_B1.isnan()]
        deviation = present.std(correction=ddof) if len(present) > ddof else present.new_zeros(())
        values_B = torch.where(values_B == 0, 0.0, values_B / (deviation + eps))
    if singletons == "zero":
        return values_B
    own_B = total_B1[:, 0]
    present_B = group_sum(torch.ones_like(total_B1), numbered)[:, 0]
    began_B = present_B if sizes is None else torch.maximum(present_B, sizes.to(present_B))
    alone_B = ~own_B.isnan() & (began_B <= 1)
    if singletons == "batch_mean":
        kinds = one_group(own_B) if roles is None else as_groups(roles)
        own_B = centre(own_B.masked_fill(~alone_B, math.nan)[:, None], kinds)[:, 0]
    return torch.where(alone_B, own_B, values_B)
