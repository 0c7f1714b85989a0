"""Advantage `raw` and select `skew`: outcomes of comparisons as they are (BRPO, arXiv 2506.00103).

In each group one rollout, drawn uniformly at random, is the reference; the others get +1 where they
beat it and -1 where they lose, with no mean and no deviation. Averaged over the draw the advantages
of an antisymmetric judge add up to 0. Where nearly all of a group beat the reference, or nearly all
lost to it, the signs say more about the reference than about the rollouts: a group with
`|sum of outcomes| / G` above a threshold is dropped.

Where we differ: a comparison without a verdict is missing, not lost. The published rule counts it
as a loss, so an outage of the judge pushes every rollout down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from burnish.arguments import as_number, refused
from burnish.errors import ArgumentError
from burnish.policy.base import Component, Selection, require
from burnish.policy.batch import Estimate
from burnish.policy.groups import as_groups, group_sum, is_constant, standardise, weighted_sum
from burnish.tensors import as_float64, check_tensor, torch

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.policy.batch import RewardBatch
    from burnish.policy.groups import GroupLabels
    from burnish.tensors import Numbers

ROUNDING = 1e-9
"""A mean over several references is not a whole number; its error must not drop a group."""


class Raw(Component, frozen=True, tag="raw"):
    """The weighted sum itself is the advantage (outcomes that are already relative)."""

    def estimate(self, batch: RewardBatch) -> Estimate:
        """The sums as they are."""
        total_B = weighted_sum(batch.rewards_BK, batch.weights_K)
        # The reference rollout has no outcome; it counts as 0 in its group.
        values_B = raw_advantage(total_B.nan_to_num(nan=0.0), batch.groups_B)
        return Estimate(values_B, batch.rewards_BK.nan_to_num(nan=0.0), ~total_B.isnan())


class Skew(Component, frozen=True, tag="skew"):
    """Groups that nearly all win, or nearly all lose, against their reference are dropped (BRPO)."""

    threshold: float = 0.6
    """Groups whose mean outcome is further from 0 than this are dropped."""

    def check(self) -> None:
        require(0 <= self.threshold <= 1, "threshold", self.threshold, "0 to 1")

    def select(self, estimate: Estimate, signal_B: Tensor, batch: RewardBatch) -> Selection:
        """Keep the groups within the threshold."""
        shares_K = batch.weights_K / batch.weights_K.abs().sum()
        outcomes_B = weighted_sum(batch.rewards_BK, shares_K)
        keep_B = skew_filter(outcomes_B, batch.groups_B, self.threshold)
        return Selection(keep_B, torch.ones_like(signal_B, dtype=torch.float64))


def raw_advantage(
    rewards: Numbers, groups: GroupLabels, *, weights: Numbers | None = None
) -> Tensor:
    """The weighted sum itself, for outcomes that already compare rollouts: (B,) or (B, K) -> (B,).

    The edge rules hold here too: 0 where a value is missing, where the whole group got the same
    outcome, and for a group of one.
    """
    total_B1 = weighted_sum(rewards, weights)[:, None]
    is_flat_B1 = is_constant(total_B1, as_groups(groups, total_B1))
    return total_B1.nan_to_num(nan=0.0).masked_fill(is_flat_B1, 0.0)[:, 0]


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


class BrpoAdvantages(NamedTuple):
    """What comparing with one rollout of each group gave."""

    advantages: Tensor
    """float64, shaped as the outcomes; 0 for the reference, without verdict, and if dropped."""
    keep: Tensor
    """bool, () or (Q,): False where the group is dropped."""
    skew: Tensor
    """`|sum of outcomes| / G`, () or (Q,)."""


def brpo_advantages(
    outcomes: Numbers,
    reference_index: int | Numbers | None,
    skew_threshold: float = 0.6,
    *,
    center: bool = False,
) -> BrpoAdvantages:
    """Advantages of one group (G,) or of many (Q, G) from outcomes in [-1, 1], NaN where missing.

    `reference_index`, a number or (Q,), says who was the reference; what stands at its place in
    `outcomes` is ignored. None: every rollout has an outcome, a mean over several references.
    `center` subtracts the mean of the group and divides by its deviation (ddof 1), both over the
    rollouts with a verdict, which is `grpo_advantage` of these outcomes.
    """
    as_number("skew_threshold", skew_threshold, low=0, high=1)
    given = as_float64(outcomes, "outcomes")
    if given.ndim not in (1, 2) or given.shape[-1] == 0:
        raise ArgumentError(f"outcomes: got shape {tuple(given.shape)}, expected (G,) or (Q, G)")
    outcomes_QG = given.reshape(-1, given.shape[-1]).clone()
    if (outcomes_QG.abs() > 1).any():
        worst = outcomes_QG.abs().nan_to_num(nan=0.0).max().item()
        raise ArgumentError(f"outcomes: got one of size {worst:g}, expected -1 (lost) to 1 (won)")
    if reference_index is not None:
        index_Q = _references(reference_index, outcomes_QG)
        outcomes_QG.scatter_(1, index_Q[:, None], torch.nan)
    judged_QG = outcomes_QG.nan_to_num(nan=0.0)
    skew_Q = judged_QG.sum(1).abs() / judged_QG.shape[1]
    keep_Q = is_within(skew_Q, skew_threshold)
    values_QG = _centred(outcomes_QG) if center else judged_QG
    values_QG = values_QG.masked_fill(~keep_Q[:, None], 0.0)
    if given.ndim == 1:
        return BrpoAdvantages(values_QG[0], keep_Q[0], skew_Q[0])
    return BrpoAdvantages(values_QG, keep_Q, skew_Q)


def _references(reference_index: int | Numbers, outcomes_QG: Tensor) -> Tensor:
    """The reference of each group, int64 (Q,)."""
    queries, size = outcomes_QG.shape
    given = as_float64(reference_index, "reference_index").to(outcomes_QG.device)
    index_Q = given.reshape(-1)
    whole_Q = (index_Q >= 0) & (index_Q < size) & (index_Q == index_Q.floor())
    if index_Q.shape != (queries,) or not whole_Q.all():
        raise ArgumentError(
            f"reference_index: got {given.tolist()}, expected a position from 0 to {size - 1} "
            f"for each of the {queries} groups"
        )
    return index_Q.long()


def _centred(outcomes_QG: Tensor) -> Tensor:
    labels_QG = torch.arange(len(outcomes_QG), device=outcomes_QG.device)[:, None]
    labels_B = labels_QG.expand_as(outcomes_QG).reshape(-1)
    values_B1 = outcomes_QG.reshape(-1, 1)
    scaled_B1 = standardise(values_B1, as_groups(labels_B, values_B1), eps=1e-6, ddof=1)
    return scaled_B1.view_as(outcomes_QG)
