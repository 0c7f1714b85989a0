"""One valid call of every public function of policy, and what it lets pass."""

from typing import Any

import torch

from burnish import policy
from public.common import LOGP, MASK, NEEDED, OPTIONAL, Case, f64

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
            "weights": [1.0, 2.0],
            "singletons": "batch_mean",
            "sizes": [len(GROUPS)] * len(GROUPS),
            "roles": GROUPS,
        },
        {"rewards": MISSING},
        signed="rewards groups weights roles",
    ),
    Case(
        policy.per_reward_advantages,
        {"rewards": REWARDS, "groups": GROUPS},
        {"rewards": MISSING},
        signed="rewards groups",
    ),
    Case(
        policy.normalise_then_sum,
        {"rewards": REWARDS, "groups": GROUPS, "weights": [1.0, 2.0]},
        {"rewards": MISSING},
        signed="rewards groups weights",
    ),
    Case(
        policy.raw_advantage,
        {"rewards": REWARDS, "groups": GROUPS, "weights": [1.0, 2.0]},
        {"rewards": MISSING},
        signed="rewards groups weights",
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
            signed="rewards groups weights",
            shares="tau",
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
        },
        {"lengths": NEEDED},
        signed="advantages",
        shares="keep signal",
    ),
    Case(
        policy.brpo_advantages,
        {"outcomes": f64([1.0, 0.0, -1.0]), "reference_index": 1},
        {"outcomes": "nan short", "reference_index": OPTIONAL},
        signed="outcomes",
        shares="outcomes skew_threshold",
    ),
    Case(
        policy.clipo_advantage,
        {"verifier_rewards": ONE, "contrastive_rewards": -ONE, "groups": GROUPS},
        {"verifier_rewards": MISSING},
        signed="verifier_rewards contrastive_rewards groups",
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
        },
        {"rewards": MISSING, "weights": OPTIONAL, "clip": "inf"},
        signed="rewards mean weights groups",
    ),
    Case(
        policy.stepwise_advantages,
        {
            "rewards": REWARDS,
            "groups": GROUPS,
            "segments": [[0, 1], [0, -1], [0, 1], [0, 1]],
            "mask": [[1, 1], [1, 1], [1, 1], [1, 0]],
            "weights": [1.0, 0.5],
        },
        {"rewards": MISSING},
        signed="rewards groups weights",
    ),
    Case(
        policy.process_advantages,
        {
            "steps": REWARDS,
            "groups": GROUPS,
            "segments": [[0, 1], [0, -1], [0, 1], [0, 1]],
            "mask": [[1, 1], [1, 1], [1, 1], [1, 0]],
        },
        {"steps": MISSING},
        signed="steps groups",
    ),
    Case(
        policy.informative_groups, {"advantages": ONE, "groups": GROUPS}, signed="advantages groups"
    ),
    Case(
        policy.skew_filter,
        {"outcomes": f64([1.0, -1.0, 0.0, 1.0]), "groups": GROUPS},
        {"outcomes": MISSING},
        signed="outcomes groups",
        shares="outcomes threshold",
    ),
    Case(
        policy.sign_conflict,
        {"per_reward_advantages": REWARDS - 0.5, "weights": [1.0, 1.0]},
        {"per_reward_advantages": "nan empty short"},
        signed="per_reward_advantages weights",
    ),
    Case(
        policy.snr_ratio,
        {"per_reward_advantages": REWARDS - 0.5, "weights": [1.0, 1.0]},
        {"per_reward_advantages": "nan empty short"},
        signed="per_reward_advantages weights",
    ),
    Case(
        policy.group_keep_ratio,
        {"keep": [1, 0, 1, 1], "groups": GROUPS, "present": [1, 1, 1, 0]},
        signed="groups",
    ),
    Case(
        policy.magnitude_filter,
        {"values": ONE, "keep_count": 2, "share": None, "among": [1, 1, 1, 0]},
        {"values": "nan inf", "keep_count": NEEDED},
        signed="values",
    ),
    Case(
        policy.random_filter,
        {"count": 4, "keep_count": 2, "share": None, "among": [1, 1, 1, 0]},
        {"keep_count": NEEDED},
        signed="seed",
    ),
    Case(
        policy.overlong_penalty,
        {"lengths": [3, 9, 12], "limit": 10, "buffer": 4},
        {"lengths": "empty short"},
    ),
    # Policy: what a recipe remembers
    Case(
        policy.fit_reference_stats, {"rewards": REWARDS}, {"rewards": "nan short"}, signed="rewards"
    ),
    Case(
        policy.reference_frozen_normalise,
        {"rewards": REWARDS, "mean": [0.5, 0.5], "sd": [1.0, 2.0]},
        {"rewards": "nan empty short", "clip": "inf"},
        keeps_nan=True,
        signed="rewards mean",
    ),
    Case(
        policy.weakness_factor,
        {"progress": [0.1, -0.3, 0.4]},
        {"progress": "nan item_none empty short"},
        signed="progress",
    ),
    Case(
        policy.risk_factor,
        {"severity": [0.0, 2.0], "violation_rate": [0.1, 0.2]},
        {"violation_rate": "nan item_none"},
        shares="violation_rate",
    ),
    Case(
        policy.redundancy_factor,
        {"normalised": REWARDS},
        {"normalised": "nan empty short"},
        signed="normalised",
    ),
    Case(
        policy.tri_factor_weights,
        {
            "progress": [0.1, -0.3],
            "severity": [0.0, 2.0],
            "violation_rate": [0.1, 0.2],
            "normalised": REWARDS,
            "previous": [1.0, 1.0],
        },
        {
            "progress": "nan item_none",
            "violation_rate": "nan item_none",
            "normalised": "nan short empty",
            "w_max": "inf",
        },
        signed="progress normalised",
        shares="violation_rate w_min beta",
    ),
    Case(
        policy.adapted_coefficient,
        {"coefficient": 0.1, "nll": 2.0, "target": 2.1, "rate": 0.5, "low": 0.01, "high": 1.0},
        {"nll": OPTIONAL},
        signed="coefficient nll",
        shares="low",
    ),
    # Policy: baselines, surrogates and tokens of other libraries
    Case(
        policy.rloo_advantage,
        {"rewards": REWARDS, "groups": GROUPS, "weights": [1.0, 2.0]},
        {"rewards": MISSING},
        signed="rewards groups weights",
    ),
    Case(
        policy.opo_advantage,
        {"rewards": REWARDS, "groups": GROUPS, "lengths": [3, 4, 5, 6], "weights": [1.0, 2.0]},
        {"rewards": MISSING},
        signed="rewards groups weights",
    ),
    Case(
        policy.reinforce_pp_advantage,
        {"rewards": REWARDS, "lengths": [3, 4, 5, 6], "weights": [1.0, 2.0]},
        {"rewards": MISSING, "lengths": NEEDED},
        signed="rewards weights",
    ),
    Case(
        policy.remax_advantage,
        {"rewards": REWARDS, "baselines": REWARDS / 2, "weights": [1.0, 2.0]},
        {"rewards": MISSING, "baselines": MISSING},
        signed="rewards baselines weights",
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
        signed="logp_BT ratio_BT advantages_BT low_BT high_BT",
    ),
    Case(
        policy.sapo_surrogate,
        {"ratio_BT": LOGP.exp(), "advantages_BT": LOGP},
        {"ratio_BT": "short", "advantages_BT": "short"},
        signed="ratio_BT advantages_BT",
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
        {"advantages_BT": "short", "mask_BT": "short"},
        signed="log_ratio_BT advantages_BT low_BT high_BT mask_BT",
    ),
    Case(
        policy.token_covariance,
        {"advantages": ONE, "logp": [-1.0, -2.0, -0.5, -0.7]},
        signed="advantages logp",
    ),
    Case(
        policy.clip_cov_tokens,
        {"covariance": ONE, "share": 0.5, "low": 0.2, "seed": 3},
        {"covariance": "empty short"},
        signed="covariance low",
        shares="share",
    ),
    Case(
        policy.kl_cov_tokens,
        {"covariance": ONE, "share": 0.5},
        {"covariance": "empty short"},
        signed="covariance",
        shares="share",
    ),
    Case(
        policy.high_entropy_tokens,
        {"entropies": ONE, "share": 0.5},
        {"entropies": "empty short"},
        signed="entropies",
        shares="share",
    ),
    Case(
        policy.adapted_entropy_coefficient,
        {"coefficient": 0.1, "entropy": 0.3, "target": 0.5, "step": 0.01},
        signed="coefficient entropy",
        shares="low",
    ),
    # Policy: trust region
    Case(
        policy.elastic_bounds,
        {"advantages": ONE, "macro_strength": 0.5, "group_variance": [0.5, 0.5, 0.1, 0.1]},
        {"advantages": "nan", "adv_cap": "none inf", "group_variance": "nan item_none"},
        signed="advantages",
        shares="eps_low macro_strength group_variance min_eps max_eps_low",
    ),
    Case(
        policy.group_variance,
        {"rewards": ONE, "groups": GROUPS, "r_min": 0.0, "r_max": 1.0},
        {"rewards": MISSING},
        signed="rewards groups r_min",
        shares="r_min",
    ),
    Case(
        policy.mean_elastic_budget,
        {"rewards": ONE},
        {"rewards": "nan short"},
        signed="rewards",
        shares="eps",
    ),
    Case(
        policy.static_bounds,
        {"advantages_B": ONE},
        keeps_nan=True,
        lets={"advantages_B": "nan empty short"},
        signed="advantages_B",
        shares="low",
    ),
    Case(
        policy.pass_rates,
        {"rewards": ONE, "groups": GROUPS},
        {"rewards": MISSING},
        signed="rewards groups r_min",
        shares="r_min",
    ),
    Case(
        policy.pass_buckets,
        {"rates": [0.1, 0.5, 1.0]},
        {"rates": "nan item_none empty short"},
        shares="rates",
    ),
    Case(policy.bucket_shares, {"sums": f64([[1.0] * 5, [2.0] * 5])}, signed="sums"),
    Case(
        policy.bucket_sums,
        {
            "is_clipped": torch.tensor([[True, False]] * 2),
            "used": torch.tensor([[True, True]] * 2),
            "buckets": torch.tensor([0, 4]),
        },
        signed="buckets",
    ),
    # Policy: the loss
    Case(
        policy.policy_loss,
        {**LOSS, "keep": [1, 1], "normaliser": None, "max_tokens": 2, "buckets": [0, 1]},
        {"clip_high": "inf"},
        signed="logp old_logp advantages buckets",
        shares="mask",
    ),
    Case(
        policy.policy_loss_gradient,
        LOSS,
        {"clip_high": "inf"},
        signed="logp old_logp advantages",
        shares="mask",
    ),
    Case(
        policy.kl_penalty,
        {"logp": LOGP, "ref_logp": LOGP - 0.2, "ratio": torch.ones_like(LOGP)},
        signed="logp ref_logp ratio",
    ),
    *(
        Case(
            function,
            {"logp": LOGP, "sampler_logp": LOGP - 0.2, "mask": MASK, "level": "token", **limits},
            signed="logp sampler_logp",
            shares=f"mask {shares}",
        )
        for function, limits, shares in (
            (policy.truncated_importance, {"cap": 2.0}, ""),
            (policy.masked_importance, {"low": 0.5, "high": 5.0}, "low"),
        )
    ),
    Case(
        policy.token_entropy,
        {"logits": LOGP},
        {"logits": "nan inf short empty"},
        keeps_nan=True,
        signed="logits",
    ),
    Case(policy.sft_nll, {"logp": LOGP, "mask": MASK, "tokens": 3}, signed="logp", shares="mask"),
    Case(
        policy.mode_balanced_loss,
        {"rl_loss": 0.5, "sft_logp": LOGP, "sft_mask": MASK},
        signed="rl_loss sft_logp",
        shares="sft_mask",
    ),
    Case(
        policy.aggregate_loss,
        {
            "values_BT": LOGP,
            "mask_BT": MASK,
            "keep_B": f64([1, 1]),
            "normaliser": None,
            "max_tokens": 2,
        },
        {"values_BT": "nan inf"},
        keeps_nan=True,
        signed="values_BT",
        shares="mask_BT keep_B",
    ),
    Case(policy.normaliser_of, {"mask_BT": MASK, "keep_B": f64([1, 1])}, shares="mask_BT keep_B"),
    Case(
        policy.log_ratio,
        {"logp_BT": LOGP, "old_logp_BT": LOGP, "mask_BT": MASK, "level": "token"},
        {"logp_BT": "nan inf", "old_logp_BT": "nan inf"},
        keeps_nan=True,
        signed="logp_BT old_logp_BT",
        shares="mask_BT",
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
        {"ratio_BT": "short", "advantages_BT": "short"},
        keeps_nan=True,
        signed="ratio_BT advantages_BT low_BT high_BT",
    ),
    Case(
        policy.first_token_grade,
        {"logits": f64([0.1, 0.2, 0.9]), "label_ids": [0, 2]},
        signed="logits",
    ),
    Case(
        policy.answer_kd,
        {"student_logits": f64([[0.1, 0.9]]), "teacher_probs": [[0.3, 0.7]]},
        signed="student_logits",
    ),
    # Policy: pairs and teachers
    Case(
        policy.dpo_loss,
        {**PAIR, "label_smoothing": 0.1},
        signed="chosen_logp rejected_logp ref_chosen_logp ref_rejected_logp",
        shares="label_smoothing",
    ),
    Case(
        policy.ipo_loss, PAIR, signed="chosen_logp rejected_logp ref_chosen_logp ref_rejected_logp"
    ),
    Case(
        policy.completion_logp,
        {"logp": LOGP, "mask": MASK, "shared": [1, 2], "ld_alpha": 0.5},
        signed="logp",
        shares="mask ld_alpha",
    ),
    Case(
        policy.token_reverse_kl,
        {**LOGITS, "support": "student-topk", "kl_clip": 2.0},
        signed="student_logits teacher_logits",
    ),
    Case(policy.token_forward_kl, LOGITS, signed="student_logits teacher_logits"),
    Case(
        policy.ema,
        {"teacher": [1.0, 2.0], "student": [2.0, 1.0], "decay": 0.9, "buffers": ["w"]},
        {"buffers": "short empty"},
        signed="teacher student",
        shares="decay",
    ),
    Case(
        policy.policy_sensitivity,
        {k: v for k, v in LOGITS.items() if k != "temperature"} | {"mask": [1, 1], "score": "kl"},
        signed="student_logits teacher_logits",
    ),
    Case(policy.sampled_kl, {"logp": LOGP, "teacher_logp": LOGP - 0.2}, signed="logp teacher_logp"),
    Case(
        policy.distil_loss,
        {**LOGITS, "mask": [1, 0], "tokens": 3},
        signed="student_logits teacher_logits",
    ),
    # Policy: the contrast
    Case(
        policy.contrastive_losses,
        {
            "embeddings": f64([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.5, 0.5]]),
            "labels": [1, 1, 0, 1],
            "groups": [0, 0, 0, 0],
            "loss": "soft_nn",
            "keys": torch.tensor([3, 4, 5, 6]),
            "duplicate_ids": [0, 1, 2, 3],
            "usable": [1, 1, 1, 1],
        },
        {"embeddings": "nan inf"},
        signed="embeddings groups seed keys duplicate_ids dedup_cos",
        shares="dedup_cos",
    ),
    Case(
        policy.contrastive_reward,
        {"per_sample_loss": ONE, "labels": [1, 0, 1, 1], "usable": [1, 1, 1, 1]},
        signed="per_sample_loss floor constant",
    ),
    Case(
        policy.pool_hidden,
        {"hidden": f64([[[1.0, 2.0], [3.0, 4.0]]]), "mask": [[1, 1]]},
        {"hidden": "nan inf"},
        keeps_nan=True,
        signed="hidden",
    ),
    Case(
        policy.gae,
        {"rewards": MASK, "values": LOGP, "mask": MASK, "gamma": 0.99},
        signed="rewards values",
        shares="mask gamma lam",
    ),
    Case(
        policy.terminal_rewards,
        {"rewards": [1.0, 0.0], "mask": MASK, "penalties": MASK},
        signed="rewards penalties",
        shares="mask",
    ),
    Case(
        policy.value_loss,
        {"values": LOGP, "old_values": MASK, "returns": LOGP, "mask": MASK},
        {"clip": OPTIONAL},
        signed="values old_values returns",
        shares="mask",
    ),
]
