"""What every reward is: a `Scorer`, list in and list out, called through one gate.

    rewards = await checked(scorer, task, responses, deadline_s=30)

The gate keeps two kinds of trouble apart. A scorer that *breaks its contract* (wrong length,
wrong type, NaN) is a bug in the reward and raises `RewardError`, which stops the run. A scorer
that *fails* (an exception, a deadline) yields rewards without a value and with a status.
"""

from __future__ import annotations

import inspect
import math
import numbers
import operator
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import anyio
from msgspec.structs import replace

from burnish.activity import advance, waiting_for
from burnish.concurrency import gather as gather
from burnish.errors import RewardError, UserError, did_you_mean
from burnish.records import Finish, Response, Reward, Status, Task
from burnish.seeds import digest
from burnish.source import describe, is_cancelled
from burnish.user_code import calling_user_code


class Scope(StrEnum):
    """How many responses a scorer looks at together."""

    POINT = "point"
    """Each response on its own."""
    PAIR = "pair"
    """Exactly two responses; the two values are v and -v, positive for the better one."""
    LIST = "list"
    """Several responses, ranked against each other."""
    GROUP = "group"
    """All responses to one task; values may depend on the neighbours."""
    STEP = "step"
    """The steps of each response; the reward's verdicts are per step."""


@runtime_checkable
class Scorer(Protocol):
    """Anything that can say how good responses are."""

    @property
    def name(self) -> str: ...

    @property
    def scope(self) -> Scope: ...

    @property
    def needs(self) -> frozenset[str]: ...

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        """One reward for each response, in order."""


async def checked(
    scorer: Scorer,
    task: Task,
    responses: Sequence[Response],
    *,
    deadline_s: float | None = None,
) -> list[Reward]:
    """Score through the gate: one valid reward a response, or `RewardError` naming the breach.

    Responses whose generation failed never reach the scorer; they get `infra_error`.
    """
    living = [response for response in responses if response.finish is not Finish.ERROR]
    if scorer.scope is Scope.PAIR and len(living) < len(responses):
        living = []
    scored = await _guarded(scorer, task, living, deadline_s) if living else []
    if len(living) == len(responses):
        return scored
    reason = "the model's backend failed, so there is no answer to score"
    failed = Reward.failed(scorer.name, Status.INFRA_ERROR, reason)
    rest = iter(scored)
    return [failed if r.finish is Finish.ERROR else next(rest, failed) for r in responses]


def broken(scorer: Scorer, error: BaseException) -> Reward:
    """What an error of a scorer says about its response: ours are no fault of the user's code."""
    is_ours = type(scorer).__module__.startswith("burnish.")
    status = Status.INFRA_ERROR if is_ours else Status.REWARD_ERROR
    return Reward.failed(scorer.name, status, describe(error))


async def _guarded(
    scorer: Scorer, task: Task, responses: Sequence[Response], deadline_s: float | None
) -> list[Reward]:
    if scorer.scope is Scope.PAIR and len(responses) != 2:
        raise UserError(
            f"reward '{scorer.name}' compares pairs but got {len(responses)} responses to task "
            f"{task.id}; expected 2. Wrap it in Anchor to score one response at a time."
        )
    result: Any = None
    try:
        # Servers that score may be away for a while, until they were started again.
        away_s = getattr(scorer, "away_s", 0.0)
        limit = math.inf if deadline_s is None else deadline_s + away_s
        with anyio.move_on_after(limit) as scope, calling_user_code():
            result = await scorer.score(task, responses)
    except (UserError, RewardError):
        raise
    except BaseException as error:  # boundary: a scorer is foreign code
        if is_cancelled(error):
            raise
        return [broken(scorer, error)] * len(responses)
    finally:
        advance(f"reward {scorer.name}", len(responses))
    if scope.cancelled_caught:
        late = f"no score within {deadline_s:g} s (in a run: rollout.score_timeout_s)"
        return [Reward.failed(scorer.name, Status.TIMEOUT, late)] * len(responses)
    is_list = isinstance(result, list | tuple) and all(isinstance(one, Reward) for one in result)
    if not is_list or len(result) != len(responses):
        raise RewardError(
            f"reward '{scorer.name}' returned {type(result).__name__} {result!r:.60} for "
            f"{len(responses)} responses (first sample {responses[0].id}); expected a list of as many "
            "Reward objects, in order. Plain numbers are fine from a function: use from_function."
        )
    return [
        _plain(scorer.name, response, reward)
        for response, reward in zip(responses, result, strict=True)
    ]


def _plain(name: str, response: Response, reward: Reward) -> Reward:
    """The reward and all its parts with plain floats: what a store writes, it must read back."""
    value, weight = reward.value, reward.weight
    if value is not None and type(value) is not float:
        value = as_float(value)
    if type(weight) is not float:
        weight = as_float(weight)
    if not math.isfinite(weight) or (value is not None and not math.isfinite(value)):
        part = "" if reward.name == name else f" (part '{reward.name}')"
        raise RewardError(
            f"reward '{name}'{part} has value {reward.value!r} and weight {reward.weight!r} for "
            f"sample {response.id}; expected finite numbers."
        )
    same = value is reward.value and weight is reward.weight
    if same and not reward.parts:
        return reward
    parts = tuple([_plain(name, response, part) for part in reward.parts])
    if same and all(map(operator.is_, parts, reward.parts)):
        return reward
    return replace(reward, value=value, weight=weight, parts=parts)


def as_float(value: Any) -> float:
    """A real number or a bool as a plain float; NaN for anything else, infinity if too large."""
    numpy = sys.modules.get("numpy")  # whoever holds one of its bools has imported it
    if not isinstance(value, numbers.Real) and not (
        numpy is not None and isinstance(value, numpy.bool_)
    ):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


def leaves(scorer: Scorer) -> list[Scorer]:
    """The scorers that a combination is made of, or the scorer itself."""
    children: tuple[Scorer, ...] = getattr(scorer, "children", ())
    return [leaf for child in children for leaf in leaves(child)] if children else [scorer]


def _own_needs(scorer: Scorer) -> list[tuple[str, frozenset[str]]]:
    """Each scorer of a tree with the fields that it asks for itself, not through its parts."""
    children: tuple[Scorer, ...] = getattr(scorer, "children", ())
    own = scorer.needs.difference(*(child.needs for child in children))
    return [pair for child in children for pair in _own_needs(child)] + [(scorer.name, own)]


def bind_check(scorer: Scorer, fields: Iterable[str]) -> None:
    """Raise one `UserError` listing every field that a reward asks for and the data lacks.

    Call it before training starts: the alternative is an error deep in a worker.
    """
    known = sorted(set(fields))
    misses = [
        f"reward '{name}' needs '{field}'{did_you_mean(field, known)}"
        for name, needs in _own_needs(scorer)
        for field in sorted(needs - set(known))
    ]
    if misses:
        has = ", ".join(known) or "no fields"
        raise UserError(
            f"the data lacks {len(misses)} field(s) that rewards ask for: {'; '.join(misses)}. "
            f"It has: {has}. Map the field in the task's settings or change the reward."
        )


async def score_groups(
    scorer: Scorer,
    items: Sequence[tuple[Task, Sequence[Response]]],
    *,
    limit: int = 8,
    deadline_s: float | None = None,
) -> list[list[Reward]]:
    """Score many tasks' responses, at most `limit` tasks at a time, each with its own deadline."""
    calls = [
        partial(checked, scorer, task, responses, deadline_s=deadline_s)
        for task, responses in items
    ]
    answers = sum(len(responses) for _, responses in items)
    with ExitStack() as waits:
        for leaf in leaves(scorer):
            waits.enter_context(waiting_for(f"reward {leaf.name}", "answers", total=answers))
        return await gather(calls, limit=limit)


# --- identities: which reward gave this score


def fingerprint(scorer: Any) -> str:
    """The scorer's own `fingerprint`; a scorer without one cannot be told from its next version."""
    own, name = getattr(scorer, "fingerprint", None), getattr(scorer, "name", "")
    if not isinstance(own, str):
        raise UserError(
            f"'{name}' ({type(scorer).__name__}) has no fingerprint, so its scores cannot be cached; "
            "give it a `fingerprint` property: a text that changes with its settings and its code."
        )
    return digest(name, own)


def function_fingerprint(function: Callable[..., Any]) -> str:
    """Identity of a function: its file's content, its name, and what was bound into it."""
    bound: list[str] = []
    while isinstance(function, partial):
        bound.append(repr((function.args, sorted(function.keywords.items()))))
        function = function.func
    if not inspect.isfunction(function):
        bound.append(repr(getattr(function, "__dict__", "")))
        call = type(function).__call__
        function = call if inspect.isfunction(call) else function
    cells = getattr(function, "__closure__", None) or ()
    bound += [repr(cell.cell_contents) for cell in cells]
    bound.append(repr(getattr(function, "__defaults__", None)))
    bound.append(repr(getattr(function, "__kwdefaults__", None)))
    name = getattr(function, "__qualname__", type(function).__qualname__)
    # The whole file, because helpers count as much as the function; else its byte code.
    file = inspect.getsourcefile(function) if inspect.isfunction(function) else None
    if file and Path(file).is_file():
        return digest(Path(file).read_bytes(), name, *bound)
    code = getattr(function, "__code__", None)
    parts = (code.co_code, code.co_consts, code.co_names) if code else function
    return digest(repr(parts), name, *bound)
