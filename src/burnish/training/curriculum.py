"""Easy tasks first: stages by how often the start model fails at a task.

What a stage draws follows from the seed, the stage and the index, so a resumed run needs the
`CurriculumState` and nothing else. After AFRL (arXiv 2602.10006), whose stages were not readable; what
fixes them here is ours.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from burnish.config.schema import Curriculum as CurriculumConfig
from burnish.errors import StoreError, UserError
from burnish.records import Task
from burnish.seeds import derive, digest
from burnish.store.durable import write_file
from burnish.tasks.base import TaskSet, epoch_order, epoch_position, in_epoch

REPLAY = 0.2
"""Share of the draws of a later stage that come from the stages before it."""


def task_pool(tasks: TaskSet, size: int) -> list[Task]:
    """The first `size` training tasks, each once: what is measured and then dealt to stages."""
    return [tasks.train(i) for i in range(min(size, tasks.train_size or size))]


def curriculum_stages(
    difficulty: Sequence[float | None],
    thresholds: Sequence[float],
    always: Iterable[int] | None = None,
) -> list[tuple[int, ...]]:
    """The tasks of each stage, by position: those of at most its difficulty, 1 - pass rate.

    `always` are tasks that belong to every stage, such as those of rare rules. A task whose
    difficulty could not be measured (None or NaN) waits for the last stage.
    """
    is_rising = all(a < b for a, b in itertools.pairwise(thresholds))
    if not thresholds or not is_rising or not all(0 <= t <= 1 for t in thresholds):
        raise ValueError(f"thresholds: got {list(thresholds)}, expected rising numbers in 0 to 1")
    everywhere = set(always or ())
    unknown = sorted(i for i in everywhere if not 0 <= i < len(difficulty))
    if unknown:
        raise ValueError(f"always: got {unknown[0]}, expected positions below {len(difficulty)}")
    measured = [math.nan if d is None else float(d) for d in difficulty]
    for position, value in enumerate(measured):
        if not (math.isnan(value) or 0 <= value <= 1):
            raise ValueError(f"difficulty: task {position} has {value}, expected 0 to 1")
    stages = []
    for stage, threshold in enumerate(thresholds, start=1):
        is_last = stage == len(thresholds)
        stages.append(
            tuple(
                i
                for i, value in enumerate(measured)
                if value <= threshold or i in everywhere or (is_last and math.isnan(value))
            )
        )
    return stages


class Curriculum:
    def __init__(
        self,
        tasks: TaskSet,
        stages: Sequence[Sequence[int]],
        *,
        seed: int = 0,
        replay: float = REPLAY,
        always: Iterable[int] | None = None,
    ) -> None:
        """Stages that add no task are left out. `always` is as for `curriculum_stages`."""
        if not 0 <= replay < 1:
            raise ValueError(f"replay: got {replay}, expected a share from 0 to below 1")
        everywhere = set(always or ())
        self.tasks = tasks
        self.seed = seed
        self.replay = replay
        self.stage = 0
        self.stages = _growing(stages, everywhere)
        if not self.stages:
            raise UserError(
                f"curriculum: no task of '{tasks.name}' is easy enough for any stage; raise "
                "curriculum.thresholds up to 1.0, or measure more tasks."
            )
        earlier: list[set[int]] = [set(), *map(set, self.stages)]
        self._fresh = [
            tuple(i for i in stage if i not in before or i in everywhere)
            for stage, before in zip(self.stages, earlier, strict=False)
        ]
        self._easier = [tuple(sorted(before - everywhere)) for before in earlier[:-1]]
        self._order = lru_cache(maxsize=8)(epoch_order.__wrapped__)

    @property
    def name(self) -> str:
        return self.tasks.name

    @property
    def fields(self) -> frozenset[str]:
        return self.tasks.fields

    @property
    def fingerprint(self) -> str:
        stages = msgspec.json.encode((self.stages, self._fresh, self.seed, self.replay))
        return digest(self.tasks.fingerprint, stages)

    @property
    def train_size(self) -> int:
        return len(self.stages[self.stage])

    @property
    def notes(self) -> tuple[str, ...]:
        sizes = ", ".join(str(len(stage)) for stage in self.stages)
        return (*self.tasks.notes, f"curriculum: {len(self.stages)} stages of {sizes} tasks")

    def train(self, index: int) -> Task:
        """The task at a position of the stream: mostly of what the stage adds, some of the rest.

        Each of the two parts is walked through in full before one of its tasks comes again.
        """
        fresh, easier = self._fresh[self.stage], self._easier[self.stage]
        share = self.replay if easier else 0.0
        replayed = math.floor(index * share)
        is_replay = math.floor((index + 1) * share) > replayed
        pool, drawn = (easier, replayed) if is_replay else (fresh, index - replayed)
        lap, place = epoch_position(drawn, len(pool))
        seed = derive(self.seed, "curriculum", self.stage, int(is_replay))
        return in_epoch(self.tasks.train(pool[self._order(seed, lap, len(pool))[place]]), lap)

    def held_out(self, limit: int | None = None) -> list[Task]:
        return self.tasks.held_out(limit)

    def sample(self, k: int) -> list[Task]:
        return [self.train(index) for index in range(min(k, self.train_size))]


class CurriculumState(Struct, frozen=True):
    stage: Annotated[int, Meta(ge=0)] = 0
    best: float | None = None
    """The score that the next ones are compared with; None before the first evaluation."""
    stale: Annotated[int, Meta(ge=0)] = 0
    """Evaluations since then that did not gain enough."""


def advance(
    state: CurriculumState,
    score: float | None,
    patience: int,
    gain: float = 0.005,
    *,
    stages: int | None = None,
) -> CurriculumState:
    """The state after an evaluation: the next stage once `patience` of them gained too little.

    A score counts as a gain where it is at least `gain` above the one remembered, so that small
    steps add up. None, an evaluation without a score, changes nothing; the last of `stages` stays.
    """
    if patience < 1:
        raise ValueError(f"patience: got {patience}, expected at least 1")
    if score is None or math.isnan(score):
        return state
    # A gain of exactly 0.005 is one, whatever 0.705 - 0.7 is in binary.
    if state.best is None or score - state.best >= gain - 1e-12:
        return msgspec.structs.replace(state, best=score, stale=0)
    if state.stale + 1 < patience:
        return msgspec.structs.replace(state, stale=state.stale + 1)
    last = math.inf if stages is None else stages - 1
    return CurriculumState(stage=int(min(state.stage + 1, last)), best=score, stale=0)


def difficulty_of(values: Iterable[float | None], passing: float = 1.0) -> float | None:
    known = [value for value in values if value is not None]
    return 1.0 - sum(value >= passing for value in known) / len(known) if known else None


def _growing(stages: Sequence[Sequence[int]], everywhere: set[int]) -> list[tuple[int, ...]]:
    """The stages that add a task to those before them; the first may hold `always` alone."""
    kept: list[tuple[int, ...]] = []
    seen: set[int] = set()
    for stage in stages:
        seen |= everywhere & set(stage)
        if set(stage) - seen or (stage and not kept):
            kept.append(tuple(sorted(seen | set(stage))))
        seen |= set(stage)
    return kept


FILE = "curriculum.json"

Measure = Callable[[Sequence[Task]], list[float | None]]
"""The difficulty of each task, None where it could not be measured."""


def open_curriculum(
    folder: Path,
    config: CurriculumConfig,
    tasks: TaskSet,
    measure: Measure,
    seed: int,
    *,
    keeps: bool = True,
) -> Curriculum:
    """The stages of a run; difficulties that an earlier start measured are read back.

    Of several processes, one `keeps` what they measured together.
    """
    pool = task_pool(tasks, config.pool)
    difficulty = _kept(folder / FILE, len(pool))
    if difficulty is None:
        difficulty = measure(pool)
        if keeps:
            write_file(folder / FILE, msgspec.json.encode(difficulty))
    always = _always(config.always, pool)
    stages = curriculum_stages(difficulty, config.thresholds, always)
    return Curriculum(tasks, stages, seed=seed, replay=config.replay, always=always)


def _kept(path: Path, tasks: int) -> list[float | None] | None:
    if not path.is_file():
        return None
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=list[float | None])
        if len(kept) != tasks or not all(d is None or 0 <= d <= 1 for d in kept):
            raise msgspec.ValidationError(f"expected {tasks} numbers from 0 to 1")
        return kept
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        raise StoreError(
            f"{path} cannot be read ({error}); remove it to measure the tasks again"
        ) from error


def _always(rule: str, pool: Sequence[Task]) -> list[int]:
    if not rule:
        return []
    field, _, value = rule.partition("=")
    found = [i for i, task in enumerate(pool) if str(task.fields.get(field)) == value]
    if not found:
        raise UserError(
            f"curriculum.always is '{rule}', and none of the {len(pool)} tasks of the pool has that "
            "value; correct it, or raise curriculum.pool"
        )
    return found
