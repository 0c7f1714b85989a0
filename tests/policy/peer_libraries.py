"""The losses and advantages of TRL and verl as functions of our batches, for tests beside them."""

import inspect
import textwrap
from collections import defaultdict
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import torch
from policy_cases import loss_batch

from burnish.policy import loss

close = torch.testing.assert_close


def trl_advantages(trainer, rewards_BK, samples, weights=None, **settings):
    """The advantages of TRL's own lines, which stand inside a long method."""
    source = inspect.getsource(trainer._generate_and_score_completions)
    begin = source.index("        unscorable_mask = ")
    end = source.index("        advantages = torch.nan_to_num(advantages, nan=0.0)\n")
    lines = textwrap.dedent(source[begin:end]) + "advantages = torch.nan_to_num(advantages)\n"
    weights_K = torch.tensor(weights or [1.0] * rewards_BK.shape[1])
    told = {
        "multi_objective_aggregation": "sum_then_normalize",
        "scale_rewards": "group",
        "reward_weights": weights_K,
        "reward_funcs": [None] * rewards_BK.shape[1],
        **settings,
    }
    names = {
        **vars(inspect.getmodule(trainer)),
        "self": SimpleNamespace(**told),
        "rewards_per_func": rewards_BK.clone(),
        "num_generations": samples,
        "device": torch.device("cpu"),
    }
    exec(lines, names)
    return names["advantages"]


def trl_loss(trainer, batch, *, accumulation=1, held=None, **settings):
    """TRL's loss of a micro-batch whose log-probs are given; settings are those of GRPOConfig.

    `held` is a dictionary with what TRL's adaptive entropy bonus keeps from update to update.
    """
    told = {
        "loss_type": "dapo",
        "beta": 0.0,
        "epsilon": 0.2,
        "epsilon_high": None,
        "delta": None,
        "use_bias_correction_kl": True,
        "importance_sampling_level": "token",
        "entropy_coef": 0.0,
        "max_completion_length": batch.mask_BT.shape[1],
        "items": batch.mask_BT.sum(),
        "sapo_temperature_pos": 1.0,
        "sapo_temperature_neg": 1.05,
        "top_entropy_quantile": 1.0,
        **settings,
    }
    mask_BT = batch.mask_BT.long()
    high = told["epsilon"] if told["epsilon_high"] is None else told["epsilon_high"]
    self = SimpleNamespace(
        args=SimpleNamespace(
            delta=told["delta"],
            use_bias_correction_kl=told["use_bias_correction_kl"],
            steps_per_generation=accumulation,
            sapo_temperature_pos=told["sapo_temperature_pos"],
            sapo_temperature_neg=told["sapo_temperature_neg"],
            **{key: value for key, value in settings.items() if key.startswith("entropy_")},
        ),
        loss_type=told["loss_type"],
        beta=told["beta"],
        epsilon_low=told["epsilon"],
        epsilon_high=high,
        importance_sampling_level=told["importance_sampling_level"],
        entropy_coef=told["entropy_coef"],
        max_completion_length=told["max_completion_length"],
        aux_loss_enabled=False,
        top_entropy_quantile=told["top_entropy_quantile"],
        off_policy_mask_threshold=None,
        use_vllm=False,
        vllm_importance_sampling_correction=True,
        current_gradient_accumulation_steps=accumulation,
        use_adaptive_entropy=held is not None,
        _entropy_bonus_enabled=told["entropy_coef"] != 0 or held is not None,
        _entropy_window_stats=None,
        model=SimpleNamespace(training=True),
        accelerator=SimpleNamespace(
            num_processes=1,
            sync_gradients=True,
            gather=lambda values: values,
            pad_across_processes=lambda values, **_: values,
            reduce=lambda values, reduction: values,
        ),
        _metrics={"train": defaultdict(list)},
        _get_per_token_logps_and_entropies=lambda *_, **__: (batch.logp_BT, batch.entropy_BT, None),
    )
    self.get_high_entropy_mask = partial(trainer.get_high_entropy_mask, self)
    ids_BT = torch.zeros_like(mask_BT)
    inputs = {
        "prompt_ids": ids_BT[:, :1],
        "prompt_mask": torch.ones_like(ids_BT[:, :1]),
        "completion_ids": ids_BT,
        "completion_mask": mask_BT,
        "advantages": batch.advantages_B,
        "old_per_token_logps": batch.old_logp_BT,
        "ref_per_token_logps": batch.ref_logp_BT,
        "num_items_in_batch": told["items"],
    }
    vars(self).update(held or {})
    found = trainer._compute_loss(self, None, inputs)
    if held is not None:
        held.update({key: getattr(self, key) for key in held})
    return found


def actor_config(batch, **settings):
    """verl's settings of an actor; the whole batch is one mini-batch unless told otherwise."""
    from verl.workers.config import ActorConfig

    info = settings.pop("global_batch_info", {})
    told = {"ppo_micro_batch_size_per_gpu": 1, "rollout_n": 1, "strategy": "fsdp", **settings}
    config = ActorConfig(**told)
    config.global_batch_info.update(info)
    return config


def verl_loss(algorithms, batch, mode="vanilla", aggregation="token-mean", **settings):
    compute = algorithms.get_policy_loss_fn(mode)
    found, _ = compute(
        old_log_prob=batch.old_logp_BT,
        log_prob=batch.logp_BT,
        advantages=batch.advantages_B[:, None].expand_as(batch.mask_BT),
        response_mask=batch.mask_BT,
        loss_agg_mode=aggregation,
        config=actor_config(batch, **settings),
    )
    return found


def verl_grpo(algorithms, rewards, groups, **options):
    rewards_B1 = torch.as_tensor(rewards, dtype=torch.float32)[:, None]
    ones_B1 = torch.ones_like(rewards_B1)
    found, _ = algorithms.compute_grpo_outcome_advantage(
        rewards_B1, ones_B1, np.array(groups), **options
    )
    return found[:, 0].double()


def verl_gdpo(algorithms, rewards_BK, groups, lengths):
    mask_BT = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    prompt_B1 = torch.ones(len(lengths), 1, dtype=torch.long)
    found, _ = algorithms.compute_gdpo_outcome_advantage(
        rewards_BK.float().sum(1, keepdim=True) * mask_BT,
        mask_BT.float(),
        np.array(groups),
        config={"gdpo_reward_keys": ["0", "1"]},
        non_tensor_batch={str(k): rewards_BK[:, k].numpy() for k in range(2)},
        batch={"prompts": prompt_B1, "attention_mask": torch.cat([prompt_B1, mask_BT], 1)},
    )
    return found[:, 0].double()


def whole_batch(seed, rollouts=6, tokens=5):
    """Random log-probs with every rollout kept: neither library leaves one out."""
    batch = loss_batch(rollouts, tokens, seed)
    return replace(batch, keep_B=torch.ones(rollouts, dtype=torch.bool))


def gradient(compute, batch):
    leaf = batch.logp_BT.detach().clone().requires_grad_(True)
    compute(replace(batch, logp_BT=leaf)).backward()
    return leaf.grad


def both_agree(recipe, theirs, batch):
    """Value and gradient of our loss beside theirs."""
    close(loss(recipe, batch).total, theirs(batch).double(), rtol=1e-9, atol=1e-12)
    mine = gradient(lambda b: loss(recipe, b).total, batch)
    close(mine, gradient(theirs, batch), rtol=1e-9, atol=1e-12)
