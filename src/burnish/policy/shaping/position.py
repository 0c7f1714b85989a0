"""Rewards of a judge in training, weighed against its liking for a place (GenRM, arXiv 2506.00103).

    [policy]
    shaping = [{ kind = "function", path = "burnish.policy.shaping.position:position_weight" }]

A right verdict is worth more the rarer the place it picks has been picked. The rate is that of the
step itself, over all its rollouts: nothing is remembered between steps, so a resumed run goes on bit
for bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from burnish.errors import UserError, did_you_mean
from burnish.policy.batch import RewardBatch


def position_weight(
    rewards_BK: Tensor,
    batch: RewardBatch,
    reward: str = "genrm",
    picks: str = "picked_first",
    low: float = 0.5,
    high: float = 2.0,
) -> Tensor:
    """Positive values of `reward` times `clip(0.5 / f, low, high)`, f the share of that place.

    `picks` is the reward that is 1 where the first text was picked, 0 where the second, NaN where
    neither. Shapes: (B, K) -> (B, K). Use an advantage without a group's deviation (`scale =
    "none"`): among verdicts of one margin it would divide the weight away again.
    """
    if not 0 <= low <= high:
        raise UserError(f"position_weight: low {low}, high {high}; expected 0 <= low <= high.")
    column, first_B = _column(reward, batch), rewards_BK[:, _column(picks, batch)]
    if not (~first_B.isnan()).any():
        return rewards_BK
    rate = first_B[~first_B.isnan()].mean()
    share_B = torch.where(first_B > 0.5, rate, 1 - rate)
    weight_B = (0.5 / share_B).clamp(low, high)
    own_B = rewards_BK[:, column]
    shaped_BK = rewards_BK.clone()
    shaped_BK[:, column] = torch.where((own_B > 0) & ~first_B.isnan(), own_B * weight_B, own_B)
    return shaped_BK


def _column(name: str, batch: RewardBatch) -> int:
    if name not in batch.titles:
        raise UserError(
            f"position_weight names the reward '{name}', which the run does not have; expected "
            f"{', '.join(batch.titles)}.{did_you_mean(name, batch.titles)}"
        )
    return batch.titles.index(name)
