"""A scorer as the reward function of verl: `reward.custom_reward_function`."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Literal

from burnish.arguments import as_word
from burnish.engines.bridge import Bridge
from burnish.rewards.scorer import Scorer


def as_verl(
    scorer: Scorer, *, missing: Literal["flag", "nan"] = "flag", **options: Any
) -> Callable[..., Coroutine[Any, Any, dict[str, float]]]:
    """`async compute_score(data_source, solution_str, ground_truth, extra_info) -> dict`.

    The ground truth is the task's `answer`, the entries of `extra_info` are its other fields; the
    one named `prompt`, which `burnish_prompt` puts there, is what the model was asked. Further
    options are those of `Bridge`.
    """
    as_word("missing", missing, ("flag", "nan"))
    bridge = Bridge(scorer, **options)
    nothing = math.nan if missing == "nan" else 0.0

    async def compute_score(
        data_source: str,
        solution_str: str,
        ground_truth: Any,
        extra_info: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> dict[str, float]:
        extra = dict(extra_info or {})
        asked = extra.pop("prompt", "")
        fields = {"answer": ground_truth, "data_source": data_source, **extra}
        (scored,) = await bridge.score_from([bridge.item(asked, solution_str, fields)])
        value = scored.reward.value
        return {"score": nothing if value is None else value, **bridge.numbers(scored.reward)}

    return compute_score
