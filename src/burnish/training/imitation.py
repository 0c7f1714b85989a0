"""Where a run's demonstrations come from, and the `sft` piece at work."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from burnish.config.schema import Config
from burnish.errors import UserError, did_you_mean
from burnish.lm.tokenizer import Tokenizer
from burnish.policy.pieces import SFT
from burnish.records import Trajectory
from burnish.seeds import Seeds
from burnish.tasks.base import TaskSet
from burnish.tasks.config import build as build_tasks
from burnish.training.experts import Experts


@dataclass(frozen=True)
class Imitation:
    """What is imitated, and how much it counts at each step."""

    piece: SFT
    experts: Experts
    steps: int
    """Of the run; a linear schedule ends there."""

    def take(self, update: int) -> list[Trajectory]:
        """The demonstrations of one update, counted over the whole run."""
        return self.experts.take(update, self.piece.batch)

    def coefficient(self, step: int) -> float:
        """The piece's coefficient at a step."""
        if self.piece.schedule == "constant":
            return self.piece.coefficient
        done = step / max(self.steps - 1, 1)
        return self.piece.coefficient * (1 - done * (1 - self.piece.final_ratio))


def open_teachers(config: Config, tasks: TaskSet, root: Path) -> TaskSet | None:
    """The tasks whose demonstrations are imitated, where anything is."""
    if config.warm_start is None and config.policy.imitation is None:
        return None
    own = config.experts.task
    teachers = tasks if own is None else build_tasks(own, config.run.seed, root)
    piece = config.policy.imitation
    for name in (config.experts.field, piece.by if piece else ""):
        if name and name not in teachers.fields:
            known = ", ".join(sorted(teachers.fields)) or "none"
            who = "warm_start" if config.warm_start else "the `sft` term"
            raise UserError(
                f"{who} needs demonstrations: task set '{teachers.name}' has no field '{name}'; it "
                f"has {known}. Name one in experts.field, or other tasks in experts.task."
                f"{did_you_mean(name, teachers.fields)}"
            )
    return teachers


def open_experts(config: Config, teachers: TaskSet, tokenizer: Tokenizer, by: str = "") -> Experts:
    """Demonstrations of a run; with `by`, the values of that field take turns."""
    seed = Seeds(config.run.seed).for_("experts")
    return Experts(teachers, tokenizer, seed=seed, field=config.experts.field, by=by)


def open_imitation(
    config: Config, teachers: TaskSet | None, tokenizer: Tokenizer
) -> Imitation | None:
    """What every update imitates, where the recipe has an `sft` term."""
    piece = config.policy.imitation
    if piece is None or teachers is None:
        return None
    return Imitation(piece, open_experts(config, teachers, tokenizer, piece.by), config.steps)
