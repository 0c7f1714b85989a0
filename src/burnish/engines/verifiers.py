"""Rewards and environments, to and from verifiers.

v1 has a word for "not scored": an error while scoring leaves `trace.rewards[name]` None and marks
the trace as failed, so a reward without a value raises `RewardError` there. A legacy rubric turns
errors into 0.0; beside its 0.0 stands a second function, `NAME_valid`, with weight 0.
"""

from __future__ import annotations

import contextlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any

import anyio

from burnish.engines.bridge import Bridge, as_messages, engine, missing
from burnish.errors import RewardError, UserError
from burnish.lm.base import JsonObject, chat_message
from burnish.records import Finish, Message, Task
from burnish.rewards.scorer import Scorer
from burnish.rollouts import Env, Observation, Tool
from burnish.seeds import derive


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
    """A reward of a v1 task, called after the attribute that holds it; else after its scorer."""

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
        # The task data's fields that hold something, without the prompt and verifiers' own.
        dumped = task.model_dump(mode="json", exclude_defaults=True)
        fields = {k: v for k, v in dumped.items() if k not in _OWN and v is not None}
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


def legacy_functions(scorer: Scorer, **options: Any) -> list[Callable[..., Any]]:
    """Two functions for a legacy `Rubric`: the reward (weight 1) and `NAME_valid` (weight 0)."""
    bridge = Bridge(scorer, **options)
    notes = f"burnish_{bridge.name}"

    async def reward(
        prompt: Any, completion: Any, answer: Any, state: JsonObject, **given: Any
    ) -> float:
        info = given.get("info") or state.get("info") or {}
        fields = {"answer": answer, **(info if isinstance(info, Mapping) else {})}
        (scored,) = await bridge.score_from([bridge.item(prompt, completion, fields)])
        state[notes] = {"trace": scored.key, **bridge.numbers(scored.reward)}
        return 0.0 if scored.reward.value is None else scored.reward.value

    async def valid(state: JsonObject) -> float:
        with anyio.move_on_after(bridge.deadline_s):
            while notes not in state:  # noqa: ASYNC110  the state is a rubric's plain dict
                await anyio.sleep(0.01)
        return float(state[notes]["valid"]) if notes in state else 0.0

    reward.__name__, valid.__name__ = bridge.name, f"{bridge.name}_valid"
    reward.__qualname__, valid.__qualname__ = reward.__name__, valid.__name__
    return [reward, valid]


_OWN = frozenset({"idx", "prompt", "system_prompt", "timeout", "resources"})


def _asked(task: Any) -> list[Any]:
    system = [{"role": "system", "content": task.system_prompt}] if task.system_prompt else []
    prompt = task.prompt or ""
    rest = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    return [*system, *rest]


# --- environments


class VerifiersEnv:
    """A `MultiTurnEnv` of verifiers 0.1 as an `Env`; its rubric's numbers are the rewards.

    A task brings the row: its messages are the prompt, its fields `answer`, `info` and `task` go by
    the same names. Tools are executed by the environment itself.
    """

    def __init__(self, env: Any) -> None:
        if not hasattr(env, "env_response"):
            raise UserError(
                f"{type(env).__name__} has no env_response; expected a MultiTurnEnv of verifiers."
            )
        self.env = env
        self.tools = [Tool.offered(schema) for schema in getattr(env, "oai_tools", None) or ()]
        self.state: JsonObject = {}

    async def reset(self, task: Task, seed: int) -> Observation:
        prompt = [_as_dict(message) for message in task.messages]
        row = {
            "prompt": prompt,
            "answer": task.fields.get("answer", ""),
            "task": task.fields.get("task", task.source),
            "info": task.fields.get("info", {}),
            "example_id": task.id,
        }
        times = {"generation_ms": 0.0, "scoring_ms": 0.0, "total_ms": 0.0}
        self.state = {
            **row,
            "input": row,
            "completion": [],
            "responses": [],
            "trajectory": [],
            "turn": 0,
            "id": task.id,
            "timing": times,
        }
        self.state = await _given(self.env.setup_state, state=self.state) or self.state
        done = await self._is_completed()
        return Observation(as_messages(self.state["prompt"]), done, await self._rewards(done))

    async def step(self, reply: Message) -> Observation:
        said = _as_dict(reply)
        before = [*self.state["prompt"], *self.state["completion"]]
        self.state["completion"].append(said)
        self.state["trajectory"].append({"prompt": before, "completion": [said]})
        self.state["turn"] += 1
        if await self._is_completed():
            return Observation(done=True, rewards=await self._rewards(True))
        found = await _given(self.env.env_response, messages=[*before, said], state=self.state)
        messages, self.state = found if isinstance(found, tuple) else (found, self.state)
        self.state["completion"] += messages
        done = bool(self.state.get("final_env_response"))
        return Observation(as_messages(messages), done, await self._rewards(done))

    async def cut(self) -> Observation:
        """A limit of ours ended the rollout: it is scored as it stands."""
        return Observation(done=True, rewards=await self._rewards(True))

    async def _is_completed(self) -> bool:
        messages = [*self.state["prompt"], *self.state["completion"]]
        return bool(await _given(self.env.is_completed, messages=messages, state=self.state))

    async def _rewards(self, done: bool) -> dict[str, float]:
        if not done:
            return {}
        scored = await _given(
            self.env.rubric.score_rollout,
            **{key: self.state[key] for key in ("prompt", "completion", "answer", "task", "info")},
            state=self.state,
            example_id=self.state["example_id"],
            score_sem=contextlib.AsyncExitStack(),
        )
        found = vars(scored) if scored else self.state
        if found.get("reward") is None:
            raise RewardError("the rubric of verifiers gave no reward")
        return {**(found.get("metrics") or {}), "reward": found["reward"]}


def as_verifiers_env(make: Callable[[], Env], tasks: Sequence[Task], **options: Any) -> Any:
    """A `MultiTurnEnv` of verifiers 0.1 that plays our environment; `options` are its own.

    Without `rubric=`, the sum of the environment's rewards is the reward. Our tools are offered and
    carried out; their failures are tool messages.
    """
    vf = engine("verifiers")
    by_id = {task.id: task for task in tasks}
    rows = [
        {
            "prompt": [_as_dict(message) for message in task.messages],
            "answer": str(task.fields.get("answer", "")),
            "info": {"burnish_task": task.id},
        }
        for task in tasks
    ]

    class BurnishEnv(vf.MultiTurnEnv):  # type: ignore[misc, name-defined]
        """Our environment; the rollout's own stands in the state."""

        async def setup_state(self, state: JsonObject, **_: Any) -> JsonObject:
            task = by_id[state["info"]["burnish_task"]]
            env = make()
            opening = await env.reset(task, derive(task.id, state.get("id", "")))
            state["burnish"] = _Played(env, opening)
            if opening.messages:
                state["prompt"] = [_as_dict(message) for message in opening.messages]
            return state

        async def is_completed(self, *given: Any, **named: Any) -> bool:
            state = named.get("state") or next(g for g in reversed(given) if isinstance(g, dict))
            return await state["burnish"].look(state)  # type: ignore[no-any-return]

        async def env_response(
            self, messages: Any, state: JsonObject, **_: Any
        ) -> tuple[list[JsonObject], JsonObject]:
            return [_as_dict(m) for m in state["burnish"].seen.messages], state

    async def environment_reward(state: JsonObject, **_: Any) -> float:
        """The sum of what our environment gave."""
        return float(sum(state["burnish"].rewards.values()))

    options.setdefault("rubric", vf.Rubric(funcs=[environment_reward], weights=[1.0]))
    if tools := [tool.schema for tool in make().tools]:
        options["oai_tools"] = tools
    return BurnishEnv(dataset=engine("datasets").Dataset.from_list(rows), **options)


class _Played:
    def __init__(self, env: Env, opening: Observation) -> None:
        self.env, self.seen, self.replies = env, opening, 0
        self.rewards: dict[str, float] = dict(opening.rewards)

    async def look(self, state: Mapping[str, Any]) -> bool:
        """Take the step for a reply that is new; True when the game is over."""
        said = [m for m in state["completion"] if m["role"] == "assistant"]
        said = said or [m for one in state.get("trajectory", ()) for m in one["completion"]]
        if len(said) > self.replies:
            self.replies = len(said)
            self.seen = await self._step(said[-1])
            for name, value in self.seen.rewards.items():
                self.rewards[name] = self.rewards.get(name, 0.0) + value
        return self.seen.done

    async def _step(self, said: Mapping[str, Any]) -> Observation:
        calls = said.get("tool_calls") or ()
        tools = {tool.name: tool for tool in self.env.tools if tool.function is not None}
        named = [tools.get(call["function"]["name"]) for call in calls]
        if not calls or None in named:
            reply = Message("assistant", said.get("content") or "", tool_calls=tuple(calls))
            return await self.env.step(reply)
        results = []
        for call, tool in zip(calls, filter(None, named), strict=True):
            found = await tool.call(_arguments(call))
            results.append(Message("tool", found.text, name=tool.name))
        return Observation(tuple(results))


def _arguments(call: Mapping[str, Any]) -> JsonObject:
    given = call["function"].get("arguments") or {}
    try:
        found = json.loads(given) if isinstance(given, str) else given
    except ValueError:
        return {"": given}
    return found if isinstance(found, dict) else {"": found}


def _as_dict(message: Message) -> JsonObject:
    """A message as OpenAI writes it; arguments are JSON texts there."""
    shown = chat_message(message, message.content)
    for place, call in enumerate(message.tool_calls):
        function = dict(call["function"])
        function["arguments"] = json.dumps(function.get("arguments", {}))
        shown["tool_calls"][place] = {"id": f"call_{place}", **call, "function": function}
    return shown


async def _given(function: Callable[..., Any], **arguments: Any) -> Any:
    """Call with those of the arguments that the function takes; versions of verifiers differ."""
    parameters = inspect.signature(function).parameters
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    chosen = {k: v for k, v in arguments.items() if k in parameters or takes_all}
    found = function(**chosen)
    return await found if inspect.isawaitable(found) else found
