"""Shaping `position_weight`: reward a judge in training less for the place it prefers (GenRM).

A right verdict counts more the rarer the place that it picks (arXiv 2506.00103). The rate is that
of the step itself, over all its rollouts: nothing is kept between steps, so a resumed run goes on
bit for bit.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

from burnish.boundary import MISSING, NonNegative, public
from burnish.errors import ArgumentError
from burnish.policy.base import Component
from burnish.tensors import torch

if TYPE_CHECKING:
    from jaxtyping import Float64
    from torch import Tensor

    from burnish.policy.base import Shaped
    from burnish.policy.batch import RewardBatch


class PositionWeight(Component, frozen=True, tag="position_weight"):
    """Positive verdicts of a judge times `clip(0.5 / f, low, high)`, f the share of their place."""

    reward: str = "genrm"
    """Name of the reward that is weighted."""
    picks: str = "picked_first"
    """Reward that is 1 where the first text was picked, 0 where the second, NaN where neither."""
    low: NonNegative = 0.5
    """Least factor."""
    high: NonNegative = 2.0
    """Greatest factor."""

    def check(self) -> None:
        _check_factors(self.low, self.high)

    def shape(self, shaped: Shaped, batch: RewardBatch) -> Shaped:
        rewards_BK = position_weight.plain(
            shaped.rewards_BK, batch, self.reward, self.picks, self.low, self.high
        )
        return dataclasses.replace(shaped, rewards_BK=rewards_BK)


def _check_factors(low: float, high: float) -> None:
    if low > high:
        raise ArgumentError(f"low: got {low}, expected at most high, {high}")


@public
def position_weight(
    rewards_BK: Annotated[Float64[Tensor, "B K"], MISSING],
    batch: RewardBatch,
    reward: str = "genrm",
    picks: str = "picked_first",
    low: NonNegative = 0.5,
    high: NonNegative = 2.0,
) -> Tensor:
    """Positive values of `reward` times `clip(0.5 / f, low, high)`: (B, K) -> (B, K).

    Use an advantage without a group's deviation (`scale = "none"`): among verdicts of one margin
    it would divide the weight away again.
    """
    _check_factors(low, high)
    column = batch.column(reward, "position_weight")
    first_B = rewards_BK[:, batch.column(picks, "position_weight")]
    if not (~first_B.isnan()).any():
        return rewards_BK
    rate = first_B[~first_B.isnan()].mean()
    share_B = torch.where(first_B > 0.5, rate, 1 - rate)
    weight_B = (0.5 / share_B).clamp(low, high)
    own_B = rewards_BK[:, column]
    shaped_BK = rewards_BK.clone()
    shaped_BK[:, column] = torch.where((own_B > 0) & ~first_B.isnan(), own_B * weight_B, own_B)
    return shaped_BK
