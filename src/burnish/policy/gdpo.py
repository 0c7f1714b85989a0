"""Advantage `normalise_then_sum`: normalise each reward in its group, then add them (GDPO, GD2PO).

No reward dominates by its scale (GDPO, arXiv 2601.05242). `gdpo_advantage` also whitens over the
batch; `gd2po_advantage` first drops rollouts whose rewards pull in opposite directions and scales
each group by the share that is left (GD2PO, arXiv 2606.16771). Where we differ: groups without
signal stay at 0 and leave the statistics of the whitening, which `ignore_zero_signal=False` undoes;
a missing rollout does not count for its group's share; a single kept token gives zeros, not an
error; and rewards may have weights.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING, ClassVar, Literal

from burnish.arguments import as_number, as_word
from burnish.policy.base import Component, require
from burnish.policy.batch import Estimate
from burnish.policy.conflict import CONFLICT_VARIANTS, conflict_keep, group_keep_ratio
from burnish.policy.groups import (
    as_groups,
    as_rewards,
    as_weights,
    is_constant,
    per_reward_advantages,
)
from burnish.policy.informative import informative_groups
from burnish.policy.post_scale import batch_whiten
from burnish.tensors import as_lengths, torch

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.policy.batch import RewardBatch
    from burnish.policy.groups import GroupLabels
    from burnish.tensors import Numbers

GDPO_FAMILY = ("gdpo", *CONFLICT_VARIANTS)


class NormaliseThenSum(Component, frozen=True, tag="normalise_then_sum"):
    """Each reward standardised in its group, then the weighted sum (GDPO)."""

    ALIASES: ClassVar[tuple[str, ...]] = ("gdpo",)

    eps: float = 1e-6
    """Added to the deviation."""
    ddof: Literal[0, 1] = 1
    """1 divides the squares by n - 1, 0 by n."""

    def check(self) -> None:
        require(0 <= self.eps < math.inf, "eps", self.eps, "at least 0")

    def estimate(self, batch: RewardBatch) -> Estimate:
        """Advantages of the rollouts that have some reward."""
        rewards_BK, groups_B = batch.rewards_BK, batch.groups_B
        return Estimate(
            normalise_then_sum(rewards_BK, groups_B, self.eps, self.ddof, weights=batch.weights_K),
            per_reward_advantages(rewards_BK, groups_B, self.eps, self.ddof),
            batch.has_any_B,
        )


def normalise_then_sum(
    rewards: Numbers,
    groups: GroupLabels,
    eps: float = 1e-6,
    ddof: int = 1,
    *,
    weights: Numbers | None = None,
) -> Tensor:
    """`S_i = sum_k w_k a_ik`, before any whitening: (B, K) -> (B,); a missing reward adds nothing.

    Where the rewards of a group cancel for every rollout the sum is exactly 0, not rounding noise.
    """
    rewards_BK = as_rewards(rewards)
    weights_K = as_weights(weights, rewards_BK)
    sum_B = per_reward_advantages(rewards_BK, groups, eps, ddof) @ weights_K
    cancels_B = is_constant(sum_B[:, None], as_groups(groups, sum_B))[:, 0]
    return sum_B.masked_fill(cancels_B, 0.0)


def gdpo_advantage(
    rewards: Numbers,
    groups: GroupLabels,
    response_lengths: Numbers | None = None,
    whiten: bool = True,
    variant: str | None = "gdpo",
    tau: float | None = 0.0,
    *,
    weights: Numbers | None = None,
    eps: float = 1e-6,
    ddof: int = 1,
    shift: bool = True,
    ignore_zero_signal: bool = True,
) -> Tensor:
    """GDPO: normalise each reward in its group, sum, whiten over the batch: (B, K) -> (B,).

    Whitening weighs each rollout by its length in tokens where `response_lengths` (B,) is given.
    `variant` and `tau` name a filter of the GD2PO family so that one set of arguments fits all of
    it; GDPO keeps every rollout under each of them. `ignore_zero_signal=False` is the published
    whitening, which shifts groups without signal away from 0.
    """
    _check_filter("gdpo" if variant is None else variant, 0.0 if tau is None else tau, GDPO_FAMILY)
    rewards_BK = as_rewards(rewards)
    if response_lengths is not None:
        response_lengths = as_lengths(response_lengths, "response_lengths", rewards_BK)
    sum_B = normalise_then_sum(rewards_BK, groups, eps, ddof, weights=weights)
    if not whiten:
        return sum_B
    return batch_whiten(
        sum_B,
        response_lengths,
        keep=_is_present(rewards_BK, weights),
        signal=informative_groups(sum_B, groups),
        scope="rollout" if response_lengths is None else "token",
        shift=shift,
        ignore_zero_signal=ignore_zero_signal,
    )


def gd2po_advantage(
    rewards: Numbers,
    groups: GroupLabels,
    response_lengths: Numbers | None = None,
    whiten: bool = True,
    variant: str = "hard",
    tau: float = 0.8,
    *,
    weights: Numbers | None = None,
    query_weights: bool = True,
    shift: bool = True,
    ignore_zero_signal: bool = True,
    eps: float = 1e-6,
    ddof: int = 1,
) -> Tensor:
    """GD2PO: GDPO over the rollouts whose rewards agree: (B, K) -> (B,), 0 where not kept.

    `hard` drops every rollout with rewards on both sides of its group's means, `snr` only those
    whose net signal is also below `tau` of the gross one. With `query_weights` the sum is scaled by
    the kept share of its group. Whitening runs over the kept rollouts, by tokens where
    `response_lengths` (B,) is given; groups left without signal stay at 0 unless
    `ignore_zero_signal=False`, the published form.
    """
    _check_filter(variant, tau, CONFLICT_VARIANTS)
    rewards_BK = as_rewards(rewards)
    if response_lengths is not None:
        response_lengths = as_lengths(response_lengths, "response_lengths", rewards_BK)
    is_present_B = _is_present(rewards_BK, weights)
    per_reward_BK = per_reward_advantages(rewards_BK, groups, eps, ddof)
    keep_B = conflict_keep(per_reward_BK, variant, tau, weights=weights) & is_present_B
    sum_B = normalise_then_sum(rewards_BK, groups, eps, ddof, weights=weights)
    if query_weights:
        sum_B = sum_B * group_keep_ratio(keep_B, groups, present=is_present_B)
    sum_B = torch.where(keep_B, sum_B, 0.0)
    if not whiten:
        return sum_B
    return batch_whiten(
        sum_B,
        response_lengths,
        keep=keep_B,
        signal=informative_groups(sum_B, groups),
        scope="rollout" if response_lengths is None else "token",
        shift=shift,
        ignore_zero_signal=ignore_zero_signal,
    )


def _is_present(rewards_BK: Tensor, weights: Numbers | None) -> Tensor:
    """True where a rollout has some reward that counts, bool (B,)."""
    return (~rewards_BK.isnan() & (as_weights(weights, rewards_BK) != 0)).any(1)


def _check_filter(variant: str, tau: float, known: Collection[str]) -> None:
    as_word("variant", variant, known)
    as_number("tau", tau, low=0, high=1)
