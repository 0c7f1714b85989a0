"""Real parts of small runs: killed, stopped and started again, they leave what one process leaves."""

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
from lab.kills import events, steps_done
from training_cases import finish, outcome, resolved, trainer

import burnish
import warm
from burnish.cli.entry import run
from burnish.config import render
from burnish.errors import UserError
from burnish.store import RunStore

SLOW = """
import time

def slow(text, task):
    time.sleep(0.1)
    return sum(c.isascii() for c in text) / (1 + len(text))
"""
TABLE = {
    "steps": 6,
    "rewards": [{"kind": "function", "path": "slow.py:slow"}],
    "guards": {"quiet_s": 4.0},
    "checkpoint": {"every": 2},
}


def hurt(folder: Path, part: str, number: int) -> None:
    pids = re.findall(rf"{part} runs as process (\d+)", events(folder))
    os.kill(int(pids[-1]), number)


def disturbed(folder: Path, words: list[str], *moments: tuple[int, str, int]) -> str:
    """A run by the command; after so many steps a part gets a signal. What was said of its parts."""
    (folder / "slow.py").write_text(SLOW)
    (folder / "config.toml").write_text(render(resolved(folder, TABLE)))
    finish(trainer(folder, TABLE, run="one"))
    command = ["train", "config.toml", "run.name=parts", "run.folder=.", "--quiet", "cluster=local"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    log = folder / "said.txt"
    running = warm.start(
        "burnish", [*command, *words], folder=folder, log=log, environment=environment
    )
    ends = time.monotonic() + 150
    for step, part, number in moments:
        while (
            steps_done(folder / "parts") < step and time.monotonic() < ends and running.is_alive()
        ):
            time.sleep(0.02)
        hurt(folder / "parts", part, number)
    running.join(max(1.0, ends - time.monotonic()))
    if running.is_alive():
        running.kill()
    assert running.exitcode == 0, log.read_text()
    return events(folder / "parts")


def rows(folder: Path) -> list[tuple[object, ...]]:
    with RunStore.open(folder, read_only=True) as store:
        return sorted(
            (s.step, s.split, s.index, s.task.id, s.trajectory.text, s.reward.value)
            for s in store.samples()
        )


def test_a_sampler_that_is_killed_or_hangs_is_started_again_and_nothing_differs(tmp_path):
    words = ["cluster.samplers=1", "cluster.heartbeat_s=3"]
    killed, stopped = (1, "sampler-0", signal.SIGKILL), (4, "sampler-0", signal.SIGSTOP)
    told = disturbed(tmp_path, words, killed, stopped)
    assert "sampler-0 was killed by SIGKILL; it is started again (1 of 3)" in told
    silent = re.search(r"sampler-0 gave no sign of life for ([\d.]+) s", told)
    assert silent is not None
    assert 3 < float(silent[1]) < 8
    one, parts = outcome(tmp_path / "one"), outcome(tmp_path / "parts")
    assert parts["weights"] == one["weights"]
    assert parts["evaluations"] == one["evaluations"]
    assert rows(tmp_path / "parts") == rows(tmp_path / "one")


def test_a_judge_a_sampler_and_one_of_two_trainers_are_killed_and_nothing_differs(tmp_path):
    words = ["cluster.judges=1", "cluster.samplers=1", "cluster.trainers=2"]
    judge, sampler = (1, "judge-0", signal.SIGKILL), (2, "sampler-0", signal.SIGKILL)
    told = disturbed(tmp_path, words, judge, sampler, (4, "trainer-1", signal.SIGKILL))
    assert "judge-0 was killed by SIGKILL; it is started again (1 of 3)" in told
    assert "trainer-1 was killed by SIGKILL; it is started again (1 of 3), from the newest" in told
    assert len(re.findall("trainer-0 runs as process", told)) == 2
    assert rows(tmp_path / "parts") == rows(tmp_path / "one")


def test_parts_are_started_by_the_command_alone_and_samplers_are_started_or_named(tmp_path, capsys):
    words = ["tiny", "cluster=local", "cluster.samplers=1", "steps=1"]
    with pytest.raises(UserError, match="the command `burnish train` starts them"):
        burnish.train(*words, runs=tmp_path, show=False)
    named = ["sampler.kind=remote", "sampler.folder=served", "sampler.urls=http://127.0.0.1:9/v1"]
    assert run(["train", *words, *named, "--runs", str(tmp_path)]) == 2
    assert "expected one of the two" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_plan_is_a_prediction_of_its_parts(capsys):
    assert run(["cluster", "plan", "--gpus", "64", "--model", "32b", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["where"] == "32b on 64 x h200"
    assert sum(part["value"] for part in found["seconds"]) == pytest.approx(found["step_s"])
    assert run(["cluster", "plan", "--gpus", "8"]) == 0
    assert "PREDICTION, not measured: 7b on 8 x h200" in capsys.readouterr().out


def test_check_says_what_parts_would_hold_and_refuses_what_cannot_fit(tmp_path, capsys):
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "config.toml").write_text(render(resolved(tmp_path, TABLE)))
    words = [
        "cluster",
        "check",
        str(tmp_path / "config.toml"),
        "cluster=local",
        "cluster.samplers=1",
    ]
    assert run([*words, "--json"]) == 0
    said = capsys.readouterr().out
    assert '"name":"trainer-0"' in said.replace(" ", "")
    assert '"name":"sampler-0"' in said.replace(" ", "")
    assert run([*words, "cluster.trainers.memory_gb=0.001"]) == 2
    assert "trainer-0 needs" in capsys.readouterr().err
    assert run([*words, "cluster.judges=1", "cluster.judges.memory_gb=100000"]) == 2
    assert not (tmp_path / "runs").exists()
