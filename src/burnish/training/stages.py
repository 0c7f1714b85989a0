"""A run's curriculum: what the start model found hard, measured once and kept in the run's folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from burnish.config.schema import Curriculum as CurriculumConfig
from burnish.errors import StoreError, UserError, did_you_mean
from burnish.records import Task
from burnish.store.durable import write_file
from burnish.tasks.base import TaskSet
from burnish.training.curriculum import Curriculum, curriculum_stages, task_pool

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


def check_always(rule: str, tasks: TaskSet) -> None:
    """Refuse a rule that is no `field=value` of the tasks."""
    field, equals, _ = rule.partition("=")
    if rule and (not equals or field not in tasks.fields):
        known = ", ".join(sorted(tasks.fields)) or "none"
        raise UserError(
            f"curriculum.always is '{rule}'; expected field=value with one of the task's fields "
            f"({known}).{did_you_mean(field, tasks.fields)}"
        )


def _always(rule: str, pool: Sequence[Task]) -> list[int]:
    """Positions of the tasks that a `field=value` names."""
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
