"""The skill as a reward in training: one async function of the verl shape, failures masked.

    compute_score = score_function(scorer)
    await compute_score("ifeval", text, ground_truth, {"prompt": "...", "index": 7})
    # {"score": 0.75, "valid": 1.0, "satisfied": 3.0, "total": 4.0, "steps": 4.0, ...}

A judgement that failed has `valid` 0 and the score NaN: a trainer must leave that sample out of its
group (advantage 0), and one that forgets to is stopped by its first NaN instead of learning from a
made-up number. The published code returns 0.5. For other scorers, and for verl's own pieces, there
is `burnish.engines.as_verl`: the same shape, whose failures have `valid` 0 too and the score 0.0, or
NaN as here with `missing="nan"`. This one adds the skill's counts. `verified` is the same reward without a model, for a
recipe.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from typing import Any

from burnish.errors import UserError
from burnish.records import Message, Response, Reward, Task, Visibility
from burnish.rewards.judges.skill_rm.checks import SkillChecks
from burnish.rewards.judges.skill_rm.package import load_skill
from burnish.rewards.scorer import Scope, Scorer, checked
from burnish.seeds import digest

COUNTERS = ("steps", "refused", "oracle", "prompt_tokens", "completion_tokens")
ScoreFunction = Callable[..., Awaitable[dict[str, float]]]


def score_function(
    scorer: Scorer, *, deadline_s: float = 300.0, failed: float = math.nan
) -> ScoreFunction:
    """`compute_score(data_source, solution_str, ground_truth, extra_info, **kw)` for a scorer.

    `extra_info` holds `prompt` (text or messages) and any field that the scorer needs; the ground
    truth becomes the field `answer`, which no judge sees unless a resource declares it. `failed`
    stands in `score` where `valid` is 0, for trainers that cannot carry a NaN as far as their mask.
    """
    if scorer.scope is not Scope.POINT:
        raise UserError(
            f"reward '{scorer.name}' has scope {scorer.scope.value}; expected point. "
            "Wrap a pair judge in Anchor."
        )

    async def compute_score(
        data_source: str,
        solution_str: str,
        ground_truth: Any,
        extra_info: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> dict[str, float]:
        task = _task(data_source, ground_truth, extra_info or {})
        response = Response(digest(task.id, solution_str), solution_str)
        (reward,) = await checked(scorer, task, [response], deadline_s=deadline_s)
        return flat(reward, failed)

    return compute_score


def flat(reward: Reward, failed: float = math.nan) -> dict[str, float]:
    """A reward as plain numbers, the same keys for every sample."""
    known = [verdict.value for verdict in reward.verdicts if verdict.value is not None]
    told = _summary(reward)
    oracle = sum(one.visibility is Visibility.ORACLE for one in reward.evidence)
    return {
        "score": failed if reward.value is None else reward.value,
        "valid": float(reward.value is not None),
        "satisfied": float(sum(value >= 1 for value in known)),
        "total": float(len(known)),
        "tool_calls": float(sum(one.source.startswith("tool:") for one in reward.evidence)),
        **{name: float(told.get(name, 0)) for name in COUNTERS},
        "oracle": float(oracle),
    }


def _summary(reward: Reward) -> dict[str, Any]:
    first = next((one for one in reward.evidence if one.source == "skill_rm"), None)
    told: dict[str, Any] = json.loads(first.observation) if first else {}
    return told


def _task(source: str, ground_truth: Any, extra: Mapping[str, Any]) -> Task:
    prompt = extra.get("prompt", "")
    messages: tuple[Message, ...]
    if isinstance(prompt, str):
        messages = (Message("user", prompt),)
    elif isinstance(prompt, list | tuple):
        messages = tuple(Message(str(turn["role"]), str(turn["content"])) for turn in prompt)
    else:
        raise UserError(
            f"extra_info['prompt'] is {type(prompt).__name__}; expected text or messages"
        )
    fields = {key: value for key, value in extra.items() if key not in ("prompt", "index")}
    if ground_truth is not None:
        fields["answer"] = ground_truth
    index = extra.get("index")
    name = f"{source}/{index}" if index is not None else f"{source}/{digest(repr(messages))}"
    return Task(name, messages, fields)


async def verified(
    task: Task,
    response: Response,
    skill: str = "instruction_following",
    only: Sequence[str] = (),
) -> Reward:
    """A skill's verifiers as a reward of `kind = "function"`: counts, caps and vetoes, no model."""
    (reward,) = await _checks(skill, tuple(only)).score(task, [response])
    return reward


@cache
def _checks(skill: str, only: tuple[str, ...]) -> SkillChecks:
    return SkillChecks(load_skill(skill), only=only)
