"""Advantages by a baseline: RLOO, OPO, ReMax and REINFORCE++ beside GRPO.

| component                  | baseline of a rollout                                     | from             |
|----------------------------|-----------------------------------------------------------|------------------|
| `leave_one_out`            | the mean of its siblings                                  | arXiv 2402.14740 |
| `length_weighted_baseline` | the group's mean, each answer weighted by its tokens      | arXiv 2505.23585 |
| `greedy_baseline`          | the reward of the greedy answer to its prompt             | arXiv 2310.10505 |
| `batch_normalise`          | the mean of the whole batch, over its deviation           | arXiv 2501.03262 |

Where we differ from the common code: constant groups are found by range, a group of one gets 0 with
the first two (verl gives it its reward), and missing rewards leave the statistics (see `groups`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from burnish.boundary import NonNegative, public
from burnish.policy.base import Component
from burnish.policy.batch import Estimate, needed
from burnish.policy.groups import (
    CONSTANT_RANGE,
    as_groups,
    as_weights,
    centre,
    columns,
    group_sum,
    is_constant,
    per_reward_advantages,
    weighted_sum,
)
from burnish.policy.post_scale import batch_whiten
from burnish.tensors import check_shape, torch

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.policy.batch import RewardBatch
    from burnish.policy.groups import GroupLabels, Lengths, Rewards, RewardWeights


class LeaveOneOut(Component, frozen=True, tag="leave_one_out"):
    """Weighted sum of the rewards minus the mean of the group's other rollouts (RLOO)."""

    ALIASES = ("rloo",)

    def estimate(self, batch: RewardBatch) -> Estimate:
        total_B = weighted_sum(batch.rewards_BK, batch.weights_K)
        return _estimate(batch, total_B, rloo_advantage.plain(total_B, batch.groups_B))


@public
def rloo_advantage(
    rewards: Rewards, groups: GroupLabels, *, weights: RewardWeights | None = None
) -> Tensor:
    """The summed reward minus the mean of its siblings: (B,) or (B, K) -> (B,).

    That is the centred reward of Dr.GRPO times `n / (n - 1)`, with n the rewards present in the
    group. A rollout that lacks a reward of non-zero weight has no sum: it is nobody's sibling and
    gets 0.
    """
    total_B1 = weighted_sum(rewards, weights)[:, None]
    numbered = as_groups(groups)
    count_B1 = group_sum((~total_B1.isnan()).to(total_B1), numbered)
    # A group of one is constant, so its centred reward is 0 already.
    return (centre(total_B1, numbered) * count_B1 / (count_B1 - 1).clamp(min=1.0))[:, 0]


class LengthWeightedBaseline(Component, frozen=True, tag="length_weighted_baseline"):
    """Weighted sum of the rewards minus the group's mean, where long rollouts count more (OPO)."""

    ALIASES = ("opo",)

    def estimate(self, batch: RewardBatch) -> Estimate:
        total_B = weighted_sum(batch.rewards_BK, batch.weights_K)
        lengths_B = batch.lengths_B.to(total_B)
        return _estimate(batch, total_B, opo_advantage.plain(total_B, batch.groups_B, lengths_B))


@public
def opo_advantage(
    rewards: Rewards, groups: GroupLabels, lengths: Lengths, *, weights: RewardWeights | None = None
) -> Tensor:
    """`R_i - sum_j l_j R_j / sum_j l_j` over the group: (B,) or (B, K), lengths (B,) -> (B,).

    On-policy, the baseline with the least gradient variance weighs each reward by the squared norm
    of its rollout's gradient; here that norm grows with the tokens. A rollout that lacks a reward of
    non-zero weight leaves both sums and gets 0. A group without any token has the plain mean.
    """
    total_B1 = weighted_sum(rewards, weights)[:, None]
    numbered = as_groups(groups)
    is_out_B1 = is_constant(total_B1, numbered) | total_B1.isnan()
    # Centred first, so that large rewards with small differences lose no digits.
    centred_B1 = centre(total_B1, numbered)
    weight_B1 = lengths[:, None].masked_fill(total_B1.isnan(), 0.0)
    tokens_B1 = group_sum(weight_B1, numbered).clamp(min=1.0)
    baseline_B1 = group_sum(weight_B1 * centred_B1, numbered) / tokens_B1
    return (centred_B1 - baseline_B1).masked_fill(is_out_B1, 0.0)[:, 0]


class GreedyBaseline(Component, frozen=True, tag="greedy_baseline"):
    """Weighted sum of the rewards minus that of the prompt's greedy answer (ReMax).

    The greedy answer is scored and stored, and enters neither the group's statistics nor the loss. A
    group of one learns, and so does a group of equal rewards. Without a reward of the greedy answer
    its prompt teaches nothing: a baseline that failed is no 0.
    """

    ALIASES = ("remax",)

    def estimate(self, batch: RewardBatch) -> Estimate:
        why = "the recipe's advantage compares with each prompt's greedy answer"
        baselines_BK = needed(batch.baselines_BK, "baselines_BK", why).to(batch.rewards_BK)
        baselines_BK = baselines_BK.masked_fill(batch.weights_K == 0, 0.0)
        total_B = weighted_sum(batch.rewards_BK, batch.weights_K)
        baseline_B = weighted_sum(baselines_BK, batch.weights_K)
        return Estimate(
            _gap(total_B, baseline_B),
            _gap(batch.rewards_BK, baselines_BK),
            ~(total_B + baseline_B).isnan(),
        )


@public
def remax_advantage(
    rewards: Rewards, baselines: Rewards, *, weights: RewardWeights | None = None
) -> Tensor:
    """The summed reward minus the summed baseline: (B,) or (B, K), the same shape -> (B,).

    0 where either lacks a reward of non-zero weight.
    """
    check_shape(baselines, "baselines", tuple(rewards.shape))
    weights_K = as_weights(weights, columns(rewards))
    return _gap(weighted_sum(rewards, weights_K), weighted_sum(baselines, weights_K))


class BatchNormalise(Component, frozen=True, tag="batch_normalise"):
    """Weighted sum of the rewards, standardised over all rollouts of the step (REINFORCE++).

    One answer a prompt is enough. An easy prompt then teaches that its answers are good: unlike other
    advantages, a group of equal rewards is not 0, and neither is a group of one. Its baseline form is
    `sum_then_normalise` with `scale = "none"` and post-scale `batch_whiten`. There is no discount: a
    reward belongs to the whole answer.
    """

    ALIASES = ("reinforce_pp", "reinforce_plus_plus")

    scope: Literal["token", "rollout"] = "token"
    """What a rollout counts for in mean and deviation: its tokens, or one."""

    def estimate(self, batch: RewardBatch) -> Estimate:
        total_B = weighted_sum(batch.rewards_BK, batch.weights_K)
        return Estimate(
            reinforce_pp_advantage.plain(total_B, batch.lengths_B.to(total_B), self.scope),
            per_reward_advantages.plain(batch.rewards_BK, torch.zeros_like(batch.groups_B)),
            ~total_B.isnan(),
        )


@public
def reinforce_pp_advantage(
    rewards: Rewards,
    lengths: Lengths | None = None,
    scope: Literal["token", "rollout"] = "token",
    *,
    weights: RewardWeights | None = None,
    eps: NonNegative = 1e-8,
) -> Tensor:
    """`(R - mean) / sqrt(variance + eps)` over the batch: (B,) or (B, K), lengths (B,) -> (B,).

    Scope `token` counts each rollout once per token and needs `lengths`. A rollout that lacks a
    reward of non-zero weight leaves the statistics and gets 0, and so does a batch of equal rewards.
    """
    total_B = weighted_sum(rewards, weights)
    return batch_whiten.plain(total_B, lengths, keep=~total_B.isnan(), scope=scope, eps=eps)


def _estimate(batch: RewardBatch, total_B: Tensor, values_B: Tensor) -> Estimate:
    per_reward_BK = per_reward_advantages.plain(batch.rewards_BK, batch.groups_B)
    return Estimate(values_B, per_reward_BK, ~total_B.isnan())


def _gap(rewards: Tensor, baselines: Tensor) -> Tensor:
    """The difference, exactly 0 where it is missing or no more than rounding."""
    gap = (rewards - baselines).nan_to_num(nan=0.0)
    largest = torch.maximum(rewards.abs(), baselines.abs()).nan_to_num(nan=0.0)
    return gap.masked_fill(gap.abs() <= CONSTANT_RANGE * largest.clamp(min=1.0), 0.0)
