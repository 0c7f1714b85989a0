"""MedAlign as a single call: frozen normalisation, a weighted sum, group standardisation.

Each reward is measured in deviations of the start model (`reference`), the rewards are summed with
the weights of the step (`tri_factor`) and the sum is standardised in its group as in GRPO (arXiv
2602.11661). A reward that a rollout lacks counts as 0, "as the start model"; a rollout without any
reward of non-zero weight leaves the statistics and gets 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from burnish.policy.advantage import grpo_advantage
from burnish.policy.groups import as_rewards, as_weights
from burnish.policy.reference import reference_frozen_normalise

if TYPE_CHECKING:
    from burnish.policy.groups import GroupLabels
    from burnish.policy.tensors import Numbers


def medalign_advantage(
    rewards: Numbers,
    mean: Numbers,
    sd: Numbers,
    clip: float,
    weights: Numbers | None,
    groups: GroupLabels,
    ddof: int = 1,
    eps: float = 1e-6,
) -> Tensor:
    """`S_i = sum_k w_k z_ik` standardised in its group: (B,) or (B, K) -> (B,).

    `mean`, `sd`: a number or (K,), from `fit_reference_stats`; `weights`: (K,), all 1 where None.
    """
    normalised_BK = reference_frozen_normalise(as_rewards(rewards), mean, sd, clip)
    weights_K = as_weights(weights, normalised_BK)
    has_any_B = (~normalised_BK.isnan() & (weights_K != 0)).any(1)
    sum_B = normalised_BK.nan_to_num(nan=0.0) @ weights_K
    return grpo_advantage(torch.where(has_any_B, sum_B, torch.nan), groups, "group_std", eps, ddof)
