"""From a task to trajectories: one coroutine per task, whatever game it plays.

A rollout may call the model many times and return several roles; concurrent calls of all tasks
meet in the model's batch. `single_turn` is the plain case: one prompt, n answers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol, runtime_checkable

import msgspec

from burnish.errors import ModelError
from burnish.lm.base import LM, Completion, Sampling
from burnish.records import Author, Message, Span, Task, Trajectory
from burnish.rewards.scorer import gather
from burnish.seeds import derive

Rollout = Callable[[Task, LM, Sampling], Awaitable[list[Trajectory]]]
"""All rollouts of one task: the sampling's `n`, its seed already that of the task."""


@runtime_checkable
class KnowsAuthors(Protocol):
    """A model that can say which prompt tokens its chat template wrote."""

    def prompt_spans(self, messages: Sequence[Message]) -> tuple[Span, ...]: ...


Slot = tuple[int, Task]
"""A task and its place in the step."""


async def single_turn(task: Task, lm: LM, sampling: Sampling) -> list[Trajectory]:
    """One prompt, `n` completions; a trajectory each."""
    prompt = lm.prompt_spans(task.messages) if isinstance(lm, KnowsAuthors) else ()
    ids = [token for span in prompt for token in span.token_ids]
    completions = await lm.sample(ids or task.messages, sampling)
    return [to_trajectory(task, c, i, lm.name, prompt) for i, c in enumerate(completions)]


def to_trajectory(
    task: Task, completion: Completion, index: int, model: str, prompt: tuple[Span, ...] = ()
) -> Trajectory:
    """The sampled tokens as a trajectory; refuses a backend that did not return token ids."""
    if not completion.token_ids or not completion.prompt_ids:
        raise ModelError(
            f"model '{model}' returned no token ids for task {task.id}; training needs the "
            "tokens that were sampled. Use an in-process model or a server that returns them."
        )
    return Trajectory(
        id=f"{task.id}.{index}",
        task_id=task.id,
        group=task.id,
        spans=(
            *(prompt or (Span(Author.PROMPT, completion.prompt_ids),)),
            Span(Author.MODEL, completion.token_ids, completion.logprobs, trainable=True),
        ),
        text=completion.text,
        finish=completion.finish,
    )


async def roll_out(
    slots: Sequence[Slot], lm: LM, sampling: Sampling, rollout: Rollout, seed: int
) -> list[list[Trajectory]]:
    """Run every task's rollout at once; results in the order of the slots.

    A task's seed comes from the step's seed and its slot, so company and timing change nothing.
    """

    async def one(slot: int, task: Task) -> list[Trajectory]:
        own = msgspec.structs.replace(sampling, seed=derive(seed, slot))
        return await rollout(task, lm, own)

    calls = [partial(one, slot, task) for slot, task in slots]
    return await gather(calls, limit=len(calls))
