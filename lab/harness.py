"""Run studies: one shared warm start each, then every arm and seed, several at a time.

A run that fails is reported as failed and the others go on; finished runs are not done again, so a
study that was cut short continues with the same command.
"""

from __future__ import annotations

import math
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from burnish.errors import UserError
from lab.plan import Arm, Sizes, Study
from lab.recipes import START, WARM_START, arm_settings, run_name, start_settings, write_recipe
from lab.slots import (
    FAILED,
    Record,
    Slot,
    make_start,
    measure_start,
    path_of,
    start_id,
    stored as stored_record,
    work as work_slot,
)

__all__ = ["Arm", "Options", "Study", "run_studies"]

START_S = 90.0
"""About what a warm start takes on an H200."""
START_ARM = "(start)"
"""The start model's own row, where a study measures it."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """How studies are run."""

    home: Path
    """Folder of the runs; a study has a folder in it."""
    sizes: Sizes
    jobs: int = 1
    seeds: tuple[int, ...] = ()
    """Instead of a study's own."""
    again: bool = False
    """Do finished runs once more."""
    minutes: float = 0.0
    """No run is begun after so many; 0: no limit."""
    timeout_s: float = 1800.0

    @property
    def threads(self) -> int:
        """CPU threads of one process."""
        return max(1, (os.cpu_count() or 1) // self.jobs)


def run_studies(
    studies: Sequence[Study],
    options: Options,
    say: Say,
    keep: Callable[[Record], None] | None = None,
) -> dict[str, list[Record]]:
    """Records of all runs by study, in the order of arms and seeds; those not begun are left out.

    `keep` is given each record when its run is over, from one thread at a time.
    """
    names = [study.name for study in studies]
    if len(set(names)) < len(names):
        raise UserError(f"two studies have one name ({', '.join(names)}); expected different ones.")
    runner = _Runner(options, say, keep)
    for study in studies:
        say(forecast(study, options))
    with ThreadPoolExecutor(options.jobs) as pool:
        broken = dict(zip(names, pool.map(runner.start, studies), strict=True))
        tasks = [task for study in studies for task in runner.tasks(study, broken[study.name])]
        done = list(pool.map(lambda task: task(), tasks))
    return {name: [r for r in done if r is not None and r.study == name] for name in names}


def forecast(study: Study, options: Options) -> str:
    """How many runs a study has, and about how long they take where that is known."""
    seeds = options.seeds or study.seeds[: options.sizes.seeds]
    runs = len(seeds) * len(study.arms)
    told = f"{study.name}: {runs} runs, {options.jobs} at a time"
    if options.sizes.device == "cpu" or not study.run_s:
        return f"{told}; how long one takes is not known here"
    rounds = math.ceil(runs / options.jobs)
    minutes = (START_S + rounds * study.run_s) / 60
    return (
        f"{told}, about {study.run_s:.0f} s each on an H200: about {minutes:.0f} min with its start"
    )


Task = Callable[[], Record | None]


@dataclass(frozen=True)
class _Runner:
    """Turns studies into runs."""

    options: Options
    say: Say
    keep: Callable[[Record], None] | None = None
    began: float = 0.0
    seconds: list[float] = field(default_factory=list)
    """Of the runs that were done here."""
    left: list[int] = field(default_factory=lambda: [0])
    """Runs that are not done yet."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Records are kept one after another: they may go into one file."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "began", time.perf_counter())

    def start(self, study: Study) -> str:
        """Make the study's start weights; a reason where there are none."""
        if study.start is None or self._is_late():
            return ""
        options = self.options
        file = options.home / study.name / f"{START}.toml"
        recipe = study.arms[0].recipe
        try:
            digest = write_recipe(file, recipe, start_settings(study, options.sizes))
        except UserError as error:
            return f"the warm start failed: {error}"
        reason = make_start(file, digest, options.threads, options.timeout_s)
        self.say(f"{study.name}: {reason or 'start weights ready'}  ({self._elapsed()})")
        return reason

    def tasks(self, study: Study, broken: str) -> Iterable[Task]:
        """What is to be done for a study, seed by seed, so that whole seeds are done first."""
        seeds = self.options.seeds or study.seeds[: self.options.sizes.seeds]
        if study.measure and study.start is not None:
            yield lambda: self._measure_start(study, broken)
        self.left[0] += len(seeds) * len(study.arms)
        for seed in seeds:
            for arm in study.arms:
                yield lambda arm=arm, seed=seed: self._run(study, arm, seed, broken)  # type: ignore[misc]

    def _run(self, study: Study, arm: Arm, seed: int, broken: str) -> Record | None:
        self.left[0] -= 1
        if broken:
            return Record(study.name, arm.name, seed, FAILED, broken, "", {}, [])
        options = self.options
        file = options.home / study.name / f"{run_name(arm.name, seed)}.toml"
        try:
            settings = arm_settings(study, arm, seed, options.sizes)
            digest = write_recipe(file, arm.recipe, settings)
        except UserError as error:
            return Record(study.name, arm.name, seed, FAILED, str(error), "", {}, [])
        slot = self._slot(study, arm.name, seed, file, digest)
        known = None if options.again else stored_record(slot)
        if known is not None:
            return known
        if self._is_late():
            return None
        begun = time.perf_counter()
        record = work_slot(slot, options.threads, options.timeout_s)
        self.seconds.append(time.perf_counter() - begun)
        self._tell(record)
        return record

    def _measure_start(self, study: Study, broken: str) -> Record | None:
        """The measure of the weights that all arms begin with."""
        if broken:
            return None
        options = self.options
        # No run of its own: the name places its record and log.
        file = options.home / study.name / f"{START}-measured.toml"
        slot = self._slot(study, START_ARM, 0, file, START)
        known = None if options.again else stored_record(slot)
        if known is not None or self._is_late():
            return known
        model = options.home / study.name / WARM_START
        record = measure_start(slot, model, options.threads, options.timeout_s)
        self._tell(record)
        return record

    def _slot(self, study: Study, arm: str, seed: int, file: Path, digest: str) -> Slot:
        sizes = self.options.sizes
        start = None if study.start is None else self.options.home / study.name / WARM_START
        return Slot(
            study=study.name,
            arm=arm,
            seed=seed,
            recipe=file,
            digest=digest,
            start=start,
            start_id=start_id(self.options.home / study.name) if start else "",
            measure=path_of(study.measure),
            prompts=sizes.prompts,
            device=sizes.device,
        )

    def _is_late(self) -> bool:
        limit = self.options.minutes * 60
        return limit > 0 and time.perf_counter() - self.began > limit

    def _tell(self, record: Record) -> None:
        if self.keep is not None:
            with self.lock:
                self.keep(record)
        outcome = record.reason or f"{record.row.get('train_s', 0.0):.1f} s of steps"
        self.say(
            f"{record.study}: {record.arm}, seed {record.seed}: {record.status}, {outcome}  "
            f"({self._elapsed()}{self._remaining()})"
        )

    def _remaining(self) -> str:
        """About how long the runs that are not begun yet take, by those that are done."""
        if not self.seconds or not self.left[0]:
            return ""
        rounds = math.ceil(self.left[0] / self.options.jobs)
        return f", about {rounds * statistics.fmean(self.seconds) / 60:.0f} min for those to come"

    def _elapsed(self) -> str:
        return f"after {time.perf_counter() - self.began:.0f} s"
