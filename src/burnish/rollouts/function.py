"""A rollout of your own: a function that plays one game, with as many roles as it likes.

    # my_game.py
    async def play(task, players, seed):
        describer = players.session(task.messages, role="describer")
        hint = await players.generate(describer)
        guesser = players.session([Message("user", hint.content)], role="guesser")
        guess = await players.generate(guesser)
        won = float(task.fields["word"] in guess.content)
        return {"describer": {"rewards": {"won": won}}, "guesser": {"rewards": {"won": won}}}

    [rollout]
    kind = "function"
    path = "my_game.py:play"

Every role that a session was opened for is a trajectory with its own baseline group, (task,
role). What the function returns is kept in each role's `info`; the reward `env` reads `rewards`
from there. Where one role speaks several times (`players.branch`), each session's own `info` is
filled by hand. An exception fails the rollout, not the run. Where the tasks of a step need each
other, `path` names a class: see `StepGame`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from burnish.errors import RolloutError, UserError
from burnish.records import Task
from burnish.rollouts.base import (
    FileOptions,
    MultiTurnSettings,
    Players,
    Rollout,
    StepGame,
    foreign,
    play_all,
)
from burnish.rollouts.env import checked_rewards
from burnish.source import describe, find_function

PREPARE = "prepare_options"
Play = TypeVar("Play", bound=Callable[..., Any])


def prepared_by(prepare: Callable[[Mapping[str, Any]], Any]) -> Callable[[Play], Play]:
    """Mark a rollout function whose options are read once, when a run starts.

    `prepare(options)` refuses bad ones with a `UserError` and returns the coroutine function that
    plays a game, `(task, players, seed)`.
    """

    def mark(function: Play) -> Play:
        setattr(function, PREPARE, prepare)
        return function

    return mark


def file_options(path: str, root: Path = Path()) -> FileOptions:
    """Which options of the function or game at a path name files; none where it cannot be loaded.

    What is wrong with it is said where it is built.
    """
    try:
        named = find_function(path, "rollout", root)
    except UserError:
        return FileOptions()
    found = getattr(named, "file_options", None)
    return found if isinstance(found, FileOptions) else FileOptions()


class FunctionRollout(MultiTurnSettings, frozen=True, kw_only=True, tag="function"):
    """Your own coroutine `(task, players, seed)`, by path: `my_file.py:name`."""

    path: Annotated[str, Meta(min_length=1)]
    """Your coroutine: `my_file.py:name` or `package.module:name`."""
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    """Fixed arguments of the function."""
    evaluation_options: dict[str, Any] = msgspec.field(default_factory=dict)
    """Arguments that differ where held-out tasks are evaluated."""

    def build(self, root: Path = Path()) -> Rollout:
        named: Any = find_function(self.path, "rollout", root)
        if isinstance(named, type) and issubclass(named, StepGame):
            return self._game(named, root)
        prepare = getattr(named, PREPARE, None)
        function: Any = prepare(self.options) if prepare else partial(named, **self.options)

        async def play(task: Task, players: Players) -> None:
            with foreign(f"rollout function '{self.path}'"):
                found = await function(task, players, players.sampling.seed)
            by_role = _by_role(self.path, found)
            for session in players.sessions:
                # What the function wrote into a session itself is held to the same rules.
                given = {session.role: session.info} if session.info else {}
                own = _by_role(self.path, given).get(session.role, {})
                session.info = own | by_role.get(session.role, {})

        return partial(play_all, play=play, settings=self)

    def build_evaluation(self, root: Path = Path()) -> Rollout:
        options = {**self.options, **self.evaluation_options}
        rollout = msgspec.structs.replace(self, options=options).build(root)
        return rollout.evaluation() if isinstance(rollout, StepGame) else rollout

    def _game(self, kind: Callable[..., StepGame], root: Path) -> StepGame:
        try:
            return kind(self, root, **self.options)
        except UserError:
            raise
        except Exception as error:  # boundary: a game may be foreign code
            raise UserError(f"the game '{self.path}' cannot be made: {describe(error)}.") from error


def _by_role(path: str, found: Any) -> Mapping[str, dict[str, Any]]:
    """What the function says of each role: JSON-able, and rewards that are finite numbers."""
    if found is None:
        return {}
    try:
        plain = msgspec.convert(msgspec.to_builtins(found), dict[str, dict[str, Any]])
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise RolloutError(
            f"rollout function '{path}' returned {type(found).__name__} ({error}); expected None "
            "or a dict from each role to a dict of its info"
        ) from error
    for info in plain.values():
        if "rewards" in info:
            info["rewards"] = checked_rewards(f"rollout function '{path}'", info["rewards"])
    return plain
