"""MLflow: a server, or a folder `mlruns` beside the runs where none is named.

`MLFLOW_TRACKING_URI` and `MLFLOW_EXPERIMENT_NAME` hold; without them the experiment is `burnish`.
A continued run is found by its tag, and steps that it has already are not logged again.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from burnish.metrics import STEP_S
from burnish.store import STAGE
from burnish.training.trackers import SampleRow, TrackedRun

TAG = "burnish.run"
LONGEST = 500
"""Characters of a parameter; MLflow refuses longer ones."""
AT_ONCE = 100
"""Parameters that one call may hold."""
STATUSES = {"finished": "FINISHED", "stopped": "FAILED", "interrupted": "KILLED"}


class Tracker:
    """Logs through MLflow's client; its fluent functions are those of one thread."""

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
        from mlflow.tracking import MlflowClient

        self.client = MlflowClient(place)
        experiment = self._experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", "burnish"))
        found = self.client.search_runs([experiment], f"tags.`{TAG}` = '{run.key}'", max_results=1)
        self.is_continued = bool(found)
        if found:
            self.run_id = found[0].info.run_id
            self.client.update_run(self.run_id, status="RUNNING")
        else:
            tags = {TAG: run.key, "recipe": run.recipe}
            self.run_id = self.client.create_run(
                experiment, tags=tags, run_name=run.name
            ).info.run_id
            self._log_config(run.config)

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

    def _experiment(self, name: str) -> str:
        found = self.client.get_experiment_by_name(name)
        return str(found.experiment_id if found else self.client.create_experiment(name))

    def _log_config(self, config: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        params = [Param(_plain(key), str(value)[:LONGEST]) for key, value in config.items()]
        for start in range(0, len(params), AT_ONCE):
            self.client.log_batch(self.run_id, params=params[start : start + AT_ONCE])

    def _last(self, name: str, stage: str) -> int:
        """The last step that an earlier start of the run has logged; -1 for none."""
        if not self.is_continued:
            return -1
        # All numbers of a step come in one call, so one of them stands for the others.
        own = (
            name
            if name.startswith("held_out/")
            else f"{STAGE}{stage}/{STEP_S}"
            if stage
            else STEP_S
        )
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
    """With an underscore for each character that MLflow refuses."""
    return re.sub(r"[^\w.\-/ ]", "_", name)
