"""One step's worth of scored rollouts: sample, score, and refill groups that teach nothing.

With `informative_groups` and `refill` (DAPO), groups whose rewards are all equal are put aside and
other prompts are sampled until the step is full or its rounds are spent. With `greedy_baseline`
(ReMax) each prompt is also answered greedily, as the baseline of its rollouts.
"""

from __future__ import annotations

import asyncio
import functools
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor

from burnish.errors import GuardTripped, ModelError, RewardError
from burnish.lm.base import LM, Sampling
from burnish.policy import InformativeGroups
from burnish.policy.batch import Advantages, RewardBatch
from burnish.policy.recipe import Recipe
from burnish.records import Finish, Reward, Status, Task, Trajectory
from burnish.rewards.combine import Weighted
from burnish.rewards.scorer import score_groups
from burnish.rollouts import Rollout, RolloutConfig, Slot, StepGame, roll_out
from burnish.store.sample_name import ids_in
from burnish.training.data import Cursor
from burnish.training.devices import World
from burnish.training.guards import find_useful
from burnish.training.watchdog import EventLoop

GREEDY = "greedy"
"""Split of greedy answers, and what their group's name ends with."""


@dataclass(frozen=True)
class Scored:
    task: Task
    trajectory: Trajectory
    reward: Reward


@dataclass
class Collected:
    kept: list[Scored]
    dropped: list[Scored]
    groups_tried: int = 0
    rollout_s: float = 0.0
    score_s: float = 0.0
    greedy: list[Scored] = field(default_factory=list)
    """The greedy answer to each prompt, where the recipe compares with it; never trained on."""


class BrokenStep(GuardTripped):
    """A guard tripped before the step was full; `scored` is what it had by then."""

    def __init__(self, error: GuardTripped, scored: list[Scored]) -> None:
        more = {key: getattr(error, key) for key in ("stage", "tensor", "step", "samples")}
        super().__init__(str(error), **more)
        self.scored = scored


class NoRollouts(GuardTripped):
    """Every rollout of a step failed; `failed` are their trajectories with the reasons."""

    def __init__(self, step: int, failed: list[Scored]) -> None:
        first = failed[0].trajectory
        super().__init__(
            f"rollout guard at step {step + 1}: all {len(failed)} rollouts failed; the first "
            f"({first.id}) with {first.status.value}: {first.reason}",
            stage="rollout",
            tensor="rollout",
            step=step,
            samples=tuple(s.trajectory.id for s in failed),
        )
        self.failed = failed


@dataclass(frozen=True)
class _Round:
    step: int
    slots: list[Slot]
    seed: int
    version: int
    sampling: Sampling
    ending: str = ""
    """Added to the names of the groups."""
    spare: Sequence[Task] = ()
    """Tasks that a game may draw on."""


def reward_batch(
    scored: Sequence[Scored], greedy: Sequence[Scored] = (), lost: Sequence[Scored] = ()
) -> RewardBatch:
    """The named reward vectors of a step as tensors; NaN where a reward has no value.

    `greedy` are the greedy answers to its prompts, whose rewards become the baselines; `lost` are
    rollouts that are not trained on, which count in the size of their groups.
    """
    parts = scored[0].reward.parts or (scored[0].reward,)
    names, every = tuple(part.name for part in parts), [s.trajectory for s in scored]

    def row(item: Scored) -> list[float]:
        found = map(item.reward.components.get, names)
        return [math.nan if value is None else value for value in found]

    def numbers(labels: Sequence[str]) -> Tensor:
        known: dict[str, int] = {}
        return torch.tensor([known.setdefault(label, len(known)) for label in labels])

    baselines = {item.trajectory.group.removesuffix(f".{GREEDY}"): row(item) for item in greedy}
    compared = [baselines.get(t.group, [math.nan] * len(names)) for t in every]
    sizes = Counter(s.trajectory.group for s in (*scored, *lost))
    # A rollout of which nothing is left has no role: it is lost to every group of its slot.
    gone = Counter(s.trajectory.group for s in lost if not s.trajectory.spans)
    whole = [sizes[t.group] + (gone[slot_of(t)] if slot_of(t) != t.group else 0) for t in every]
    return RewardBatch(
        rewards_BK=torch.tensor([row(item) for item in scored], dtype=torch.float64),
        weights_K=torch.tensor([part.weight for part in parts], dtype=torch.float64),
        groups_B=numbers([t.group for t in every]),
        lengths_B=torch.tensor([t.trained_tokens for t in every]),
        truncated_B=torch.tensor([t.finish is Finish.LENGTH for t in every]),
        names=names,
        baselines_BK=torch.tensor(compared, dtype=torch.float64) if greedy else None,
        sizes_B=torch.tensor(whole),
        roles_B=numbers([t.role for t in every]),
    )


class _Ahead(NamedTuple):
    """Rollouts of a later step that are under way beside this one's update."""

    tasks: list[str]
    rolled: Future[list[list[Trajectory]]]


@dataclass
class RolloutCollector:
    lm: LM
    scorer: Weighted
    recipe: Recipe
    config: RolloutConfig
    rollout: Rollout
    world: World
    loop: EventLoop
    send_again: Callable[[], Awaitable[None]]
    depth: int = 0
    """How many steps ahead of the update servers sample, with weights that lag by as much."""

    def __post_init__(self) -> None:
        self.game = self.rollout if isinstance(self.rollout, StepGame) else None
        self._ahead: dict[int, _Ahead] = {}
        select = self.recipe.select
        if self.game or (isinstance(select, InformativeGroups) and select.refill):
            self.depth = 0  # what a step asks for depends on the one before

    def look_ahead(
        self, steps: Sequence[int], cursor: Cursor, seed: Callable[[int], int], version: int
    ) -> None:
        """Begin the rollouts of the steps to come; servers go on with them while weights change.

        A step that then wants other tasks, as a curriculum may, samples those.
        """
        count, later = self.config.prompts, steps[: self.depth]
        tasks = cursor.peek(count * len(later))
        for place, step in enumerate(later):
            if step in self._ahead:
                continue
            slots = list(enumerate(tasks[place * count : (place + 1) * count]))
            mine = self.world.share(slots)
            asked = _Round(step, mine, seed(step), version, self.config.sampling)
            rolled = self.loop.begin(functools.partial(self._roll, asked, mine))
            self._ahead[step] = _Ahead([task.id for _, task in mine], rolled)

    def collect(self, step: int, cursor: Cursor, seed: int, version: int) -> Collected:
        """Sample and score until the step is full; moves the cursor past every task it used."""
        select = self.recipe.select
        refill = select if isinstance(select, InformativeGroups) and select.refill else None
        found, failed, aside = Collected([], []), list[Scored](), list[Scored]()
        missing = self.config.prompts
        for _ in range(refill.max_rounds if refill else 1):
            slots = list(enumerate(cursor.take(missing), start=found.groups_tried))
            found.groups_tried += len(slots)
            spare = cursor.peek(missing * self.game.spare) if self.game else []
            this = _Round(step, slots, seed, version, self.config.sampling, spare=spare)
            played = self._sample_and_score(this, found)
            if self.recipe.needs_greedy:
                # The greedy answer to each prompt, in a group of its own.
                coldly = msgspec.structs.replace(this.sampling, n=1, temperature=0.0)
                again = replace(this, sampling=coldly, ending=f".{GREEDY}", spare=())
                found.greedy += self._sample_and_score(again, found)
            whole = [s for s in played if s.trajectory.status is Status.OK]
            scored = [s for s in whole if is_trained(s.trajectory)]
            aside += [s for s in whole if not is_trained(s.trajectory)]
            failed += [s for s in played if s.trajectory.status is not Status.OK]
            if refill is None:
                found.kept = scored
            elif scored:
                useful = self._useful(step, scored, found.greedy, failed)
                for one, is_useful in zip(scored, useful, strict=True):
                    (found.kept if is_useful else found.dropped).append(one)
                missing = self.config.prompts - len({slot_of(s.trajectory) for s in found.kept})
                if missing <= 0:
                    break
        if not found.kept:
            found.kept, found.dropped = found.dropped, []
        if not found.kept:
            found.kept, aside = aside, []  # without a reward: a step that moves nothing
        if not found.kept:
            raise NoRollouts(step, failed)
        found.dropped += aside + failed
        return found

    def _useful(
        self, step: int, scored: list[Scored], greedy: list[Scored], lost: list[Scored]
    ) -> list[bool]:
        ids = [s.trajectory.id for s in scored]
        try:
            batch = replace(reward_batch(scored, greedy, lost), max_tokens=self.config.max_tokens)
            return find_useful(self.recipe, batch, ids, step).tolist()
        except GuardTripped as error:
            raise BrokenStep(error, scored) from error

    def answer(self, tasks: Sequence[Task], seed: int, samples: int) -> list[Scored]:
        """Scored answers of the model as it is now, outside of any step.

        An answer that failed has no reward.
        """
        sampling = msgspec.structs.replace(self.config.sampling, n=samples)
        slots = list(enumerate(tasks))
        version = getattr(self.lm, "weight_version", 0)
        return self._sample_and_score(_Round(0, slots, seed, version, sampling), Collected([], []))

    def _sample_and_score(self, asked: _Round, clock: Collected) -> list[Scored]:
        mine = self.world.share(asked.slots)
        own_part = replace(asked, slots=mine, spare=self.world.share(list(asked.spare)))
        own = self.loop.run(functools.partial(self._roll_and_score, own_part, clock))
        return [scored for group in self.world.gather(own, len(asked.slots)) for scored in group]

    async def _roll_and_score(self, asked: _Round, clock: Collected) -> list[list[Scored]]:
        start = time.perf_counter()
        groups = await self._roll_fresh(asked)
        clock.rollout_s += time.perf_counter() - start
        for trajectory in (t for group in groups for t in group):
            if trajectory.status is Status.OK and not trajectory.trained_tokens:
                raise ModelError(
                    f"model '{self.lm.name}' returned no token ids for task {trajectory.task_id}; "
                    "training needs the tokens that were sampled. Use an in-process model or a "
                    "server that returns them."
                )
        start = time.perf_counter()
        rewards = await self._score(asked.step, [task for _, task in asked.slots], groups)
        clock.score_s += time.perf_counter() - start
        return [
            [Scored(task, t, rewards[t.id]) for t in group]
            for (_, task), group in zip(asked.slots, groups, strict=True)
        ]

    async def _roll_fresh(self, asked: _Round) -> list[list[Trajectory]]:
        """The rollouts of each slot. Those by weights that are too old are sampled once more.

        A rollout that then still is too old fails, and leaves its group.
        """
        version, bound = asked.version, self.config.max_staleness
        ahead = None if asked.ending else self._ahead.pop(asked.step, None)
        if ahead is not None and ahead.tasks == [task.id for _, task in asked.slots]:
            groups = await asyncio.wrap_future(ahead.rolled)
        else:
            if ahead is not None:
                ahead.rolled.cancel()
            groups = await self._roll(asked, asked.slots)
        stale = [
            i for i, one in enumerate(groups) if any(_is_stale(t, version, bound) for t in one)
        ]
        if not stale:
            return groups
        await self.send_again()
        again = await self._roll(asked, [asked.slots[i] for i in stale])
        for i, group in zip(stale, again, strict=True):
            groups[i] = []
            for t in group:
                if _is_stale(t, version, bound):
                    reason = (
                        f"sampled with weights of version {t.weight_version}, the trainer's are of "
                        f"version {version}; "
                        f"rollout.max_staleness allows a lag of {bound}"
                    )
                    t = msgspec.structs.replace(t, status=Status.INFRA_ERROR, reason=reason)
                groups[i].append(t)
        return groups

    async def _roll(self, asked: _Round, some: list[Slot]) -> list[list[Trajectory]]:
        how, seed, spare = asked.sampling, asked.seed, asked.spare
        rolled = await roll_out(some, self.lm, how, self.rollout, seed, spare)
        return [
            [
                _stamp(t, f"{asked.step}.{slot}", asked.ending, i, asked.version)
                for i, t in enumerate(one)
            ]
            for (slot, _), one in zip(some, rolled, strict=True)
        ]

    async def _score(
        self, step: int, tasks: Sequence[Task], groups: Sequence[Sequence[Trajectory]]
    ) -> dict[str, Reward]:
        """Rewards by rollout. The roles of a task are scored apart; what failed is not scored."""
        pairs = [
            (task, [t for t in group if t.group == key and t.status is Status.OK])
            for task, group in zip(tasks, groups, strict=True)
            for key in dict.fromkeys(t.group for t in group)
        ]
        items = [(task, [t.as_response() for t in group]) for task, group in pairs if group]
        try:
            rewards = await score_groups(
                self.scorer,
                items,
                limit=self.config.score_concurrency,
                deadline_s=self.config.score_timeout_s,
            )
        except RewardError as error:
            none = Reward.failed("total", Status.REWARD_ERROR, str(error))
            lost = [Scored(task, t, none) for task, group in pairs for t in group]
            line = f"reward guard at step {step + 1}: {error}"
            named = ids_in(line, (t.id for group in groups for t in group))
            tripped = GuardTripped(line, stage="reward", tensor="reward", step=step, samples=named)
            raise BrokenStep(tripped, lost) from error
        ids = [response.id for _, responses in items for response in responses]
        found = dict(zip(ids, (r for group in rewards for r in group), strict=True))
        for t in (t for group in groups for t in group if t.status is not Status.OK):
            found[t.id] = Reward.failed("total", t.status, t.reason)
        for id_, reward in found.items():
            if not reward.parts:
                # A total that failed as one (a deadline, a dead backend) gets its named parts back.
                children = zip(self.scorer.children, self.scorer.weights, strict=True)
                why = reward.status, reward.reason
                parts = tuple(Reward.failed(one.name, *why, weight=w) for one, w in children)
                found[id_] = msgspec.structs.replace(reward, parts=parts)
        return found


def is_trained(trajectory: Trajectory) -> bool:
    """Whether a rollout belongs to the batch: a game says `untrained` in the `info` of the others."""
    return not trajectory.info.get("untrained")


def slot_of(trajectory: Trajectory) -> str:
    return ".".join(trajectory.group.split(".")[:2])


def _stamp(trajectory: Trajectory, group: str, ending: str, index: int, version: int) -> Trajectory:
    """Address a rollout as step.slot.index, and its group as step.slot (and what the rollout adds
    to the task's name: a role, a group within it; and ending)."""
    own = trajectory.group.removeprefix(trajectory.task_id)
    return msgspec.structs.replace(
        trajectory,
        id=f"{group}{ending}.{index}",
        group=group + own + ending,
        # A sampler whose weights lag behind the trainer's says so itself.
        weight_version=version if trajectory.weight_version is None else trajectory.weight_version,
    )


def _is_stale(trajectory: Trajectory, version: int, bound: int) -> bool:
    if trajectory.status is not Status.OK or trajectory.weight_version is None:
        return False
    return not 0 <= version - trajectory.weight_version <= bound


def useful_groups(values: Advantages, groups_B: Tensor) -> tuple[int, int]:
    useful = set(groups_B[values.signal_B & values.keep_B].tolist())
    return len(useful), len(set(groups_B.tolist()))
