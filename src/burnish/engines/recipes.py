"""A recipe of ours in another trainer: its advantages and its policy loss, and what must stay here.

TRL and verl sample, score and step by themselves. A recipe gives them what stands between a step's
rewards and the gradient; a component that needs more of the run is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from burnish.errors import UserError
from burnish.policy import Advantages, Recipe, RewardBatch, advantages


def portable(recipe: Recipe, engine: str, more: Mapping[str, object] = {}) -> Recipe:
    """The recipe, where `engine` can compute it; reasons why not are keys whose value is true."""
    singletons = getattr(recipe.advantage, "singletons", "zero") != "zero"
    reasons = {
        "critic, advantage 'gae': a critic is a model of our trainer": recipe.gae,
        "advantage 'greedy_baseline': needs a greedy answer to each prompt": recipe.needs_greedy,
        "advantage 'stepwise': needs the sections of each answer": recipe.stepwise,
        "advantage.singletons: the roles of a game are played here alone": singletons,
        "shaping 'contrastive': needs hidden states, and trains a head": recipe.contrastive,
        "shaping 'reference_frozen': needs the start model's rewards": recipe.calibration,
        "auxiliary 'sft': needs demonstrations": recipe.imitation,
        "auxiliary 'adaptive_entropy': its coefficient is state of a run": recipe.adaptive_entropy,
        "select.refill: it samples the prompts itself; set policy.select.refill=false": getattr(
            recipe.select, "refill", False
        ),
        **more,
    }
    if found := [why for why, holds in reasons.items() if holds]:
        raise UserError(f"{engine} cannot compute this recipe: {'; '.join(found)}.")
    return recipe


def step_advantages(recipe: Recipe, batch: RewardBatch, engine: str) -> Advantages:
    """Advantages and clip bounds of a step, one of each a rollout; on the CPU."""
    found = advantages(recipe, replace(batch, rewards_BK=batch.rewards_BK.double().cpu()))
    if found.values_B.ndim != 1:
        raise UserError(
            f"{engine} cannot compute this recipe: its advantage function gives one value a token; "
            "expected one a rollout."
        )
    return found
