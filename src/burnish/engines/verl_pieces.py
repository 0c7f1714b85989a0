"""Plug-ins for verl: a reward manager that passes the prompt, an estimator that skips missing rewards.

    VERL_USE_EXTERNAL_MODULES=burnish.engines.verl_pieces    # registers both, in every process
    reward.reward_manager.name=burnish_prompt  algorithm.adv_estimator=grpo_valid

Importing this module imports verl. The manager is verl's naive one; it adds the chat messages of
the prompt to `extra_info`, without which a judge would see an answer and no question.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy

from burnish.engines.verl_recipe import recipe_advantage
from burnish.lm.base import JsonObject
from burnish.policy import Recipe, SumThenNormalise

_managers: Any = importlib.import_module("verl.experimental.reward_loop.reward_manager")
_algorithms: Any = importlib.import_module("verl.trainer.ppo.core_algos")


@_managers.register("burnish_prompt")
class PromptRewardManager(_managers.NaiveRewardManager):  # type: ignore[misc]
    """verl's naive manager, with `extra_info["prompt"]` set to the messages that were asked."""

    async def run_single(self, data: Any) -> JsonObject:
        item = data[-1:]
        asked = item.non_tensor_batch.get("raw_prompt")
        if asked is not None:
            extra = item.non_tensor_batch.get("extra_info")
            known = dict(extra[0]) if extra is not None and extra[0] else {}
            box = numpy.empty(1, dtype=object)  # as verl keeps one object
            box[0] = {**known, "prompt": list(asked[0])}
            item.non_tensor_batch["extra_info"] = box
        result: JsonObject = await super().run_single(item)
        return result


@_algorithms.register_adv_est("grpo_valid")  # type: ignore[untyped-decorator]
def grpo_valid(*given: Any, config: Any = None, **named: Any) -> tuple[Any, Any]:
    """GRPO's advantage over the rows that have a reward; a row whose reward is NaN gets 0."""
    is_scaled = config is None or config.get("norm_adv_by_std_in_grpo", True)
    rule = SumThenNormalise(scale="group_std" if is_scaled else "none")
    return recipe_advantage(Recipe(advantage=rule), *given, **named)
