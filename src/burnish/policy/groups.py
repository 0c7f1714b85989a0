"""Statistics inside groups of rollouts, with the same edge rules for every advantage.

A group is constant by range, `max - min <= 1e-6 * max(1, |max|)`, never by a small standard
deviation: dividing the rounding error of 0.1 + 0.1 + ... by a tiny deviation invents advantages.
A missing value (NaN) leaves the statistics of its group and gets 0, a group of one gets 0, and
means are taken in two passes in float64.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from burnish.arguments import as_list, as_number, plain_number, refused
from burnish.errors import ArgumentError
from burnish.numbers import plain
from burnish.tensors import LARGEST, as_float64, check_finite, torch

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from burnish.tensors import Numbers

    GroupLabels = Tensor | np.ndarray[Any, Any] | Sequence[Hashable]

CONSTANT_RANGE = 1e-6


class Groups(NamedTuple):
    """Which group each rollout belongs to."""

    index_B: Tensor
    """int64, 0 .. total - 1."""
    total: int


def as_groups(groups: GroupLabels, values_B: Tensor, what: str = "groups") -> Groups:
    """Number the groups 0, 1, ...; labels may be any hashables or an integer tensor of shape (B,).

    `values_B` is any tensor with one row per rollout: it gives the length and the device.
    """
    if isinstance(groups, torch.Tensor):
        if groups.is_floating_point():
            check_finite(groups, what)
        labels, index_B = torch.unique(groups, return_inverse=True)
        found = Groups(index_B.to(values_B.device), int(labels.numel()))
    else:
        numbers: dict[Hashable, int] = {}
        labels_B = [_label(one, what) for one in as_list(what, groups)]
        index = [numbers.setdefault(label, len(numbers)) for label in labels_B]
        found = Groups(torch.tensor(index, device=values_B.device).long(), len(numbers))
    if found.index_B.shape != values_B.shape[:1]:
        raise ArgumentError(
            f"{what}: got shape {tuple(found.index_B.shape)}, expected one label for each of "
            f"the {len(values_B)} rollouts"
        )
    return found


def _label(given: object, what: str) -> Hashable:
    """A label that is one: None and NaN say of no rollout which group it is in."""
    label = plain(given)
    is_odd = isinstance(label, float) and not math.isfinite(label)
    if label is None or is_odd or not isinstance(label, Hashable):
        raise refused(what, given, "a label for each rollout")
    return label


def as_rewards(rewards: Numbers, what: str = "rewards") -> Tensor:
    """Rewards as (B, K) float64, from (B,) or (B, K); NaN or None where a value is missing."""
    values = as_float64(rewards, what)
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim != 2:
        raise ArgumentError(f"{what}: got shape {tuple(values.shape)}, expected (B,) or (B, K)")
    infinite = (values.abs() > LARGEST).nonzero()
    if len(infinite):
        rollout, reward = infinite[0].tolist()
        raise ArgumentError(
            f"{what}: rollout {rollout}, reward {reward} is {values[rollout, reward].item()}; "
            f"expected a finite number of at most {LARGEST:g} in size, or NaN where there is none"
        )
    return values


def as_weights(weights: Numbers | None, values_BK: Tensor) -> Tensor:
    """One finite weight for each column of `values_BK`, (K,) float64; all 1 where none are given."""
    if weights is None:
        return values_BK.new_ones(values_BK.shape[1])
    weights_K = as_float64(weights, "weights").to(values_BK.device)
    # The root of LARGEST: a reward times its weight can still be squared.
    if weights_K.shape != values_BK.shape[1:] or not (weights_K.abs() <= LARGEST**0.5).all():
        raise ArgumentError(
            f"weights: got {weights_K.tolist()}, expected a finite number for each of the "
            f"{values_BK.shape[1]} rewards, of at most {LARGEST**0.5:g} in size"
        )
    return weights_K


def weighted_sum(rewards: Numbers, weights: Numbers | None = None) -> Tensor:
    """`sum_k w_k R_ik`, (B,); NaN where a reward of non-zero weight is missing."""
    rewards_BK = as_rewards(rewards)
    weights_K = as_weights(weights, rewards_BK)
    # A reward of weight 0 is ignored even where it is missing: 0 * NaN would be NaN.
    parts_BK = rewards_BK.masked_fill(weights_K == 0, 0.0) * weights_K
    # One after the other, as `rewards.Weighted` adds: the logged total is the loss's, bit for bit.
    total_B = parts_BK.new_zeros(len(parts_BK))
    for part_B in parts_BK.unbind(1):
        total_B = total_B + part_B
    return total_B


def group_sum(values_BK: Tensor, groups: Groups) -> Tensor:
    """The sum over each rollout's group, given back to every rollout: (B, K) -> (B, K)."""
    sums_QK = values_BK.new_zeros(groups.total, values_BK.shape[1])
    return sums_QK.index_add_(0, groups.index_B, values_BK)[groups.index_B]


def is_constant(values_BK: Tensor, groups: Groups) -> Tensor:
    """True where the present values of the rollout's group are all equal by range, (B, K).

    Groups with one present value or none count as constant.
    """
    is_missing = values_BK.isnan()
    shape = groups.total, values_BK.shape[1]
    index_BK = groups.index_B[:, None].expand_as(values_BK)
    high_QK = values_BK.new_full(shape, -torch.inf)
    low_QK = values_BK.new_full(shape, torch.inf)
    high_QK.scatter_reduce_(0, index_BK, values_BK.masked_fill(is_missing, -torch.inf), "amax")
    low_QK.scatter_reduce_(0, index_BK, values_BK.masked_fill(is_missing, torch.inf), "amin")
    flat_QK = high_QK - low_QK <= CONSTANT_RANGE * high_QK.abs().clamp(min=1.0)
    return flat_QK[groups.index_B]


def centre(values_BK: Tensor, groups: Groups) -> Tensor:
    """Each value minus the mean of its group, (B, K); exactly 0 where missing or constant."""
    return deviations(values_BK, groups).masked_fill(is_constant(values_BK, groups), 0.0)


def deviations(values_BK: Tensor, groups: Groups) -> Tensor:
    """As `centre`, also where a group is constant by range: 5 is little beside 1e7, but not 0."""
    is_present = ~values_BK.isnan()
    count_BK = group_sum(is_present.to(values_BK), groups).clamp(min=1.0)
    centred_BK = values_BK.nan_to_num(nan=0.0)
    # The second pass takes away the rounding error that the first mean carries.
    for _ in range(2):
        centred_BK = centred_BK - group_sum(centred_BK, groups) / count_BK
        centred_BK = centred_BK.masked_fill(~is_present, 0.0)
    return centred_BK


def standardise(values_BK: Tensor, groups: Groups, *, eps: float, ddof: int) -> Tensor:
    """`(x - mean) / (std + eps)` inside each group, (B, K); 0 where missing or constant."""
    eps, ddof = check_statistics(eps, ddof)
    centred_BK = centre(values_BK, groups)
    count_BK = group_sum((~values_BK.isnan()).to(values_BK), groups)
    variance_BK = group_sum(centred_BK.square(), groups) / (count_BK - ddof).clamp(min=1.0)
    spread_BK = variance_BK.sqrt() + eps
    return centred_BK / spread_BK.masked_fill(centred_BK == 0, 1.0)


def check_statistics(eps: float, ddof: int) -> tuple[float, int]:
    """Both as plain numbers; refuse constants that no standard deviation can be made with."""
    divisor = plain_number(ddof)
    if divisor is None or divisor not in (0, 1):
        raise refused("ddof", ddof, "0 (population deviation) or 1 (sample deviation)")
    return as_number("eps", eps, low=0), int(divisor)


def per_reward_advantages(
    rewards: Numbers, groups: GroupLabels, eps: float = 1e-6, ddof: int = 1
) -> Tensor:
    """Each reward standardised in its group on its own: (B, K) -> (B, K), (B,) -> (B, 1).

    `a_ik = (R_ik - mean_g) / (std_g + eps)`; 0 where the reward is missing or the same for all.
    """
    rewards_BK = as_rewards(rewards)
    return standardise(rewards_BK, as_groups(groups, rewards_BK), eps=eps, ddof=ddof)
