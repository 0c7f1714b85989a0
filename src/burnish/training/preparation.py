"""What a run does before its first step, and what its evaluations decide.

A warm start, the start model's rewards as a unit, and a curriculum are all optional, done once, and
kept in the run's folder, so that a resumed run finds them done.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from burnish.config.schema import Curriculum as CurriculumConfig
from burnish.errors import StoreError, UserError
from burnish.policy.pieces import ReferenceFrozen
from burnish.policy.reference import ReferenceStats, fit_reference_stats
from burnish.records import Task
from burnish.store import StartRewards, read_start_rewards, write_start_rewards
from burnish.store.durable import sweep, whole_folder
from burnish.training.collect import reward_batch
from burnish.training.curriculum import Curriculum, CurriculumState, advance, difficulty_of
from burnish.training.events import Calibrated, Event, HeldOut, StageBegun
from burnish.training.optimiser import MasterAdamW
from burnish.training.stages import FILE as DIFFICULTY
from burnish.training.stages import open_curriculum
from burnish.training.warm_start import WARM_START

if TYPE_CHECKING:
    from burnish.training.loop import Trainer


def prepare(run: Trainer) -> Iterator[Event]:
    """Imitate the experts and measure the start model, where the recipe asks for it."""
    if run.warm_up is not None:
        imitated = run.warm_up.run()
        while (event := run.guarded(lambda: next(imitated, None), "the warm start")) is not None:
            yield event
        run.warm_up = None
        _start_anew(run)
    calibration = run.config.policy.calibration
    if calibration is not None and run.weigher.state.reference is None:
        yield run.guarded(functools.partial(_calibrate, run, calibration), "calibration")
    if run.config.curriculum is not None:
        work = functools.partial(_begin_curriculum, run, run.config.curriculum)
        yield run.guarded(work, "measuring the curriculum")


def _start_anew(run: Trainer) -> None:
    """The imitated weights are the run's first: of the optimiser, and of the reference."""
    if run.world.is_main:
        sweep(run.folder)
        with whole_folder(run.folder / WARM_START, "the warm start") as draft:
            run.trainable.write(draft, step=0)
    run.world.wait()
    run.optimiser = MasterAdamW(run.trainable.module.named_parameters(), run.config.optimiser)
    run.updater.optimiser = run.optimiser
    if run.config.policy.needs_reference:
        run.trainable.freeze_reference()


def _calibrate(run: Trainer, piece: ReferenceFrozen) -> Calibrated:
    """Rewards of the start model on its own answers: the unit of `reference_frozen`."""
    kept = read_start_rewards(run.folder)
    if kept is not None:
        return _remember(run, piece, kept)
    run.ask_judges_about("calibration")
    tasks = replace(run.cursor, position=0).take(piece.prompts)
    seed = run.seeds.for_("calibration")
    scored = run.collector.answer(tasks, seed, piece.samples)
    batch = reward_batch(scored)
    names = batch.names
    silent = [n for n, k in zip(names, batch.rewards_BK.isnan().all(0), strict=True) if k]
    if silent:
        raise UserError(
            f"reward '{silent[0]}' has no value for any of {len(scored)} answers of the start "
            "model, so 'reference_frozen' has no unit for it; see why: burnish try"
        )
    reference = fit_reference_stats(batch.rewards_BK, sd_floor=piece.sd_floor, robust=piece.robust)
    numbers = (reference.mean_K.tolist(), reference.sd_K.tolist(), reference.count_K.tolist())
    measured = StartRewards(len(scored), names, *numbers)
    if run.world.is_main:
        write_start_rewards(run.folder, measured)
    return _remember(run, piece, measured)


def _remember(run: Trainer, piece: ReferenceFrozen, measured: StartRewards) -> Calibrated:
    """Give the recipe its unit, and say what it is."""
    reference = ReferenceStats.from_numbers(measured.mean, measured.deviation, measured.counts)
    run.weigher.state = replace(run.weigher.state, reference=reference)
    named = dict(zip(measured.names, measured.deviation, strict=True))
    return Calibrated(
        count=measured.answers,
        mean=dict(zip(measured.names, measured.mean, strict=True)),
        deviation=named,
        constant=tuple(name for name, sd in named.items() if sd <= piece.sd_floor),
    )


def _begin_curriculum(run: Trainer, config: CurriculumConfig) -> StageBegun:
    """Deal the tasks into stages by how the start model does at them."""

    def measure(pool: Sequence[Task]) -> list[float | None]:
        run.ask_judges_about("difficulty")
        seed = run.seeds.for_("difficulty")
        part = run.config.evaluation.part
        # A prompt over the limit is never drawn, whatever its stage.
        fitting = [task for task in pool if run.cursor.fits(task)]
        scored = run.collector.answer(fitting, seed, config.samples)
        marks: dict[str, list[float | None]] = {task.id: [] for task in pool}
        for s in scored:
            mark = s.reward.components.get(part) if part else s.reward.value
            marks[s.task.id].append(mark)
        return [difficulty_of(marks[task.id], config.passing) for task in pool]

    seed = run.seeds.for_("curriculum")
    curriculum = open_curriculum(
        run.folder, config, run.tasks, measure, seed, keeps=run.world.is_main
    )
    run.curriculum = curriculum
    return _enter_stage(run, curriculum, run.state.curriculum)


def _enter_stage(run: Trainer, curriculum: Curriculum, state: CurriculumState) -> StageBegun:
    if state.stage >= len(curriculum.stages):
        raise StoreError(
            f"the newest checkpoint of {run.folder} stands at stage {state.stage} of a curriculum "
            f"with {len(curriculum.stages)} stages; is {run.folder / DIFFICULTY} that of this run?"
        )
    run.state = msgspec.structs.replace(run.state, curriculum=state)
    curriculum.stage = state.stage
    run.cursor.draw_from(curriculum)
    stages = curriculum.stages
    return StageBegun(state.stage, len(stages), len(stages[state.stage]), run.state.step)


def after_evaluation(run: Trainer, found: HeldOut) -> Iterator[Event]:
    """On to harder tasks once the score has stopped rising."""
    if run.config.curriculum is None or run.curriculum is None:
        return
    state = advance(
        run.state.curriculum,
        found.score.value if found.score else None,
        run.config.curriculum.patience,
        run.config.curriculum.gain,
        stages=len(run.curriculum.stages),
    )
    if state.stage != run.state.curriculum.stage:
        yield _enter_stage(run, run.curriculum, state)
    run.state = msgspec.structs.replace(run.state, curriculum=state)
