"""Shaping `reference_frozen`: rewards in units of the start model (MedAlign).

Mean and deviation of each reward are measured once, on responses of the model before training, and
then kept (arXiv 2602.11661; its formulas were not at hand, these follow its description). A value
of 0 then means "as the start model" and 1 "one deviation better", for every reward and at every
step. `saturated_share` shows where the policy has moved so far that values stop at the clip.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from burnish.arguments import same_length
from burnish.boundary import Cap, Positive, PositiveInt, PositiveShare, public
from burnish.errors import ArgumentError
from burnish.policy.base import Component
from burnish.policy.groups import columns, deviations, one_group
from burnish.policy.state import ReferenceStats
from burnish.tensors import LARGEST, torch

if TYPE_CHECKING:
    from jaxtyping import Float64
    from torch import Tensor

    from burnish.policy.base import Shaped
    from burnish.policy.batch import RewardBatch
    from burnish.policy.groups import Rewards

    # Statistics of one reward, (1,), are those of no other: only a bare number holds for all.
    PerReward = Float64[Tensor, ""] | Float64[Tensor, " K"]
    Deviation = Annotated[PerReward, Meta(gt=0, le=LARGEST)]

MAD_TO_SD = 1.4826
"""The deviation of a normal distribution over its median absolute deviation."""
FEWEST_VALUES = 8
"""Fewest values of a reward in one step for a unit that is to hold for many steps."""


class ReferenceFrozen(Component, frozen=True, tag="reference_frozen"):
    """Rewards in units of the start model: `(R - mean) / sd`, measured once, never moved (MedAlign)."""

    clip: Positive = 5.0
    """Largest size of a reward in deviations of the start model."""
    sd_floor: Positive = 1e-3
    """Least deviation that a reward is divided by."""
    robust: bool = False
    """Median and median absolute deviation instead of mean and deviation."""
    prompts: PositiveInt = 64
    """Training prompts that the start model answers before the first step..."""
    samples: PositiveInt = 4
    """... and how many answers it gives to each."""
    refreeze_above: PositiveShare = 1.0
    """Measure the unit again, on a step's own answers, where more than this share of one reward's
    values stand at the clip; 1 never does. Rewards that are constant there keep theirs."""

    def shape(self, shaped: Shaped, batch: RewardBatch) -> Shaped:
        """Normalise the rewards; without a measured reference the first batch is the reference."""
        rewards_BK, reference = shaped.rewards_BK, shaped.state.reference
        if reference is None:
            reference = fit_reference_stats.plain(rewards_BK, self.sd_floor, robust=self.robust)
        normalised_BK = reference_frozen_normalise.plain(rewards_BK, *reference[:2], clip=self.clip)
        share_K = saturated_share.plain(normalised_BK, self.clip)
        named = zip(batch.titles, share_K.tolist(), strict=True)
        metrics = {f"reference/{name}/saturated": share for name, share in named}
        state = dataclasses.replace(shaped.state, reference=reference)
        if self.refreeze_above < 1:
            renewed, is_new_K = renew_reference_stats.plain(
                reference, rewards_BK, self.sd_floor, robust=self.robust
            )
            # A counted reward saturates too often, and this batch gives it a unit: else a reward that
            # became constant would move the unit of the others every step. A batch in which a counted
            # reward has no value (its share is NaN) waits.
            counts_K = (batch.weights_K != 0).to(share_K.device)
            is_over_K = (share_K > self.refreeze_above) & is_new_K & counts_K
            is_stale = bool(is_over_K.any()) and not bool((share_K.isnan() & counts_K).any())
            metrics["reference/refrozen"] = float(is_stale)
            for name, is_new in zip(batch.titles, is_new_K.tolist(), strict=True):
                metrics[f"reference/{name}/refrozen"] = float(is_stale and is_new)
            if is_stale:
                # All rewards move, not only the stale one: they are compared with each other, so 0 has
                # to mean the same policy for each. Progress in the old unit is reset.
                normalised_BK = reference_frozen_normalise.plain(
                    rewards_BK, *renewed[:2], clip=self.clip
                )
                weights = shaped.state.weights
                if weights is not None:
                    unknown_K = torch.full_like(weights.progress_K, torch.nan)
                    weights = dataclasses.replace(weights, progress_K=unknown_K)
                state = dataclasses.replace(shaped.state, reference=renewed, weights=weights)
        metrics = shaped.metrics | metrics
        return dataclasses.replace(shaped, rewards_BK=normalised_BK, state=state, metrics=metrics)


@public
def fit_reference_stats(
    rewards: Rewards, sd_floor: Positive = 1e-3, *, robust: bool = False
) -> ReferenceStats:
    """Mean and population deviation of each reward over all responses: (N, K) -> (K,) each.

    Missing values are left out. `robust` takes the median and 1.4826 times the median absolute
    deviation; where that is 0 because more than half of the values are equal (0/1 rewards), the
    population deviation.
    """
    rewards_NK = columns(rewards)
    is_present_NK = ~rewards_NK.isnan()
    count_K = is_present_NK.sum(0)
    if not len(count_K) or (count_K == 0).any():
        empty = int((count_K == 0).nonzero()[0]) if len(count_K) else 0
        raise ArgumentError(
            f"rewards: reward {empty} has no value at all, expected some to measure its mean on"
        )
    # Not by range, as advantages go: a spread of 5 around 1e7 is a unit like any other.
    centred_NK = deviations(rewards_NK, one_group(rewards_NK))
    sd_K = (centred_NK.square().sum(0) / count_K).sqrt()
    middle_K = rewards_NK.nanmean(0)
    if robust:
        middle_K = rewards_NK.nanquantile(0.5, 0)
        spread_K = MAD_TO_SD * (rewards_NK - middle_K).abs().nanquantile(0.5, 0)
        sd_K = torch.where(spread_K > 0, spread_K, sd_K)
    return ReferenceStats(middle_K, sd_K.clamp(min=sd_floor), count_K)


@public
def renew_reference_stats(
    before: ReferenceStats, rewards: Rewards, sd_floor: Positive = 1e-3, *, robust: bool = False
) -> tuple[ReferenceStats, Tensor]:
    """The statistics measured again where the rewards allow it, and for which they did, (K,) bool.

    A reward that is constant here (its deviation is at most the floor) or has fewer than 8 values
    keeps its old ones: a tiny change of it would later be many deviations.
    """
    rewards_NK = columns(rewards)
    mean_K, sd_K, count_K = (old.to(rewards_NK.device, copy=True) for old in before)
    is_new_K = (~rewards_NK.isnan()).sum(0) >= FEWEST_VALUES
    if is_new_K.any():
        fitted = fit_reference_stats.plain(rewards_NK[:, is_new_K], sd_floor, robust=robust)
        varies = fitted.sd_K > sd_floor
        is_new_K[is_new_K.clone()] = varies
        for old_K, new in zip((mean_K, sd_K, count_K), fitted, strict=True):
            old_K[is_new_K] = new[varies]
    return ReferenceStats(mean_K, sd_K, count_K), is_new_K


@public
def reference_frozen_normalise(
    rewards: Rewards, mean: PerReward, sd: Deviation, clip: Cap = 5.0
) -> Tensor:
    """`clip((R_ik - mean_k) / sd_k, -clip, clip)`, in the shape of the rewards, (B,) or (B, K).

    `mean` and `sd`: (K,), or a number for all of them. A missing reward stays NaN.
    """
    rewards_BK = columns(rewards)
    for name, given in (("mean", mean), ("sd", sd)):
        if given.ndim:
            same_length(name, given, rewards_BK.shape[1], "rewards")
    return ((rewards_BK - mean) / sd).clamp(-clip, clip).reshape(rewards.shape)


@public
def saturated_share(normalised: Rewards, clip: Positive = 5.0) -> Tensor:
    """The share of each reward's values that stand at the clip: (B, K) -> (K,), NaN without any."""
    normalised_BK = columns(normalised)
    count_K = (~normalised_BK.isnan()).sum(0)
    return (normalised_BK.abs() >= clip).sum(0).double() / count_K
