"""Advantage `raw` and select `skew`: outcomes of comparisons as they are (BRPO, arXiv 2506.00103).

In each group one rollout, drawn uniformly at random, is the reference; the others get +1 where they
beat it and -1 where they lose, with no mean and no deviation. Averaged over the draw the advantages
of an antisymmetric judge add up to 0. Where nearly all of a group beat the reference, or nearly all
lost to it, the signs say more about the reference than about the rollouts: a group with
`|sum of outcomes| / G` above a threshold is dropped.

Shaping `position_weight`: a judge in training is rewarded less for the place it prefers (GenRM, same
paper). A right verdict counts more the rarer the place that it picks, by the rate of the step itself.

Where we differ: a comparison without a verdict is missing, not lost. The published rule counts it
as a loss, so an outage of the judge pushes every rollout down.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, NamedTuple

from msgspec import Meta

from burnish.arguments import ordered
from burnish.boundary import MISSING, SOME, NonNegative, Share, public
from burnish.errors import ArgumentError
from burnish.policy.base import Component, Selection
from burnish.policy.batch import Estimate
from burnish.policy.groups import (
    Groups,
    as_groups,
    group_sum,
    is_constant,
    standardise,
    weighted_sum,
)
from burnish.tensors import torch

if TYPE_CHECKING:
    from jaxtyping import Float64, Int
    from torch import Tensor

    from burnish.policy.base import Shaped
    from burnish.policy.batch import RewardBatch
    from burnish.policy.groups import GroupLabels, Rewards, RewardWeights

ROUNDING = 1e-9
"""A mean over several references is not a whole number; its error must not drop a group."""


class Raw(Component, frozen=True, tag="raw"):
    """The weighted sum itself is the advantage (outcomes that are already relative)."""

    def estimate(self, batch: RewardBatch) -> Estimate:
        total_B = weighted_sum(batch.rewards_BK, batch.weights_K)
        # The reference rollout has no outcome; it counts as 0 in its group.
        values_B = raw_advantage.plain(total_B.nan_to_num(nan=0.0), batch.groups_B)
        return Estimate(values_B, batch.rewards_BK.nan_to_num(nan=0.0), ~total_B.isnan())


class Skew(Component, frozen=True, tag="skew"):
    """Groups that nearly all win, or nearly all lose, against their reference are dropped (BRPO)."""

    threshold: Share = 0.6
    """Groups whose mean outcome is further from 0 than this are dropped."""

    def select(self, estimate: Estimate, signal_B: Tensor, batch: RewardBatch) -> Selection:
        shares_K = batch.weights_K / batch.weights_K.abs().sum()
        outcomes_B = weighted_sum(batch.rewards_BK, shares_K)
        keep_B = skew_filter(outcomes_B, batch.groups_B, self.threshold)
        return Selection(keep_B, torch.ones_like(signal_B, dtype=torch.float64))


@public
def raw_advantage(
    rewards: Rewards, groups: GroupLabels, *, weights: RewardWeights | None = None
) -> Tensor:
    """The weighted sum itself, for outcomes that already compare rollouts: (B,) or (B, K) -> (B,).

    The edge rules hold here too: 0 where a value is missing, where the whole group got the same
    outcome, and for a group of one.
    """
    total_B1 = weighted_sum(rewards, weights)[:, None]
    is_flat_B1 = is_constant(total_B1, as_groups(groups))
    return total_B1.nan_to_num(nan=0.0).masked_fill(is_flat_B1, 0.0)[:, 0]


@public
def skew_filter(
    outcomes: Annotated[Float64[Tensor, " B"], Meta(ge=-1 - ROUNDING, le=1 + ROUNDING), MISSING],
    groups: GroupLabels,
    threshold: Share = 0.6,
) -> Tensor:
    """True for every rollout of a group whose skew is at most `threshold`: (B,) -> bool (B,).

    Outcomes are -1 (lost) to 1 (won). NaN adds nothing to the sum but counts in G: the reference
    itself, or a rollout without verdict. A threshold of 1 keeps all.
    """
    columns_B2 = torch.stack([outcomes.nan_to_num(nan=0.0), torch.ones_like(outcomes)], 1)
    sums_B2 = group_sum(columns_B2, as_groups(groups))
    return sums_B2[:, 0].abs() / sums_B2[:, 1] <= threshold + ROUNDING


class BrpoAdvantages(NamedTuple):
    """What comparing with one rollout of each group gave."""

    advantages: Tensor
    """float64, shaped as the outcomes; 0 for the reference, without verdict, and if dropped."""
    keep: Tensor
    """bool, () or (Q,): False where the group is dropped."""
    skew: Tensor
    """`|sum of outcomes| / G`, () or (Q,)."""


@public
def brpo_advantages(
    outcomes: Annotated[
        Float64[Tensor, " G"] | Float64[Tensor, "Q G"], Meta(ge=-1, le=1), MISSING, SOME
    ],
    reference_index: Int[Tensor, ""] | Int[Tensor, " Q"] | None,
    skew_threshold: Share = 0.6,
    *,
    center: bool = False,
) -> BrpoAdvantages:
    """Advantages of one group (G,) or of many (Q, G) from outcomes in [-1, 1], NaN where missing.

    `reference_index`, a number or (Q,), says who was the reference; what stands at its place in
    `outcomes` is ignored. None: every rollout has an outcome, a mean over several references.
    `center` subtracts the mean of the group and divides by its deviation (ddof 1), both over the
    rollouts with a verdict, which is `grpo_advantage` of these outcomes.
    """
    outcomes_QG = outcomes.reshape(-1, outcomes.shape[-1]).clone()
    queries, size = outcomes_QG.shape
    if reference_index is not None:
        index_Q = reference_index.reshape(-1)
        if len(index_Q) != queries or not ((index_Q >= 0) & (index_Q < size)).all():
            raise ArgumentError(
                f"reference_index: got {reference_index.tolist()}, expected a position from 0 to "
                f"{size - 1} for each of the {queries} groups"
            )
        outcomes_QG.scatter_(1, index_Q[:, None], torch.nan)
    judged_QG = outcomes_QG.nan_to_num(nan=0.0)
    skew_Q = judged_QG.sum(1).abs() / size
    keep_Q = skew_Q <= skew_threshold + ROUNDING
    values_QG = judged_QG
    if center:
        groups = Groups(torch.arange(queries).repeat_interleave(size).to(outcomes.device), queries)
        values_B1 = outcomes_QG.reshape(-1, 1)
        values_QG = standardise(values_B1, groups, eps=1e-6, ddof=1).view_as(outcomes_QG)
    values_QG = values_QG.masked_fill(~keep_Q[:, None], 0.0)
    if outcomes.ndim == 1:
        return BrpoAdvantages(values_QG[0], keep_Q[0], skew_Q[0])
    return BrpoAdvantages(values_QG, keep_Q, skew_Q)


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
        ordered("low", self.low, "high", self.high)

    def shape(self, shaped: Shaped, batch: RewardBatch) -> Shaped:
        rewards_BK = position_weight.plain(
            shaped.rewards_BK, batch, self.reward, self.picks, self.low, self.high
        )
        return dataclasses.replace(shaped, rewards_BK=rewards_BK)


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
    ordered("low", low, "high", high)
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
