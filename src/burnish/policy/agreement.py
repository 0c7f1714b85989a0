"""How far the rewards of a step agree: correlation and conflict of every two of them.

Both are about answers to the same prompt, because only those are compared in training. Correlation is
Pearson's, of the deviations from the group's mean. Conflict is the share of pairs of answers that two
rewards put in opposite order, among the pairs that both of them tell apart: 0 where they always agree,
0.5 where one knows nothing of the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

from burnish.errors import ArgumentError
from burnish.policy.groups import CONSTANT_RANGE, as_groups, as_rewards, group_sum, is_constant
from burnish.tensors import torch

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.policy.groups import GroupLabels, Groups
    from burnish.tensors import Numbers


class Agreement(NamedTuple):
    """Every two rewards of a step."""

    correlation: Tensor
    """(K, K), NaN where one of the two does not vary inside the groups."""
    conflict: Tensor
    """(K, K), NaN where no pair of answers is told apart by both."""


def reward_agreement(rewards: Numbers, groups: GroupLabels) -> Agreement:
    """Correlation and conflict of every two rewards within groups: (B, K) -> (K, K) each.

    A rollout counts for two rewards where it has both; a missing reward is NaN.
    """
    rewards_BK = as_rewards(rewards)
    numbered = as_groups(groups, rewards_BK)
    size = rewards_BK.shape[1]
    correlation_KK = rewards_BK.new_full((size, size), torch.nan)
    for first, second in combinations(range(size), 2):
        value = _correlation(rewards_BK[:, [first, second]], numbered)
        correlation_KK[first, second] = correlation_KK[second, first] = value
    return Agreement(correlation_KK, _conflict(rewards_BK, numbered))


def agreement_metrics(
    rewards: Numbers, groups: GroupLabels, names: Sequence[str]
) -> dict[str, float]:
    """`reward/corr/a~b` and `reward/conflict/a~b` of every two rewards; unknown ones are left out."""
    found = reward_agreement(rewards, groups)
    if len(names) != len(found.conflict):
        raise ArgumentError(
            f"names: got {len(names)}, expected one for each of {len(found.conflict)} rewards"
        )
    metrics: dict[str, float] = {}
    for first, second in combinations(range(len(names)), 2):
        pair = f"{names[first]}~{names[second]}"
        for kind, table in (("corr", found.correlation), ("conflict", found.conflict)):
            value = table[first, second].item()
            if value == value:
                metrics[f"reward/{kind}/{pair}"] = value
    return metrics


def _correlation(values_B2: Tensor, groups: Groups) -> float:
    """Of the deviations of two rewards from their group's mean; NaN where one has none."""
    present_B1 = (~values_B2.isnan().any(1, keepdim=True)).to(values_B2)
    values_B2 = torch.where(present_B1.bool(), values_B2, torch.nan)
    flat_B2 = is_constant(values_B2, groups)
    filled_B2 = values_B2.nan_to_num(nan=0.0)
    counts_B1 = group_sum(present_B1, groups).clamp(min=1.0)
    means_B2 = group_sum(filled_B2, groups) / counts_B1
    # A group without differences is found by range, so that rounding is no deviation.
    centred_B2 = ((filled_B2 - means_B2) * present_B1).masked_fill(flat_B2, 0.0)
    # Scaled before they are squared: a reward of size 1e200 has a correlation too.
    scale_2 = centred_B2.abs().amax(0) if len(centred_B2) else centred_B2.new_zeros(2)
    if not (scale_2 > 0).all():
        return float("nan")
    unit_B2 = centred_B2 / scale_2
    spread = (unit_B2**2).sum(0).prod().sqrt()
    return (unit_B2.prod(1).sum() / spread).clamp(-1.0, 1.0).item()


def _conflict(rewards_BK: Tensor, groups: Groups) -> Tensor:
    size = rewards_BK.shape[1]
    opposite_KK, both_KK = rewards_BK.new_zeros(size, size), rewards_BK.new_zeros(size, size)
    for number in range(groups.total):
        own_GK = rewards_BK[groups.index_B == number]
        # 1, 0 or -1 for each ordered pair of answers; a missing value tells nothing.
        apart_GGK = (own_GK[:, None] - own_GK[None, :]).nan_to_num(nan=0.0)
        rounding_K = CONSTANT_RANGE * own_GK.nan_to_num(nan=0.0).abs().amax(0).clamp(min=1.0)
        signs_GGK = apart_GGK.sign() * (apart_GGK.abs() > rounding_K)
        flat_PK = signs_GGK.reshape(-1, size)
        together_KK = flat_PK.T @ flat_PK
        told_KK = flat_PK.abs().T @ flat_PK.abs()
        both_KK += told_KK
        opposite_KK += (told_KK - together_KK) / 2
    return torch.where(both_KK > 0, opposite_KK / both_KK.clamp(min=1.0), torch.nan)
