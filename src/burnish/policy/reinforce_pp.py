"""Advantage `batch_normalise`: rewards standardised over the whole batch, without groups.

REINFORCE++ (arXiv 2501.03262) compares a rollout with all rollouts of the step, each counted once per
token, so that one answer a prompt is enough. An easy prompt then teaches that its answers are good:
unlike other advantages, a group of equal rewards is not 0, and neither is a group of one. Its baseline
form subtracts the group's mean first; that is `sum_then_normalise` with `scale = "none"` and post-scale
`batch_whiten` (recipe `reinforce_pp_baseline`). Where we differ: missing rewards leave the statistics,
and a batch of equal rewards gets 0. There is no discount: a reward belongs to the whole answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from burnish.policy.base import Component
from burnish.policy.batch import Estimate
from burnish.policy.groups import per_reward_advantages, weighted_sum
from burnish.policy.post_scale import batch_whiten
from burnish.tensors import torch

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.policy.batch import RewardBatch
    from burnish.tensors import Numbers


class BatchNormalise(Component, frozen=True, tag="batch_normalise"):
    """Weighted sum of the rewards, standardised over all rollouts of the step (REINFORCE++)."""

    ALIASES: ClassVar[tuple[str, ...]] = ("reinforce_pp", "reinforce_plus_plus")

    scope: Literal["token", "rollout"] = "token"
    """What a rollout counts for in mean and deviation: its tokens, or one."""

    def estimate(self, batch: RewardBatch) -> Estimate:
        """Advantages of the rollouts that have every reward."""
        total_B = weighted_sum(batch.rewards_BK, batch.weights_K)
        one_group_B = torch.zeros_like(batch.groups_B)
        return Estimate(
            reinforce_pp_advantage(total_B, batch.lengths_B, self.scope),
            per_reward_advantages(batch.rewards_BK, one_group_B),
            ~total_B.isnan(),
        )


def reinforce_pp_advantage(
    rewards: Numbers,
    lengths: Numbers | None = None,
    scope: Literal["token", "rollout"] = "token",
    *,
    weights: Numbers | None = None,
    eps: float = 1e-8,
) -> Tensor:
    """`(R - mean) / sqrt(variance + eps)` over the batch: (B,) or (B, K), lengths (B,) -> (B,).

    Scope `token` counts each rollout once per token and needs `lengths`. A rollout that lacks a
    reward of non-zero weight leaves the statistics and gets 0.
    """
    total_B = weighted_sum(rewards, weights)
    return batch_whiten(total_B, lengths, keep=~total_B.isnan(), scope=scope, eps=eps)
