"""Where a run's demonstrations come from, and the `sft` piece at work."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from burnish.config.schema import Config
from burnish.errors import UserError, did_you_mean
from burnish.lm.tokenizer import Tokenizer
from burnish.policy.balance import BalanceState
from burnish.policy.pieces import SFT
from burnish.records import Trajectory
from burnish.seeds import Seeds
from burnish.tasks.base import TaskSet
from burnish.tasks.config import build as build_tasks
from burnish.training.experts import Experts
from burnish.training.held_back import HeldBack, Measured, hold_back, measure
from burnish.training.passes import Passes


@dataclass(frozen=True)
class Imitation:
    """What is imitated, and how much it counts at each step."""

    piece: SFT
    experts: Experts
    steps: int
    """Of the run; a linear schedule ends there."""
    held: tuple[Trajectory, ...] = ()
    """Demonstrations that are never imitated; an adaptive schedule holds their likelihood."""

    def take(self, update: int) -> list[Trajectory]:
        """The demonstrations of one update, counted over the whole run."""
        return self.experts.take(update, self.piece.batch)

    def measure(self, passes: Passes, state: BalanceState | None, step: int) -> Measured | None:
        """The weight of imitation at a step of an adaptive schedule; None for the others."""
        if self.piece.schedule != "adaptive":
            return None
        return measure(passes, self.held, self.piece, state, step)

    def coefficient(self, step: int, balance: BalanceState | None = None) -> float:
        """The piece's coefficient at a step; `balance` is that of an adaptive schedule."""
        if self.piece.schedule == "adaptive" and balance is not None:
            return balance.coefficient
        if self.piece.schedule != "linear":
            return self.piece.coefficient
        done = step / max(self.steps - 1, 1)
        return self.piece.coefficient * (1 - done * (1 - self.piece.final_ratio))


def open_teachers(config: Config, tasks: TaskSet, root: Path) -> TaskSet | None:
    """The tasks whose demonstrations are imitated, where anything is."""
    if config.warm_start is None and config.policy.imitation is None:
        return None
    own = config.experts.task
    teachers = tasks if own is None else build_tasks(own, config.run.seed, root)
    piece, name = config.policy.imitation, config.experts.field
    known = ", ".join(sorted(teachers.fields)) or "none"
    if name and name not in teachers.fields:
        who = "warm_start" if config.warm_start else "the `sft` term"
        raise UserError(
            f"{who} needs demonstrations: task set '{teachers.name}' has no field '{name}'; it "
            f"has {known}. Name one in experts.field, or other tasks in experts.task."
            f"{did_you_mean(name, teachers.fields)}"
        )
    if piece and piece.by and piece.by not in teachers.fields:
        place = config.policy.auxiliary.index(piece)
        raise UserError(
            f"policy.auxiliary.{place}.by is '{piece.by}', a field that task set "
            f"'{teachers.name}' does not have; expected one of {known}."
            f"{did_you_mean(piece.by, teachers.fields)}"
        )
    return teachers


def open_experts(config: Config, teachers: TaskSet, tokenizer: Tokenizer, by: str = "") -> Experts:
    """Demonstrations of a run; with `by`, the values of that field take turns."""
    held = open_held_back(config, teachers)
    return Experts(
        teachers,
        tokenizer,
        seed=Seeds(config.run.seed).for_("experts"),
        field=config.experts.field,
        by=by,
        exclude=held.keys if held else (),
    )


def open_held_back(config: Config, teachers: TaskSet) -> HeldBack | None:
    """The demonstrations that nothing imitates, a warm start neither, where a schedule needs them."""
    piece = config.policy.imitation
    if piece is None or piece.schedule != "adaptive":
        return None
    return hold_back(teachers, piece, config.experts.field)


def open_imitation(
    config: Config, teachers: TaskSet | None, tokenizer: Tokenizer
) -> Imitation | None:
    """What every update imitates, where the recipe has an `sft` term."""
    piece = config.policy.imitation
    if piece is None or teachers is None:
        return None
    experts = open_experts(config, teachers, tokenizer, piece.by)
    held = open_held_back(config, teachers)
    shown = [experts.as_trajectory(task, i) for i, task in enumerate(held.tasks)] if held else []
    return Imitation(piece, experts, config.steps, tuple(shown))
