"""Weights & Biases. Without an account it writes offline files that `wandb sync` sends later.

`WANDB_PROJECT`, `WANDB_ENTITY`, `WANDB_MODE` and the library's other variables hold; without them
the project is `burnish` and the files lie in the run's folder. A continued run has the same id.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from burnish.training.trackers import SampleRow, TrackedRun

STEP = "trainer/step"
"""The x axis of every chart: steps of the stage, or of the main training."""


class Tracker:
    """Logs through wandb's own process."""

    def __init__(self) -> None:
        self.run: Any = None

    def start(self, run: TrackedRun) -> None:
        import wandb

        mode: Any = os.environ.get("WANDB_MODE")
        if not mode and not wandb.login(prompt=False):
            mode = "offline"
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "burnish"),
            id=run.key,
            name=run.name,
            job_type="train",
            dir=str(run.folder),
            mode=mode,
            # Offline there is nobody to ask whether the run exists; its id says so when it is sent.
            resume=None if mode == "offline" else "allow",
            settings=wandb.Settings(console="off", silent=True),
        )
        self.run.config.update({**run.config, "recipe": run.recipe}, allow_val_change=True)
        self.run.define_metric(STEP)
        self.run.define_metric("*", step_metric=STEP)

    def log(self, metrics: Mapping[str, float], step: int, stage: str, total: int) -> None:
        # wandb takes steps in rising order only, and stages begin at 0: it counts all of them.
        self.run.log({**metrics, STEP: step}, step=total)

    def log_samples(self, rows: Sequence[SampleRow], step: int, total: int) -> None:
        import wandb

        table = wandb.Table(columns=list(SampleRow._fields), data=[list(row) for row in rows])
        self.run.log({"samples": table, STEP: step}, step=total)

    def finish(self, status: str, result: Mapping[str, Any]) -> None:
        self.run.summary.update({f"result/{key}": value for key, value in result.items()})
        self.run.finish(exit_code=0 if status == "finished" else 1)
