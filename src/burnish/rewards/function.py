"""Plain Python functions as rewards, their arguments bound by name.

    def close(text, answer):
        return 1.0 - abs(float(text) - answer) / 100

    scorer = from_function(close)

`response`, `text` (or `completion`), `tokens` and `finish` come from the response; `task`,
`prompt` and `messages` from the task; any other name from the task's fields. A function that takes
`responses`, `texts` or `completions` sees the whole group as lists and returns a list. It may
return a number, a bool, None (abstains) or a `Reward`; anything else breaks its contract and stops
the run with one line. An exception is `reward_error` for that sample alone.
"""

from __future__ import annotations

import copy
import inspect
import math
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import anyio
import anyio.to_thread
import msgspec
from msgspec.structs import replace

from burnish.activity import moved
from burnish.boundary import Number, Seconds, public
from burnish.errors import RewardError, UserError
from burnish.records import Response, Reward, Status, Task
from burnish.rewards.scorer import Scope, as_float, function_fingerprint, gather
from burnish.seeds import digest
from burnish.source import describe, is_cancelled
from burnish.user_code import calling_user_code

_OF_RESPONSE: dict[str, Callable[[Response], Any]] = {
    "response": lambda r: r,
    "text": lambda r: r.text,
    "completion": lambda r: r.text,
    "tokens": lambda r: r.tokens,
    "finish": lambda r: r.finish.value,
}
_OF_GROUP: dict[str, Callable[[Sequence[Response]], Any]] = {
    "responses": list,
    "texts": lambda rs: [r.text for r in rs],
    "completions": lambda rs: [r.text for r in rs],
    "tokens": lambda rs: [r.tokens for r in rs],
    "finish": lambda rs: [r.finish.value for r in rs],
}
_OF_TASK: dict[str, Callable[[Task], Any]] = {
    "task": lambda t: replace(t, fields={key: _own(value) for key, value in t.fields.items()}),
    "prompt": lambda t: t.prompt,
    "messages": lambda t: t.messages,
}
_PLURAL = frozenset({"responses", "texts", "completions"})
_SINGULAR = frozenset({"response", "text", "completion"})


@public
def from_function(
    function: Callable[..., Any],
    name: str | None = None,
    weight: Number = 1.0,
    *,
    options: Mapping[str, object] | None = None,
    deadline_s: Seconds = 30.0,
) -> FunctionReward:
    """A scorer from a function; `options` are fixed arguments, `deadline_s` bounds one call.

    A function that never returns is left behind in its thread when the deadline passes; one that
    also holds the interpreter lock cannot be left. Work of that kind belongs in the pool.
    """
    own_name: str = getattr(function, "__name__", type(function).__name__)
    return FunctionReward(function, name or own_name, weight, dict(options or {}), deadline_s)


class FunctionReward:
    """A function behind the `Scorer` protocol."""

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        weight: float,
        options: dict[str, Any],
        deadline_s: float,
    ) -> None:
        self.function, self.name, self.weight = function, name, weight
        self.options, self.deadline_s = options, deadline_s
        parameters = free_parameters(function, f"reward '{name}'", options)
        nameless = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL)]
        self._takes_fields = any(p.kind is p.VAR_KEYWORD for p in parameters)
        named = [p for p in parameters if p.kind is not p.VAR_KEYWORD]
        self._wanted = {p.name for p in named}
        is_group = bool(_PLURAL & self._wanted)
        if nameless or (is_group and _SINGULAR & self._wanted):
            raise UserError(
                f"reward '{name}': got the parameters {', '.join(map(str, parameters))}, expected names "
                "to bind by, of one response (text, ...) or of the whole group (texts, ...)"
            )
        self.scope = Scope.GROUP if is_group else Scope.POINT
        self._table: Mapping[str, Callable[[Any], Any]] = _OF_GROUP if is_group else _OF_RESPONSE
        known = _OF_TASK.keys() | self._table.keys()
        self.needs = frozenset({p.name for p in named if p.default is p.empty} - known)

    @property
    def fingerprint(self) -> str:
        """Changes with the function's file, with what is bound into it and with the options."""
        return digest(function_fingerprint(self.function), repr(sorted(self.options.items())))

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        lacking = sorted(self.needs - task.fields.keys())
        if lacking:
            reason = f"task {task.id} has no field {', '.join(map(repr, lacking))}"
            return [Reward.failed(self.name, Status.ABSTAIN, reason)] * len(responses)
        is_group = self.scope is Scope.GROUP
        sources: Sequence[Any] = [responses] if is_group else responses
        jobs = [partial(self.function, **self._arguments(task, source)) for source in sources]
        calls = await call_all(jobs, self.deadline_s)
        if is_group:
            calls = self._each(calls[0], responses)
        return [self._reward(*pair) for pair in zip(calls, responses, strict=True)]

    def _each(self, call: Call, responses: Sequence[Response]) -> list[Call]:
        """The values of a group, one for each response."""
        if call.failure is not None:
            return [call] * len(responses)
        values = call.value
        if not isinstance(values, list | tuple) or len(values) != len(responses):
            size = f" of {len(values)}" if isinstance(values, list | tuple) else ""
            raise RewardError(
                f"reward '{self.name}' returned {type(values).__name__}{size} for the group of "
                f"sample {responses[0].id}; expected a list of {len(responses)} values, one for "
                "each response."
            )
        return [Call(value) for value in values]

    def _arguments(self, task: Task, source: Any) -> dict[str, Any]:
        # Copies: what a function does to its arguments is not to change the data of the run.
        bound = {k: _own(v) for k, v in task.fields.items()} if self._takes_fields else {}
        for name in self._wanted:
            if name in self._table:
                bound[name] = self._table[name](source)
            elif name in _OF_TASK:
                bound[name] = _OF_TASK[name](task)
            elif name in task.fields:
                bound[name] = _own(task.fields[name])
        return {**bound, **self.options}

    def _whole(self, reward: Reward, response: Response) -> Reward:
        """A reward that a function has made, every part of it of the right type."""
        try:
            msgspec.convert(msgspec.to_builtins(reward, enc_hook=_number), Reward)
        # Boundary: what stands in the fields is the function's own, of any type and depth.
        except Exception as error:
            raise RewardError(
                f"reward '{self.name}' returned a Reward for sample {response.id} that is not whole "
                f"({str(error) or type(error).__name__}); expected the types that its fields name."
            ) from error
        return reward

    def _reward(self, call: Call, response: Response) -> Reward:
        if call.failure is not None:
            return Reward.failed(self.name, *call.failure)
        value = call.value
        if value is None:
            return Reward.failed(self.name, Status.ABSTAIN, "the function returned None")
        if isinstance(value, Reward):
            return self._whole(replace(value, name=self.name), response)
        number = as_float(value)
        if math.isfinite(number):
            return Reward(self.name, number)
        shown = f"{value}" if isinstance(value, float) else f"{type(value).__name__} {value!r:.60}"
        raise RewardError(
            f"reward '{self.name}' returned {' '.join(shown.split())} for sample {response.id}; "
            "expected a finite number, a bool, None or a Reward. Return None if it cannot judge."
        )


def _number(value: Any) -> float:
    """A number of a library's own type, of which the gate makes a float."""
    number = as_float(value)
    if math.isnan(number):
        raise TypeError(f"{type(value).__name__} where a text or a number belongs")
    return number


def _own(value: Any) -> Any:
    return copy.deepcopy(value) if isinstance(value, list | dict) else value


def _bare(function: Callable[..., Any]) -> Callable[..., Any]:
    """What is really called: inside a partial, or the `__call__` of an object."""
    while isinstance(function, partial):
        function = function.func
    if inspect.isroutine(function):
        return function
    call: Callable[..., Any] = type(function).__call__
    return call


def free_parameters(
    function: Callable[..., Any], what: str, options: Mapping[str, Any]
) -> list[inspect.Parameter]:
    """The parameters of a user's function that its options leave open."""
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:
        raise UserError(f"{what} does not tell its parameters; wrap it.") from None
    unknown = sorted(options.keys() - parameters.keys())
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        raise UserError(f"{what} takes no option {', '.join(map(repr, unknown))}.")
    return [parameter for name, parameter in parameters.items() if name not in options]


# --- calls with a clock, from an ordinary thread
#
# A Python thread cannot be killed. A call past its deadline is left behind in its own daemon thread, which
# does not hold up the end of the process. But each such thread takes its share of the interpreter: when
# several are still busy, the next call is refused and the run stops with a reason, rather than crawl.


LOOK_S = 0.2
"""How often a waiting call looks whether its caller has gone."""

MOST_LEAKED = 4
"""Calls that may still be running after their time; with more, nothing else gets done."""

_leaked_threads: list[threading.Thread] = []


class Call(NamedTuple):
    """What a call returned, or the status and reason of its failure."""

    value: Any = None
    failure: tuple[Status, str] | None = None


async def call_all(jobs: Sequence[Callable[[], Any]], deadline_s: float) -> list[Call]:
    """Call a user's function, async or in a thread, with a clock for each call."""
    if jobs and inspect.iscoroutinefunction(_bare(jobs[0])):
        return await gather([partial(_awaited, job, deadline_s) for job in jobs])
    cancelled = threading.Event()
    try:
        return await anyio.to_thread.run_sync(
            partial(call_each, jobs, deadline_s, cancelled), abandon_on_cancel=True
        )
    finally:
        cancelled.set()


async def _awaited(job: Callable[[], Any], deadline_s: float) -> Call:
    try:
        with anyio.move_on_after(deadline_s), calling_user_code():
            return Call(await job())
        return Call(failure=(Status.TIMEOUT, f"no answer within {deadline_s:g} s"))
    except (UserError, RewardError):
        raise
    except BaseException as error:  # boundary: the function is foreign code
        if is_cancelled(error):
            raise
        return Call(failure=(Status.REWARD_ERROR, describe(error)))


def call_each(
    jobs: Sequence[Callable[[], Any]], deadline_s: float, cancelled: threading.Event | None = None
) -> list[Call]:
    """Do one job after another in a thread; blocks, keeps the order.

    `UserError` and `RewardError` of a job are raised here. Once `cancelled` is set no further call is
    made, and what is returned is of no use to anyone.
    """
    _leaked_threads[:] = [thread for thread in _leaked_threads if thread.is_alive()]
    if len(_leaked_threads) >= MOST_LEAKED:
        name = getattr(_bare(jobs[0]), "__name__", "a reward")
        raise RewardError(
            f"{len(_leaked_threads)} calls of reward functions never returned and keep the interpreter "
            f"busy (the next would be '{name}'); expected every call to end. Give the function a "
            "limit of its own."
        )
    calls: list[Call] = []
    cancelled = cancelled or threading.Event()
    while len(calls) < len(jobs) and not cancelled.is_set():
        results: queue.SimpleQueue[Call | Exception] = queue.SimpleQueue()
        rest = jobs[len(calls) :]
        left_behind = threading.Event()
        thread = threading.Thread(
            target=_work, args=(rest, results, (left_behind, cancelled)), daemon=True
        )
        thread.start()
        for _ in rest:
            try:
                call = _wait(results, deadline_s, cancelled)
            except queue.Empty:
                left_behind.set()
                _leaked_threads.append(thread)
                late = f"no answer within {deadline_s:g} s"
                calls.append(Call(failure=(Status.TIMEOUT, late)))
                break
            if isinstance(call, Exception):
                raise call
            calls.append(call)
            moved()
            if cancelled.is_set():
                break
    return calls


def _wait(
    results: queue.SimpleQueue[Call | Exception], deadline_s: float, cancelled: threading.Event
) -> Call | Exception:
    """The next result; `queue.Empty` at the deadline, or soon after the caller has gone."""
    ends = time.monotonic() + deadline_s
    while True:
        left = ends - time.monotonic()
        try:
            return results.get(timeout=max(0.0, min(left, LOOK_S)))
        except queue.Empty:
            if left <= LOOK_S or cancelled.is_set():
                raise


def _work(
    jobs: Sequence[Callable[[], Any]],
    results: queue.SimpleQueue[Call | Exception],
    ends: Sequence[threading.Event],
) -> None:
    for job in jobs:
        try:
            with calling_user_code():
                value = job()
            results.put(Call(value))
        except (UserError, RewardError) as error:
            results.put(error)
            return
        # Boundary: a reward function is foreign code. Ctrl-C never arrives in this thread, so a
        # KeyboardInterrupt is the function's own, like SystemExit and any other BaseException.
        except BaseException as error:
            results.put(Call(failure=(Status.REWARD_ERROR, describe(error))))
        if any(end.is_set() for end in ends):
            return
