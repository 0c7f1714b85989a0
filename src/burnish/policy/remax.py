"""Advantage `greedy_baseline`: the reward minus that of the greedy answer to the prompt (ReMax).

For each prompt of a step the policy also answers greedily; the reward of that answer is the baseline of
the sampled ones (arXiv 2310.10505). The greedy answer is scored and stored, and enters neither the
group's statistics nor the loss. Since nothing is compared inside the group, a group of one learns, and
so does a group of equal rewards. Without a reward of the greedy answer its prompt teaches nothing: a
baseline that failed is no 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from burnish.errors import ArgumentError
from burnish.policy.base import Component
from burnish.policy.batch import Estimate
from burnish.policy.groups import CONSTANT_RANGE, as_rewards, as_weights, weighted_sum
from burnish.tensors import check_shape, torch

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.policy.batch import RewardBatch
    from burnish.tensors import Numbers


class GreedyBaseline(Component, frozen=True, tag="greedy_baseline"):
    """Weighted sum of the rewards minus that of the prompt's greedy answer (ReMax)."""

    ALIASES: ClassVar[tuple[str, ...]] = ("remax",)

    def estimate(self, batch: RewardBatch) -> Estimate:
        """Advantages of the rollouts that have every reward, and a baseline."""
        if batch.baselines_BK is None:
            raise ArgumentError(
                "baselines_BK: got none, expected (B, K), the rewards of each prompt's greedy "
                "answer; the recipe's advantage is greedy_baseline"
            )
        check_shape(batch.baselines_BK, "baselines_BK", tuple(batch.rewards_BK.shape))
        baselines_BK = batch.baselines_BK.to(batch.rewards_BK)
        baselines_BK = baselines_BK.masked_fill(batch.weights_K == 0, 0.0)
        total_B = weighted_sum(batch.rewards_BK, batch.weights_K)
        is_present_B = ~(total_B + weighted_sum(baselines_BK, batch.weights_K)).isnan()
        return Estimate(
            remax_advantage(batch.rewards_BK, baselines_BK, weights=batch.weights_K),
            _gap(batch.rewards_BK, baselines_BK),
            is_present_B,
        )


def remax_advantage(
    rewards: Numbers, baselines: Numbers, *, weights: Numbers | None = None
) -> Tensor:
    """The summed reward minus the summed baseline: (B,) or (B, K), the same shape -> (B,).

    0 where either lacks a reward of non-zero weight.
    """
    rewards_BK = as_rewards(rewards)
    baselines_BK = as_rewards(baselines, "baselines").to(rewards_BK.device)
    check_shape(baselines_BK, "baselines", tuple(rewards_BK.shape))
    weights_K = as_weights(weights, rewards_BK)
    return _gap(weighted_sum(rewards_BK, weights_K), weighted_sum(baselines_BK, weights_K))


def _gap(rewards: Tensor, baselines: Tensor) -> Tensor:
    """The difference, exactly 0 where it is missing or no more than rounding."""
    gap = (rewards - baselines).nan_to_num(nan=0.0)
    largest = torch.maximum(rewards.abs(), baselines.abs()).nan_to_num(nan=0.0)
    return gap.masked_fill(gap.abs() <= CONSTANT_RANGE * largest.clamp(min=1.0), 0.0)
