"""Multi-turn rollouts in an environment, with tools, or by a function of your own.

Every rollout has its own environment. Calls of tools that have a function are carried out
here, within their limits, and their results are observed; every other reply goes to `step`. A tool
that fails is an observation, an environment that fails is a rollout with a status.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from burnish.boundary import Call as Arguments, Name, Number, PositiveInt, Seconds, Settings, reader
from burnish.concurrency import gather
from burnish.errors import ArgumentError, RolloutError, UserError, did_you_mean
from burnish.lm.base import JsonObject
from burnish.memory import is_kept
from burnish.records import Message, Task
from burnish.rollouts.base import (
    FileOptions,
    MultiTurnSettings,
    Options,
    Players,
    Rollout,
    StepGame,
    foreign,
    play_all,
)
from burnish.rollouts.session import LimitReached, Session, renderer_of
from burnish.rollouts.tool import Call, TaggedForm, Tool, ToolForm, ToolResult, tool_form
from burnish.source import describe, find_function


@dataclass(frozen=True)
class Observation:
    messages: Sequence[Message] = ()
    """After `reset` the whole opening conversation; empty: the task's messages."""
    done: bool = False
    rewards: Mapping[str, float] = field(default_factory=dict)
    """By name; those of all steps are added up. The reward `env` reads them."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """Further JSON-able facts, kept with the trajectory."""


class Env(Protocol):
    @property
    def tools(self) -> Sequence[Tool]: ...

    async def reset(self, task: Task, seed: int) -> Observation: ...

    async def step(self, reply: Message) -> Observation:
        """React to a reply; `reply.tool_calls` are those of tools without a function.

        An environment may also have `async def cut(self) -> Observation`: it is called where a
        limit ends the rollout, and its rewards count.
        """
        ...


class ToolEnv:
    """Tools and nothing else: the rollout ends with the first reply that calls none."""

    def __init__(self, tools: Sequence[Tool] = ()) -> None:
        self.tools = tuple(tools)

    async def reset(self, task: Task, seed: int) -> Observation:
        return Observation()

    async def step(self, reply: Message) -> Observation:
        return Observation(done=True)


SHIPPED_TOOLS = {"search": "burnish.tools.search.tool:search_tool"}
"""What makes each tool that a recipe can name: it is given the recipe's folder and the options."""
SHIPPED_ENVS = {"search": "burnish.rollouts.search:search_env"}


class ToolConfig(Settings, frozen=True, kw_only=True):
    """A typed function that the model may call: `my_file.py:name` or `package.module:name`."""

    path: Name
    """Your function: `my_file.py:name` or `package.module:name`; or `search`, the shipped tool."""
    options: Options = msgspec.field(default_factory=dict)
    """Fixed arguments of your function, which the model does not see; for `search`: source, how, k,
    characters, index, text, title, id, longest."""
    name: str = ""
    """The function's own name where empty."""
    deadline_s: Seconds = 10.0
    """Wall clock of one call."""
    max_characters: PositiveInt = 2000
    """A longer result is cut."""

    def build(self, root: Path = Path()) -> Tool:
        function = _found(self.path, "tool", SHIPPED_TOOLS, root)
        is_shipped = self.path in SHIPPED_TOOLS
        return Tool(
            function(**self.options) if is_shipped else function,
            name=self.name,
            fixed={} if is_shipped else self.options,
            deadline_s=self.deadline_s,
            max_characters=self.max_characters,
        )


def _found(path: str, what: str, shipped: Mapping[str, str], root: Path) -> Callable[..., Any]:
    """The function of a path; a shipped one is given the folder first."""
    if path in shipped:
        return partial(find_function(shipped[path], what, root), root)
    word = Path(path).name
    if ":" not in path and not is_kept(path):
        raise UserError(
            f"{what} '{word}' names no function; expected 'file.py:name', 'package.module:name' or "
            f"{', '.join(shipped)}.{did_you_mean(word, shipped)}"
        )
    return find_function(path, what, root)


class EnvRollout(MultiTurnSettings, frozen=True, kw_only=True, tag="env"):
    """Turns of the model and of an environment."""

    path: str = ""
    """The environment's class, or a function that makes one: `my_file.py:Name`; or `search`, the
    shipped one. Empty: tools only."""
    options: Options = msgspec.field(default_factory=dict)
    """Arguments with which each environment is made."""
    tools: tuple[ToolConfig, ...] = ()
    """Tools beside those of the environment."""

    def check(self) -> None:
        if not self.path and not self.tools:
            raise ArgumentError("kind 'env' needs a path (an environment) or tools; got neither")

    def build(self, root: Path = Path()) -> Rollout:
        make: Callable[..., Env] = ToolEnv
        if self.path:
            make = _found(self.path, "environment", SHIPPED_ENVS, root)
        tools = tuple(tool.build(root) for tool in self.tools)
        return env_rollout(partial(make, **self.options), tools, self)


def env_rollout(
    make: Callable[[], Env], tools: Sequence[Tool] = (), settings: EnvRollout | None = None
) -> Rollout:
    """A rollout in environments that `make` gives, one each; tried out once, here."""
    chosen = settings or EnvRollout(path="given")
    _check_env(make, tools)
    forms: dict[tuple[object, ...], ToolForm] = {}

    async def play(task: Task, players: Players) -> None:
        with foreign("the environment"):
            env = make()
            opening = await env.reset(task, players.sampling.seed)
            offered = {tool.name: tool for tool in (*env.tools, *tools)}
        key = (players.lm, *offered)
        if key not in forms:
            forms[key] = tool_form(renderer_of(players.lm), list(offered.values()))
        try:
            await _play(task, players, env, _checked("reset", opening), offered, forms[key])
        except LimitReached:
            # An environment with a `cut` says what an unfinished rollout is worth.
            if cut := getattr(env, "cut", None):
                with foreign("the environment's cut"):
                    seen = await cut()
                _note(players.sessions[-1], _checked("cut", seen))
            raise

    return partial(play_all, play=play, settings=chosen)


async def _play(
    task: Task,
    players: Players,
    env: Env,
    opening: Observation,
    tools: Mapping[str, Tool],
    form: ToolForm,
) -> None:
    messages = list(opening.messages or task.messages)
    if tools:
        messages = form.opening(messages)
    session = players.session(messages, tools=form.schemas if tools else ())
    seen = opening
    _note(session, seen)
    while not seen.done:
        reply = await players.generate(session)
        calls = form.parse(reply.text) if tools else []
        if calls:
            called = tuple(call.as_dict() for call in calls)
            reply = session.shown[-1] = msgspec.structs.replace(reply, tool_calls=called)
        # The environment executes those of its tools that have no function.
        known = [tools[call.name] for call in calls if not call.problem and call.name in tools]
        if calls and all(tool.function is not None for tool in known):
            await _carry_out(session, calls, tools, form)
            continue
        with foreign("the environment's step"):
            seen = await env.step(reply)
        seen = _checked("step", seen)
        _note(session, seen)
        if not seen.done:
            results = [message for message in seen.messages if message.role == "tool"]
            others = [message for message in seen.messages if message.role != "tool"]
            is_tagged = isinstance(form, TaggedForm) and results
            shown = [*form.results(results), *others] if is_tagged else seen.messages
            session.observe(shown, seen.messages)


async def _carry_out(
    session: Session, calls: Sequence[Call], tools: Mapping[str, Tool], form: ToolForm
) -> None:
    async def one(call: Call) -> ToolResult:
        if call.problem:
            return ToolResult(f"Error: {call.problem}", True)
        if call.name not in tools:
            known = ", ".join(tools)
            hint = did_you_mean(call.name, tools)
            return ToolResult(f"Error: no tool '{call.name:.60}'; there is {known}.{hint}", True)
        return await tools[call.name].call(call.arguments)

    results = await gather([partial(one, call) for call in calls])
    counts = session.info.setdefault("tool_calls", {"count": 0, "errors": 0})
    counts["count"] += len(results)
    counts["errors"] += sum(result.is_error for result in results)
    observations = [
        Message("tool", result.text, name=call.name or None)
        for call, result in zip(calls, results, strict=True)
    ]
    session.observe(form.results(observations), observations)


def _note(session: Session, seen: Observation) -> None:
    session.info |= seen.info
    total = session.info.setdefault("rewards", {}) if seen.rewards else {}
    for name, value in seen.rewards.items():
        total[name] = total.get(name, 0.0) + value


def _checked(what: str, seen: Any) -> Observation:
    where = f"the environment's {what}"
    if not isinstance(seen, Observation) or not all(isinstance(m, Message) for m in seen.messages):
        raise RolloutError(
            f"{where} returned {seen!r:.80}; expected an Observation of Message objects"
        )
    if what == "step" and not seen.done and not seen.messages:
        raise RolloutError(f"{where} returned no messages and is not done; expected either")
    info = plain_table(where, seen.info)
    rewards = checked_rewards(where, seen.rewards)
    return Observation(tuple(seen.messages), bool(seen.done), rewards, info)


def plain_table(where: str, found: Any) -> JsonObject:
    """A dict as JSON holds it; anything else fails the rollout."""
    try:
        plain = msgspec.convert(msgspec.to_builtins(found, str_keys=True), JsonObject)
        msgspec.json.encode(plain)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise RolloutError(
            f"{where} gave {found!r:.60} ({error}); expected a dict that JSON can hold"
        ) from None
    return plain


def checked_rewards(where: str, rewards: Any) -> dict[str, float]:
    """Rewards by name as finite floats; anything else fails the rollout."""
    try:
        found: dict[str, float] = _READ_REWARDS(f"{where}: rewards", rewards, Arguments())
    except ArgumentError as error:
        raise RolloutError(str(error)) from None
    return found


_READ_REWARDS = reader(dict[str, Number])


def _check_env(make: Callable[[], Env], tools: Sequence[Tool]) -> None:
    with _making("the environment"):
        env = make()
        names = [tool.name for tool in (*env.tools, *tools)]
    lacking = [name for name in ("reset", "step") if not callable(getattr(env, name, None))]
    if lacking:
        raise UserError(f"environment '{type(env).__name__}' has no {' and no '.join(lacking)}")
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UserError(f"two tools are named '{twice[0]}'; give one of them another `name`.")


@contextmanager
def _making(what: str) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # boundary: an environment or a game is foreign code
        raise UserError(f"{what} cannot be made: {describe(error)}.") from error


PREPARE = "prepare_options"
Play = TypeVar("Play", bound=Callable[..., Any])


def prepared_by(prepare: Callable[[Mapping[str, Any]], Any]) -> Callable[[Play], Play]:
    """Mark a rollout function whose options are read once, when a run starts."""

    def mark(function: Play) -> Play:
        setattr(function, PREPARE, prepare)
        return function

    return mark


def file_options(path: str, root: Path = Path()) -> FileOptions:
    """Which options of the function or game at a path name files; none where it cannot be loaded."""
    try:
        named = find_function(path, "rollout", root)
    except UserError:
        return FileOptions()
    found = getattr(named, "file_options", None)
    return found if isinstance(found, FileOptions) else FileOptions()


class FunctionRollout(MultiTurnSettings, frozen=True, kw_only=True, tag="function"):
    """Your own coroutine `(task, players, seed)`, by path: `my_file.py:name`."""

    path: Name
    """Your coroutine: `my_file.py:name` or `package.module:name`."""
    options: Options = msgspec.field(default_factory=dict)
    """Fixed arguments of the function."""
    evaluation_options: Options = msgspec.field(default_factory=dict)
    """Arguments that differ where held-out tasks are evaluated."""

    def build(self, root: Path = Path()) -> Rollout:
        named: Any = find_function(self.path, "rollout", root)
        if isinstance(named, type) and issubclass(named, StepGame):
            with _making(f"the game '{self.path}'"):
                return named(self, root, **self.options)  # type: ignore[call-arg]
        prepare = getattr(named, PREPARE, None)
        function: Any = prepare(self.options) if prepare else partial(named, **self.options)
        what = f"rollout function '{self.path}'"

        async def play(task: Task, players: Players) -> None:
            with foreign(what):
                found = await function(task, players, players.sampling.seed)
            by_role = plain_table(what, found or {})
            for session in players.sessions:
                # What the function wrote into a session itself is held to the same rules.
                said = plain_table(what, by_role.get(session.role, {}))
                info = plain_table(what, session.info) | said
                if "rewards" in info:
                    info["rewards"] = checked_rewards(what, info["rewards"])
                session.info = info

        return partial(play_all, play=play, settings=self)

    def build_evaluation(self, root: Path = Path()) -> Rollout:
        options = {**self.options, **self.evaluation_options}
        rollout = msgspec.structs.replace(self, options=options).build(root)
        return rollout.evaluation() if isinstance(rollout, StepGame) else rollout
