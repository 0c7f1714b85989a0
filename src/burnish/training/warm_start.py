"""A short imitation of experts before the first step of a run.

The weights it ends with are written to `warm_start/` in the run's folder, a Hugging Face folder
like any other: a resumed run begins with it, and so may any other run (`model.path`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from burnish.config.schema import Optimiser, WarmStart
from burnish.training.devices import World
from burnish.training.events import Imitated
from burnish.training.experts import Experts
from burnish.training.optimiser import MasterAdamW, learning_rate
from burnish.training.supervised import fine_tune
from burnish.training.trainable import Trainable

WARM_START = "warm_start"


@dataclass(frozen=True)
class WarmUp:
    """A warm start that is still to be done."""

    trainable: Trainable
    experts: Experts
    config: WarmStart
    world: World
    budget: int = 0

    def run(self) -> Iterator[Imitated]:
        """Imitate, one step after the other."""
        steps = self.config.steps
        settings = Optimiser(
            learning_rate=self.config.learning_rate,
            warmup_steps=steps // 10,
            schedule="linear",
        )
        optimiser = MasterAdamW(self.trainable.module.named_parameters(), settings)
        for done in fine_tune(
            self.trainable,
            self.experts,
            optimiser,
            steps=steps,
            batch=self.config.batch,
            rate=lambda step: learning_rate(settings, step, steps),
            budget=self.budget,
            world=self.world,
        ):
            yield Imitated(done.step, steps, done.loss)
        optimiser.clear()
