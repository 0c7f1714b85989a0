"""One valid call of every public function of policy, and what it lets pass."""

from typing import Any

import torch

from burnish import policy
from public.common import LOGP, MASK, OPTIONAL, Case, f64

REWARDS = f64([[1.0, 0.2], [0.0, 0.4], [1.0, 0.1], [0.5, 0.9]])
ONE = f64([1.0, 0.0, 1.0, 0.5])
GROUPS = [0, 0, 1, 1]
MISSING = "nan"  # of rewards: a missing one is NaN by contract
LOSS = {
    "logp": LOGP,
    "old_logp": LOGP - 0.1,
    "advantages": f64([1.0, -1.0]),
    "mask": MASK,
    "ratio_level": "token",
    "clip_low": f64([0.2, 0.2]),
    "clip_high": 0.2,
    "dual_clip": 3.0,
    "aggregation": "token-mean",
}
PAIR: dict[str, Any] = {
    "chosen_logp": f64([-3.0, -5.0]),
    "rejected_logp": f64([-4.0, -4.5]),
    "ref_chosen_logp": f64([-3.5, -5.0]),
    "ref_rejected_logp": f64([-3.5, -5.0]),
    "beta": 0.1,
    "reduction": "mean",
}
LOGITS: dict[str, Any] = {
    "student_logits": f64([[0.1, 0.9, -1.0], [0.0, 2.0, 0.3]]),
    "teacher_logits": f64([[0.5, 0.2, -0.3], [1.0, 0.0, 0.3]]),
    "temperature": 1.0,
    "top_k": 2,
}
CASES = [
    # Policy: advantages and what selects among them
    Case(
        policy.grpo_advantage,
        {
            "rewards": REWARDS,
            "groups": GROUPS,
            "scale": "group_std",
            "eps": 1e-6,
            "ddof": 1,
            "weights": [1.0, 2.0],
            "singletons": "batch_mean",
            "sizes": [len(GROUPS)] * len(GROUPS),
            "roles": GROUPS,
        },
        {"rewards": MISSING, "weights": OPTIONAL, "sizes": OPTIONAL, "roles": OPTIONAL},
    ),
    Case(
        policy.per_reward_advantages,
        {"rewards": REWARDS, "groups": GROUPS, "eps": 1e-6, "ddof": 1},
        {"rewards": MISSING},
    ),
    Case(
        policy.normalise_then_sum,
        {"rewards": REWARDS, "groups": GROUPS, "eps": 1e-6, "ddof": 1, "weights": [1.0, 2.0]},
        {"rewards": MISSING, "weights": OPTIONAL},
    ),
    Case(
        policy.raw_advantage,
        {"rewards": REWARDS, "groups": GROUPS, "weights": [1.0, 2.0]},
        {"rewards": MISSING, "weights": OPTIONAL},
    ),
    *(
        Case(
            function,
            {
                "rewards": REWARDS,
                "groups": GROUPS,
                "response_lengths": [3, 4, 5, 6],
                "variant": "hard",
                "tau": 0.5,
                "weights": [1.0, 2.0],
                "eps": 1e-6,
                "ddof": 1,
            },
            {"rewards": MISSING, "weights": OPTIONAL, "response_lengths": OPTIONAL, **lets},
        )
        for function, lets in (
            (policy.gdpo_advantage, {"variant": OPTIONAL, "tau": OPTIONAL}),
            (policy.gd2po_advantage, {}),
        )
    ),
    Case(
        policy.batch_whiten,
        {
            "advantages": ONE,
            "lengths": [3, 4, 5, 6],
            "keep": f64([1, 1, 1, 1]),
            "signal": f64([1, 1, 1, 1]),
            "scope": "token",
            "eps": 1e-8,
        },
        {"keep": OPTIONAL, "signal": OPTIONAL},
    ),
    Case(
        policy.brpo_advantages,
        {"outcomes": f64([1.0, 0.0, -1.0]), "reference_index": 1, "skew_threshold": 0.6},
        {"outcomes": "nan short", "reference_index": OPTIONAL},
    ),
    Case(
        policy.clipo_advantage,
        {
            "verifier_rewards": ONE,
            "contrastive_rewards": -ONE,
            "groups": GROUPS,
            "ddof": 1,
            "eps": 1e-6,
        },
        {"verifier_rewards": MISSING},
    ),
    Case(
        policy.medalign_advantage,
        {
            "rewards": REWARDS,
            "mean": [0.5, 0.5],
            "sd": [1.0, 1.0],
            "clip": 5.0,
            "weights": [1.0, 1.0],
            "groups": GROUPS,
            "ddof": 1,
            "eps": 1e-6,
        },
        {"rewards": MISSING, "weights": OPTIONAL, "clip": "inf"},
    ),
    Case(
        policy.stepwise_advantages,
        {
            "rewards": REWARDS,
            "groups": GROUPS,
            "segments": [[0, 1], [0, -1], [0, 1], [0, 1]],
            "mask": [[1, 1], [1, 1], [1, 1], [1, 0]],
            "weights": [1.0, 0.5],
            "credit": "local",
            "eps": 1e-6,
            "ddof": 1,
        },
        {"rewards": MISSING, "weights": OPTIONAL},
    ),
    Case(
        policy.process_advantages,
        {
            "steps": REWARDS,
            "groups": GROUPS,
            "segments": [[0, 1], [0, -1], [0, 1], [0, 1]],
            "mask": [[1, 1], [1, 1], [1, 1], [1, 0]],
            "credit": "local",
            "eps": 1e-6,
            "ddof": 1,
        },
        {"steps": MISSING},
    ),
    Case(policy.informative_groups, {"advantages": ONE, "groups": GROUPS}),
    Case(
        policy.skew_filter,
        {"outcomes": f64([1.0, -1.0, 0.0, 1.0]), "groups": GROUPS, "threshold": 0.6},
        {"outcomes": MISSING},
    ),
    Case(
        policy.sign_conflict,
        {"per_reward_advantages": REWARDS - 0.5, "sign_eps": 1e-8, "weights": [1.0, 1.0]},
        {"per_reward_advantages": "nan empty short", "weights": OPTIONAL},
    ),
    Case(
        policy.snr_ratio,
        {"per_reward_advantages": REWARDS - 0.5, "eps": 1e-8, "weights": [1.0, 1.0]},
        {"per_reward_advantages": "nan empty short", "weights": OPTIONAL},
    ),
    Case(
        policy.group_keep_ratio,
        {"keep": [1, 0, 1, 1], "groups": GROUPS, "present": [1, 1, 1, 0]},
        {"present": OPTIONAL},
    ),
    Case(
        policy.magnitude_filter,
        {"values": ONE, "keep_count": 2, "share": None, "among": [1, 1, 1, 0]},
        {"values": "nan inf", "among": OPTIONAL, "share": OPTIONAL},
    ),
    Case(
        policy.random_filter,
        {"count": 4, "keep_count": 2, "seed": 0, "share": None, "among": [1, 1, 1, 0]},
        {"among": OPTIONAL, "share": OPTIONAL},
    ),
    Case(
        policy.overlong_penalty,
        {"lengths": [3, 9, 12], "limit": 10, "buffer": 4},
        {"lengths": "empty short"},
    ),
    # Policy: what a recipe remembers
    Case(
        policy.fit_reference_stats,
        {"rewards": REWARDS, "sd_floor": 1e-3},
        {"rewards": "nan short"},
    ),
    Case(
        policy.reference_frozen_normalise,
        {"rewards": REWARDS, "mean": [0.5, 0.5], "sd": [1.0, 2.0], "clip": 5.0},
        {"rewards": "nan empty short", "clip": "inf"},
        keeps_nan=True,
    ),
    Case(
        policy.weakness_factor,
        {"progress": [0.1, -0.3, 0.4], "eta": 0.5},
        {"progress": "nan item_none empty short"},
    ),
    Case(
        policy.risk_factor,
        {"severity": [0.0, 2.0], "violation_rate": [0.1, 0.2]},
        {"violation_rate": "nan item_none"},
    ),
    Case(
        policy.redundancy_factor,
        {"normalised": REWARDS, "eta": 1.0},
        {"normalised": "nan empty short"},
    ),
    Case(
        policy.tri_factor_weights,
        {
            "progress": [0.1, -0.3],
            "severity": [0.0, 2.0],
            "violation_rate": [0.1, 0.2],
            "normalised": REWARDS,
            "previous": [1.0, 1.0],
            "eta_weak": 0.5,
            "eta_red": 1.0,
            "w_min": 0.2,
            "w_max": 4.0,
            "beta": 0.8,
        },
        {
            "progress": "nan item_none",
            "violation_rate": "nan item_none",
            "normalised": "nan short empty",
            "w_max": "inf",
        },
    ),
    Case(
        policy.adapted_coefficient,
        {"coefficient": 0.1, "nll": 2.0, "target": 2.1, "rate": 0.5, "low": 0.01, "high": 1.0},
        {"nll": "none nan inf"},
    ),
    Case(
        policy.gradient_overlap,
        {"first": [ONE, ONE], "second": [ONE, -ONE]},
        {},
    ),
    # Policy: baselines, surrogates and tokens of other libraries
    Case(
        policy.rloo_advantage,
        {"rewards": REWARDS, "groups": GROUPS, "weights": [1.0, 2.0]},
        {"rewards": MISSING, "weights": OPTIONAL},
    ),
    Case(
        policy.opo_advantage,
        {"rewards": REWARDS, "groups": GROUPS, "lengths": [3, 4, 5, 6], "weights": [1.0, 2.0]},
        {"rewards": MISSING, "weights": OPTIONAL},
    ),
    Case(
        policy.reinforce_pp_advantage,
        {
            "rewards": REWARDS,
            "lengths": [3, 4, 5, 6],
            "scope": "token",
            "weights": [1.0, 2.0],
            "eps": 1e-8,
        },
        {"rewards": MISSING, "weights": OPTIONAL},
    ),
    Case(
        policy.remax_advantage,
        {"rewards": REWARDS, "baselines": REWARDS / 2, "weights": [1.0, 2.0]},
        {"rewards": MISSING, "baselines": MISSING, "weights": OPTIONAL},
    ),
    Case(
        policy.cispo_surrogate,
        {
            "logp_BT": LOGP,
            "ratio_BT": LOGP.exp(),
            "advantages_BT": LOGP,
            "low_BT": f64([[0.2]]),
            "high_BT": f64([[0.2]]),
        },
        {"logp_BT": "short", "ratio_BT": "short", "advantages_BT": "short"},
    ),
    Case(
        policy.sapo_surrogate,
        {
            "ratio_BT": LOGP.exp(),
            "advantages_BT": LOGP,
            "tau_positive": 1.0,
            "tau_negative": 1.05,
        },
        {"ratio_BT": "short", "advantages_BT": "short"},
    ),
    Case(
        policy.gmpo_surrogate,
        {
            "log_ratio_BT": LOGP,
            "advantages_BT": LOGP,
            "low_BT": f64([[0.2]]),
            "high_BT": f64([[0.2]]),
            "mask_BT": MASK,
        },
        {"log_ratio_BT": "short", "advantages_BT": "short", "mask_BT": "short"},
    ),
    Case(policy.token_covariance, {"advantages": ONE, "logp": [-1.0, -2.0, -0.5, -0.7]}),
    Case(
        policy.clip_cov_tokens,
        {"covariance": ONE, "share": 0.5, "low": 0.2, "high": 5.0, "seed": 3},
        {"covariance": "empty short"},
    ),
    Case(policy.kl_cov_tokens, {"covariance": ONE, "share": 0.5}, {"covariance": "empty short"}),
    Case(
        policy.high_entropy_tokens, {"entropies": ONE, "share": 0.5}, {"entropies": "empty short"}
    ),
    Case(
        policy.adapted_entropy_coefficient,
        {
            "coefficient": 0.1,
            "entropy": 0.3,
            "target": 0.5,
            "step": 0.01,
            "low": 0.0,
            "high": 1.0,
        },
    ),
    # Policy: trust region
    Case(
        policy.elastic_bounds,
        {
            "advantages": ONE,
            "eps_low": 0.2,
            "eps_high": 0.2,
            "strength": 0.5,
            "center": 1.0,
            "adv_cap": 3.0,
            "macro_strength": 0.5,
            "group_variance": [0.5, 0.5, 0.1, 0.1],
            "min_eps": 0.05,
            "max_eps_low": 0.8,
            "max_eps_high": 0.8,
        },
        {"advantages": "nan", "adv_cap": "none inf", "group_variance": "nan item_none"},
    ),
    Case(
        policy.group_variance,
        {"rewards": ONE, "groups": GROUPS, "r_min": 0.0, "r_max": 1.0},
        {"rewards": MISSING},
    ),
    Case(
        policy.mean_elastic_budget,
        {"rewards": ONE, "eps": 0.2, "strength": 0.5, "center": 1.0, "ddof": 0},
        {"rewards": "nan short"},
    ),
    Case(
        policy.static_bounds,
        {"advantages_B": ONE, "low": 0.2, "high": 0.2},
        keeps_nan=True,
        lets={"advantages_B": "nan inf empty short"},
    ),
    Case(
        policy.pass_rates,
        {"rewards": ONE, "groups": GROUPS, "r_min": 0.0, "r_max": 1.0},
        {"rewards": MISSING},
    ),
    Case(policy.pass_buckets, {"rates": [0.1, 0.5, 1.0]}, {"rates": "nan item_none empty short"}),
    Case(policy.bucket_shares, {"sums": f64([[1.0] * 5, [2.0] * 5])}),
    Case(
        policy.bucket_sums,
        {
            "is_clipped": torch.tensor([[True, False]] * 2),
            "used": torch.tensor([[True, True]] * 2),
            "buckets": torch.tensor([0, 4]),
        },
    ),
    # Policy: the loss
    Case(
        policy.policy_loss,
        {
            **LOSS,
            "keep": [1, 1],
            "normaliser": None,
            "max_tokens": 2,
            "buckets": [0, 1],
        },
        {
            "dual_clip": OPTIONAL,
            "keep": OPTIONAL,
            "normaliser": OPTIONAL,
            "max_tokens": OPTIONAL,
            "buckets": "none nan item_none inf",
            "clip_low": "inf short",
            "clip_high": "inf",
        },
    ),
    Case(
        policy.policy_loss_gradient,
        LOSS,
        {"dual_clip": OPTIONAL, "clip_low": "inf short", "clip_high": "inf"},
    ),
    Case(
        policy.kl_penalty,
        {"logp": LOGP, "ref_logp": LOGP - 0.2, "kind": "k3", "ratio": torch.ones_like(LOGP)},
        {"ratio": OPTIONAL},
    ),
    *(
        Case(
            function,
            {"logp": LOGP, "sampler_logp": LOGP - 0.2, "mask": MASK, "level": "token", **limits},
        )
        for function, limits in (
            (policy.truncated_importance, {"cap": 2.0}),
            (policy.masked_importance, {"low": 0.5, "high": 5.0}),
        )
    ),
    Case(policy.token_entropy, {"logits": LOGP}, {"logits": "nan inf short empty"}, keeps_nan=True),
    Case(policy.sft_nll, {"logp": LOGP, "mask": MASK, "tokens": 3}, {"tokens": OPTIONAL}),
    Case(
        policy.mode_balanced_loss,
        {"rl_loss": 0.5, "sft_logp": LOGP, "sft_mask": MASK, "lam": 0.1},
        {"sft_mask": "empty"},
    ),
    Case(
        policy.aggregate_loss,
        {
            "values_BT": LOGP,
            "mask_BT": MASK,
            "mode": "token-mean",
            "keep_B": f64([1, 1]),
            "normaliser": None,
            "max_tokens": 2,
        },
        {
            "values_BT": "nan inf",
            "mask_BT": "nan inf",
            "keep_B": "none nan inf",
            "normaliser": OPTIONAL,
            "max_tokens": OPTIONAL,
        },
        keeps_nan=True,
    ),
    Case(
        policy.normaliser_of,
        {"mask_BT": MASK, "keep_B": f64([1, 1])},
        {"mask_BT": "nan inf", "keep_B": "none nan inf"},
    ),
    Case(
        policy.log_ratio,
        {"logp_BT": LOGP, "old_logp_BT": LOGP, "mask_BT": MASK, "level": "token"},
        {"logp_BT": "nan inf", "old_logp_BT": "nan inf", "mask_BT": "nan inf"},
        keeps_nan=True,
    ),
    Case(
        policy.clipped_surrogate,
        {
            "ratio_BT": LOGP.exp(),
            "advantages_BT": LOGP,
            "low_BT": f64([[0.2]]),
            "high_BT": f64([[0.2]]),
            "dual_clip": 3.0,
        },
        {
            "ratio_BT": "nan inf short",
            "advantages_BT": "nan inf short",
            "low_BT": "nan inf",
            "high_BT": "nan inf",
            "dual_clip": OPTIONAL,
        },
        keeps_nan=True,
    ),
    Case(
        policy.first_token_grade,
        {"logits": f64([0.1, 0.2, 0.9]), "label_ids": [0, 2]},
        {},
    ),
    Case(
        policy.answer_kd,
        {
            "student_logits": f64([[0.1, 0.9]]),
            "teacher_probs": [[0.3, 0.7]],
            "temperature": 2.0,
            "reduction": "mean",
        },
    ),
    # Policy: pairs and teachers
    Case(policy.dpo_loss, {**PAIR, "label_smoothing": 0.1}),
    Case(policy.ipo_loss, PAIR),
    Case(
        policy.completion_logp,
        {"logp": LOGP, "mask": MASK, "shared": [1, 2], "ld_alpha": 0.5},
        {"shared": OPTIONAL},
    ),
    Case(
        policy.token_reverse_kl,
        {**LOGITS, "support": "student-topk", "kl_clip": 2.0},
        {"kl_clip": OPTIONAL},
    ),
    Case(policy.token_forward_kl, LOGITS),
    Case(
        policy.ema,
        {"teacher": [1.0, 2.0], "student": [2.0, 1.0], "decay": 0.9, "buffers": ["w"]},
        {"buffers": "short empty"},
    ),
    Case(
        policy.policy_sensitivity,
        {k: v for k, v in LOGITS.items() if k != "temperature"} | {"mask": [1, 1], "score": "kl"},
    ),
    Case(policy.sampled_kl, {"logp": LOGP, "teacher_logp": LOGP - 0.2}),
    Case(
        policy.distil_loss,
        {**LOGITS, "mask": [1, 0], "divergence": "reverse", "tokens": 3},
        {"tokens": OPTIONAL},
    ),
    # Policy: the contrast
    Case(
        policy.contrastive_losses,
        {
            "embeddings": f64([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.5, 0.5]]),
            "labels": [1, 1, 0, 1],
            "groups": [0, 0, 0, 0],
            "loss": "soft_nn",
            "temperature": 0.05,
            "scope": "group",
            "anchors": "correct_only",
            "similarity": "cosine",
            "seed": 0,
            "keys": torch.tensor([3, 4, 5, 6]),
            "duplicate_ids": [0, 1, 2, 3],
            "dedup_cos": 0.999,
            "usable": [1, 1, 1, 1],
        },
        {
            "embeddings": "nan inf",
            "keys": OPTIONAL,
            "duplicate_ids": "none nan empty short word inf item_none",
            "usable": OPTIONAL,
        },
    ),
    Case(
        policy.contrastive_reward,
        {
            "per_sample_loss": ONE,
            "labels": [1, 0, 1, 1],
            "lam": 0.2,
            "floor": -0.5,
            "constant": 0.0,
            "usable": [1, 1, 1, 1],
        },
        {"usable": OPTIONAL},
    ),
    Case(
        policy.pool_hidden,
        {"hidden": f64([[[1.0, 2.0], [3.0, 4.0]]]), "mask": [[1, 1]]},
        {"hidden": "nan inf"},
        keeps_nan=True,
    ),
    Case(
        policy.gae,
        {"rewards": MASK, "values": LOGP, "mask": MASK, "gamma": 0.99, "lam": 0.95},
    ),
    Case(
        policy.terminal_rewards,
        {"rewards": [1.0, 0.0], "mask": MASK, "penalties": MASK},
        {"penalties": OPTIONAL},
    ),
    Case(
        policy.value_loss,
        {"values": LOGP, "old_values": MASK, "returns": LOGP, "mask": MASK, "clip": 0.2},
        {"clip": OPTIONAL},
    ),
]
