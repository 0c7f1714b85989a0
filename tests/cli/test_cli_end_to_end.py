"""A real run of the tiny model through the command: interrupted, continued, looked at."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from burnish.store import RunStore, list_runs

RECIPE = """
steps = 30

[model]
path = "tiny"
threads = 1

[task]
kind = "arithmetic"

[[rewards]]
kind = "length"
unit = "characters"
min = 2
edge = 8

[rollout]
prompts = 2
samples = 4
max_tokens = 8

[evaluation]
prompts = 5

[checkpoint]
every = 5

[guards]
useless_steps = 1000
"""


def command(folder: Path) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "burnish", "train", "small.toml"]
    environment = {**os.environ, "BURNISH_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(words, cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True)


def test_a_run_is_interrupted_continued_and_looked_at(typed, tmp_path, monkeypatch):
    (tmp_path / "small.toml").write_text(RECIPE)
    with command(tmp_path) as first:
        assert first.stdout is not None
        for line in first.stdout:
            if line.startswith("step 8/30  useful "):
                first.send_signal(signal.SIGINT)
                break
        _, told = first.communicate(timeout=600)
    assert first.returncode == 130
    assert "the same command continues it: burnish train small.toml\n" in told
    (run,) = list_runs(tmp_path / "runs")
    assert run.status.value == "stopped"
    assert 8 <= run.steps < 30

    # In this process: nothing of the first one is left in it.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    second = typed("train", "small.toml", "--json")
    assert (second.code, second.err) == (0, "")
    events = [json.loads(line) for line in second.out.splitlines()]
    assert events[0]["event"] == "started"
    assert events[0]["done"] in range(5, 30, 5)
    steps = [event["step"] for event in events if event["event"] == "step"]
    assert steps == list(range(events[0]["done"], 30))
    assert events[-1]["status"] == "finished"
    assert events[-1]["before"]["size"] == events[-1]["after"]["size"] == 5

    with RunStore.open(run.folder, read_only=True) as store:
        assert store.steps() == list(range(30))
    shown = typed("show", run.folder, "--sample", "29/train/0").out
    assert "<|im_start|>user\nWhat is " in shown
    assert "tokens    template 19, prompt " in shown
    assert "useful groups" in typed("show", run.folder, "--step", 30).out
    assert "finished" in typed("runs", "--runs", tmp_path / "runs").out
