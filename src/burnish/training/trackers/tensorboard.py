"""TensorBoard: event files in the run's folder. `tensorboard --logdir runs` shows every run.

A stage writes to a folder of its own, because its steps begin at 0 too. A continued run writes a
new file whose first event takes back the steps that are trained a second time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from burnish.training.trackers import SampleRow, TrackedRun

FOLDER = "tensorboard"
LONGEST = 400
"""Characters of a cell."""


class Tracker:
    """Writes scalars and texts with torch's own writer."""

    def __init__(self) -> None:
        self.folder = Path()
        self.config: Mapping[str, Any] = {}
        self.writers: dict[str, Any] = {}

    def start(self, run: TrackedRun) -> None:
        # Imported here so that it happens before the first step.
        from torch.utils.tensorboard import SummaryWriter as SummaryWriter

        self.folder, self.config = run.folder / FOLDER, run.config

    def log(self, metrics: Mapping[str, float], step: int, stage: str, total: int) -> None:
        writer = self._writer(stage, step)
        for name, value in metrics.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    def log_samples(self, rows: Sequence[SampleRow], step: int, total: int) -> None:
        lines = [_row(SampleRow._fields), _row(["---"] * len(SampleRow._fields))]
        self._writer("", step).add_text("samples", "\n".join([*lines, *map(_row, rows)]), step)

    def finish(self, status: str, result: Mapping[str, Any]) -> None:
        if result:
            text = json.dumps(result, indent=2)
            self._writer("", 0).add_text("result", f"```\n{text}\n```")
        for writer in self.writers.values():
            writer.close()

    def _writer(self, stage: str, step: int) -> Any:
        if stage not in self.writers:
            from torch.utils.tensorboard import SummaryWriter

            place = self.folder / stage if stage else self.folder
            writer = SummaryWriter(str(place), purge_step=step)
            if not stage:
                settings = "\n".join(f"{key} = {value!r}" for key, value in self.config.items())
                writer.add_text("config", f"```\n{settings}\n```", step)
            self.writers[stage] = writer
        return self.writers[stage]


def _row(cells: Sequence[object]) -> str:
    texts = (" ".join(str(cell)[:LONGEST].replace("|", "\\|").split()) for cell in cells)
    return f"| {' | '.join(texts)} |"
