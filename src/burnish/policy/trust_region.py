"""Trust region `static`, and figures of every trust region by the pass rate of a group.

`static` is the same clip interval for every rollout (PPO, arXiv 1707.06347). With `high > low` it is
the asymmetric interval of DAPO (arXiv 2503.14476), which leaves unlikely tokens more room to grow.

A clipped share over all tokens hides where the clip acts, so groups are put into five buckets by
their pass rate, and tokens are counted for each bucket. A pass rate is known only where the range
of the reward is: the least and the greatest reward of a batch are not its range. Sums stay on
their device; nothing here waits for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from burnish.boundary import MISSING, Fraction, NonNegative, Number, public
from burnish.errors import ArgumentError
from burnish.policy.base import ClipBounds, Component
from burnish.policy.groups import as_groups, group_sum, weighted_sum
from burnish.tensors import torch

if TYPE_CHECKING:
    from jaxtyping import Bool, Float64, Int
    from torch import Tensor

    from burnish.policy.batch import RewardBatch
    from burnish.policy.groups import GroupLabels, OneReward

PASS_BUCKETS = ("pass_0_0.2", "pass_0.2_0.4", "pass_0.4_0.6", "pass_0.6_0.8", "pass_0.8_1")
"""A rate on an edge belongs to the upper of the two; 1 to the last."""
EDGES = (0.2, 0.4, 0.6, 0.8)
ROUNDING = 1e-9
"""Sums of weighted rewards miss an edge, or the end of their range, by less than this."""


class StaticRegion(Component, frozen=True, tag="static"):
    """The same clip interval 1 - low .. 1 + high for every rollout."""

    low: Fraction = 0.2
    """How far the ratio may fall below 1."""
    high: NonNegative = 0.2
    """How far the ratio may rise above 1."""

    def bounds(self, values_B: Tensor, batch: RewardBatch, given: RewardBatch) -> ClipBounds:
        return static_bounds.plain(values_B, self.low, self.high)


@public
def static_bounds(
    advantages_B: Annotated[Float64[Tensor, " B"] | Float64[Tensor, "B T"], MISSING],
    low: Fraction = 0.2,
    high: NonNegative = 0.2,
) -> ClipBounds:
    """Clip every ratio to `1 - low .. 1 + high`; the advantages give the shape and the device."""
    return ClipBounds(torch.full_like(advantages_B, low), torch.full_like(advantages_B, high))


@public
def pass_rates(
    rewards: OneReward, groups: GroupLabels, r_min: Number = 0.0, r_max: Number = 1.0
) -> Tensor:
    """The mean reward of each rollout's group, from 0 to 1 within its range: (B,) -> (B,) float64.

    Missing rewards leave the mean. NaN for a group without a reward, and for one with a reward
    outside the range, which then is not its range.
    """
    check_range(r_min, r_max)
    rewards_B1 = rewards[:, None]
    numbered = as_groups(groups)
    # Divided once, at the end: a rate such as 3 of 5 comes out as the nearest number to it.
    risen_B1 = rewards_B1 - r_min
    slack = ROUNDING * (r_max - r_min)
    is_outside_B1 = (risen_B1 < -slack) | (risen_B1 > r_max - r_min + slack)
    columns_B3 = torch.cat(
        [risen_B1.nan_to_num(nan=0.0), (~rewards_B1.isnan()).double(), is_outside_B1.double()], 1
    )
    total_B, count_B, outside_B = group_sum(columns_B3, numbered).unbind(1)
    rates_B = (total_B / (count_B * (r_max - r_min))).clamp(0.0, 1.0)
    return rates_B.masked_fill((count_B == 0) | (outside_B > 0), torch.nan)


def check_range(r_min: float, r_max: float) -> None:
    if not r_min < r_max:
        raise ArgumentError(
            f"r_min and r_max: got {r_min} and {r_max}, expected the least and the greatest reward "
            "that is possible"
        )


@public
def pass_buckets(rates: Annotated[Float64[Tensor, " B"], Meta(ge=0, le=1), MISSING]) -> Tensor:
    """The number of each rate's bucket in `PASS_BUCKETS`, -1 for NaN: (B,) -> (B,) int64."""
    edges_P = torch.tensor(EDGES, dtype=torch.float64, device=rates.device)
    found_B = torch.bucketize(rates + ROUNDING, edges_P, right=True)
    return found_B.masked_fill(rates.isnan(), -1)


@public
def bucket_sums(
    is_clipped: Bool[Tensor, "B T"], used: Bool[Tensor, "B T"], buckets: Int[Tensor, " B"]
) -> Tensor:
    """Clipped tokens and all tokens of each bucket: (B, T), (B, T), (B,) -> (2, P) float64.

    Only tokens that are `used` count, and only those of rollouts with a bucket from 0 on.
    """
    counts_2B = torch.stack([(is_clipped & used).sum(1), used.sum(1)])
    number_P = torch.arange(len(PASS_BUCKETS), device=buckets.device)
    return counts_2B.double() @ (buckets[:, None] == number_P).double()


@public
def bucket_shares(sums: Float64[Tensor, "2 5"]) -> dict[str, float]:
    """The clipped share of each bucket by its name, from (2, P); a bucket without tokens has none."""
    clipped, tokens = sums.tolist()
    return {
        name: share / of
        for name, share, of in zip(PASS_BUCKETS, clipped, tokens, strict=True)
        if of
    }


def group_buckets(
    given: RewardBatch, reward_range: tuple[float, float] | None = None
) -> Tensor | None:
    """The pass-rate bucket of each rollout's group, (B,) int64; -1 or None where it is not known.

    `reward_range` is that of the weighted sum. Without it pass rates are known only for a single
    reward that is 0 or 1 in the whole step: groups of a graded reward that happen to hold no other
    value say nothing of its range.
    """
    if reward_range is not None:
        total_B = weighted_sum(given.rewards_BK, given.weights_K)
        return pass_buckets.plain(pass_rates.plain(total_B, given.groups_B, *reward_range))
    counted_BK = given.rewards_BK[:, given.weights_K != 0]
    is_plain_BK = counted_BK.isnan() | (counted_BK == 0) | (counted_BK == 1)
    if counted_BK.shape[1] != 1 or not is_plain_BK.all():
        return None
    return pass_buckets.plain(pass_rates.plain(counted_BK[:, 0], given.groups_B))


def describe_bounds(
    values_B: Tensor, low_B: Tensor, high_B: Tensor, buckets_B: Tensor | None = None
) -> dict[str, float]:
    """Mean, least and greatest of the bound that binds: above for A > 0, below for A < 0.

    With `buckets_B` also the mean of each pass-rate bucket that has such a rollout.
    """
    found: dict[str, float] = {}
    for name, bound_B, chosen_B in (("high", high_B, values_B > 0), ("low", low_B, values_B < 0)):
        binding = bound_B[chosen_B]
        if len(binding):
            numbers = binding.mean(), binding.min(), binding.max()
            for what, number in zip(("mean", "least", "most"), numbers, strict=True):
                found[f"bounds/{name}_{what}"] = number.item()
        for place, bucket in enumerate(PASS_BUCKETS if buckets_B is not None else ()):
            is_here_B = buckets_B == place
            inside = bound_B[is_here_B][chosen_B[is_here_B]]
            if len(inside):
                found[f"bounds/{name}_mean/{bucket}"] = inside.mean().item()
    return found
