"""Debugging a function of one's own: the same command goes on after each fix."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from burnish.store import RunStatus, RunStore, list_runs
from burnish.store.manifest import CALIBRATION
from burnish.training import reset

RECIPE = """# burnish train small.toml
# A tiny random model and a reward of one's own.
steps = 2

[model]
path = "tiny"
device = "cpu"
dtype = "float32"
threads = 1

[task]
kind = "arithmetic"

[[rewards]]
kind = "function"
path = "my.py:mine"

[rollout]
prompts = 2
samples = 2
max_tokens = 4

[evaluation]
prompts = 0
"""
BROKEN = "def mine(text):\n    return float('nan')\n"
FIXED = "def mine(text):\n    return float(len(text))\n"
OTHER = "def mine(text):\n    return -float(len(text))\n"


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The file with the function, beside the recipe, in the working folder."""
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text(RECIPE)
    file = Path("my.py")
    file.write_text(BROKEN)
    return file


def only_run() -> Path:
    (run,) = list_runs(Path("runs"))
    return run.folder


def status(folder: Path) -> RunStatus:
    with RunStore.open(folder, read_only=True) as store:
        return store.status()


def test_a_run_without_a_finished_step_is_reset(typed, mine):
    assert typed("train", "small.toml").code == 3
    folder = only_run()
    (folder / CALIBRATION).write_text("measured with the broken function")
    (folder / "notes.txt").write_text("my own")
    mine.write_text(FIXED)
    shown = typed("train", "small.toml")
    assert shown.code == 0
    assert (
        f"run '{folder.name}' was started with other contents of my.py and has no finished step; "
        "it is reset and started again in its folder.\n"
    ) in shown.out
    assert only_run() == folder
    assert status(folder) is RunStatus.FINISHED
    assert not (folder / CALIBRATION).exists()
    assert not (folder / "crash").exists()
    assert (folder / "notes.txt").read_text() == "my own"
    with RunStore.open(folder, read_only=True) as store:
        assert store.summary().sessions == 1
        assert store.steps() == [0, 1]


def test_a_done_warm_start_is_not_thrown_away(typed, mine):
    typed("train", "small.toml")
    (only_run() / "stages").mkdir()
    mine.write_text(FIXED)
    shown = typed("train", "small.toml")
    assert shown.code == 2
    assert "or start a new run with --again\n" in shown.err


def test_of_several_processes_none_empties_the_folder(typed, mine, monkeypatch):
    typed("train", "small.toml")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert not reset(only_run())
    assert status(only_run()) is RunStatus.STOPPED


def test_a_run_that_another_process_writes_is_left_alone(typed, mine):
    typed("train", "small.toml")
    mine.write_text(FIXED)
    with RunStore.open(only_run()):
        shown = typed("train", "small.toml")
    assert shown.code == 3
    assert "is being written by" in shown.err


def test_again_leaves_an_unfinished_run_that_began_with_something_else(typed, mine):
    typed("train", "small.toml")
    first = only_run()
    mine.write_text(FIXED)
    assert typed("train", "small.toml", "--again", "--quiet").code == 0
    assert status(first) is RunStatus.STOPPED
    assert status(first.with_name(f"{first.name}-2")) is RunStatus.FINISHED


def test_finished_steps_are_never_reset(typed, mine):
    mine.write_text(FIXED.replace("return", "return 0 * "))
    assert typed("train", "small.toml", "guards.useless_steps=1").code == 3
    mine.write_text(FIXED)
    shown = typed("train", "small.toml", "guards.useless_steps=1")
    assert shown.code == 2
    assert shown.err == (
        f"burnish: run '{only_run().name}' was started with other contents of my.py; restore "
        "them, choose another run.name, or start a new run with --again\n"
    )
    with RunStore.open(only_run(), read_only=True) as store:
        assert store.steps() == [0]


def test_a_finished_run_says_that_its_function_was_edited(typed, mine):
    mine.write_text(FIXED)
    typed("train", "small.toml")
    same = typed("train", "small.toml")
    assert same.err == ""
    mine.write_text(OTHER)
    shown = typed("train", "small.toml")
    assert "is finished already; nothing to do.\n" in shown.out
    assert shown.err == (
        "warning: my.py differs now from what it was trained with; --again trains a new run.\n"
    )
    assert json.loads(typed("train", "small.toml", "--json").out)["edited"] == ["my.py"]


def test_the_report_of_a_file_repeats_its_path(typed, mine):
    mine.write_text(FIXED)
    Path("deep").mkdir()
    Path("deep/own.toml").write_text(RECIPE.replace("my.py", "../my.py"))
    typed("train", "deep/own.toml", "run.name=deep", "--quiet")
    assert "burnish train deep/own.toml run.name=deep" in typed("report", "deep", "--markdown").out
