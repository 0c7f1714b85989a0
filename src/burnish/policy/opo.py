"""Advantage `length_weighted_baseline`: the reward minus the group's mean by tokens (OPO).

On-policy, the baseline with the least gradient variance weighs each reward by the squared norm of
its rollout's gradient; if that norm grows with the tokens, the baseline is the mean reward weighted
by length (OPO, arXiv 2505.23585). Where we differ from the common code: constant groups are found by
range, a group of one gets 0 (verl gives it its reward), and missing rewards leave the statistics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from burnish.policy.base import Component
from burnish.policy.batch import Estimate
from burnish.policy.groups import (
    as_groups,
    centre,
    group_sum,
    is_constant,
    per_reward_advantages,
    weighted_sum,
)
from burnish.tensors import as_lengths

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.policy.batch import RewardBatch
    from burnish.policy.groups import GroupLabels
    from burnish.tensors import Numbers


class LengthWeightedBaseline(Component, frozen=True, tag="length_weighted_baseline"):
    """Weighted sum of the rewards minus the group's mean, where long rollouts count more (OPO)."""

    ALIASES: ClassVar[tuple[str, ...]] = ("opo",)

    def estimate(self, batch: RewardBatch) -> Estimate:
        """Advantages of the rollouts that have every reward."""
        total_B = weighted_sum(batch.rewards_BK, batch.weights_K)
        return Estimate(
            opo_advantage(total_B, batch.groups_B, batch.lengths_B),
            per_reward_advantages(batch.rewards_BK, batch.groups_B),
            ~total_B.isnan(),
        )


def opo_advantage(
    rewards: Numbers, groups: GroupLabels, lengths: Numbers, *, weights: Numbers | None = None
) -> Tensor:
    """`R_i - sum_j l_j R_j / sum_j l_j` over the group: (B,) or (B, K), lengths (B,) -> (B,).

    A rollout that lacks a reward of non-zero weight leaves both sums and gets 0. A group without any
    token has the plain mean as its baseline.
    """
    total_B1 = weighted_sum(rewards, weights)[:, None]
    numbered = as_groups(groups, total_B1)
    lengths_B1 = as_lengths(lengths, "lengths", total_B1)[:, None]
    is_out_B1 = is_constant(total_B1, numbered) | total_B1.isnan()
    # Centred first, so that large rewards with small differences lose no digits.
    centred_B1 = centre(total_B1, numbered)
    weight_B1 = lengths_B1.masked_fill(total_B1.isnan(), 0.0)
    tokens_B1 = group_sum(weight_B1, numbered).clamp(min=1.0)
    baseline_B1 = group_sum(weight_B1 * centred_B1, numbered) / tokens_B1
    return (centred_B1 - baseline_B1).masked_fill(is_out_B1, 0.0)[:, 0]
