"""A scorer as the reward function of OpenRLHF and verl, and as a scorer of inspect_ai.

OpenRLHF knows no None and masks nothing: a reward without a value becomes 0.0, marked by
`extra_logs["valid"]` = 0. Watch that share; with a judge that fails often, train elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from burnish.engines.bridge import Bridge, Item, pointwise
from burnish.errors import UserError
from burnish.lm.base import JsonObject
from burnish.rewards.scorer import Scorer

ENDS = ("<|im_end|>", "<|eot_id|>", "<|endoftext|>", "</s>")
"""Special tokens that OpenRLHF leaves at the end of a query."""


class _Made:
    """The bridge of this process, made when it is first used and never sent anywhere.

    OpenRLHF sends the function to other processes, so the scorer may come as a function that makes it.
    """

    def __init__(self, scorer: Scorer | Callable[[], Scorer], options: JsonObject) -> None:
        self._scorer, self._options = scorer, options

    def __getstate__(self) -> JsonObject:
        return {"_scorer": self._scorer, "_options": self._options}

    @cached_property
    def bridge(self) -> Bridge:
        scorer = self._scorer if isinstance(self._scorer, Scorer) else self._scorer()
        return Bridge(scorer, **self._options)


def as_openrlhf(scorer: Scorer | Callable[[], Scorer], **options: Any) -> Callable[..., JsonObject]:
    """`f(queries, prompts, labels) -> {"rewards", "scores", "extra_logs"}`, all tensors.

    Queries begin with their prompt; end tokens are cut from the end of the response. The label is the
    task's `answer`. Further options are those of `Bridge`.
    """
    made = _Made(scorer, options)
    if isinstance(scorer, Scorer):
        pointwise(scorer, options.get("anchor"))

    def item(query: str, prompt: str, label: Any) -> Item:
        if not query.startswith(prompt):
            raise UserError(
                f"as_openrlhf: query {query[:60]!r} does not begin with its prompt {prompt[:60]!r}"
            )
        text = query[len(prompt) :]
        while found := next((end for end in ENDS if text.rstrip().endswith(end)), None):
            text = text.rstrip()[: -len(found)]
        return made.bridge.item(prompt, text, {"answer": label})

    def reward_func(
        queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any], **unused: Any
    ) -> JsonObject:
        import torch

        bridge = made.bridge
        items = [item(*row) for row in zip(queries, prompts, labels, strict=True)]
        rewards = [scored.reward for scored in bridge.score_now(items)]
        values = torch.tensor([0.0 if r.value is None else r.value for r in rewards])
        rows = [bridge.numbers(reward) for reward in rewards]
        logs = {key: torch.tensor([row[key] for row in rows]) for key in (rows[0] if rows else ())}
        return {"rewards": values, "scores": values.clone(), "extra_logs": logs}

    return reward_func
