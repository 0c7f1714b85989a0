"""Evaluate a model on tasks with a scorer: the corridor up to Reward, and an interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from msgspec.structs import replace as changed

from burnish.bench.items import Item, responses_of
from burnish.bench.statistics import Estimate, estimate_of
from burnish.lm.base import LM, Sampling
from burnish.records import Response, Reward, Status, Task, Trajectory
from burnish.rewards.judges.judge_model import JudgeModel
from burnish.rewards.judges.prompting import Question
from burnish.rewards.scorer import Scope, Scorer, checked, fingerprint, gather, score_groups
from burnish.rollouts import Rollout, Slot, roll_out, single_turn
from burnish.seeds import digest


@dataclass(frozen=True)
class Evaluated:
    task: Task
    trajectory: Trajectory
    reward: Reward


@dataclass(frozen=True)
class Evaluation:
    items: list[Evaluated]
    marks: list[float | None]
    """The score of each item; None where it could not be scored."""
    score: Estimate | None
    """Over the decided items; None where nothing could be scored."""

    @property
    def decided(self) -> float | None:
        """Mean over the items that have a value; None where none has."""
        return self.score.value if self.score else None

    @property
    def all(self) -> float | None:
        """Mean over all items, where one without a value counts as not right: the lower of the
        two means where values are not negative. None without items."""
        return sum(mark or 0.0 for mark in self.marks) / len(self.marks) if self.marks else None

    @property
    def valid(self) -> float | None:
        """Share of the items that have a value; None without items."""
        return sum(m is not None for m in self.marks) / len(self.marks) if self.marks else None


async def evaluate(
    lm: LM,
    tasks: Sequence[Task],
    scorer: Scorer,
    sampling: Sampling,
    *,
    part: str = "",
    deadline_s: float = 60.0,
    rollout: Rollout = single_turn,
) -> Evaluation:
    """One rollout a task, scored; failures are left out of the score and counted.

    A rollout that fails costs its task the value, with the reason in its reward; the others go on.
    Of a rollout with several roles, every role is an item. `part` names the component that is the
    score; empty takes the total.
    """
    slots = list(enumerate(tasks))
    groups = await evaluate_slots(
        lm, slots, scorer, sampling, deadline_s=deadline_s, rollout=rollout
    )
    return summarise([item for group in groups for item in group], part)


async def evaluate_slots(
    lm: LM,
    slots: Sequence[Slot],
    scorer: Scorer,
    sampling: Sampling,
    *,
    deadline_s: float = 60.0,
    rollout: Rollout = single_turn,
) -> list[list[Evaluated]]:
    """The items of each task. A slot is a task and its place among all of them, which seeds it: any
    part of the tasks gives the items that it has in the whole.
    """
    rolled = await roll_out(slots, lm, sampling, rollout, sampling.seed)
    pairs = []
    for (_, task), group in zip(slots, rolled, strict=True):
        for t in group:
            id = task.id if t.role == "policy" else f"{task.id}.{t.role}"
            pairs.append((task, [changed(t.as_response(), id=id)]))
    rewards = iter(await score_groups(scorer, pairs, deadline_s=deadline_s))
    found: list[list[Evaluated]] = []
    for (_, task), group in zip(slots, rolled, strict=True):
        found.append([])
        for t in group:
            (reward,) = next(rewards)
            if t.status is not Status.OK:  # no value, whatever a scorer says of it
                reward = Reward.failed(scorer.name, t.status, t.reason)
            found[-1].append(Evaluated(task, t, reward))
    return found


def summarise(items: list[Evaluated], part: str = "") -> Evaluation:
    marks = [(item.reward.components.get(part) if part else item.reward.value) for item in items]
    return Evaluation(items, marks, estimate_of(marks))


class Answering:
    """Writes a text in the place of each response and lets a point scorer mark it."""

    scope = Scope.POINT

    def __init__(self, model: JudgeModel, scorer: Scorer) -> None:
        self.name, self.needs = scorer.name, scorer.needs
        self.model, self.scorer = model, scorer

    @property
    def fingerprint(self) -> str:
        return digest(type(self).__name__, self.model.fingerprint, fingerprint(self.scorer))

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        async def one(place: int, blank: Response) -> Reward:
            question = Question("answer", task.messages, about=(task.id, blank.id), vote=place)
            heard = await self.model.ask(question, str)
            if heard.verdict is None:
                return Reward.failed(self.name, heard.status, heard.reason, evidence=heard.evidence)
            written = changed(blank, text=heard.verdict, finish=heard.replies[-1].finish)
            (reward,) = await checked(self.scorer, task, [written])
            return changed(reward, evidence=(*reward.evidence, *heard.evidence))

        return await gather([partial(one, place, blank) for place, blank in enumerate(responses)])


def blanks(items: Sequence[Item]) -> list[Item]:
    """The items with one empty response each, for `Answering` to write."""
    return [replace(item, responses=responses_of(item.id, [""])) for item in items]
