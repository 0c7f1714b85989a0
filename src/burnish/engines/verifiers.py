"""A scorer as a reward of verifiers: a method of a v1 task, or a function of a legacy rubric.

    class Sums(vf.Task):                                  # verifiers.v1
        correct = as_verifiers(scorer)

    rubric = as_verifiers(scorer)                         # verifiers 0.1: a Rubric

v1 has a word for "not scored": an error while scoring leaves `trace.rewards[name]` None and marks
the trace as failed, so a reward without a value raises `RewardError` there. A legacy rubric turns
errors into 0.0; beside its 0.0 stands a second function, `NAME_valid`, with weight 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any

import anyio

from burnish.engines.bridge import Bridge, engine, missing
from burnish.errors import RewardError
from burnish.records import Finish
from burnish.rewards.scorer import Scorer


def as_verifiers(scorer: Scorer, *, weight: float = 1.0, **options: Any) -> Any:
    """A v1 reward `(trace, task) -> float`, decorated with `vf.reward(weight)`: a task's method, or
    a function that its config plugs in. It is called after the task's attribute, elsewhere after
    the scorer. Without `verifiers.v1`, a legacy `Rubric`.

    The task data's own fields are the task's fields. Further options are those of `Bridge`.
    """
    try:
        reward = engine("verifiers.v1").reward
    except ModuleNotFoundError as error:
        if error.name != "verifiers.v1":
            raise
        rubric = engine("verifiers").Rubric
        return rubric(funcs=legacy_functions(scorer, **options), weights=[weight, 0.0])
    return reward(weight=weight)(_Reward(Bridge(scorer, **options)))


class _Reward:
    """A reward of a v1 task, called after the attribute that holds it; else after its scorer.

    verifiers keeps rewards by the name of their function. Two scorers may have the same name, such
    as two totals, and of two functions with one name it would run one.
    """

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self.__name__ = self.__qualname__ = bridge.name

    def __set_name__(self, owner: type, name: str) -> None:
        # A copy: the same reward may stand in two tasks under two names.
        own = copy(self)
        own.__name__, own.__qualname__ = name, f"{owner.__qualname__}.{name}"
        setattr(owner, name, own)

    async def __call__(self, *, trace: Any, task: Any) -> float:
        bridge = self._bridge
        finish = Finish.LENGTH if trace.is_truncated else Finish.STOP
        item = bridge.item(_asked(task), trace.last_reply, _fields(task), finish=finish)
        (scored,) = await bridge.score_from([item])
        trace.info.setdefault("burnish", {})[self.__name__] = {
            "trace": scored.key,
            "status": scored.reward.status.value,
            **bridge.numbers(scored.reward),
        }
        if scored.reward.value is None:
            raise RewardError(missing(scored.reward))
        return scored.reward.value


def legacy_functions(scorer: Scorer, **options: Any) -> list[Callable[..., Any]]:
    """Two functions for a legacy `Rubric`: the reward (weight 1) and `NAME_valid` (weight 0).

    A rubric may call them in turn or at once: the flag waits for the reward of the same rollout.
    """
    bridge = Bridge(scorer, **options)
    notes = f"burnish_{bridge.name}"

    async def reward(
        prompt: Any, completion: Any, answer: Any, state: dict[str, Any], **given: Any
    ) -> float:
        info = given.get("info") or state.get("info") or {}
        fields = {"answer": answer, **(info if isinstance(info, Mapping) else {})}
        (scored,) = await bridge.score_from([bridge.item(prompt, completion, fields)])
        state[notes] = {"trace": scored.key, **bridge.numbers(scored.reward)}
        return 0.0 if scored.reward.value is None else scored.reward.value

    async def valid(state: dict[str, Any]) -> float:
        with anyio.move_on_after(bridge.deadline_s):
            while notes not in state:  # noqa: ASYNC110  the state is a rubric's plain dict
                await anyio.sleep(0.01)
        return float(state[notes]["valid"]) if notes in state else 0.0

    reward.__name__, valid.__name__ = bridge.name, f"{bridge.name}_valid"
    reward.__qualname__, valid.__qualname__ = reward.__name__, valid.__name__
    return [reward, valid]


_OWN = frozenset({"idx", "prompt", "system_prompt", "timeout", "resources"})


def _fields(task: Any) -> dict[str, Any]:
    """The task data's fields that hold something, without the prompt and verifiers' own."""
    dumped: dict[str, Any] = task.model_dump(mode="json", exclude_defaults=True)
    return {key: value for key, value in dumped.items() if key not in _OWN and value is not None}


def _asked(task: Any) -> list[Any]:
    system = [{"role": "system", "content": task.system_prompt}] if task.system_prompt else []
    prompt = task.prompt or ""
    rest = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    return [*system, *rest]
