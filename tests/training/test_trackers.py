import importlib.util
import json
import logging
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from training_cases import finish, trainer

from burnish.errors import UserError
from burnish.store import RunStore
from burnish.training import trackers
from burnish.training.events import StepDone
from burnish.training.trackers import Trackers, metric_name

STEPS = 4
TABLE: dict[str, Any] = {
    "steps": STEPS,
    "evaluation": {"prompts": 8},
    "checkpoint": {"every": 2},
    "tracked_samples": 3,
}


def tracked(folder: Path, name: str, **changes: Any) -> Any:
    return trainer(folder, {**TABLE, "trackers": [name], **changes})


def stop_after(trained: Any, steps: int) -> None:
    """Leave a run after so many steps, as Ctrl-C does."""
    events = trained.run()
    for event in events:
        if isinstance(event, StepDone) and event.step + 1 == steps:
            break
    events.close()
    trained.store.close()


def stored_metrics(folder: Path) -> dict[str, list[tuple[int, float]]]:
    with RunStore.open(folder, read_only=True) as store:
        return {
            name: [(s, v) for s, v in c if v is not None] for name, c in store.metrics().items()
        }


@pytest.fixture
def offline(monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def read_tensorboard(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return found


def test_tensorboard_holds_the_metrics_of_a_continued_run(tmp_path):
    pytest.importorskip("tensorboard")
    stop_after(tracked(tmp_path, "tensorboard"), 3)
    finish(tracked(tmp_path, "tensorboard"))  # from the checkpoint after two steps
    folder = tmp_path / "run"
    found = read_tensorboard(folder / "tensorboard")
    for name, points in stored_metrics(folder).items():
        if not name.startswith("time/"):
            logged = [(e.step, e.value) for e in found.Scalars(name)]
            assert [step for step, _ in logged] == [step for step, _ in points] == [0, 1, 2, 3]
            assert [v for _, v in logged] == pytest.approx([v for _, v in points], rel=1e-6)
    assert [e.step for e in found.Scalars("held_out/reward")] == [0, STEPS]
    assert {"config/text_summary", "result/text_summary", "samples/text_summary"} <= set(
        found.Tags()["tensors"]
    )


def test_a_stage_has_its_own_folder_in_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    stage = {"name": "first", "steps": 3, "train": {"kind": "sft", "batch": 2}}
    shown = {"kind": "function", "path": "shown_tasks:make"}
    finish(tracked(tmp_path, "tensorboard", steps=1, stages=[stage], task=shown))
    folder = tmp_path / "run" / "tensorboard"
    losses = read_tensorboard(folder / "first").Scalars("stage/first/loss/total")
    assert [event.step for event in losses] == [0, 1, 2]


def test_mlflow_holds_each_step_once_after_a_continued_run(tmp_path, offline):
    pytest.importorskip("mlflow")
    stop_after(tracked(tmp_path, "mlflow"), 3)
    client, (run,) = mlflow_runs(tmp_path)
    assert run.info.status == "KILLED"
    finish(tracked(tmp_path, "mlflow"))
    client, (again,) = mlflow_runs(tmp_path)
    assert again.info.run_id == run.info.run_id
    assert again.info.status == "FINISHED"
    points = stored_metrics(tmp_path / "run")
    for name in ("loss/total", "reward/total", "groups", "groups/useful", "time/step_s"):
        logged = client.get_metric_history(run.info.run_id, metric_name(name))
        assert [point.step for point in logged] == [0, 1, 2, 3]
        if not name.startswith("time/"):
            assert [point.value for point in logged] == [value for _, value in points[name]]
    assert again.data.params["steps"] == str(STEPS)
    assert float(again.data.tags["result.after"]) == again.data.metrics["held_out/reward"]
    place = Path(client.download_artifacts(run.info.run_id, "samples/step-000001.jsonl"))
    rows = [json.loads(line) for line in place.read_text().splitlines()]
    assert len(rows) == 3
    assert all(row["prompt"] and row["status"] == "ok" for row in rows)


def mlflow_runs(folder: Path) -> tuple[Any, list[Any]]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient((folder / "mlruns").resolve().as_uri())
    experiment = client.get_experiment_by_name("burnish")
    return client, list(client.search_runs([experiment.experiment_id]))


def wandb_records(file: Path) -> Iterator[bytes]:
    """The records of an offline file: LevelDB's log format behind a header of seven bytes."""
    data, place, parts = file.read_bytes(), 7, b""
    assert data.startswith(b":W&B")
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def read_wandb(file: Path) -> dict[str, Any]:
    """Id, config, history, summary and exit code of an offline run."""
    from wandb.proto import wandb_internal_pb2

    def values(items: Any) -> dict[str, Any]:
        return {(i.key or ".".join(i.nested_key)): json.loads(i.value_json) for i in items}

    history: list[dict[str, Any]] = []
    found: dict[str, Any] = {"history": history, "summary": {}, "config": {}, "exit": None}
    for data in wandb_records(file):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "history":
            history.append(values(record.history.item))
        elif kind == "run":
            found["id"], found["name"] = record.run.run_id, record.run.display_name
        elif kind == "config":
            found["config"] |= values(record.config.update)
        elif kind == "summary":
            found["summary"] |= values(record.summary.update)
        elif kind == "exit":
            found["exit"] = record.exit.exit_code
    return found


def test_wandb_writes_both_parts_of_a_continued_run_under_one_id(tmp_path, offline):
    pytest.importorskip("wandb")
    stop_after(tracked(tmp_path, "wandb"), 3)
    finish(tracked(tmp_path, "wandb"))
    files = sorted((tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb"))
    first, second = map(read_wandb, files)
    assert first["id"] == second["id"]
    assert second["name"] == "run"
    assert second["config"]["steps"] == STEPS
    assert (first["exit"], second["exit"]) == (1, 0)
    logged = {
        row["trainer/step"]: row["loss/total"] for row in second["history"] if "loss/total" in row
    }
    assert logged == {s: v for s, v in stored_metrics(tmp_path / "run")["loss/total"] if s >= 2}
    assert any("samples" in key for row in first["history"] for key in row)
    assert second["summary"]["result/status"] == "finished"


def test_a_missing_library_is_named_before_a_model_is_loaded(tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "wandb" else find(name)
    )
    with pytest.raises(UserError, match=r"pip install 'burnish\[wandb\]'"):
        tracked(tmp_path, "wandb")
    assert not (tmp_path / "run").exists()


class Broken:
    """A tracker that fails at one of its calls."""

    def __init__(self, fails_at: str) -> None:
        self.fails_at, self.calls = fails_at, []

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: object) -> None:
            self.calls.append(name)
            if name == self.fails_at:
                raise ConnectionError("the server is gone")

        return call


def play_tracker(monkeypatch: pytest.MonkeyPatch, tracker: object) -> None:
    monkeypatch.setitem(trackers.TRACKERS, "wandb", lambda: tracker)


@pytest.mark.parametrize("call", ["start", "log", "log_samples", "finish"])
def test_a_tracker_that_fails_never_stops_the_run(tmp_path, monkeypatch, caplog, call):
    broken = Broken(call)
    play_tracker(monkeypatch, broken)
    with caplog.at_level(logging.WARNING):
        events = finish(tracked(tmp_path, "wandb"))
    assert events[-1].status == "finished"
    (line,) = [r.getMessage() for r in caplog.records if "tracker 'wandb'" in r.getMessage()]
    assert "failed and is left out" in line
    assert "ConnectionError: the server is gone" in line
    assert broken.calls.count(call) == 1


def test_a_tracker_that_hangs_is_left_at_the_end(tmp_path, monkeypatch, caplog):
    released = threading.Event()

    class Hanging(Broken):
        def log(self, *arguments: object) -> None:
            released.wait()

    play_tracker(monkeypatch, Hanging(""))
    monkeypatch.setattr(trackers, "END_S", 0.1)
    with caplog.at_level(logging.WARNING):
        events = finish(tracked(tmp_path, "wandb"))
    released.set()
    assert events[-1].status == "finished"
    assert "has not sent everything after 0.1 s" in caplog.text


def test_numbers_that_are_none_are_not_sent(tmp_path, monkeypatch):
    sent: list[dict[str, float]] = []

    class Keeping(Broken):
        def log(self, metrics: dict[str, float], *rest: object) -> None:
            sent.append(metrics)

    play_tracker(monkeypatch, Keeping(""))
    trained = tracked(tmp_path, "wandb")
    group = Trackers(trained.config, trained.store)
    trained.store.close()
    step = StepDone(0, 4, {"a": 1.0, "b": float("nan")}, 0, 0, 0.1, 0.0, 0.0, False)
    for thread in group._threads:
        thread.start(trackers.TrackedRun("k", "n", tmp_path, "", {}))
    group._samples = 0
    group.see(step)
    group.close()
    assert sent == [{"a": 1.0}]


def test_trackers_may_change_between_a_run_and_its_continuation(tmp_path):
    stop_after(trainer(tmp_path, TABLE), 3)
    again = trainer(tmp_path, {**TABLE, "trackers": ["tensorboard"]})
    assert again.state.step == 2
    again.store.close()
