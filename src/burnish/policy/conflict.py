"""Select `sign_conflict` and `snr_conflict`: drop rollouts whose rewards disagree (GD2PO).

A rollout above its group's mean on one reward and below it on another gets signals that cancel
(arXiv 2606.16771). The hard filter drops every such rollout, the SNR filter only those whose net
signal is small beside the gross one; each group then counts by the share of its rollouts that is
left. Where we differ: a reward may have a weight, and one of weight 0 is ignored here too.

`magnitude` and `random` are controls: a filter that drops rollouts trains on fewer, and that alone
changes a run. They keep as many rollouts as the conflict filter, the largest |A| or drawn at
random; the filter has to beat both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from burnish.arguments import ordered, same_length
from burnish.boundary import MISSING, UNREAD, Count, NonNegative, Positive, Share, public
from burnish.errors import ArgumentError
from burnish.policy.base import Component, Selection
from burnish.policy.groups import as_groups, as_weights, group_sum
from burnish.seeds import derive
from burnish.tensors import torch

if TYPE_CHECKING:
    from jaxtyping import Bool, Float64
    from torch import Tensor

    from burnish.policy.batch import Estimate, RewardBatch
    from burnish.policy.groups import GroupLabels, RewardWeights

    PerReward = Annotated[Float64[Tensor, "B K"], MISSING]

ConflictVariant = Literal["hard", "snr"]

SIGN_EPS = 1e-8
"""A rollout at its group's mean keeps a rounding error of about 1e-17, whose sign means nothing."""


class SignConflict(Component, frozen=True, tag="sign_conflict"):
    """Rollouts that one reward wants more of and another less of are dropped (GD2PO, hard)."""

    sign_eps: NonNegative = SIGN_EPS
    """Advantages of this size or smaller have no sign: they are rounding."""
    query_weights: bool = True
    """Groups count by the share of their rollouts that is kept."""

    def keep(self, estimate: Estimate, batch: RewardBatch) -> Tensor:
        return conflict_keep.plain(
            estimate.per_reward_BK, "hard", sign_eps=self.sign_eps, weights=batch.weights_K
        )

    def select(self, estimate: Estimate, signal_B: Tensor, batch: RewardBatch) -> Selection:
        return _selection(self.keep(estimate, batch), self.query_weights, estimate, batch)


class SnrConflict(Component, frozen=True, tag="snr_conflict"):
    """Of those rollouts, the ones whose rewards nearly cancel are dropped (GD2PO)."""

    tau: Share = 0.8
    """`|sum of advantages| / sum of |advantages|` below this is dropped; 0 keeps all, 1 is hard."""
    sign_eps: NonNegative = SIGN_EPS
    """Advantages of this size or smaller have no sign: they are rounding."""
    query_weights: bool = True
    """Groups count by the share of their rollouts that is kept."""

    def keep(self, estimate: Estimate, batch: RewardBatch) -> Tensor:
        # The ratio of a conflict is below 1, so that tau 1 is the hard filter.
        return conflict_keep.plain(
            estimate.per_reward_BK,
            "snr" if self.tau < 1 else "hard",
            self.tau,
            sign_eps=self.sign_eps,
            weights=batch.weights_K,
        )

    def select(self, estimate: Estimate, signal_B: Tensor, batch: RewardBatch) -> Selection:
        return _selection(self.keep(estimate, batch), self.query_weights, estimate, batch)


class Magnitude(Component, frozen=True, tag="magnitude"):
    """Control: as many rollouts as a conflict filter keeps, those with the largest |A|."""

    like: SignConflict | SnrConflict = SignConflict()
    """The filter whose count of kept rollouts is taken."""

    def select(self, estimate: Estimate, signal_B: Tensor, batch: RewardBatch) -> Selection:
        among_B = estimate.is_present_B & signal_B
        count = int((self.like.keep(estimate, batch) & among_B).sum())
        keep_B = magnitude_filter.plain(estimate.values_B, count, among=among_B) | ~among_B
        return Selection(keep_B, torch.ones_like(signal_B, dtype=torch.float64))


class RandomDrop(Component, frozen=True, tag="random"):
    """Control: as many rollouts as a conflict filter keeps, drawn at random."""

    like: SignConflict | SnrConflict = SignConflict()
    """The filter whose count of kept rollouts is taken."""

    def select(self, estimate: Estimate, signal_B: Tensor, batch: RewardBatch) -> Selection:
        among_B = estimate.is_present_B & signal_B
        count = int((self.like.keep(estimate, batch) & among_B).sum())
        drawn_B = random_filter.plain(len(among_B), count, seed=batch.seed, among=among_B)
        return Selection(drawn_B | ~among_B, torch.ones_like(signal_B, dtype=torch.float64))


@public
def sign_conflict(
    per_reward_advantages: PerReward,
    sign_eps: NonNegative = SIGN_EPS,
    *,
    weights: RewardWeights | None = None,
) -> Tensor:
    """True where some `w_k a_ik` is above `sign_eps` and another below `-sign_eps`: bool (B,)."""
    signals_BK = _signals(per_reward_advantages, weights)
    return (signals_BK > sign_eps).any(1) & (signals_BK < -sign_eps).any(1)


@public
def snr_ratio(
    per_reward_advantages: PerReward, eps: Positive = 1e-8, *, weights: RewardWeights | None = None
) -> Tensor:
    """Net over gross signal, `sum_k w_k a_ik / (sum_k |w_k a_ik| + eps)`: (B, K) -> (B,).

    Between -1 and 1; near 0 where the rewards cancel, and exactly 0 where there is no signal.
    """
    signals_BK = _signals(per_reward_advantages, weights)
    return signals_BK.sum(1) / (signals_BK.abs().sum(1) + eps)


@public
def conflict_keep(
    per_reward_advantages: PerReward,
    variant: ConflictVariant = "hard",
    tau: Share = 0.8,
    *,
    sign_eps: NonNegative = SIGN_EPS,
    weights: RewardWeights | None = None,
) -> Tensor:
    """False for the rollouts that the filter drops: (B, K) -> bool (B,).

    `hard`: all with a sign conflict. `snr`: those of them with `|snr_ratio| < tau`; none at 0, the
    same as `hard` at 1.
    """
    is_conflict_B = sign_conflict.plain(per_reward_advantages, sign_eps, weights=weights)
    if variant == "hard":
        return ~is_conflict_B
    ratio_B = snr_ratio.plain(per_reward_advantages, weights=weights)
    return ~(is_conflict_B & (ratio_B.abs() < tau))


@public
def group_keep_ratio(
    keep: Bool[Tensor, " B"], groups: GroupLabels, *, present: Bool[Tensor, " B"] | None = None
) -> Tensor:
    """The kept share of each rollout's group: (B,) -> (B,) float64.

    `present`, bool (B,): rollouts that count; without it all do. 0 where none of a group counts.
    """
    counted_B = torch.ones_like(keep) if present is None else present
    numbered = as_groups(groups)
    kept_B1 = group_sum((keep & counted_B).double()[:, None], numbered)
    return (kept_B1 / group_sum(counted_B.double()[:, None], numbered).clamp(min=1.0))[:, 0]


def _signals(per_reward_BK: Tensor, weights: Tensor | None) -> Tensor:
    """What each reward says about each rollout, weighted, (B, K); 0 where it is missing."""
    return per_reward_BK.nan_to_num(nan=0.0) * as_weights(weights, per_reward_BK)


@public
def magnitude_filter(
    values: Annotated[Float64[Tensor, " B"], UNREAD],
    keep_count: Count | None = None,
    *,
    share: Share | None = None,
    among: Bool[Tensor, " B"] | None = None,
) -> Tensor:
    """True for the rollouts with the largest `|A|`: (B,) -> bool (B,); of equals the first win.

    How many: `keep_count`, or `share` of the candidates, rounded. `among`, bool (B,): the
    candidates; without it all rollouts.
    """
    candidates_B = torch.ones_like(values, dtype=torch.bool) if among is None else among
    count = _how_many(keep_count, share, int(candidates_B.sum()))
    # A missing value comes after the smallest present one, what is no candidate last of all.
    strength_B = values.abs().nan_to_num(nan=-1.0, posinf=torch.inf)
    strength_B = strength_B.masked_fill(~candidates_B, -2.0)
    order_B = torch.argsort(strength_B, descending=True, stable=True)
    return torch.zeros_like(candidates_B).index_fill_(0, order_B[:count], True)


@public
def random_filter(
    count: Annotated[int, Meta(ge=0, le=1_000_000)],
    keep_count: Count | None = None,
    seed: int = 0,
    *,
    share: Share | None = None,
    among: Bool[Tensor, " B"] | None = None,
) -> Tensor:
    """True for as many of `count` rollouts, drawn without regard to anything: bool (B,).

    Each rollout's lot comes from `seed` and its position alone, the same on every machine.
    """
    candidates_B = torch.ones(count, dtype=torch.bool) if among is None else among
    same_length("among", candidates_B, count, "rollouts of count")
    kept = _how_many(keep_count, share, int(candidates_B.sum()))
    positions = candidates_B.nonzero()[:, 0].tolist()
    drawn = sorted(positions, key=lambda position: derive(seed, "random_filter", position))[:kept]
    keep_B = torch.zeros(count, dtype=torch.bool)
    keep_B[drawn] = True
    return keep_B


def _how_many(keep_count: int | None, share: float | None, candidates: int) -> int:
    if (keep_count is None) == (share is None):
        raise ArgumentError(
            f"keep_count and share: got {keep_count} and {share}, expected exactly one of the two"
        )
    if keep_count is None:
        return round((share or 0.0) * candidates)
    ordered("keep_count", keep_count, "the candidates", candidates)
    return keep_count


def _selection(
    keep_B: Tensor, query_weights: bool, estimate: Estimate, batch: RewardBatch
) -> Selection:
    if not query_weights:
        return Selection(keep_B, torch.ones_like(keep_B, dtype=torch.float64))
    ratio_B = group_keep_ratio.plain(keep_B, batch.groups_B, present=estimate.is_present_B)
    return Selection(keep_B, ratio_B)
