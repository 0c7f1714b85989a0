"""The advantages and the policy loss of a recipe, as entries of verl's own registries.

    as_verl_advantage(recipe); as_verl_loss(recipe)     # in a module of VERL_USE_EXTERNAL_MODULES

verl computes advantages in one process and the loss in others, and nothing but the advantages goes
from one to the other: what a recipe says of a rollout beside its advantage must follow from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from burnish.engines.bridge import engine
from burnish.engines.recipes import portable, step_advantages
from burnish.policy import Elastic, KeepAll, Normaliser, Recipe, RewardBatch, StaticRegion
from burnish.policy.groups import label_numbers
from burnish.policy.objective import clipped_policy_loss
from burnish.seeds import derive
from burnish.tensors import torch

if TYPE_CHECKING:
    from torch import Tensor


def as_verl_advantage(recipe: Recipe, name: str = "burnish") -> Callable[..., tuple[Any, Any]]:
    """Registers `algorithm.adv_estimator=NAME`, the recipe's advantages, and gives the function.

    verl hands single rewards (`algorithm.gdpo_reward_keys`) to the name `gdpo` alone: a recipe of
    several takes that name. A reward without a value is NaN (`as_verl(missing="nan")`).
    """
    core = engine("verl.trainer.ppo.core_algos")
    estimate = partial(recipe_advantage, _portable(recipe))
    core.ADV_ESTIMATOR_REGISTRY.pop(name, None)
    core.register_adv_est(name)(estimate)
    return estimate


def recipe_advantage(
    recipe: Recipe,
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Sequence[Any],
    config: Any = None,
    non_tensor_batch: Mapping[str, Any] | None = None,
    **unused: Any,
) -> tuple[Tensor, Tensor]:
    """A recipe's advantages as verl asks for them: (B, T), (B, T), (B,) -> two times (B, T)."""
    keys: tuple[str, ...] = ("score",)
    rewards_BK, weights = token_level_rewards.sum(1, keepdim=True), [1.0]
    if non_tensor_batch is not None:
        keys = tuple(config.get("gdpo_reward_keys") or ())
        rewards_BK = torch.stack([_column(non_tensor_batch, key) for key in keys], 1)
        weights = list(config.get("gdpo_reward_weights") or [1.0] * len(keys))
    names, width = [str(one) for one in index], response_mask.shape[1]
    lengths_B = response_mask.bool().sum(1).cpu()
    weights_K = torch.tensor(weights, dtype=torch.float64)
    step = (rewards_BK, weights_K, label_numbers(names), lengths_B, lengths_B == width, keys)
    batch = RewardBatch(*step, seed=derive("verl", *names), max_tokens=width)
    values_B = step_advantages(recipe, batch, "verl").values_B.to(token_level_rewards)
    spread_BT = values_B[:, None] * response_mask
    return spread_BT, spread_BT


def as_verl_loss(recipe: Recipe, name: str = "burnish") -> Callable[..., tuple[Any, Any]]:
    """Registers `actor.policy_loss.loss_mode=NAME`, the recipe's policy loss, and gives the function.

    Its aggregate is the recipe's; KL, entropy and importance correction are verl's own settings.
    """
    core, own = engine("verl.trainer.ppo.core_algos"), _portable(recipe)

    def policy_loss(
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        loss_agg_mode: str,
        config: Any,
        rollout_is_weights: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, float]]:
        mask_BT = response_mask.bool()
        bounds = own.trust_region.bounds(advantages.double(), None, None)  # type: ignore[arg-type]
        info = dict(config.global_batch_info)
        counts = [info.get("batch_num_tokens"), info.get("global_batch_size")]
        part = [float(count) / (info.get("dp_size") or 1) for count in counts if count is not None]
        given = (log_prob, old_log_prob, advantages, mask_BT, own.ratio, *bounds)
        found = clipped_policy_loss(
            *given,
            own.dual_clip or None,
            own.aggregate.mode,
            normaliser=Normaliser(*part) if len(part) == 2 else None,
            max_tokens=own.aggregate.max_tokens or info.get("loss_scale_factor"),
            token_weights=rollout_is_weights,
            surrogate=own.surrogate.token_losses,
        )
        shown = ("clip_fraction", "dual_clip_fraction", "approx_kl")
        return found["loss"], {f"actor/{key}": found[key].item() for key in shown}

    core.register_policy_loss(name)(policy_loss)
    return policy_loss


def _column(given: Mapping[str, Any], key: str) -> Tensor:
    """A reward's values; NaN where `as_verl` says that it has none."""
    valid = given.get(f"{key}_valid", [1.0] * len(given[key]))
    values = [float(v) if ok else math.nan for v, ok in zip(given[key], valid, strict=True)]
    return torch.tensor(values, dtype=torch.float64)


def _portable(recipe: Recipe) -> Recipe:
    region, drops = recipe.trust_region, not isinstance(recipe.select, KeepAll)
    follows = isinstance(region, StaticRegion) or (isinstance(region, Elastic) and not region.macro)
    reasons = {
        "auxiliary: set verl's own use_kl_loss and entropy_coeff": recipe.auxiliary,
        "correction: set algorithm.rollout_correction": recipe.needs_sampler_logprobs,
        "surrogate, tokens: marks need entropies; use verl's clip_cov": recipe.token_markers,
        "trust_region: bounds must follow from the advantage; static, elastic": not follows,
    }
    if not recipe.aggregate.keep_denominator:
        reasons["select: verl divides by all; set policy.aggregate.keep_denominator=true"] = drops
    return portable(recipe, "verl", reasons)
