"""Piece 1: rewards in units of a frozen start model (reference-frozen normalisation of MedAlign).

Mean and deviation of each reward are measured once, on responses of the model before training, and
never change during the run (arXiv 2602.11661; its formulas were not at hand, these follow its
description). A value of 0 then means "as the start model" and 1 "one deviation better", for every
reward and at every step. Where the policy moves so far that values stop at the clip,
`saturated_share` shows it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from burnish.arguments import as_number, plain_number, refused
from burnish.errors import ArgumentError
from burnish.policy.groups import as_groups, as_rewards, deviations
from burnish.policy.tensors import as_float64

if TYPE_CHECKING:
    from burnish.policy.tensors import Numbers

MAD_TO_SD = 1.4826
"""The deviation of a normal distribution over its median absolute deviation."""
FEWEST_VALUES = 8
"""Of a reward in one step's answers, for a unit that is to hold for many steps."""


class ReferenceStats(NamedTuple):
    """What each reward was like on the start model's responses."""

    mean_K: Tensor
    """float64; the median where the fit was robust."""
    sd_K: Tensor
    """float64; population deviation, at least the floor. At the floor the reward was constant, and
    any change of it will be clipped: a person should know."""
    count_K: Tensor
    """int64; how many values each was measured on."""

    def tensors(self) -> dict[str, Tensor]:
        """All of it, by name, for a safetensors file."""
        return self._asdict()

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> ReferenceStats:
        """The statistics that `tensors` came from."""
        return cls(**tensors)

    @classmethod
    def from_numbers(
        cls, mean: Sequence[float], sd: Sequence[float], counts: Sequence[int]
    ) -> ReferenceStats:
        """The statistics from plain numbers, one of each a reward."""
        return cls(
            torch.tensor(mean, dtype=torch.float64),
            torch.tensor(sd, dtype=torch.float64),
            torch.tensor(counts, dtype=torch.int64),
        )


def fit_reference_stats(
    rewards: Numbers, sd_floor: float = 1e-3, *, robust: bool = False
) -> ReferenceStats:
    """Mean and population deviation of each reward over all responses: (N, K) -> (K,) each.

    Missing values are left out. `robust` takes the median and 1.4826 times the median absolute
    deviation; where that is 0 because more than half of the values are equal (0/1 rewards), the
    population deviation.
    """
    as_number("sd_floor", sd_floor, above=0)
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
    """The statistics measured anew where the rewards allow it, and for which they did, (K,) bool.

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
        as_number("clip", clip, above=0)
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
