"""Policy optimisation: components as pure tensor functions, and `Recipe`, which names one of each.

    from burnish.policy import Recipe, advantages, loss

`advantages(recipe, batch, state)` computes what a step learns from, `loss(recipe, batch)` what an
update minimises. Everything here imports without torch; torch is loaded when something is computed.
"""

from __future__ import annotations

from burnish.policy import components
from burnish.policy.adaptive_entropy import adapted_entropy_coefficient
from burnish.policy.advantages import advantages, informative
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
from burnish.policy.brpo import brpo_advantages, raw_advantage, skew_filter
from burnish.policy.cispo import cispo_surrogate
from burnish.policy.components import *  # noqa: F403
from burnish.policy.conflict import (
    group_keep_ratio,
    magnitude_filter,
    random_filter,
    sign_conflict,
    snr_ratio,
)
from burnish.policy.contrast.component import clipo_advantage
from burnish.policy.contrast.head import (
    ContrastiveHead,
    HeadState,
    contrastive_reward,
    head_step,
)
from burnish.policy.contrast.losses import contrastive_losses
from burnish.policy.contrast.pool import pool_hidden
from burnish.policy.correction import masked_importance, truncated_importance
from burnish.policy.covariance import clip_cov_tokens, kl_cov_tokens, token_covariance
from burnish.policy.distillation import (
    distil_loss,
    ema,
    policy_sensitivity,
    sampled_kl,
    token_forward_kl,
    token_reverse_kl,
)
from burnish.policy.dry_run import WeightingComparison, compare_weightings
from burnish.policy.elastic import elastic_bounds, group_variance, mean_elastic_budget
from burnish.policy.gae import gae, terminal_rewards, value_loss
from burnish.policy.gdpo import gd2po_advantage, gdpo_advantage, normalise_then_sum
from burnish.policy.gmpo import gmpo_surrogate
from burnish.policy.groups import per_reward_advantages
from burnish.policy.grpo import grpo_advantage
from burnish.policy.high_entropy import high_entropy_tokens
from burnish.policy.informative import informative_groups
from burnish.policy.loss import loss
from burnish.policy.objective import (
    clipped_surrogate,
    log_ratio,
    policy_loss,
    policy_loss_gradient,
)
from burnish.policy.opo import opo_advantage
from burnish.policy.overlong import overlong_penalty
from burnish.policy.post_scale import batch_whiten
from burnish.policy.preference import completion_logp, dpo_loss, ipo_loss
from burnish.policy.recipe import Recipe
from burnish.policy.reference import fit_reference_stats, reference_frozen_normalise
from burnish.policy.reinforce_pp import reinforce_pp_advantage
from burnish.policy.remax import remax_advantage
from burnish.policy.rloo import rloo_advantage
from burnish.policy.sapo import sapo_surrogate
from burnish.policy.state import PolicyState, ReferenceStats, WeightState
from burnish.policy.stepwise import process_advantages, stepwise_advantages
from burnish.policy.tri_factor import (
    medalign_advantage,
    redundancy_factor,
    risk_factor,
    tri_factor_weights,
    weakness_factor,
)
from burnish.policy.trust_region import (
    PASS_BUCKETS,
    bucket_shares,
    bucket_sums,
    pass_buckets,
    pass_rates,
    static_bounds,
)

__all__ = [
    "PASS_BUCKETS",
    "Advantages",
    "BalanceState",
    "ContrastiveHead",
    "Estimate",
    "GradientOverlap",
    "HeadState",
    "Loss",
    "LossBatch",
    "Normaliser",
    "PolicyState",
    "Recipe",
    "ReferenceStats",
    "RewardBatch",
    "WeightState",
    "WeightingComparison",
    "adapted_coefficient",
    "adapted_entropy_coefficient",
    "advantages",
    "aggregate_loss",
    "answer_kd",
    "batch_whiten",
    "brpo_advantages",
    "bucket_shares",
    "bucket_sums",
    "cispo_surrogate",
    "clip_cov_tokens",
    "clipo_advantage",
    "clipped_surrogate",
    "compare_weightings",
    "completion_logp",
    "contrastive_losses",
    "contrastive_reward",
    "distil_loss",
    "dpo_loss",
    "elastic_bounds",
    "ema",
    "first_token_grade",
    "fit_reference_stats",
    "gae",
    "gd2po_advantage",
    "gdpo_advantage",
    "gmpo_surrogate",
    "gradient_overlap",
    "group_keep_ratio",
    "group_variance",
    "grpo_advantage",
    "head_step",
    "high_entropy_tokens",
    "informative",
    "informative_groups",
    "ipo_loss",
    "kl_cov_tokens",
    "kl_penalty",
    "label_tokens",
    "log_ratio",
    "loss",
    "magnitude_filter",
    "masked_importance",
    "mean_elastic_budget",
    "medalign_advantage",
    "mode_balanced_loss",
    "normalise_then_sum",
    "normaliser_of",
    "opo_advantage",
    "overlong_penalty",
    "pass_buckets",
    "pass_rates",
    "per_reward_advantages",
    "policy_loss",
    "policy_loss_gradient",
    "policy_sensitivity",
    "pool_hidden",
    "process_advantages",
    "random_filter",
    "raw_advantage",
    "redundancy_factor",
    "reference_frozen_normalise",
    "reinforce_pp_advantage",
    "remax_advantage",
    "risk_factor",
    "rloo_advantage",
    "sampled_kl",
    "sapo_surrogate",
    "sft_nll",
    "sign_conflict",
    "skew_filter",
    "snr_ratio",
    "static_bounds",
    "stepwise_advantages",
    "terminal_rewards",
    "token_covariance",
    "token_entropy",
    "token_forward_kl",
    "token_reverse_kl",
    "tri_factor_weights",
    "truncated_importance",
    "value_loss",
    "weakness_factor",
]
__all__ += components.__all__
