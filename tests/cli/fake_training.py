"""A training package that plays given events, for the command around it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from stored_run import metrics_of

from burnish.bench.statistics import Estimate
from burnish.config import Config, load
from burnish.store import RunStore
from burnish.training.data import AnswerBudget, PromptReport
from burnish.training.events import Event, Finished, HeldOut, Saved, Started, StepDone
from burnish.training.forecast import Forecast
from burnish.training.trainer import ending

CONFIG = {
    "steps": 3, "task": {"kind": "arithmetic"}, "rewards": [{"kind": "numeric"}],
    "rollout": {"max_tokens": 16},
}  # fmt: skip
BEFORE = Estimate(0.32, 0.237, 0.417, 100)
AFTER = Estimate(0.61, 0.512, 0.7, 100)
CHANGE = Estimate(0.29, 0.2, 0.38, 100)


def started(folder: Path, done: int = 0) -> Started:
    return Started(
        folder=folder, model="tiny", parameters=115_264, trained_parameters=115_264, device="cpu",
        dtype="float32", threads=1, steps=3, done=done,
        forecast=Forecast({"weights": 2**20, "optimiser": 2**21}, 2**33),
        prompts=PromptReport(512, 62, [("long-1", 2048), ("long-2", 1100)]),
        answers=AnswerBudget(16, ""),
    )  # fmt: skip


def step_done(step: int, **changes: Any) -> StepDone:
    values: dict[str, Any] = {
        "step": step, "steps": 3,
        "metrics": {k: v for k, v in metrics_of(step).items() if v is not None}, "useful_groups": 5,
        "groups": 8, "seconds": 0.5, "tokens_per_s": 812.4, "remaining_s": 130.0, "reused": False,
    }  # fmt: skip
    return StepDone(**(values | changes))


class FakeTrainer:
    """Plays a run of three steps; with `fail_at`, raises `error` before that step."""

    def __init__(self, folder: Path, error: BaseException | None = None, fail_at: int = 1) -> None:
        (folder / "config.json").unlink(missing_ok=True)
        self.folder = folder
        self.error = error
        self.fail_at = fail_at
        self.store = RunStore.create(folder, {"steps": 3}, {}, recipe="small")
        self.world = SimpleNamespace(is_main=True)
        self.tasks = SimpleNamespace(
            notes=("rows.jsonl: 2 of 10 rows skipped.",), sample=lambda count: []
        )
        self.config = load(Config, CONFIG).value
        self.state = SimpleNamespace(step=0)
        self.saved_step = 0
        self.stage = SimpleNamespace(
            name="", steps=3, algorithm=SimpleNamespace(samples_prompts=True)
        )

    def note_end(self, error: BaseException) -> None:
        status, reason = ending(error)
        self.store.finish(status, {"reason": reason, "step": self.state.step})

    def run(self) -> Iterator[Event]:
        yield started(self.folder)
        yield HeldOut(0, BEFORE, 100, 100)
        for step in range(3):
            if self.error is not None and step == self.fail_at:
                raise self.error
            self.store.append_metrics(step, metrics_of(step))
            self.state.step = step + 1
            yield step_done(step, useful_groups=0 if step == 1 else 5)
        yield HeldOut(3, AFTER, 98, 100)
        (self.folder / "checkpoints" / "step-000003").mkdir(parents=True)
        yield Saved(3, self.folder / "checkpoints" / "step-000003")
        self.store.finish("finished", {"reason": "", "before": BEFORE, "after": AFTER})
        yield Finished("finished", "", self.folder, BEFORE, AFTER, CHANGE, seconds=83.0)
