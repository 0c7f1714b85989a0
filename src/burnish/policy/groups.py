"""Statistics inside groups of rollouts, with the same edge rules for every advantage.

A group is constant by range, `max - min <= 1e-6 * max(1, |max|)`, never by a small standard
deviation: dividing the rounding error of 0.1 + 0.1 + ... by a tiny deviation invents advantages.
A missing value (NaN) leaves the statistics of its group and gets 0, a group of one gets 0, and
means are taken in two passes in float64.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from msgspec import Meta

from burnish.arguments import as_list, refused, same_length
from burnish.boundary import MISSING, Call, NonNegative, public
from burnish.errors import ArgumentError
from burnish.numbers import plain
from burnish.tensors import LARGEST, torch

CONSTANT_RANGE = 1e-6
ROOT = LARGEST**0.5
"""Of the largest number: a reward times a weight of this size can still be squared."""


class Labels:
    """Labels of rollouts, numbered 0, 1, ...: any hashables, or an integer tensor of shape (B,)."""

    words = "a label for each rollout"

    def read(self, name: str, given: Any, call: Call) -> Tensor:
        if isinstance(given, torch.Tensor):
            if given.is_floating_point() and not given.isfinite().all():
                raise refused(name, given.tolist(), self.words)
            index_B: Tensor = torch.unique(given, return_inverse=True)[1]
        else:
            numbers: dict[Hashable, int] = {}
            labels = [self.label(name, one) for one in as_list(name, given)]
            index = [numbers.setdefault(label, len(numbers)) for label in labels]
            index_B = torch.tensor(index, device=call.device).long()
        if index_B.ndim != 1 or not call.same("B", len(index_B), name):
            size, other = call.sizes.get("B", (len(index_B), name))
            raise ArgumentError(
                f"{name}: got shape {tuple(index_B.shape)}, expected one label for each of the "
                f"{size} rollouts of {other}"
            )
        return index_B

    def label(self, name: str, given: object) -> Hashable:
        """None and NaN say of no rollout which group it is in."""
        label = plain(given)
        is_odd = isinstance(label, float) and not math.isfinite(label)
        if label is None or is_odd or not isinstance(label, Hashable):
            raise refused(name, given, self.words)
        return label


LABELS = Labels()

if TYPE_CHECKING:
    from jaxtyping import Float64
    from torch import Tensor

    GroupLabels = Annotated[Tensor, LABELS]
    Rewards = Annotated[Float64[Tensor, " B"] | Float64[Tensor, "B K"], MISSING]
    OneReward = Annotated[Float64[Tensor, " B"], MISSING]
    Lengths = Annotated[Float64[Tensor, " B"], Meta(ge=0)]
    RewardWeights = Annotated[Float64[Tensor, " K"], Meta(ge=-ROOT, le=ROOT)]

Ddof = Literal[0, 1]


def label_numbers(labels: Sequence[Hashable]) -> Tensor:
    """The number of each rollout's label, (B,) int64, in the order in which they first come."""
    return LABELS.read("groups", labels, Call())


class Groups(NamedTuple):
    index_B: Tensor
    total: int


def as_groups(labels_B: Tensor) -> Groups:
    labels, index_B = torch.unique(labels_B, return_inverse=True)
    return Groups(index_B, int(labels.numel()))


def one_group(values_B: Tensor) -> Groups:
    return Groups(torch.zeros(len(values_B), dtype=torch.long, device=values_B.device), 1)


def columns(rewards: Tensor) -> Tensor:
    """Rewards as (B, K), from (B,) or (B, K)."""
    return rewards[:, None] if rewards.ndim == 1 else rewards


def as_weights(weights: Tensor | None, values_BK: Tensor) -> Tensor:
    """One weight for each column, (K,) float64; all 1 where none are given."""
    if weights is None:
        return values_BK.new_ones(values_BK.shape[1])
    same_length("weights", weights, values_BK.shape[1], "rewards")
    return weights


def weighted_sum(rewards: Tensor, weights: Tensor | None = None) -> Tensor:
    """`sum_k w_k R_ik`, (B,); NaN where a reward of non-zero weight is missing."""
    rewards_BK = columns(rewards)
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
    centred_BK = centre(values_BK, groups)
    count_BK = group_sum((~values_BK.isnan()).to(values_BK), groups)
    variance_BK = group_sum(centred_BK.square(), groups) / (count_BK - ddof).clamp(min=1.0)
    spread_BK = variance_BK.sqrt() + eps
    return centred_BK / spread_BK.masked_fill(centred_BK == 0, 1.0)


@public
def per_reward_advantages(
    rewards: Rewards, groups: GroupLabels, eps: NonNegative = 1e-6, ddof: Ddof = 1
) -> Tensor:
    """Each reward standardised in its group on its own: (B, K) -> (B, K), (B,) -> (B, 1).

    `a_ik = (R_ik - mean_g) / (std_g + eps)`; 0 where the reward is missing or the same for all.
    """
    return standardise(columns(rewards), as_groups(groups), eps=eps, ddof=ddof)
