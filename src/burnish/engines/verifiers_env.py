"""Our environments for verifiers: a taskset and an environment, which a module exports.

Games, Played = as_verifiers_env(NumberGame, tasks)     # eval my_module
__all__ = ["Games", "Played"]
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

from burnish.engines.bridge import engine
from burnish.engines.verifiers import as_verifiers_tasks, prompt_fields
from burnish.lm.base import JsonObject
from burnish.records import Message, Task
from burnish.rewards.scorer import Scorer
from burnish.rollouts import Env, Observation, Tool
from burnish.rollouts.tool import Call, TaggedForm, messages_behind
from burnish.seeds import derive


def as_verifiers_env(
    make: Callable[[], Env], tasks: Sequence[Task], *scorers: Scorer, **options: Any
) -> tuple[Any, Any]:
    """The `vf.Taskset` of our tasks, and a `vf.Env` whose one agent plays our environment.

    Its rewards are the trace's, beside those of the scorers. Our tools are offered as text and
    carried out here; the agent's own harness is `null`, which has none.
    """
    vf = engine("verifiers.v1")
    by_id, calls = {task.id: task for task in tasks}, count()

    async def run(self: Any, task: Any, agents: Any) -> None:
        seed = derive(task.data.id, next(calls))
        await _play(make(), by_id[task.data.id], seed, task, agents.agent)

    def config(names: JsonObject) -> None:
        names["__annotations__"] = {"agent": vf.AgentConfig}
        # A chat loop without tools of its own runs nothing that a model wrote.
        names["agent"] = vf.AgentConfig(harness={"id": "null"}, runtime={"type": "subprocess"})

    settings = types.new_class("BurnishEnvConfig", (vf.EnvConfig,), exec_body=config)
    played = types.new_class(
        "BurnishEnv", (vf.Env[settings],), exec_body=lambda names: names.update(run=run)
    )
    return as_verifiers_tasks(tasks, *scorers, **options), played


async def _play(env: Env, own: Task, seed: int, task: Any, agent: Any) -> None:
    seen = await env.reset(own, seed)
    tools = {tool.name: tool for tool in env.tools}
    form = TaggedForm(list(env.tools))
    opening = messages_behind(form, seen.messages or own.messages)
    data = {**task.data.model_dump(), **prompt_fields(form.opening(opening) if tools else opening)}
    rewards = dict(seen.rewards)
    async with agent.interaction(type(task)(type(task.data)(**data), task.config)) as talk:
        segment = await talk.turn()
        while not (seen.done or segment.terminated):
            seen = await _step(env, tools, form, segment.last_reply)
            _add(rewards, seen.rewards)
            if not seen.done:
                shown = messages_behind(form, seen.messages)
                segment = await talk.turn("\n\n".join(one.text for one in shown))
        # An environment with a `cut` says what an unfinished rollout is worth.
        if not seen.done and (cut := getattr(env, "cut", None)):
            _add(rewards, (await cut()).rewards)
    for name, value in rewards.items() if talk.trace.ok else ():
        talk.trace.record_reward(name, value)


async def _step(env: Env, tools: Mapping[str, Tool], form: TaggedForm, text: str) -> Observation:
    calls = form.parse(text) if tools else []
    own = [tools[call.name] for call in calls if not call.problem and call.name in tools]
    if not calls or any(tool.function is None for tool in own):  # the environment's to carry out
        said = tuple(call.as_dict() for call in calls)
        return await env.step(Message("assistant", text, tool_calls=said))
    results = [await _called(call, tools) for call in calls]
    return Observation([Message("tool", text, name=name or None) for name, text in results])


async def _called(call: Call, tools: Mapping[str, Tool]) -> tuple[str, str]:
    if call.problem or call.name not in tools:
        return call.name, f"Error: {call.problem or 'no tool of this name'}"
    return call.name, (await tools[call.name].call(call.arguments)).text


def _add(total: dict[str, float], more: Mapping[str, float]) -> None:
    for name, value in more.items():
        total[name] = total.get(name, 0.0) + value
