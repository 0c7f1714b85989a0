"""Small runs of the tiny model, in this process, for the tests of the training room."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

import warm
from burnish.config import Config, Resolved, load, render, rooted
from burnish.config.recipes import find_recipe
from burnish.config.resolve import to_plain
from burnish.metrics import known
from burnish.records import Author, Span, Trajectory
from burnish.store import RunStore
from burnish.training import Trainer, build
from burnish.training.events import Event, Saved, StepDone

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

SMALL: dict[str, Any] = {
    "steps": 6,
    "model": {"path": "tiny", "dtype": "float32", "device": "cpu", "threads": 1},
    "rollout": {"prompts": 2, "samples": 4, "max_tokens": 6},
    "optimiser": {"learning_rate": 1e-3},
    "evaluation": {"prompts": 3},
}


def reward(function: str, **more: Any) -> dict[str, Any]:
    """A reward table for one of `reward_functions.py`."""
    return {"kind": "function", "path": f"{HERE / 'reward_functions.py'}:{function}", **more}


def write_rows(path: Path, count: int, word: str = "item") -> Path:
    rows = [{"question": f"{word} {i}?", "row": i} for i in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def file_task(folder: Path, rows: int = 7) -> dict[str, Any]:
    """A finite data set: `rows` prompts to train on, and four held out."""
    write_rows(folder / "train.jsonl", rows)
    write_rows(folder / "held_out.jsonl", 4, "held")
    return {
        "kind": "file",
        "path": str(folder / "train.jsonl"),
        "prompt": "question",
        "fields": {"row": "row"},
        "held_out": {"by": "file", "path": str(folder / "held_out.jsonl")},
    }


def merged(*tables: Mapping[str, Any]) -> dict[str, Any]:
    """Tables laid over each other, the last on top."""
    result: dict[str, Any] = {}
    for table in tables:
        for key, value in table.items():
            old = result.get(key)
            both = isinstance(value, Mapping) and isinstance(old, Mapping)
            inner = both and "kind" not in value
            result[key] = merged(old, value) if inner else value
    return result


def shipped(name: str) -> dict[str, Any]:
    """The tables of a shipped recipe, for a run in any folder."""
    file = find_recipe(name)
    return to_plain(rooted(load(Config, file).value, file.parent))


def resolved(folder: Path, *tables: Mapping[str, Any]) -> Resolved[Config]:
    """A config: on a data set written into `folder` and with `letters` as reward, unless given."""
    table = merged(SMALL, {"rewards": [reward("letters")]}, *tables)
    return load(Config, {"task": file_task(folder), **table} if "task" not in table else table)


def one_and_two(folder: Path, table: Mapping[str, Any]) -> list[Event]:
    """The same run by one process and by two, in `one` and `two`; the events of the one."""
    asked = resolved(folder, table, {"run": {"name": "two", "folder": "."}})
    (folder / "config.toml").write_text(render(asked))
    done = launch(folder)
    assert done.is_well, done.said
    return finish(build(asked, folder / "one", root=folder))


def assert_same_curves(folder: Path, *names: str, **close: float) -> None:
    """Those of `one` and of `two`."""
    curves = []
    for name in ("one", "two"):
        with RunStore.open(folder / name, read_only=True) as store:
            curves.append(store.metrics())
    for name in names:
        alone, shared = ([point.value for point in curve[name]] for curve in curves)
        assert len(alone) >= 2
        assert shared == pytest.approx(alone, **close), name


def trainer(folder: Path, *tables: Mapping[str, Any], run: str = "run") -> Trainer:
    return build(resolved(folder, *tables), folder / run, root=folder)


def finish(trainer: Trainer) -> list[Event]:
    """Run to the end and let go of the folder."""
    try:
        return list(trainer.run())
    finally:
        trainer.store.close()


def stop_after(trainer: Trainer, steps: int, saved: bool = False) -> None:
    """Drop a run in the middle: after a step's numbers are stored, or after its checkpoint."""
    for event in trainer.run():
        ends = isinstance(event, Saved) if saved else isinstance(event, StepDone)
        if ends and trainer.state.step == steps:
            break
    trainer.store.close()


def finish_with_stops(make: Callable[[], Trainer], *stops: int | str) -> list[Event]:
    """Build and drop a run after each of these steps, then build it again and finish it.

    A number stops after the step's numbers are stored, `"3 saved"` after the checkpoint of step 3.
    """
    for stop in stops:
        step, _, saved = str(stop).partition(" ")
        stop_after(make(), int(step), saved=bool(saved))
    return finish(make())


def assert_continues(folder: Path, table: Any, stop: int, every: int) -> None:
    """Stopped and continued, a run of four steps leaves what an uninterrupted one does."""
    finish(trainer(folder, table, {"steps": 4}, run="whole"))
    more = {"steps": 4, "checkpoint": {"every": every, "keep": 1}}
    stop_after(trainer(folder, table, more), stop, saved=every == 1)
    finish(trainer(folder, table, more))
    expected, found = outcome(folder / "whole"), outcome(folder / "run")
    for key in expected.keys() - {"state"}:
        assert found[key] == expected[key], f"{key} differs"


def assert_same(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Two outcomes are equal, bit for bit."""
    for key, value in expected.items():
        assert found[key] == value, f"{key} differs"


def outcome(folder: Path, own: str = "") -> dict[str, Any]:
    """All that a run leaves, without what a clock says; `own` is a metric of the test's."""
    last = sorted((folder / "checkpoints").glob("step-*"))[-1]
    with RunStore.open(folder, read_only=True) as store:
        assert {name for name in store.metrics() if known(name) is None} <= {own}
        metrics = {k: v for k, v in store.metrics().items() if "time/" not in k}
        return {
            "checkpoint": last.name,
            "weights": (last / "model.safetensors").read_bytes(),
            "optimiser": (last / "trainer" / "optimiser.safetensors").read_bytes(),
            "state": (last / "trainer" / "state.json").read_bytes(),
            "metrics": metrics,
            "samples": sorted(msgspec.json.encode(s) for s in store.samples()),
            "evaluations": [(e.step, e.name, e.summary) for e in store.evaluations()],
        }


def rollout(
    name: str, group: str, prompt: list[int], answer: list[int], logprob: float = -5.5
) -> Trajectory:
    """A trajectory by hand."""
    return Trajectory(
        id=name,
        task_id=group,
        group=group,
        spans=(
            Span(Author.PROMPT, tuple(prompt)),
            Span(Author.MODEL, tuple(answer), (logprob,) * len(answer), trainable=True),
        ),
        text="",
    )


def launch(*folders: Path) -> warm.Ended:
    """Two processes in one folder, or each in its own."""
    words = ["train", "config.toml", "--quiet"]
    return warm.together("burnish", words, folders if len(folders) > 1 else folders * 2)
