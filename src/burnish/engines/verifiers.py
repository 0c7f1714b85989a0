"""Rewards and tasks for verifiers: its v1, which is all of 0.4.

An error while scoring leaves `trace.rewards[name]` None there and marks the trace as failed: a reward
without a value raises `RewardError`.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from copy import copy
from typing import Any

from burnish.engines.bridge import LABELS, Bridge, engine, missing
from burnish.errors import RewardError, UserError
from burnish.lm.base import JsonObject
from burnish.records import Finish, Message, Task
from burnish.rewards.scorer import Scorer


def as_verifiers(scorer: Scorer, *, weight: float = 1.0, **options: Any) -> Any:
    """A reward `(trace, task) -> float`, decorated with `vf.reward(weight)`: a task's method, or a
    function that its config plugs in. It is called after the task's attribute, elsewhere after the
    scorer.

    The task data's own fields are the task's fields. Further options are those of `Bridge`.
    """
    vf = engine("verifiers.v1")
    return vf.reward(weight=weight)(
        _Reward(Bridge(scorer, **options), set(vf.TaskData.model_fields))
    )


class _Reward:
    """A reward of a task, called after the attribute that holds it; else after its scorer."""

    def __init__(self, bridge: Bridge, theirs: set[str]) -> None:
        self._bridge, self._theirs = bridge, theirs - {"id"}
        self.__name__ = self.__qualname__ = bridge.name

    def __set_name__(self, owner: type, name: str) -> None:
        # A copy: the same reward may stand in two tasks under two names.
        own = copy(self)
        own.__name__, own.__qualname__ = name, f"{owner.__qualname__}.{name}"
        setattr(owner, name, own)

    async def __call__(self, *, trace: Any, task: Any) -> float:
        bridge = self._bridge
        finish = Finish.LENGTH if trace.is_truncated else Finish.STOP
        dumped = task.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
        fields = {key: value for key, value in dumped.items() if key not in self._theirs}
        item = bridge.item(_asked(task), trace.last_reply, fields, finish=finish)
        (scored,) = await bridge.score_from([item])
        trace.info.setdefault("burnish", {})[self.__name__] = {
            "trace": scored.key,
            "status": scored.reward.status.value,
            **bridge.numbers(scored.reward),
        }
        if scored.reward.value is None:
            raise RewardError(missing(scored.reward))
        return scored.reward.value


def _asked(task: Any) -> list[Any]:
    system = [{"role": "system", "content": task.system_prompt}] if task.system_prompt else []
    prompt = task.prompt or ""
    rest = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    return [*system, *rest]


def as_verifiers_tasks(tasks: Sequence[Task], *scorers: Scorer, **options: Any) -> Any:
    """A `vf.Taskset` class of our tasks, for a module's `__all__`; each scorer is a reward.

    Options are those of `Bridge`.
    """
    vf = engine("verifiers.v1")
    labels = {*options.pop("labels", LABELS), *(name for task in tasks for name in task.labels)}
    rewards = {s.name: as_verifiers(s, labels=tuple(labels), **options) for s in scorers}
    taken = {key for task in tasks for key in task.fields} & set(vf.TaskData.model_fields)
    if taken:
        raise UserError(
            f"a task has the field '{min(taken)}', a name of verifiers' own; rename it."
        )
    bases = (vf.Task[vf.WireTaskData],)
    kind = types.new_class("BurnishTask", bases, exec_body=lambda names: names.update(rewards))

    def load(self: Any) -> list[Any]:
        given = ({**task.fields, **prompt_fields(task.messages), "id": task.id} for task in tasks)
        return [kind(vf.WireTaskData(**one), self.config.task) for one in given]

    bases = (vf.Taskset[kind, vf.TasksetConfig],)
    return types.new_class("BurnishTasks", bases, exec_body=lambda names: names.update(load=load))


def prompt_fields(messages: Sequence[Message]) -> JsonObject:
    """A conversation as verifiers' task data has it."""
    system = [one.text for one in messages if one.role == "system"]
    rest = [{"role": one.role, "content": one.text} for one in messages if one.role != "system"]
    return {"prompt": rest or None, "system_prompt": "\n\n".join(system) or None}
