"""Evaluate a model on tasks with a scorer: the corridor up to Reward, and an interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from burnish.bench.statistics import Estimate, mean_estimate
from burnish.lm.base import LM, Completion, Sampling
from burnish.records import Response, Reward, Task
from burnish.rewards.scorer import Scorer, gather, score_groups


@dataclass(frozen=True)
class Evaluated:
    """One task, its completion and its reward."""

    task: Task
    completion: Completion
    reward: Reward


@dataclass(frozen=True)
class Evaluation:
    """All items, and the score over those that have a value."""

    items: list[Evaluated]
    marks: list[float | None]
    """The score of each item; None where it could not be scored."""
    score: Estimate | None
    """None where nothing could be scored."""


async def evaluate(
    lm: LM,
    tasks: Sequence[Task],
    scorer: Scorer,
    sampling: Sampling,
    *,
    part: str = "",
    deadline_s: float = 60.0,
) -> Evaluation:
    """One completion a task, scored; failures are left out of the mean and counted.

    `part` names the component that is the score; empty takes the total.
    """
    calls = [partial(lm.sample, task.messages, sampling) for task in tasks]
    answered = [completions[0] for completions in await gather(calls, limit=len(calls))]
    responses = [
        [Response(id=task.id, text=c.text, finish=c.finish, tokens=len(c.token_ids))]
        for task, c in zip(tasks, answered, strict=True)
    ]
    pairs = list(zip(tasks, responses, strict=True))
    rewards = await score_groups(scorer, pairs, deadline_s=deadline_s)
    items = [
        Evaluated(task, c, found[0])
        for task, c, found in zip(tasks, answered, rewards, strict=True)
    ]
    marks = [_mark(item.reward, part) for item in items]
    values = [mark for mark in marks if mark is not None]
    return Evaluation(items, marks, mean_estimate(values) if values else None)


def _mark(reward: Reward, part: str) -> float | None:
    return reward.components.get(part) if part else reward.value
