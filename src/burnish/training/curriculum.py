"""Easy tasks first: stages by how often the start model fails at a task.

What a stage draws follows from the seed, the stage and the index, so a resumed run needs the
`CurriculumState` and nothing else. After AFRL (arXiv 2602.10006), whose stages were not readable; what
fixes them here is ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path

import msgspec
from msgspec import Struct

from burnish.boundary import Count, Share
from burnish.config.schema import Curriculum as CurriculumConfig
from burnish.errors import StoreError, UserError
from burnish.records import Task
from burnish.seeds import derive
from burnish.store.durable import write_file
from burnish.tasks.base import TaskSet, epoch_order, in_epoch

REPLAY = 0.2
"""Share of the draws of a later stage that come from the stages before it."""


def curriculum_stages(
    difficulty: Sequence[float | None],
    thresholds: Sequence[float],
    always: Iterable[int] | None = None,
) -> list[tuple[int, ...]]:
    """The tasks of each stage, by position: those of at most its difficulty, 1 - pass rate.

    `always` are tasks that belong to every stage, such as those of rare rules. A task whose
    difficulty could not be measured (None or NaN) waits for the last stage.
    """
    everywhere = set(always or ())
    measured = [math.nan if d is None else float(d) for d in difficulty]
    return [
        tuple(
            i
            for i, value in enumerate(measured)
            if value <= threshold
            or i in everywhere
            or (threshold == thresholds[-1] and math.isnan(value))
        )
        for threshold in thresholds
    ]


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
        everywhere = set(always or ())
        self.tasks = tasks
        self.seed = seed
        self.replay = replay
        self.stage = 0
        self.stages: list[tuple[int, ...]] = []
        seen: set[int] = set()
        for given in map(set, stages):  # the first may hold `always` alone
            seen |= everywhere & given
            if given - seen or (given and not self.stages):
                self.stages.append(tuple(sorted(seen | given)))
            seen |= given
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

    def train(self, index: int) -> Task:
        """The task at a position of the stream: mostly of what the stage adds, some of the rest.

        Each of the two parts is walked through in full before one of its tasks comes again.
        """
        fresh, easier = self._fresh[self.stage], self._easier[self.stage]
        share = self.replay if easier else 0.0
        replayed = math.floor(index * share)
        is_replay = math.floor((index + 1) * share) > replayed
        pool, drawn = (easier, replayed) if is_replay else (fresh, index - replayed)
        lap, place = divmod(drawn, len(pool))
        seed = derive(self.seed, "curriculum", self.stage, int(is_replay))
        return in_epoch(self.tasks.train(pool[self._order(seed, lap, len(pool))[place]]), lap)


class CurriculumState(Struct, frozen=True):
    stage: Count = 0
    best: float | None = None
    """The score that the next ones are compared with; None before the first evaluation."""
    stale: Count = 0
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


FILE = "curriculum.json"


def open_curriculum(
    folder: Path,
    config: CurriculumConfig,
    tasks: TaskSet,
    measure: Callable[[Sequence[Task]], list[float | None]],
    seed: int,
    *,
    keeps: bool = True,
) -> Curriculum:
    """The stages of a run; difficulties that an earlier start measured are read back.

    `measure` has None for a task that could not be measured. Of several processes, one `keeps` what
    they measured together.
    """
    pool = [tasks.train(i) for i in range(min(config.pool, tasks.train_size or config.pool))]
    path, shares = folder / FILE, list[Share | None]
    if path.is_file():
        try:
            difficulty = msgspec.json.decode(path.read_bytes(), type=shares)
            if len(difficulty) != len(pool):
                raise msgspec.ValidationError(f"expected {len(pool)} numbers")
        except msgspec.MsgspecError as error:
            raise StoreError(
                f"{path} cannot be read ({error}); remove it to measure the tasks again"
            ) from error
    else:
        difficulty = measure(pool)
        if keeps:
            write_file(path, msgspec.json.encode(difficulty))
    field, _, value = config.always.partition("=")
    always = [i for i, task in enumerate(pool) if field and str(task.fields.get(field)) == value]
    if field and not always:
        raise UserError(
            f"curriculum.always is '{config.always}', and none of the {len(pool)} tasks of the pool "
            "has that value; correct it, or raise curriculum.pool"
        )
    stages = curriculum_stages(difficulty, config.thresholds, always)
    return Curriculum(tasks, stages, seed=seed, replay=config.replay, always=always)
