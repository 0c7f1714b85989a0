"""Advantage `normalise_then_sum`: normalise each reward in its group, then add them (GDPO, GD2PO).

No reward dominates by its scale (GDPO, arXiv 2601.05242). `gdpo_advantage` also whitens over the
batch; `gd2po_advantage` first drops rollouts whose rewards pull in opposite directions and scales
each group by the share that is left (GD2PO, arXiv 2606.16771). Where we differ: groups without
signal stay at 0 and leave the statistics of the whitening, which `ignore_zero_signal=False` undoes;
a missing rollout does not count for its group's share; a single kept token gives zeros, not an
error; and rewards may have weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from burnish.boundary import NonNegative, Share, public
from burnish.policy.base import Component
from burnish.policy.batch import Estimate
from burnish.policy.conflict import ConflictVariant, conflict_keep, group_keep_ratio
from burnish.policy.dapo import informative_groups
from burnish.policy.groups import (
    Ddof,
    as_groups,
    as_weights,
    columns,
    is_constant,
    per_reward_advantages,
)
from burnish.policy.post_scale import batch_whiten
from burnish.tensors import torch

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.policy.batch import RewardBatch
    from burnish.policy.groups import GroupLabels, Lengths, Rewards, RewardWeights


class NormaliseThenSum(Component, frozen=True, tag="normalise_then_sum"):
    """Each reward standardised in its group, then the weighted sum (GDPO)."""

    ALIASES = ("gdpo",)

    eps: NonNegative = 1e-6
    """Added to the deviation."""
    ddof: Ddof = 1
    """1 divides the squares by n - 1, 0 by n."""

    def estimate(self, batch: RewardBatch) -> Estimate:
        rewards_BK, groups_B = batch.rewards_BK, batch.groups_B
        return Estimate(
            normalise_then_sum.plain(
                rewards_BK, groups_B, self.eps, self.ddof, weights=batch.weights_K
            ),
            per_reward_advantages.plain(rewards_BK, groups_B, self.eps, self.ddof),
            batch.has_any_B,
        )


@public
def normalise_then_sum(
    rewards: Rewards,
    groups: GroupLabels,
    eps: NonNegative = 1e-6,
    ddof: Ddof = 1,
    *,
    weights: RewardWeights | None = None,
) -> Tensor:
    """`S_i = sum_k w_k a_ik`, before any whitening: (B, K) -> (B,); a missing reward adds nothing.

    Where the rewards of a group cancel for every rollout the sum is exactly 0, not rounding noise.
    """
    rewards_BK = columns(rewards)
    weights_K = as_weights(weights, rewards_BK)
    sum_B = per_reward_advantages.plain(rewards_BK, groups, eps, ddof) @ weights_K
    cancels_B = is_constant(sum_B[:, None], as_groups(groups))[:, 0]
    return sum_B.masked_fill(cancels_B, 0.0)


@public
def gdpo_advantage(
    rewards: Rewards,
    groups: GroupLabels,
    response_lengths: Lengths | None = None,
    whiten: bool = True,
    variant: Literal["gdpo", "hard", "snr"] | None = "gdpo",
    tau: Share | None = 0.0,
    *,
    weights: RewardWeights | None = None,
    eps: NonNegative = 1e-6,
    ddof: Ddof = 1,
    shift: bool = True,
    ignore_zero_signal: bool = True,
) -> Tensor:
    """GDPO: normalise each reward in its group, sum, whiten over the batch: (B, K) -> (B,).

    Whitening weighs each rollout by its length in tokens where `response_lengths` (B,) is given.
    `variant` and `tau` name a filter of the GD2PO family so that one set of arguments fits all of
    it; GDPO keeps every rollout under each of them. `ignore_zero_signal=False` is the published
    whitening, which shifts groups without signal away from 0.
    """
    rewards_BK = columns(rewards)
    sum_B = normalise_then_sum.plain(rewards_BK, groups, eps, ddof, weights=weights)
    if not whiten:
        return sum_B
    return batch_whiten.plain(
        sum_B,
        response_lengths,
        keep=_is_present(rewards_BK, weights),
        signal=informative_groups.plain(sum_B, groups),
        scope="rollout" if response_lengths is None else "token",
        shift=shift,
        ignore_zero_signal=ignore_zero_signal,
    )


@public
def gd2po_advantage(
    rewards: Rewards,
    groups: GroupLabels,
    response_lengths: Lengths | None = None,
    whiten: bool = True,
    variant: ConflictVariant = "hard",
    tau: Share = 0.8,
    *,
    weights: RewardWeights | None = None,
    query_weights: bool = True,
    shift: bool = True,
    ignore_zero_signal: bool = True,
    eps: NonNegative = 1e-6,
    ddof: Ddof = 1,
) -> Tensor:
    """GD2PO: GDPO over the rollouts whose rewards agree: (B, K) -> (B,), 0 where not kept.

    `hard` drops every rollout with rewards on both sides of its group's means, `snr` only those
    whose net signal is also below `tau` of the gross one. With `query_weights` the sum is scaled by
    the kept share of its group. Whitening runs over the kept rollouts, by tokens where
    `response_lengths` (B,) is given; groups left without signal stay at 0 unless
    `ignore_zero_signal=False`, the published form.
    """
    rewards_BK = columns(rewards)
    is_present_B = _is_present(rewards_BK, weights)
    per_reward_BK = per_reward_advantages.plain(rewards_BK, groups, eps, ddof)
    keep_B = conflict_keep.plain(per_reward_BK, variant, tau, weights=weights) & is_present_B
    sum_B = normalise_then_sum.plain(rewards_BK, groups, eps, ddof, weights=weights)
    if query_weights:
        sum_B = sum_B * group_keep_ratio.plain(keep_B, groups, present=is_present_B)
    sum_B = torch.where(keep_B, sum_B, 0.0)
    if not whiten:
        return sum_B
    return batch_whiten.plain(
        sum_B,
        response_lengths,
        keep=keep_B,
        signal=informative_groups.plain(sum_B, groups),
        scope="rollout" if response_lengths is None else "token",
        shift=shift,
        ignore_zero_signal=ignore_zero_signal,
    )


def _is_present(rewards_BK: Tensor, weights: Tensor | None) -> Tensor:
    return (~rewards_BK.isnan() & (as_weights(weights, rewards_BK) != 0)).any(1)
