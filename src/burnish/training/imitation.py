"""The `sft` piece at work: demonstrations beside the rollouts of every update."""

from __future__ import annotations

from dataclasses import dataclass

from burnish.policy.pieces import SFT
from burnish.records import Trajectory
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
