"""One step's worth of scored rollouts: sample, score, and refill groups that teach nothing.

With `informative_groups` and `refill` (DAPO), groups whose rewards are all equal are put aside and
other prompts are sampled until the step is full or its rounds are spent; what was put aside is
stored too, marked as dropped.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import torch

from burnish.config.schema import Rollout as RolloutConfig
from burnish.errors import GuardTripped, RewardError
from burnish.lm.base import LM, Sampling
from burnish.policy.batch import Advantages, RewardBatch
from burnish.policy.pieces import InformativeGroups
from burnish.policy.recipe import Recipe
from burnish.records import Finish, Reward, Status, Task, Trajectory
from burnish.rewards.combine import Weighted
from burnish.rewards.scorer import score_groups
from burnish.training.data import Cursor
from burnish.training.devices import World
from burnish.training.event_loop import EventLoop
from burnish.training.guards import find_useful
from burnish.training.rollout import Rollout, Slot, roll_out


@dataclass(frozen=True)
class Scored:
    """One rollout with its task and its reward."""

    task: Task
    trajectory: Trajectory
    reward: Reward


@dataclass(frozen=True)
class Collected:
    """A step before its update."""

    kept: list[Scored]
    dropped: list[Scored]
    groups_tried: int
    rollout_s: float
    score_s: float


class BrokenStep(GuardTripped):
    """A guard tripped before the step was full; `scored` is what it had by then."""

    def __init__(self, error: GuardTripped, scored: list[Scored]) -> None:
        super().__init__(
            str(error),
            stage=error.stage,
            tensor=error.tensor,
            step=error.step,
            samples=error.samples,
        )
        self.scored = scored


@dataclass
class Clock:
    """Seconds of a step's two waits."""

    rollout_s: float = 0.0
    score_s: float = 0.0


def reward_batch(scored: Sequence[Scored]) -> RewardBatch:
    """The named reward vectors of a step as tensors; NaN where a reward has no value."""
    first = scored[0].reward
    parts = first.parts or (first,)
    names = tuple(part.name for part in parts)
    rows = []
    for item in scored:
        values = item.reward.components
        rows.append([_or_nan(values.get(name)) for name in names])
    numbers: dict[str, int] = {}
    groups = [numbers.setdefault(s.trajectory.group, len(numbers)) for s in scored]
    return RewardBatch(
        rewards_BK=torch.tensor(rows, dtype=torch.float64),
        weights_K=torch.tensor([part.weight for part in parts], dtype=torch.float64),
        groups_B=torch.tensor(groups),
        lengths_B=torch.tensor([s.trajectory.trained_tokens for s in scored]),
        truncated_B=torch.tensor([s.trajectory.finish is Finish.LENGTH for s in scored]),
        names=names,
    )


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value


@dataclass(frozen=True)
class Collector:
    """Everything a step needs to sample and score."""

    lm: LM
    scorer: Weighted
    recipe: Recipe
    config: RolloutConfig
    rollout: Rollout
    world: World
    loop: EventLoop

    @property
    def sampling(self) -> Sampling:
        c = self.config
        return Sampling(
            n=c.samples,
            temperature=c.temperature,
            top_k=c.top_k,
            top_p=c.top_p,
            min_p=c.min_p,
            max_tokens=c.max_tokens,
            stop=c.stop,
        )

    def collect(self, step: int, cursor: Cursor, seed: int, version: int) -> Collected:
        """Sample and score until the step is full; moves the cursor past every task it used."""
        select = self.recipe.select
        refill = isinstance(select, InformativeGroups) and select.refill
        rounds = select.max_rounds if isinstance(select, InformativeGroups) and refill else 1
        kept: list[Scored] = []
        dropped: list[Scored] = []
        clock = Clock()
        tried = 0
        missing = self.config.prompts
        for _ in range(rounds):
            slots = list(enumerate(cursor.take(missing), start=tried))
            tried += len(slots)
            scored = self._sample_and_score(step, slots, seed, version, clock)
            if not refill:
                kept = scored
                break
            full, empty = self._split(step, scored)
            kept += full
            dropped += empty
            missing = self.config.prompts - len({slot_of(s.trajectory) for s in kept})
            if missing <= 0:
                break
        if not kept:
            kept, dropped = dropped, []
        return Collected(kept, dropped, tried, clock.rollout_s, clock.score_s)

    def answer(self, tasks: Sequence[Task], seed: int, samples: int) -> list[Scored]:
        """Scored answers of the model as it is now, outside of any step."""
        sampling = msgspec.structs.replace(self.sampling, n=samples)
        slots = list(enumerate(tasks))
        return self._sample_and_score(0, slots, seed, 0, Clock(), sampling)

    def _sample_and_score(
        self,
        step: int,
        slots: list[Slot],
        seed: int,
        version: int,
        clock: Clock,
        sampling: Sampling | None = None,
    ) -> list[Scored]:
        """This process's share of the slots, scored; then everybody's, in slot order."""
        mine = self.world.share(slots)
        how = sampling or self.sampling
        work = functools.partial(self._roll_and_score, step, mine, seed, version, clock, how)
        own = self.loop.run(work)
        return [scored for group in self.world.gather(own, len(slots)) for scored in group]

    async def _roll_and_score(
        self,
        step: int,
        slots: list[Slot],
        seed: int,
        version: int,
        clock: Clock,
        sampling: Sampling,
    ) -> list[list[Scored]]:
        start = time.perf_counter()
        rolled = await roll_out(slots, self.lm, sampling, self.rollout, seed)
        clock.rollout_s += time.perf_counter() - start
        groups = [
            [_stamp(t, f"{step}.{slot}", i, version) for i, t in enumerate(group)]
            for (slot, _), group in zip(slots, rolled, strict=True)
        ]
        start = time.perf_counter()
        rewards = await self._score(step, [task for _, task in slots], groups)
        clock.score_s += time.perf_counter() - start
        return [
            [Scored(task, t, r) for t, r in zip(group, marks, strict=True)]
            for (_, task), group, marks in zip(slots, groups, rewards, strict=True)
        ]

    async def _score(
        self, step: int, tasks: Sequence[Task], groups: Sequence[Sequence[Trajectory]]
    ) -> list[list[Reward]]:
        pairs = list(zip(tasks, groups, strict=True))
        items = [(task, [t.as_response() for t in group]) for task, group in pairs]
        try:
            rewards = await score_groups(
                self.scorer,
                items,
                limit=self.config.score_concurrency,
                deadline_s=self.config.score_timeout_s,
            )
        except RewardError as error:
            none = Reward.failed("total", Status.INFRA_ERROR, str(error))
            lost = [Scored(task, t, none) for task, group in pairs for t in group]
            line = f"reward guard at step {step}: {error}"
            tripped = GuardTripped(line, stage="reward", tensor="reward", step=step)
            raise BrokenStep(tripped, lost) from error
        return [[self._whole(reward) for reward in group] for group in rewards]

    def _whole(self, reward: Reward) -> Reward:
        """Give a total that failed as one (a deadline, a dead backend) its named parts back."""
        if reward.parts:
            return reward
        parts = tuple(
            Reward.failed(child.name, reward.status, reward.reason, weight=weight)
            for child, weight in zip(self.scorer.children, self.scorer.weights, strict=True)
        )
        return msgspec.structs.replace(reward, parts=parts)

    def _split(self, step: int, scored: list[Scored]) -> tuple[list[Scored], list[Scored]]:
        ids = [s.trajectory.id for s in scored]
        try:
            signal = find_useful(self.recipe, reward_batch(scored), ids, step).tolist()
        except GuardTripped as error:
            raise BrokenStep(error, scored) from error
        full = [s for s, useful in zip(scored, signal, strict=True) if useful]
        empty = [s for s, useful in zip(scored, signal, strict=True) if not useful]
        return full, empty


def slot_of(trajectory: Trajectory) -> str:
    """`step.slot`: the task's place in the step, the same for all its roles."""
    return ".".join(trajectory.group.split(".")[:2])


def _stamp(trajectory: Trajectory, group: str, index: int, version: int) -> Trajectory:
    """Address a rollout as step.slot.index, and its group as step.slot (and role)."""
    role = "" if trajectory.role == "policy" else f".{trajectory.role}"
    return msgspec.structs.replace(
        trajectory, id=f"{group}.{index}", group=group + role, weight_version=version
    )


def useful_groups(values: Advantages, groups_B: torch.Tensor) -> tuple[int, int]:
    """How many groups can teach something, of how many."""
    useful = set(groups_B[values.signal_B & values.keep_B].tolist())
    return len(useful), len(set(groups_B.tolist()))
