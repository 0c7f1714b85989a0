"""Policy optimisation as a recipe of nine pure pieces.

    from burnish.policy import Recipe, advantages, loss

`advantages(recipe, batch, state)` and `loss(recipe, batch)` are the two doors. The recipe's own
types import without torch; everything that computes is loaded when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from burnish.policy.pieces import (
    KL,
    SFT,
    Aggregate,
    BatchWhiten,
    Contrastive,
    Elastic,
    Entropy,
    Function,
    GivenWeights,
    InformativeGroups,
    KeepAll,
    Magnitude,
    NoPostScale,
    NormaliseThenSum,
    OverlongPenalty,
    RandomDrop,
    Raw,
    ReferenceFrozen,
    SignConflict,
    Skew,
    SnrConflict,
    StaticRegion,
    Stepwise,
    SumThenNormalise,
    TriFactor,
)
from burnish.policy.recipe import Recipe

if TYPE_CHECKING:
    from burnish.policy.advantage import (
        grpo_advantage,
        normalise_then_sum,
        per_reward_advantages,
        raw_advantage,
    )
    from burnish.policy.aggregate import aggregate_loss, normaliser_of
    from burnish.policy.answer_first import answer_kd, first_token_grade, label_tokens
    from burnish.policy.auxiliary import kl_penalty, mode_balanced_loss, sft_nll, token_entropy
    from burnish.policy.balance import (
        BalanceState,
        GradientOverlap,
        adapted_coefficient,
        gradient_overlap,
    )
    from burnish.policy.batch import Advantages, Estimate, Loss, LossBatch, Normaliser, RewardBatch
    from burnish.policy.brpo import brpo_advantages
    from burnish.policy.contrast.door import ContrastiveHead
    from burnish.policy.contrast.head import HeadState, head_step
    from burnish.policy.contrast.losses import contrastive_losses
    from burnish.policy.contrast.pool import pool_hidden
    from burnish.policy.contrast.reward import clipo_advantage, contrastive_reward
    from burnish.policy.doors import advantages, informative, loss
    from burnish.policy.dry_run import WeightingComparison, compare_weightings
    from burnish.policy.gdpo import gd2po_advantage, gdpo_advantage
    from burnish.policy.medalign import medalign_advantage
    from burnish.policy.objective import policy_loss, policy_loss_gradient
    from burnish.policy.post_scale import batch_whiten
    from burnish.policy.ratio import log_ratio
    from burnish.policy.reference import (
        ReferenceStats,
        fit_reference_stats,
        reference_frozen_normalise,
    )
    from burnish.policy.select.conflict import group_keep_ratio, sign_conflict, snr_ratio
    from burnish.policy.select.controls import magnitude_filter, random_filter
    from burnish.policy.select.informative import informative_groups
    from burnish.policy.select.skew import skew_filter
    from burnish.policy.shaping.overlong import overlong_penalty
    from burnish.policy.state import PolicyState
    from burnish.policy.stepwise import stepwise_advantages
    from burnish.policy.surrogate import clipped_surrogate
    from burnish.policy.tri_factor import (
        WeightState,
        redundancy_factor,
        risk_factor,
        tri_factor_weights,
        weakness_factor,
    )
    from burnish.policy.trust_region.by_pass_rate import (
        PASS_BUCKETS,
        bucket_shares,
        bucket_sums,
        pass_buckets,
        pass_rates,
    )
    from burnish.policy.trust_region.elastic import (
        elastic_bounds,
        group_variance,
        mean_elastic_budget,
    )
    from burnish.policy.trust_region.static import static_bounds

__all__ = [
    "KL",
    "PASS_BUCKETS",
    "SFT",
    "Advantages",
    "Aggregate",
    "BalanceState",
    "BatchWhiten",
    "Contrastive",
    "ContrastiveHead",
    "Elastic",
    "Entropy",
    "Estimate",
    "Function",
    "GivenWeights",
    "GradientOverlap",
    "HeadState",
    "InformativeGroups",
    "KeepAll",
    "Loss",
    "LossBatch",
    "Magnitude",
    "NoPostScale",
    "NormaliseThenSum",
    "Normaliser",
    "OverlongPenalty",
    "PolicyState",
    "RandomDrop",
    "Raw",
    "Recipe",
    "ReferenceFrozen",
    "ReferenceStats",
    "RewardBatch",
    "SignConflict",
    "Skew",
    "SnrConflict",
    "StaticRegion",
    "Stepwise",
    "SumThenNormalise",
    "TriFactor",
    "WeightState",
    "WeightingComparison",
    "adapted_coefficient",
    "advantages",
    "aggregate_loss",
    "answer_kd",
    "batch_whiten",
    "brpo_advantages",
    "bucket_shares",
    "bucket_sums",
    "clipo_advantage",
    "clipped_surrogate",
    "compare_weightings",
    "contrastive_losses",
    "contrastive_reward",
    "elastic_bounds",
    "first_token_grade",
    "fit_reference_stats",
    "gd2po_advantage",
    "gdpo_advantage",
    "gradient_overlap",
    "group_keep_ratio",
    "group_variance",
    "grpo_advantage",
    "head_step",
    "informative",
    "informative_groups",
    "kl_penalty",
    "label_tokens",
    "log_ratio",
    "loss",
    "magnitude_filter",
    "mean_elastic_budget",
    "medalign_advantage",
    "mode_balanced_loss",
    "normalise_then_sum",
    "normaliser_of",
    "overlong_penalty",
    "pass_buckets",
    "pass_rates",
    "per_reward_advantages",
    "policy_loss",
    "policy_loss_gradient",
    "pool_hidden",
    "random_filter",
    "raw_advantage",
    "redundancy_factor",
    "reference_frozen_normalise",
    "risk_factor",
    "sft_nll",
    "sign_conflict",
    "skew_filter",
    "snr_ratio",
    "static_bounds",
    "stepwise_advantages",
    "token_entropy",
    "tri_factor_weights",
    "weakness_factor",
]

_HOMES = {
    "advantage": (
        "grpo_advantage",
        "normalise_then_sum",
        "per_reward_advantages",
        "raw_advantage",
    ),
    "aggregate": (
        "aggregate_loss",
        "normaliser_of",
    ),
    "answer_first": (
        "answer_kd",
        "first_token_grade",
        "label_tokens",
    ),
    "auxiliary": (
        "kl_penalty",
        "mode_balanced_loss",
        "sft_nll",
        "token_entropy",
    ),
    "balance": (
        "BalanceState",
        "GradientOverlap",
        "adapted_coefficient",
        "gradient_overlap",
    ),
    "batch": (
        "Advantages",
        "Estimate",
        "Loss",
        "LossBatch",
        "Normaliser",
        "RewardBatch",
    ),
    "brpo": ("brpo_advantages",),
    "contrast.head": (
        "HeadState",
        "head_step",
    ),
    "contrast.door": ("ContrastiveHead",),
    "contrast.losses": ("contrastive_losses",),
    "contrast.pool": ("pool_hidden",),
    "contrast.reward": (
        "clipo_advantage",
        "contrastive_reward",
    ),
    "doors": (
        "advantages",
        "informative",
        "loss",
    ),
    "dry_run": (
        "WeightingComparison",
        "compare_weightings",
    ),
    "gdpo": (
        "gd2po_advantage",
        "gdpo_advantage",
    ),
    "medalign": ("medalign_advantage",),
    "objective": (
        "policy_loss",
        "policy_loss_gradient",
    ),
    "post_scale": ("batch_whiten",),
    "ratio": ("log_ratio",),
    "reference": (
        "ReferenceStats",
        "fit_reference_stats",
        "reference_frozen_normalise",
    ),
    "select.conflict": (
        "group_keep_ratio",
        "sign_conflict",
        "snr_ratio",
    ),
    "select.controls": (
        "magnitude_filter",
        "random_filter",
    ),
    "select.informative": ("informative_groups",),
    "select.skew": ("skew_filter",),
    "shaping.overlong": ("overlong_penalty",),
    "state": ("PolicyState",),
    "stepwise": ("stepwise_advantages",),
    "surrogate": ("clipped_surrogate",),
    "tri_factor": (
        "WeightState",
        "redundancy_factor",
        "risk_factor",
        "tri_factor_weights",
        "weakness_factor",
    ),
    "trust_region.by_pass_rate": (
        "PASS_BUCKETS",
        "bucket_shares",
        "bucket_sums",
        "pass_buckets",
        "pass_rates",
    ),
    "trust_region.elastic": (
        "elastic_bounds",
        "group_variance",
        "mean_elastic_budget",
    ),
    "trust_region.static": ("static_bounds",),
}
_LAZY = {name: home for home, found in _HOMES.items() for name in found}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
