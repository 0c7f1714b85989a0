"""Evaluate a model on tasks with a scorer: the corridor up to Reward, and an interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from burnish.bench.statistics import Estimate, mean_estimate
from burnish.errors import ModelError
from burnish.lm.base import LM, Completion, Sampling
from burnish.lm.failures import classify
from burnish.records import Finish, Response, Reward, Task
from burnish.rewards.scorer import Scorer, gather, score_groups


@dataclass(frozen=True)
class Evaluated:
    """One task, its completion and its reward."""

    task: Task
    completion: Completion
    reward: Reward


@dataclass(frozen=True)
class Evaluation:
    """All items, and the score over those that have a value (the decided ones)."""

    items: list[Evaluated]
    marks: list[float | None]
    """The score of each item; None where it could not be scored."""
    score: Estimate | None
    """Over the decided items; None where nothing could be scored."""

    @property
    def decided(self) -> float | None:
        """Mean over the items that have a value; None where none has."""
        return self.score.value if self.score else None

    @property
    def all(self) -> float | None:
        """Mean over all items, where one without a value counts as not right: the lower of the
        two means where values are not negative. None without items."""
        return sum(mark or 0.0 for mark in self.marks) / len(self.marks) if self.marks else None

    @property
    def valid(self) -> float | None:
        """Share of the items that have a value; None without items."""
        return sum(m is not None for m in self.marks) / len(self.marks) if self.marks else None


async def evaluate(
    lm: LM,
    tasks: Sequence[Task],
    scorer: Scorer,
    sampling: Sampling,
    *,
    part: str = "",
    deadline_s: float = 60.0,
) -> Evaluation:
    """One completion a task, scored; failures are left out of the score and counted.

    A model that fails on one task costs that task its value, with the reason in its reward; the
    others go on. `part` names the component that is the score; empty takes the total.
    """
    calls = [partial(_answered, lm, task, sampling) for task in tasks]
    asked = await gather(calls, limit=len(calls))
    answered = [
        Completion("", finish=Finish.ERROR) if isinstance(a, ModelError) else a for a in asked
    ]
    responses = [
        [Response(id=task.id, text=c.text, finish=c.finish, tokens=len(c.token_ids))]
        for task, c in zip(tasks, answered, strict=True)
    ]
    pairs = list(zip(tasks, responses, strict=True))
    rewards = await score_groups(scorer, pairs, deadline_s=deadline_s)
    items = [
        Evaluated(task, c, _failed(scorer, a) if isinstance(a, ModelError) else found[0])
        for task, a, c, found in zip(tasks, asked, answered, rewards, strict=True)
    ]
    marks = [_mark(item.reward, part) for item in items]
    values = [mark for mark in marks if mark is not None]
    return Evaluation(items, marks, mean_estimate(values) if values else None)


async def _answered(lm: LM, task: Task, sampling: Sampling) -> Completion | ModelError:
    try:
        return (await lm.sample(task.messages, sampling))[0]
    except ModelError as error:
        return error


def _failed(scorer: Scorer, error: ModelError) -> Reward:
    return Reward.failed(scorer.name, classify(error).status, str(error))


def _mark(reward: Reward, part: str) -> float | None:
    return reward.components.get(part) if part else reward.value
