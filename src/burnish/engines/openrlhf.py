"""A scorer as the reward function of OpenRLHF, which loads the file that defines it in each process.

OpenRLHF knows no None and masks nothing: a reward without a value becomes 0.0, marked by
`extra_logs["valid"]` = 0. Watch that share; with a judge that fails often, train elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from burnish.engines.bridge import Bridge, Item
from burnish.errors import UserError
from burnish.lm.base import JsonObject
from burnish.rewards.scorer import Scorer

ENDS = ("<|im_end|>", "<|eot_id|>", "<|endoftext|>", "</s>")
"""Special tokens that OpenRLHF leaves at the end of a query."""


def as_openrlhf(scorer: Scorer, **options: Any) -> Callable[..., JsonObject]:
    """`f(queries, prompts, labels) -> {"rewards", "scores", "extra_logs"}`, all tensors.

    Queries begin with their prompt; end tokens are cut from the end of the response. The label is the
    task's `answer`. Further options are those of `Bridge`.
    """
    bridge = Bridge(scorer, **options)

    def item(query: str, prompt: str, label: Any) -> Item:
        if not query.startswith(prompt):
            raise UserError(
                f"as_openrlhf: query {query[:60]!r} does not begin with its prompt {prompt[:60]!r}"
            )
        text = query[len(prompt) :]
        while found := next((end for end in ENDS if text.rstrip().endswith(end)), None):
            text = text.rstrip()[: -len(found)]
        return bridge.item(prompt, text, {"answer": label})

    def reward_func(
        queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any], **unused: Any
    ) -> JsonObject:
        import torch

        items = [item(*row) for row in zip(queries, prompts, labels, strict=True)]
        rewards = [scored.reward for scored in bridge.score_now(items)]
        values = torch.tensor([reward.value or 0.0 for reward in rewards])
        rows = [bridge.numbers(reward) for reward in rewards]
        logs = {key: torch.tensor([row[key] for row in rows]) for key in (rows[0] if rows else ())}
        return {"rewards": values, "scores": values.clone(), "extra_logs": logs}

    return reward_func
