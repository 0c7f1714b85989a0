"""Advantage `leave_one_out`: each rollout against the mean of the others of its group (RLOO).

The baseline of a rollout is the mean summed reward of its siblings, so it does not depend on the
rollout itself and the gradient stays unbiased (arXiv 2402.14740). That is the centred reward of
Dr.GRPO times `n / (n - 1)`, with n the rewards present in the group. Where we differ from the common
code: constant groups are found by range, a group of one gets 0 (verl gives it its reward), and
missing rewards leave the statistics (see `groups`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from burnish.policy.base import Component
from burnish.policy.batch import Estimate
from burnish.policy.groups import (
    as_groups,
    centre,
    group_sum,
    per_reward_advantages,
    weighted_sum,
)

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.policy.batch import RewardBatch
    from burnish.policy.groups import GroupLabels
    from burnish.tensors import Numbers


class LeaveOneOut(Component, frozen=True, tag="leave_one_out"):
    """Weighted sum of the rewards minus the mean of the group's other rollouts (RLOO)."""

    ALIASES: ClassVar[tuple[str, ...]] = ("rloo",)

    def estimate(self, batch: RewardBatch) -> Estimate:
        """Advantages of the rollouts that have every reward."""
        total_B = weighted_sum(batch.rewards_BK, batch.weights_K)
        return Estimate(
            rloo_advantage(total_B, batch.groups_B),
            per_reward_advantages(batch.rewards_BK, batch.groups_B),
            ~total_B.isnan(),
        )


def rloo_advantage(
    rewards: Numbers, groups: GroupLabels, *, weights: Numbers | None = None
) -> Tensor:
    """The summed reward minus the mean of its siblings: (B,) or (B, K) -> (B,).

    A rollout that lacks a reward of non-zero weight has no sum: it is nobody's sibling and gets 0.
    """
    total_B1 = weighted_sum(rewards, weights)[:, None]
    numbered = as_groups(groups, total_B1)
    count_B1 = group_sum((~total_B1.isnan()).to(total_B1), numbered)
    # A group of one is constant, so its centred reward is 0 already.
    return (centre(total_B1, numbered) * count_B1 / (count_B1 - 1).clamp(min=1.0))[:, 0]
