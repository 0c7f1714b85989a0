"""One prompt, `samples` replies: the plain rollout."""

from __future__ import annotations

from pathlib import Path

from burnish.records import Task, Trajectory
from burnish.rollouts.base import Players, Rollout, RolloutSettings
from burnish.rollouts.session import Session


class SingleTurn(RolloutSettings, frozen=True, kw_only=True, tag="single_turn"):
    """One reply to each prompt."""

    def build(self, root: Path = Path()) -> Rollout:
        return single_turn


async def single_turn(task: Task, players: Players) -> list[Trajectory]:
    """One prompt, `n` completions; a trajectory each."""
    branches = await Session(players.lm, task.messages).branch(players.sampling)
    return [branch.trajectory(task, index) for index, branch in enumerate(branches)]
