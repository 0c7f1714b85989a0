"""The plain rollouts: one prompt and `samples` replies, sampled or given in the data.

A given reply is a text, or a table with `text` and, where they are known, `token_ids` and `logprobs`
of the model that wrote it; it is scored and trained on. Log-probs that are not known are those of the
model as it is now. Evaluation samples from the model.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta, Struct

from burnish.boundary import Name
from burnish.errors import UserError
from burnish.records import Finish, Task, Trajectory
from burnish.rollouts.base import Players, Rollout, RolloutSettings
from burnish.rollouts.session import Session
from burnish.tensors import LARGEST


class SingleTurn(RolloutSettings, frozen=True, kw_only=True, tag="single_turn"):
    """One reply to each prompt."""

    def build(self, root: Path = Path()) -> Rollout:
        return single_turn


async def single_turn(task: Task, players: Players) -> list[Trajectory]:
    """One prompt, `n` completions; a trajectory each."""
    branches = await Session(players.lm, task.messages).branch(players.sampling)
    return [branch.trajectory(task, index) for index, branch in enumerate(branches)]


class Recorded(RolloutSettings, frozen=True, kw_only=True, tag="recorded"):
    """Replies from a field of the data."""

    is_sampled: ClassVar[bool] = False
    field: Name = "completions"
    """Task field with the list of replies; the first `samples` of them are taken."""

    def build(self, root: Path = Path()) -> Rollout:
        return partial(recorded, field=self.field)

    def build_evaluation(self, root: Path = Path()) -> Rollout:
        return single_turn


class Reply(Struct, frozen=True, forbid_unknown_fields=True):
    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[Annotated[float, Meta(ge=-LARGEST, le=0.0)], ...] = ()
    finish: Finish = Finish.STOP


_Given = Annotated[list[str | Reply], Meta(min_length=1)]


async def recorded(task: Task, players: Players, field: str = "completions") -> list[Trajectory]:
    """A trajectory for each of the task's given replies."""
    replies = _replies(task, field)
    found = []
    for index, reply in enumerate(replies[: players.sampling.n]):
        session = Session(players.lm, task.messages)
        prompt = session.token_ids
        ids = session.append(reply.text, reply.token_ids)
        if len(reply.logprobs) not in (0, len(ids)) or (reply.logprobs and not reply.token_ids):
            raise UserError(
                f"task {task.id}, field '{field}': {len(reply.logprobs)} logprobs for {len(ids)} token_ids"
            )
        known = reply.logprobs
        if not known:
            scored = await players.lm.score(prompt, ids)
            if scored.is_bound:
                raise UserError(
                    f"'{players.lm.name}' has a bound of log-probs only; expected a causal model, or logprobs"
                )
            known = scored.logprobs
        session.train_on(known)
        session.info["logprobs"] = "given" if reply.logprobs else "scored"
        found.append(session.trajectory(task, index, finish=reply.finish))
    return found


def _replies(task: Task, field: str) -> list[Reply]:
    try:
        given = msgspec.convert(task.fields.get(field), _Given)
    except msgspec.ValidationError as error:
        raise UserError(
            f"task {task.id}, field '{field}': {error}; expected a list of replies: texts, or tables with "
            "text, token_ids and logprobs. Set rollout.field to the field that holds them."
        ) from None
    return [Reply(one) if isinstance(one, str) else one for one in given]
