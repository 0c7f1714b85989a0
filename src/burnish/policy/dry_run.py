"""Compare four ways to combine rewards on rewards that were recorded (MedAlign).

The sum (GRPO), each reward standardised first (GDPO), rewards in deviations of a reference, and the
same with tri-factor weights, side by side on one table of rewards: how much of the advantage each
reward makes up, how far it agrees with it, and the three factors behind its weight (arXiv
2602.11661 compares the same four). Needs neither model nor GPU. It shows what the first update
would follow, not where training would end: the answers stay those that were recorded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from burnish.boundary import MISSING, Count, public
from burnish.errors import ArgumentError
from burnish.policy.groups import (
    Groups,
    as_groups,
    as_weights,
    centre,
    columns,
    group_sum,
    is_constant,
    one_group,
    standardise,
)
from burnish.policy.grpo import SumThenNormalise
from burnish.policy.reference import (
    ReferenceFrozen,
    fit_reference_stats,
    reference_frozen_normalise,
    saturated_share,
)
from burnish.policy.state import ReferenceStats, WeightState
from burnish.policy.tri_factor import TriFactor, by_name, tri_factor_weights
from burnish.tensors import torch

if TYPE_CHECKING:
    from jaxtyping import Float64
    from torch import Tensor

    from burnish.policy.groups import GroupLabels, Rewards, RewardWeights

    Rows = Annotated[Float64[Tensor, "N K"], MISSING]

FROZEN, RULE, SCALING = ReferenceFrozen(), TriFactor(), SumThenNormalise()
METHODS = ("sum", "gdpo", "reference_frozen", "tri_factor")


@dataclass(frozen=True)
class Weighting:
    method: str
    advantages_B: Tensor
    """float64; 0 where a rollout has no value or its group no signal. Before any whitening."""
    contributions_BK: Tensor
    """What each reward adds to the advantage of each rollout; its rows sum to the advantage."""
    share_K: Tensor
    """Mean |contribution| of each reward over that of all: sums to 1; NaN where nothing teaches."""
    correlation_K: Tensor
    """Of each reward with the advantage inside the groups; NaN where no group has both varying."""
    left_out: int
    """Rollouts without an advantage: for the sum any missing reward will do, else all are missing."""


@dataclass(frozen=True)
class Factors:
    """Tri-factor weights after the last step, and what they come from; each (K,) float64."""

    progress_K: Tensor
    violation_K: Tensor
    weakness_K: Tensor
    risk_K: Tensor
    redundancy_K: Tensor
    weight_K: Tensor
    """Of the last step, smoothed over the steps; mean 1."""
    settled_K: Tensor
    """Where the weights would come to rest if every further step were like the last."""


@dataclass(frozen=True)
class WeightingComparison:
    """The four methods on one table of recorded rewards."""

    names: tuple[str, ...]
    methods: tuple[Weighting, ...]
    factors: Factors
    saturated_K: Tensor
    """Share of each reward's values that stand at the clip; NaN without any."""
    below_K: Tensor
    """Share of each reward's values below its threshold; NaN without a threshold or a value."""
    missing_K: Tensor
    reference: ReferenceStats

    def record(self) -> dict[str, Any]:
        """All but the single rollouts, by reward, fit for JSON: None where there is no number."""
        columns = {
            "reference_mean": self.reference.mean_K,
            "reference_sd": self.reference.sd_K,
            "saturated": self.saturated_K,
            "below_threshold": self.below_K,
            "missing": self.missing_K,
            **{key.removesuffix("_K"): values for key, values in vars(self.factors).items()},
        }
        methods = {
            one.method: self._rows({"share": one.share_K, "correlation": one.correlation_K})
            for one in self.methods
        }
        left_out = {one.method: one.left_out for one in self.methods}
        return {"rewards": self._rows(columns), "methods": methods, "left_out": left_out}

    def _rows(self, columns: Mapping[str, Tensor]) -> dict[str, dict[str, float | None]]:
        return {
            name: {
                key: None if math.isnan(value := values[place].item()) else value
                for key, values in columns.items()
            }
            for place, name in enumerate(self.names)
        }


@public
def compare_weightings(
    rewards: Rewards,
    groups: GroupLabels,
    *,
    names: Sequence[str] | None = None,
    steps: GroupLabels | None = None,
    weights: RewardWeights | None = None,
    reference: ReferenceStats | Rows | Count | None = None,
    frozen: ReferenceFrozen = FROZEN,
    rule: TriFactor = RULE,
    scaling: SumThenNormalise = SCALING,
    replayed: Count = 0,
) -> WeightingComparison:
    """Sum, GDPO, frozen reference, and frozen reference with tri-factor weights: (N, K) rewards.

    `groups`: a label a row. `steps`: a label a row, in the order of the run; the tri-factor weights
    are renewed once a step, as in training. Without them all rows are one step, and its weights are
    the settled ones. `weights`: (K,), those of the recipe, none of them 0. `reference`: statistics,
    a table of the start model's rewards, the number of first rows that stand for it, or None for
    all rows. NaN is no reward: the sum leaves such a row out, GDPO adds nothing for it, a frozen
    reference takes "as the start". The pieces give their numbers as in a recipe: `frozen` of the
    unit, `rule` of the weights, `scaling` of all sums but GDPO's, which takes `eps` and `ddof` of
    it. `replayed`: so many of the first rows only move the weights; the rest of the result is about
    those after them.
    """
    rewards_BK = columns(rewards)
    if not rewards_BK.numel() or replayed >= len(rewards_BK):
        raise ArgumentError(
            f"rewards: got shape {tuple(rewards_BK.shape)}, expected a row and a reward beside the "
            f"{replayed} replayed rows"
        )
    count = rewards_BK.shape[1]
    named = tuple(map(str, range(count))) if names is None else tuple(names)
    if len(set(named)) != count:
        raise ArgumentError(f"names: got {list(named)}, expected {count} different ones")
    given_K = as_weights(weights, rewards_BK)
    if (given_K == 0).any():
        silent = named[int((given_K == 0).nonzero()[0])]
        raise ArgumentError(f"weights: '{silent}' has weight 0; expected only rewards that count")
    as_steps = one_group(rewards_BK) if steps is None else as_groups(steps)
    seen = dict.fromkeys(as_steps.index_B.tolist())
    rows_by_step = [(as_steps.index_B == step).nonzero()[:, 0] for step in seen]
    # The same prompt in a later step is another group.
    found = as_groups(groups)
    numbered = as_groups(as_steps.index_B * found.total + found.index_B)
    stats = _stats(reference, rewards_BK, frozen)
    normalised_BK = reference_frozen_normalise.plain(
        rewards_BK, stats.mean_K, stats.sd_K, frozen.clip
    )
    # All rows as one step have nothing before them to be smoothed with.
    own = rule if steps is not None else msgspec.structs.replace(rule, beta=0.0)
    factors, scaled_BK = _follow_steps(rows_by_step, normalised_BK, rewards_BK, own, named)
    rewards_BK, normalised_BK, scaled_BK = (
        all_BK[replayed:] for all_BK in (rewards_BK, normalised_BK, scaled_BK)
    )
    numbered, as_steps = (Groups(g.index_B[replayed:], g.total) for g in (numbered, as_steps))
    within = {"group_std": numbered, "batch_std": as_steps, "none": None}[scaling.scale]
    has_any_B1 = (~rewards_BK.isnan()).any(1, keepdim=True)
    filled_BK = torch.where(normalised_BK.isnan() & has_any_B1, 0.0, normalised_BK)
    eps, ddof = scaling.eps, scaling.ddof
    # What each reward, standardised on its own, adds to the sum of GDPO.
    own_BK = standardise(rewards_BK, numbered, eps=eps, ddof=ddof) * given_K
    threshold_K = by_name("threshold", rule.threshold, named, math.nan)
    below_K = (rewards_BK < threshold_K).sum(0).double() / (~rewards_BK.isnan()).sum(0)
    made = {
        "sum": _sum_parts(rewards_BK * given_K, numbered, within, eps, ddof),
        "gdpo": own_BK.masked_fill(is_constant(own_BK.sum(1, keepdim=True), numbered), 0.0),
        "reference_frozen": _sum_parts(filled_BK * given_K, numbered, within, eps, ddof),
        "tri_factor": _sum_parts(filled_BK * given_K * scaled_BK, numbered, within, eps, ddof),
    }
    return WeightingComparison(
        names=named,
        methods=tuple(_weighting(m, made[m], rewards_BK, numbered) for m in METHODS),
        factors=factors,
        saturated_K=saturated_share.plain(normalised_BK, frozen.clip),
        below_K=below_K.masked_fill(threshold_K.isnan(), torch.nan),
        missing_K=rewards_BK.isnan().sum(0),
        reference=stats,
    )


def _stats(
    reference: ReferenceStats | Tensor | int | None, rewards_BK: Tensor, frozen: ReferenceFrozen
) -> ReferenceStats:
    """Mean and deviation of what stands for the start model."""
    if isinstance(reference, ReferenceStats):
        return reference
    start = rewards_BK if reference is None else reference
    if isinstance(start, int):
        if not 1 <= start <= len(rewards_BK):
            raise ArgumentError(
                f"reference: got the first {start} rows, expected 1 to {len(rewards_BK)}"
            )
        start = rewards_BK[:start]
    return fit_reference_stats.plain(start, frozen.sd_floor, robust=frozen.robust)


def _follow_steps(
    rows_by_step: Sequence[Tensor],
    normalised_BK: Tensor,
    rewards_BK: Tensor,
    rule: TriFactor,
    names: Sequence[str],
) -> tuple[Factors, Tensor]:
    """Tri-factor weights renewed step by step: their end, and the weights of each row, (B, K)."""
    state = WeightState.initial(rewards_BK.shape[1])
    found: dict[str, Tensor] = {}
    scaled_BK = torch.ones_like(rewards_BK)
    for rows in rows_by_step:
        state, found = rule.renew(state, normalised_BK[rows], rewards_BK[rows], names)
        scaled_BK[rows] = state.weights_K
    settled_K = tri_factor_weights.plain(
        state.progress_K,
        by_name("severity", rule.severity, names, 0.0),
        state.violation_K,
        normalised_BK[rows_by_step[-1]],
        state.weights_K,
        eta_weak=rule.eta_weak,
        eta_red=rule.eta_red,
        w_min=rule.w_min,
        w_max=rule.w_max,
        beta=0.0,
    )
    factors = Factors(
        progress_K=state.progress_K,
        violation_K=state.violation_K,
        weakness_K=found["weakness"],
        risk_K=found["risk"],
        redundancy_K=found["redundancy"],
        weight_K=state.weights_K,
        settled_K=settled_K,
    )
    return factors, scaled_BK


def _sum_parts(
    weighted_BK: Tensor, groups: Groups, within: Groups | None, eps: float, ddof: int
) -> Tensor:
    """What each column adds to the centred sum over its deviation `within`, (B, K); else 0."""
    total_B1 = weighted_BK.sum(1, keepdim=True)
    is_out_B1 = total_B1.isnan()
    centred_BK = centre(weighted_BK.masked_fill(is_out_B1, torch.nan), groups)
    is_flat_B1 = is_constant(total_B1, groups)
    if within is None:
        return centred_BK.masked_fill(is_flat_B1, 0.0)
    count_B1 = group_sum((~is_out_B1).double(), within)
    variance_B1 = group_sum(centre(total_B1, within).square(), within)
    spread_B1 = (variance_B1 / (count_B1 - ddof).clamp(min=1.0)).sqrt() + eps
    return torch.where(is_flat_B1, 0.0, centred_BK / spread_B1.masked_fill(is_flat_B1, 1.0))


def _weighting(
    method: str, contributions_BK: Tensor, rewards_BK: Tensor, groups: Groups
) -> Weighting:
    advantages_B = contributions_BK.sum(1)
    size_K = contributions_BK.abs().mean(0)
    is_missing_BK = rewards_BK.isnan()
    is_out_B = is_missing_BK.any(1) if method == "sum" else is_missing_BK.all(1)
    # Correlation of each reward with the advantage inside a group, mean over rollouts; between groups
    # there is none to see. Groups in which one of the two is constant leave the mean.
    judged_BK = rewards_BK.masked_fill(is_out_B[:, None], torch.nan)
    beside_BK = advantages_B[:, None].expand_as(judged_BK).masked_fill(judged_BK.isnan(), torch.nan)
    is_flat_BK = is_constant(judged_BK, groups) | is_constant(beside_BK, groups)
    left_BK, right_BK = (
        standardise(values_BK, groups, eps=0.0, ddof=0) for values_BK in (judged_BK, beside_BK)
    )
    counts_BK = ~(is_flat_BK | judged_BK.isnan())
    products_BK = (left_BK * right_BK).masked_fill(~counts_BK, 0.0)
    return Weighting(
        method,
        advantages_B,
        contributions_BK,
        # 0 / 0 is NaN: where nothing teaches, nothing has a share.
        share_K=size_K / size_K.sum(),
        correlation_K=(products_BK.sum(0) / counts_BK.sum(0)).clamp(-1.0, 1.0),
        left_out=int(is_out_B.sum()),
    )
