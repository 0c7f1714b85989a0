"""`burnish sweep` on the tiny model: two at once, a run made by hand, a failure, a kill."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from cli_words import Typed
from test_cli_light import without_torch

from burnish.cli.entry import run
from burnish.store import RunStore
from burnish.store.durable import is_held

SMALL = ["rollout.prompts=1", "rollout.samples=2", "rollout.max_tokens=4", "evaluation.prompts=2"]
RATES = "optimiser.learning_rate=1e-4,1e-3,1e-2"


def events(shown: Typed) -> list[dict[str, Any]]:
    return [json.loads(line) for line in shown.out.splitlines()]


def assert_same_numbers(one: Path, other: Path) -> None:
    """Every metric but the times is the same."""
    with RunStore.open(one, read_only=True) as a, RunStore.open(other, read_only=True) as b:
        curves = [
            {n: c for n, c in store.metrics().items() if not n.startswith("time/")}
            for store in (a, b)
        ]
    assert curves[0]
    assert curves[0] == curves[1]


def test_two_at_once_beside_a_run_made_by_hand_and_one_that_fails(typed, tmp_path):
    base = ["tiny", "steps=1", *SMALL]
    by_hand = ["train", *base, "optimiser.learning_rate=0.001", "--quiet", "--runs", str(tmp_path)]
    assert run(by_hand) == 0
    words = ["sweep", *base, RATES, "--jobs", "2", "--json", "--runs", tmp_path]
    shown = typed(*words)
    assert (shown.code, shown.err) == (0, "")
    found = events(shown)
    kinds = [event["event"] for event in found if event["event"] != "progress"]
    assert kinds == ["jobs", "started", "started", "finished", "finished", "done"]
    assert [run["status"] for run in found[-1]["runs"]] == ["finished"] * 3
    groups = found[-1]["table"]["groups"]
    assert [group["label"] for group in groups] == [
        "learning_rate=0.0001",
        "learning_rate=0.001",
        "learning_rate=0.01",
    ]
    again = events(typed(*words))
    assert [event["event"] for event in again] == ["done"]
    name = found[-1]["sweep"]
    compared = json.loads(typed("compare", name, "--runs", tmp_path, "--json").out)
    assert compared == found[-1]["table"]

    wrong = ["sweep", *base, "model.path=tiny,not_there", "--runs", tmp_path]
    failed = typed(*wrong)
    assert failed.code == 3
    assert failed.err == ""
    assert "not_there" in next(x for x in failed.out.splitlines() if x.startswith("failed "))
    listed = events(typed(*wrong, "--list", "--json"))
    assert [run["status"] for run in listed] == ["finished", "failed"]
    assert "not_there" in listed[1]["reason"]
    named = typed(*wrong).out
    assert "failed before: model=not_there" in named
    assert "--retry tries them again" in named


def test_a_killed_sweep_is_continued_where_it_was(typed, tmp_path):
    base = ["tiny", "steps=6", *SMALL, "checkpoint.every=1"]
    words = ["sweep", *base, "optimiser.learning_rate=1e-3", "--seeds", "1"]
    command = [sys.executable, "-m", "burnish", *words, "--json", "--runs", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if json.loads(line).get("step", 0) >= 1:
                break
        process.send_signal(signal.SIGKILL)
    (folder,) = tmp_path.glob("tiny-????????")
    deadline = time.monotonic() + 120
    while is_held(folder / "writer.lock") and time.monotonic() < deadline:
        time.sleep(0.1)
    (state,) = events(typed(*words, "--runs", tmp_path, "--list", "--json"))
    assert state["status"] == "interrupted"
    assert 1 <= state["step"] < 6
    done = events(typed(*words, "--runs", tmp_path, "--json"))[-1]
    assert [run["status"] for run in done["runs"]] == ["finished"]
    with RunStore.open(folder, read_only=True) as store:
        assert store.summary().sessions == 2
    whole = tmp_path / "whole"
    plain = ["train", *base, "optimiser.learning_rate=1e-3", "--quiet", "--runs", str(whole)]
    assert run(plain) == 0
    assert_same_numbers(folder, whole / folder.name)


def test_the_list_says_runs_and_commands_and_starts_nothing(tmp_path):
    """Without torch: planning reads configs and stores."""
    done = without_torch("sweep", "tiny", RATES, "--seeds", "4,9", "--runs", tmp_path, "--list")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].endswith("6 runs of tiny: optimiser.learning_rate (3) x 2 seeds")
    commands = [line for line in lines if line.startswith("burnish train")]
    assert commands[1] == "burnish train tiny optimiser.learning_rate=1e-4 run.seed=9"
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_file_takes_flags_and_settings_over_it(typed, tmp_path):
    file = tmp_path / "sweep.toml"
    file.write_text(
        '[sweep]\nrecipe = "tiny"\nseeds = 2\nname = "mine"\n'
        "[sweep.grid]\noptimiser.learning_rate = [1e-4, 1e-3]\nsteps = [2, 3]\n"
    )
    words = ["sweep", file, "steps=5", "--seeds", "3", "--runs", tmp_path / "runs", "--list"]
    listed = events(typed(*words, "--json"))
    assert len(listed) == 6
    assert {run["seed"] for run in listed} == {0, 1, 2}
    assert {run["steps"] for run in listed} == {5}
    assert typed(*words).out.startswith("sweep mine: 6 runs of tiny")
