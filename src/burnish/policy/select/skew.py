"""Piece 3: drop the groups whose reference was an outlier (BRPO, arXiv 2506.00103).

Every rollout of a group met the same reference. Where nearly all of them beat it, or nearly all
lost to it, the signs say more about the reference than about the rollouts:
`skew = |sum of outcomes| / G`, and a group above the threshold is not trained on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from burnish.arguments import as_number, refused
from burnish.policy.groups import as_groups, group_sum
from burnish.policy.tensors import as_float64, check_tensor

if TYPE_CHECKING:
    from burnish.policy.groups import GroupLabels
    from burnish.policy.tensors import Numbers

ROUNDING = 1e-9
"""A mean over several references is no whole number; its error must not drop a group at the edge."""


def skew_filter(outcomes: Numbers, groups: GroupLabels, threshold: float = 0.6) -> Tensor:
    """True for every rollout of a group whose skew is at most `threshold`: (B,) -> bool (B,).

    NaN adds nothing to the sum but counts in G: the reference itself, or a rollout without verdict.
    """
    outcomes_B = as_float64(outcomes, "outcomes")
    check_tensor(outcomes_B, "outcomes", "(B,)", 1)
    if (outcomes_B.abs() > 1 + ROUNDING).any():
        raise refused("outcomes", outcomes_B.tolist(), "-1 (lost) to 1 (won), NaN where missing")
    numbered = as_groups(groups, outcomes_B)
    columns_B2 = torch.stack([outcomes_B.nan_to_num(nan=0.0), torch.ones_like(outcomes_B)], 1)
    sums_B2 = group_sum(columns_B2, numbered)
    return is_within(sums_B2[:, 0].abs() / sums_B2[:, 1], threshold)


def is_within(skew: Tensor, threshold: float) -> Tensor:
    """True where a group is kept, elementwise; a threshold of 1 keeps all."""
    as_number("threshold", threshold, low=0, high=1)
    return skew <= threshold + ROUNDING
