"""Shaping `reference_frozen`: rewards in units of the start model (MedAlign).

Mean and deviation of each reward are measured once, on responses of the model before training, and
then kept (arXiv 2602.11661; its formulas were not at hand, these follow its description). A value
of 0 then means "as the start model" and 1 "one deviation better", for every reward and at every
step. `saturated_share` shows where the policy has moved so far that values stop at the clip.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from burnish.arguments import as_number, plain_number, refused
from burnish.errors import ArgumentError
from burnish.policy.base import Component, require
from burnish.policy.groups import as_groups, as_rewards, deviations
from burnish.policy.state import PolicyState, ReferenceStats
from burnish.tensors import as_float64, torch

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.policy.base import Shaped
    from burnish.policy.batch import RewardBatch
    from burnish.tensors import Numbers

MAD_TO_SD = 1.4826
"""The deviation of a normal distribution over its median absolute deviation."""
FEWEST_VALUES = 8
"""Fewest values of a reward in one step for a unit that is to hold for many steps."""


class ReferenceFrozen(Component, frozen=True, tag="reference_frozen"):
    """Rewards in units of the start model: `(R - mean) / sd`, measured once, never moved (MedAlign)."""

    clip: float = 5.0
    """Largest size of a reward in deviations of the start model."""
    sd_floor: float = 1e-3
    """Least deviation that a reward is divided by."""
    robust: bool = False
    """Median and median absolute deviation instead of mean and deviation."""
    prompts: int = 64
    """Training prompts that the start model answers before the first step..."""
    samples: int = 4
    """... and how many answers it gives to each."""
    refreeze_above: float = 1.0
    """Measure the unit again, on a step's own answers, where more than this share of one reward's
    values stand at the clip; 1 never does. Rewards that are constant there keep theirs."""

    def check(self) -> None:
        above = self.refreeze_above
        require(0 < above <= 1, "refreeze_above", above, "above 0, up to 1 (never)")
        require(0 < self.clip < math.inf, "clip", self.clip, "above 0")
        require(0 < self.sd_floor < math.inf, "sd_floor", self.sd_floor, "above 0")
        require(self.prompts >= 1, "prompts", self.prompts, "at least 1")
        require(self.samples >= 1, "samples", self.samples, "at least 1")

    def shape(self, shaped: Shaped, batch: RewardBatch) -> Shaped:
        """Normalise the rewards; without a measured reference the first batch is the reference."""
        rewards_BK = shaped.rewards_BK
        reference = shaped.state.reference
        if reference is None:
            reference = fit_reference_stats(rewards_BK, self.sd_floor, robust=self.robust)
        normalised_BK = reference_frozen_normalise(
            rewards_BK, reference.mean_K, reference.sd_K, clip=self.clip
        )
        share_K = saturated_share(normalised_BK, self.clip)
        metrics = {
            f"reference/{name}/saturated": share
            for name, share in zip(batch.titles, share_K.tolist(), strict=True)
        }
        state = dataclasses.replace(shaped.state, reference=reference)
        if self.refreeze_above < 1:
            renewed, is_new_K = renew_reference_stats(
                reference, rewards_BK, self.sd_floor, robust=self.robust
            )
            is_stale = self._is_stale(share_K, is_new_K, batch)
            metrics["reference/refrozen"] = float(is_stale)
            metrics |= {
                f"reference/{name}/refrozen": float(is_stale and is_new)
                for name, is_new in zip(batch.titles, is_new_K.tolist(), strict=True)
            }
            if is_stale:
                state, normalised_BK = self._refreeze(shaped, renewed)
        metrics = shaped.metrics | metrics
        return dataclasses.replace(shaped, rewards_BK=normalised_BK, state=state, metrics=metrics)

    def _is_stale(self, share_K: Tensor, is_new_K: Tensor, batch: RewardBatch) -> bool:
        """True where a counted reward saturates too often and this batch gives it a unit.

        Without the second condition a reward that became constant would move the unit of the others
        every step. A batch in which a counted reward has no value (its share is NaN) waits.
        """
        counts_K = (batch.weights_K != 0).to(share_K.device)
        is_over_K = (share_K > self.refreeze_above) & is_new_K & counts_K
        return bool(is_over_K.any()) and not bool((share_K.isnan() & counts_K).any())

    def _refreeze(self, shaped: Shaped, reference: ReferenceStats) -> tuple[PolicyState, Tensor]:
        """The state with the unit measured on this batch, and the batch in that unit.

        All rewards move, not only the stale one: they are compared with each other, so 0 has to mean
        the same policy for each. Progress in the old unit is reset, violations and weights stay.
        """
        normalised_BK = reference_frozen_normalise(
            shaped.rewards_BK, reference.mean_K, reference.sd_K, clip=self.clip
        )
        weights = shaped.state.weights
        if weights is not None:
            unknown_K = torch.full_like(weights.progress_K, torch.nan)
            weights = dataclasses.replace(weights, progress_K=unknown_K)
        state = dataclasses.replace(shaped.state, reference=reference, weights=weights)
        return state, normalised_BK


def fit_reference_stats(
    rewards: Numbers, sd_floor: float = 1e-3, *, robust: bool = False
) -> ReferenceStats:
    """Mean and population deviation of each reward over all responses: (N, K) -> (K,) each.

    Missing values are left out. `robust` takes the median and 1.4826 times the median absolute
    deviation; where that is 0 because more than half of the values are equal (0/1 rewards), the
    population deviation.
    """
    sd_floor = as_number("sd_floor", sd_floor, above=0)
    rewards_NK = as_rewards(rewards)
    is_present_NK = ~rewards_NK.isnan()
    count_K = is_present_NK.sum(0)
    if not rewards_NK.shape[1]:
        raise refused("rewards", rewards, "at least one reward")
    if (count_K == 0).any():
        empty = int((count_K == 0).nonzero()[0])
        raise ArgumentError(
            f"rewards: reward {empty} has no value at all, expected some to measure its mean on"
        )
    one_group = as_groups(torch.zeros(len(rewards_NK), dtype=torch.int64), rewards_NK)
    # Not by range, as advantages go: a spread of 5 around 1e7 is a unit like any other.
    centred_NK = deviations(rewards_NK, one_group)
    sd_K = (centred_NK.square().sum(0) / count_K).sqrt()
    middle_K = rewards_NK.nanmean(0)
    if robust:
        middle_K = rewards_NK.nanquantile(0.5, 0)
        spread_K = MAD_TO_SD * (rewards_NK - middle_K).abs().nanquantile(0.5, 0)
        sd_K = torch.where(spread_K > 0, spread_K, sd_K)
    return ReferenceStats(middle_K, sd_K.clamp(min=sd_floor), count_K)


def renew_reference_stats(
    before: ReferenceStats, rewards: Numbers, sd_floor: float = 1e-3, *, robust: bool = False
) -> tuple[ReferenceStats, Tensor]:
    """The statistics measured again where the rewards allow it, and for which they did, (K,) bool.

    A reward that is constant here (its deviation is at most the floor) or has fewer than 8 values
    keeps its old ones: a tiny change of it would later be many deviations.
    """
    rewards_NK = as_rewards(rewards)
    mean_K, sd_K, count_K = (old.to(rewards_NK.device, copy=True) for old in before)
    is_new_K = (~rewards_NK.isnan()).sum(0) >= FEWEST_VALUES
    if is_new_K.any():
        fitted = fit_reference_stats(rewards_NK[:, is_new_K], sd_floor, robust=robust)
        varies = fitted.sd_K > sd_floor
        is_new_K[is_new_K.clone()] = varies
        for old_K, new in zip((mean_K, sd_K, count_K), fitted, strict=True):
            old_K[is_new_K] = new[varies]
    return ReferenceStats(mean_K, sd_K, count_K), is_new_K


def reference_frozen_normalise(
    rewards: Numbers, mean: Numbers, sd: Numbers, clip: float = 5.0
) -> Tensor:
    """`clip((R_ik - mean_k) / sd_k, -clip, clip)`, in the shape of the rewards, (B,) or (B, K).

    `mean` and `sd`: (K,), or a number for all of them. A missing reward stays NaN.
    """
    if plain_number(clip) != math.inf:  # no clip at all
        clip = as_number("clip", clip, above=0)
    rewards_BK = as_rewards(rewards)
    mean_K = _per_reward(mean, "mean", rewards_BK)
    sd_K = _per_reward(sd, "sd", rewards_BK)
    if not (sd_K > 0).all():
        raise ArgumentError(f"sd: got {sd_K.tolist()}, expected numbers above 0")
    normalised_BK = ((rewards_BK - mean_K) / sd_K).clamp(-clip, clip)
    return normalised_BK.reshape(as_float64(rewards, "rewards").shape)


def saturated_share(normalised: Numbers, clip: float = 5.0) -> Tensor:
    """The share of each reward's values that stand at the clip: (B, K) -> (K,), NaN without any."""
    normalised_BK = as_rewards(normalised, "normalised")
    count_K = (~normalised_BK.isnan()).sum(0)
    return (normalised_BK.abs() >= clip).sum(0).double() / count_K


def _per_reward(values: Numbers, what: str, rewards_BK: Tensor) -> Tensor:
    read = as_float64(values, what).to(rewards_BK.device)
    # Statistics of one reward, (1,), are those of no other: only a bare number holds for all.
    if tuple(read.shape) not in ((), (rewards_BK.shape[1],)) or not read.isfinite().all():
        raise ArgumentError(
            f"{what}: got {read.tolist()}, expected a finite number for each of the "
            f"{rewards_BK.shape[1]} rewards"
        )
    return read.expand(rewards_BK.shape[1])
