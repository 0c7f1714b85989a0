"""Send a run's metrics, config and result to wandb, TensorBoard or MLflow beside the store.

    trackers = ["tensorboard"]          # in a recipe, or `burnish train grpo --tracker tensorboard`

A tracker is one file here with a class `Tracker`, and one word in `Config.trackers`. Each runs in a
thread of its own: training never waits for a server, and a tracker that fails is left out with one
warning. The run's store has everything either way.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import math
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from burnish.config.schema import Config
from burnish.errors import StoreError, UserError
from burnish.seeds import digest
from burnish.source import describe
from burnish.store import STAGE, RunStore
from burnish.training.events import Event, Finished, HeldOut, Started, StepDone

logger = logging.getLogger(__name__)

PACKAGES = {"wandb": "wandb", "tensorboard": "tensorboard", "mlflow": "mlflow"}
"""The package that each tracker needs; the extra has the tracker's name."""
START_S = 60.0
"""How long the run waits for a tracker to open: what it imports must not meet the first step."""
END_S = 60.0
"""How long the end of a run waits for what is still to be sent."""
INTERRUPTED = "interrupted"


class TrackedRun(NamedTuple):
    """What a tracker knows of a run when it opens."""

    key: str
    """The same whenever this run is continued, and no other run's."""
    name: str
    folder: Path
    recipe: str
    config: Mapping[str, Any]
    """Dotted key -> value."""


class SampleRow(NamedTuple):
    """One answer, for a tracker's table."""

    id: str
    prompt: str
    response: str
    reward: float | None
    """None where there is no value; `status` says why."""
    status: str


class Tracker(Protocol):
    """One library. Only its own thread calls it, in this order."""

    def start(self, run: TrackedRun) -> None:
        """Open the run there, or go on with the one that was begun under `run.key`."""
        ...

    def log(self, metrics: Mapping[str, float], step: int, stage: str, total: int) -> None:
        """Numbers of a step of a stage; `total` also counts the steps of the stages before."""
        ...

    def log_samples(self, rows: Sequence[SampleRow], step: int, total: int) -> None:
        """Some answers of a step of the main training."""
        ...

    def finish(self, status: str, result: Mapping[str, Any]) -> None:
        """Close the run: `finished`, `stopped` or `interrupted`, and what came of it."""
        ...


def check_trackers(names: Sequence[str]) -> None:
    """Refuse a tracker whose library is not installed, before a model is loaded."""
    for name in names:
        if importlib.util.find_spec(PACKAGES[name]) is None:
            raise UserError(
                f"trackers: '{name}' needs the package '{PACKAGES[name]}', which is not installed. "
                f"Install it: pip install 'burnish[{name}]'"
            )


class Trackers:
    """All trackers of a run; `see` gets every event, `close` ends them."""

    def __init__(self, config: Config, store: RunStore) -> None:
        check_trackers(config.trackers)
        self._store, self._samples = store, config.tracked_samples
        self._before: dict[str, int] = {}
        steps = 0
        for stage in config.stages:
            self._before[stage.name] = steps
            steps += config.stage_steps(stage)
        self._before[""] = steps
        self._threads = [TrackerThread(name) for name in dict.fromkeys(config.trackers)]
        self._is_finished = False

    def see(self, event: Event) -> None:
        """Pass on what an event holds for trackers."""
        if not self._threads:
            return
        match event:
            case Started():
                self._start()
            case StepDone():
                prefix = f"{STAGE}{event.stage}/" if event.stage else ""
                numbers = {prefix + name: value for name, value in event.metrics.items()}
                self._log(numbers, event.step, event.stage)
                if self._samples and not event.stage:
                    self._log_samples(event.step)
            case HeldOut():
                numbers = {
                    "held_out/valid": float(event.valid),
                    "held_out/count": float(event.count),
                }
                if event.score is not None:
                    value, low, high = event.score[:3]
                    key = f"held_out/{event.measure}"
                    numbers |= {key: value, f"{key}_low": low, f"{key}_high": high}
                self._log(numbers, event.step, "")
            case Finished():
                self._is_finished = True
                self._send(lambda tracker: tracker.finish(event.status, _result(event)))

    def close(self) -> None:
        """Wait for what is still to be sent; a run that did not end is marked as interrupted."""
        if not self._is_finished:
            self._is_finished = True
            self._send(lambda tracker: tracker.finish(INTERRUPTED, {}))
        for thread in self._threads:
            thread.close()
        self._threads = []

    def _start(self) -> None:
        about = self._store.about
        key = digest("tracked run", about.store or str(self._store.folder.resolve()))[:16]
        folder = self._store.folder
        run = TrackedRun(key, folder.name, folder, about.recipe, about.config)
        for thread in self._threads:
            thread.start(run)
        for thread in self._threads:
            thread.wait_for_start()

    def _log(self, numbers: Mapping[str, float], step: int, stage: str) -> None:
        # A number that is not finite is none: a tracker would draw it as 0 or stop a chart.
        finite = {name: value for name, value in numbers.items() if math.isfinite(value)}
        total = self._before[stage] + step
        self._send(lambda tracker: tracker.log(finite, step, stage, total))

    def _log_samples(self, step: int) -> None:
        try:
            stored = list(self._store.samples(step=step, split="train", limit=self._samples))
        except StoreError as error:
            logger.warning("the answers of step %d could not be read for trackers: %s", step, error)
            return
        rows = [
            SampleRow(s.id, s.task.prompt, s.trajectory.text, s.reward.value, s.reward.status.value)
            for s in stored
        ]
        total = self._before[""] + step
        if rows:
            self._send(lambda tracker: tracker.log_samples(rows, step, total))

    def _send(self, call: Callable[[Tracker], None]) -> None:
        for thread in self._threads:
            thread.send(call)


class TrackerThread:
    """A tracker in a thread, so that neither its errors nor its waits reach the training."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._calls: queue.SimpleQueue[Callable[[Tracker], None] | None] = queue.SimpleQueue()
        self._is_open = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, run: TrackedRun) -> None:
        """Open the tracker, in its thread."""
        self._thread = threading.Thread(
            target=partial(self._work, run), name=f"tracker {self.name}", daemon=True
        )
        self._thread.start()

    def wait_for_start(self) -> None:
        """Until the tracker is open or has failed, for a minute at most."""
        if not self._is_open.wait(START_S):
            logger.warning(
                "tracker '%s' is not open after %g s; the run goes on and it gets the rest when it "
                "is.",
                self.name,
                START_S,
            )

    def send(self, call: Callable[[Tracker], None]) -> None:
        """Let the thread make a call."""
        self._calls.put(call)

    def close(self) -> None:
        """Let the thread make the calls that wait, for a minute at most."""
        self._calls.put(None)
        if self._thread is None:
            return
        self._thread.join(END_S)
        if self._thread.is_alive():
            logger.warning(
                "tracker '%s' has not sent everything after %g s and is left; the run's store has "
                "it all.",
                self.name,
                END_S,
            )

    def _work(self, run: TrackedRun) -> None:
        try:
            module = importlib.import_module(f"burnish.training.trackers.{self.name}")
            tracker: Tracker = module.Tracker()
            tracker.start(run)
            self._is_open.set()
            while (call := self._calls.get()) is not None:
                call(tracker)
        except BaseException as error:  # boundary: a tracker is another's library and its server
            logger.warning(
                "tracker '%s' failed and is left out from here on; the run goes on, and its store "
                "has everything: %s",
                self.name,
                describe(error),
            )
        finally:
            self._is_open.set()


def _result(event: Finished) -> dict[str, Any]:
    """What came of a run, as flat names and plain values."""
    found: dict[str, Any] = {"status": event.status, "seconds": event.seconds}
    if event.reason:
        found["reason"] = event.reason
    for name in ("before", "after", "change"):
        estimate = getattr(event, name)
        if estimate is not None:
            found |= {
                f"{name}": estimate.value,
                f"{name}_low": estimate.low,
                f"{name}_high": estimate.high,
            }
    return found
