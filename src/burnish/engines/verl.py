"""A scorer as verl's `compute_score`, and the two verl plug-ins that go with it.

    # my_reward.py; set reward.custom_reward_function.path=my_reward.py
    from burnish.engines import as_verl
    compute_score = as_verl(scorer)

verl knows no None: every sample gets a dict of numbers with the same keys. Where `valid` is 0
there was no verdict, and `score` is 0.0 (`missing="flag"`) or NaN (`missing="nan"`). NaN goes with
the advantage estimator `grpo_valid` of `burnish.engines.verl_pieces`, which leaves such rows out
of the group's mean and gives them 0; verl's own estimators would take the 0.0 for a bad answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Literal

from burnish.engines.bridge import Bridge
from burnish.errors import UserError
from burnish.rewards.scorer import Scorer

ComputeScore = Callable[..., Coroutine[Any, Any, dict[str, float]]]


def as_verl(
    scorer: Scorer,
    *,
    missing: Literal["flag", "nan"] = "flag",
    prompt: str = "prompt",
    **options: Any,
) -> ComputeScore:
    """`async compute_score(data_source, solution_str, ground_truth, extra_info) -> dict`.

    The ground truth is the task's `answer`; the entries of `extra_info` are its other fields, and
    the one named `prompt` (a text or messages) is what the model was asked. verl's own managers
    put no prompt there; `PromptRewardManager` does. Further options are those of `Bridge`.
    """
    if missing not in ("flag", "nan"):
        raise UserError(f"as_verl: missing is {missing!r}; expected 'flag' or 'nan'.")
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
        asked = extra.pop(prompt, "")
        fields = {"answer": ground_truth, "data_source": data_source, **extra}
        (scored,) = await bridge.score_from([bridge.item(asked, solution_str, fields)])
        value = scored.reward.value
        score = nothing if value is None else value
        return {"score": score, **bridge.numbers(scored.reward)}

    return compute_score
