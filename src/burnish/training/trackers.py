"""Send a run's metrics, config and result to wandb, TensorBoard or MLflow beside the store.

Each tracker runs in a thread of its own: training never waits for a server, and a tracker that fails
is left out with one warning. The run's store has everything either way.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from burnish.config.schema import Config
from burnish.errors import StoreError, UserError
from burnish.metrics import STEP_S
from burnish.seeds import digest
from burnish.source import describe
from burnish.store import STAGE, RunStore
from burnish.training.events import Event, Finished, HeldOut, Started, StepDone

logger = logging.getLogger(__name__)

START_S = 60.0
"""How long the run waits for a tracker to open: what it imports must not meet the first step."""
END_S = 60.0
INTERRUPTED = "interrupted"


class TrackedRun(NamedTuple):
    key: str
    """The same whenever this run is continued, and no other run's."""
    name: str
    folder: Path
    recipe: str
    config: Mapping[str, Any]
    """Dotted key -> value."""


class SampleRow(NamedTuple):
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

    def log_samples(self, rows: Sequence[SampleRow], step: int, total: int) -> None: ...

    def finish(self, status: str, result: Mapping[str, Any]) -> None:
        """Close the run: `finished`, `stopped` or `interrupted`, and what came of it."""
        ...


def check_trackers(names: Sequence[str]) -> None:
    """Refuse a tracker whose library is not installed, before a model is loaded."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise UserError(
                f"trackers: '{name}' is not installed; install it: pip install 'burnish[{name}]'"
            )


class Trackers:
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
        if not self._threads:
            return
        match event:
            case Started():
                about, folder = self._store.about, self._store.folder
                key = digest("tracked run", about.store or str(folder.resolve()))[:16]
                run = TrackedRun(key, folder.name, folder, about.recipe, about.config)
                for thread in self._threads:
                    thread.start(run)
                for thread in self._threads:
                    thread.wait_for_start()
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
                found: dict[str, Any] = {"status": event.status, "seconds": event.seconds}
                if event.reason:
                    found["reason"] = event.reason
                for name in ("before", "after", "change"):
                    if estimate := getattr(event, name):
                        keys = (name, f"{name}_low", f"{name}_high")
                        found |= zip(keys, estimate[:3], strict=True)
                self._send(lambda tracker: tracker.finish(event.status, found))

    def close(self) -> None:
        """Wait for what is still to be sent; a run that did not end is marked as interrupted."""
        if not self._is_finished:
            self._is_finished = True
            self._send(lambda tracker: tracker.finish(INTERRUPTED, {}))
        for thread in self._threads:
            thread.close()
        self._threads = []

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
            thread.calls.put(call)


class TrackerThread:
    """A tracker in a thread, so that neither its errors nor its waits reach the training."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls: queue.SimpleQueue[Callable[[Tracker], None] | None] = queue.SimpleQueue()
        self._is_open = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, run: TrackedRun) -> None:
        name = f"tracker {self.name}"
        self._thread = threading.Thread(target=self._work, args=(run,), name=name, daemon=True)
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

    def close(self) -> None:
        self.calls.put(None)
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
            tracker = TRACKERS[self.name]()
            tracker.start(run)
            self._is_open.set()
            while (call := self.calls.get()) is not None:
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


STEP = "trainer/step"
"""The x axis of every chart: steps of the stage, or of the main training."""


class WandbTracker:
    """Weights & Biases. Without an account it writes offline files that `wandb sync` sends later.

    `WANDB_PROJECT`, `WANDB_ENTITY`, `WANDB_MODE` and the library's other variables hold; without them
    the project is `burnish` and the files lie in the run's folder. A continued run has the same id.
    """

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


FOLDER = "tensorboard"
CELL = 400


class TensorBoardTracker:
    """TensorBoard: event files in the run's folder. `tensorboard --logdir runs` shows every run.

    A stage writes to a folder of its own, because its steps begin at 0 too. A continued run writes a
    new file whose first event takes back the steps that are trained a second time.
    """

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
    texts = (" ".join(str(cell)[:CELL].replace("|", "\\|").split()) for cell in cells)
    return f"| {' | '.join(texts)} |"


TAG = "burnish.run"
LONGEST = 500
AT_ONCE = 100
STATUSES = {"finished": "FINISHED", "stopped": "FAILED", "interrupted": "KILLED"}


class MlflowTracker:
    """MLflow: a server, or a folder `mlruns` beside the runs where none is named.

    `MLFLOW_TRACKING_URI` and `MLFLOW_EXPERIMENT_NAME` hold; without them the experiment is `burnish`.
    A continued run is found by its tag, and steps that it has already are not logged again.
    """

    def __init__(self) -> None:
        self.client: Any = None
        self.run_id = ""
        self.is_continued = False
        self.logged: dict[str, int] = {}

    def start(self, run: TrackedRun) -> None:
        place = os.environ.get("MLFLOW_TRACKING_URI")
        if not place:
            # MLflow keeps its folder store behind this variable; its database needs more packages.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            place = (run.folder.parent / "mlruns").resolve().as_uri()
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        self.client = MlflowClient(place)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "burnish")
        known = self.client.get_experiment_by_name(name)
        experiment = str(known.experiment_id if known else self.client.create_experiment(name))
        found = self.client.search_runs([experiment], f"tags.`{TAG}` = '{run.key}'", max_results=1)
        self.is_continued = bool(found)
        if found:
            self.run_id = found[0].info.run_id
            self.client.update_run(self.run_id, status="RUNNING")
        else:
            tags = {TAG: run.key, "recipe": run.recipe}
            fresh = self.client.create_run(experiment, tags=tags, run_name=run.name)
            self.run_id = fresh.info.run_id
            params = [Param(_plain(key), str(v)[:LONGEST]) for key, v in run.config.items()]
            for start in range(0, len(params), AT_ONCE):
                self.client.log_batch(self.run_id, params=params[start : start + AT_ONCE])

    def log(self, metrics: Mapping[str, float], step: int, stage: str, total: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        fresh = [
            Metric(metric_name(name), value, now, step)
            for name, value in metrics.items()
            if step > self._last(name, stage)
        ]
        if fresh:
            self.client.log_batch(self.run_id, metrics=fresh)

    def log_samples(self, rows: Sequence[SampleRow], step: int, total: int) -> None:
        lines = [msgspec.json.encode(row._asdict()).decode() for row in rows]
        self.client.log_text(self.run_id, "\n".join(lines) + "\n", f"samples/step-{step:06d}.jsonl")

    def finish(self, status: str, result: Mapping[str, Any]) -> None:
        for key, value in result.items():
            self.client.set_tag(self.run_id, f"result.{key}", str(value))
        self.client.set_terminated(self.run_id, status=STATUSES[status])

    def _last(self, name: str, stage: str) -> int:
        """The last step that an earlier start of the run has logged; -1 for none."""
        if not self.is_continued:
            return -1
        # All numbers of a step come in one call, so one of them stands for the others.
        own = f"{STAGE}{stage}/{STEP_S}" if stage else STEP_S
        own = name if name.startswith("held_out/") else own
        if own not in self.logged:
            history = self.client.get_metric_history(self.run_id, metric_name(own))
            self.logged[own] = max((point.step for point in history), default=-1)
        return self.logged[own]


def metric_name(name: str) -> str:
    """`groups` -> `step/groups`, `stage/first/loss/total` -> `stage/first.loss.total`.

    MLflow's folder store makes folders of the slashes, and `groups` cannot be a file and a folder.
    """
    home, slash, rest = name.partition("/")
    return _plain(f"{home}/{rest.replace('/', '.')}" if slash else f"step/{name}")


def _plain(name: str) -> str:
    return re.sub(r"[^\w.\-/ ]", "_", name)


TRACKERS: dict[str, Callable[[], Tracker]] = {
    "wandb": WandbTracker,
    "tensorboard": TensorBoardTracker,
    "mlflow": MlflowTracker,
}
"""By the name of the package that each needs, and of the extra."""
