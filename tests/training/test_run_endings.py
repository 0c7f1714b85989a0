import re
import time

import pytest
from training_cases import finish, trainer

import warm
from burnish.cli.entry import run as type_command
from burnish.errors import StoreError, UserError
from burnish.store import RunStore, list_runs
from burnish.training.events import Saved, StepDone

OWN = """
from pathlib import Path

def score(text):
    if Path(__file__).with_name("broken").exists():
        return len(text) / 0
    return len(text) / 100
"""
SETTINGS = {"steps": 3, "evaluation": {"prompts": 0}, "checkpoint": {"every": 1}}


@pytest.fixture
def own(tmp_path):
    """A reward that raises while the file `broken` lies beside it."""
    (tmp_path / "my_rewards.py").write_text(OWN)
    path = f"{tmp_path / 'my_rewards.py'}:score"
    return {"rewards": [{"kind": "function", "path": path}]}


def end_of(folder):
    with RunStore.open(folder, read_only=True) as store:
        return store.end()


def test_a_step_whose_rewards_fail_is_not_counted_and_is_taken_again(tmp_path, own):
    whole = trainer(tmp_path, SETTINGS, own, run="whole")
    assert finish(whole)[-1].status == "finished"

    events = (running := trainer(tmp_path, SETTINGS, own)).run()
    next(event for event in events if isinstance(event, Saved))
    (tmp_path / "broken").touch()
    last = list(events)[-1]
    running.store.close()
    line = "ZeroDivisionError: division by zero (my_rewards.py:6 in score)"
    assert last.status == "stopped"
    assert f"reward_error, part 'score' has no value: {line}" in last.reason
    end = end_of(running.folder)
    assert (end.status, end.reason, end.step) == ("stopped", last.reason, 1)

    for attempt in (2, 3):
        again = finish(trainer(tmp_path, SETTINGS, own))
        assert again[-1].status == "stopped"
        assert not [event for event in again if isinstance(event, StepDone)]
        with RunStore.open(running.folder, read_only=True) as store:
            assert store.steps() == [0]
            tried = [e.name for e in store.evaluations() if e.step == 1]
        assert tried == ["unscored", "unscored-2", "unscored-3"][:attempt]

    (tmp_path / "broken").unlink()
    mended = trainer(tmp_path, SETTINGS, own)
    assert finish(mended)[-1].status == "finished"
    assert end_of(running.folder).reason == ""
    with RunStore.open(running.folder, read_only=True) as store:
        rewards = [sample.reward.value for sample in store.samples(split="train")]
    with RunStore.open(whole.folder, read_only=True) as store:
        assert rewards == [sample.reward.value for sample in store.samples(split="train")]


def test_rewards_that_may_all_fail_never_finish_a_run(tmp_path, own):
    (tmp_path / "broken").touch()
    last = finish(trainer(tmp_path, SETTINGS, own, {"guards": {"failed_share": 1.0}}))[-1]
    assert last.status == "stopped"
    assert last.reason.startswith("no reward of any step had a value. See why: burnish show")


def test_a_finished_run_whose_reward_raised_now_and_then_says_so(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r.py").write_text("def odd(text):\n    return 1 / (len(text) % 2)\n")
    words = ["tiny", "steps=1", "rewards=r.py:odd", "run.name=r", "guards.failed_share=1"]
    assert type_command(["train", *words]) == 0
    capsys.readouterr()
    assert type_command(["runs"]) == 0
    line = r"r: \d+ answers without a value: .*ZeroDivisionError: .* \(r.py:2 in odd\)"
    assert re.search(line, " ".join(capsys.readouterr().out.split()))
    with RunStore.open(tmp_path / "runs" / "r", read_only=True) as store:
        assert "ZeroDivisionError" in store.events("warning")[-1].message


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (MemoryError("no room"), "crashed", "out of memory: MemoryError: no room"),
        (RuntimeError("shapes differ"), "crashed", "RuntimeError: shapes differ"),
        (KeyboardInterrupt(), "stopped", "interrupted with Ctrl-C"),
        (UserError("rows.jsonl:3: got no text"), "stopped", "rows.jsonl:3: got no text"),
        (StoreError("run.db: cannot store: database or disk is full"), "crashed", "run.db: cannot"),
    ],
)
def test_whatever_ends_a_run_is_stored_with_its_step(
    tmp_path, own, monkeypatch, error, status, reason
):
    running = trainer(tmp_path, SETTINGS, own)
    step = running.stage.updater.run

    def run(number, *rest, **more):
        if number == 1:
            raise error
        return step(number, *rest, **more)

    monkeypatch.setattr(running.stage.updater, "run", run)
    with pytest.raises(type(error)):
        finish(running)
    end = end_of(running.folder)
    assert end.reason.startswith(reason)
    assert (end.status, end.step, end.exception) == (status, 1, type(error).__name__)


PROGRAM = """
from pathlib import Path
from training_cases import trainer
running = trainer(Path({folder!r}), {settings!r}, {own!r})
for event in running.run():
    print(type(event).__name__, flush=True)
"""


def test_a_killed_run_says_when_it_last_gave_a_sign_of_life(tmp_path, own):
    settings = {**SETTINGS, "steps": 10_000}
    program = PROGRAM.format(folder=str(tmp_path), settings=settings, own=own)
    (tmp_path / "program.py").write_text(program)
    said = tmp_path / "said.txt"
    said.touch()
    child = warm.start("program.py", [], folder=tmp_path, log=said)
    try:
        while "StepDone" not in said.read_text():
            assert child.exitcode is None, said.read_text()
            time.sleep(0.02)
    finally:
        child.kill()
        child.join()
    deadline = time.monotonic() + 5
    while end_of(tmp_path / "run").status == "running" and time.monotonic() < deadline:
        time.sleep(0.05)
    end = end_of(tmp_path / "run")
    assert end.status == "crashed"
    assert f"its process ended without a word at step {end.step + 1}" in end.reason
    assert f"; last sign of life {end.time[11:16]}" in end.reason
    assert end.step >= 1
    (info,) = list_runs(tmp_path)
    assert info.end.reason == end.reason
