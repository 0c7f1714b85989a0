import logging
import time

import pytest
from training_cases import finish, resolved, trainer

import warm
from burnish import activity
from burnish.config import render
from burnish.store import RunStore
from burnish.store.processes import ProcessRecord, death_line, deaths, read_processes
from burnish.training.watchdog import Watchdog

DEADLOCK = """
import threading
lock = threading.Lock()

def stuck(text):
    lock.acquire()
    lock.acquire(timeout=2.5)      # nobody lets go of it
    lock.release()
    return float(len(text))

async def waits(text):
    import asyncio
    await asyncio.sleep(2.5)
    return float(len(text))
"""


@pytest.mark.parametrize("function", ["stuck", "waits"])
def test_a_deadlocked_reward_is_named_with_its_stacks(tmp_path, caplog, function):
    (tmp_path / "own.py").write_text(DEADLOCK)
    own = {"kind": "function", "path": f"{tmp_path / 'own.py'}:{function}", "name": "my_judge"}
    settings = {
        "steps": 1,
        "rewards": [own],
        "rollout": {"prompts": 1, "samples": 2},
        "evaluation": {"prompts": 0},
        "guards": {"quiet_s": 0.5},
    }
    with caplog.at_level(logging.WARNING):
        finish(trainer(tmp_path, settings))
    said = [r.getMessage() for r in caplog.records if "nothing has moved" in r.getMessage()]
    assert said
    assert "step 1 waits for reward my_judge, 0 of 2 answers, " in said[0]
    stacks = (tmp_path / "run" / "processes" / "0-stacks.txt").read_text()
    assert stacks.startswith("reward my_judge, 0 of 2 answers")
    assert "own.py" in stacks
    assert function in stacks
    assert any("stacks: " in r.getMessage() for r in caplog.records)


def test_0_is_off_and_keeps_the_signs_of_life(tmp_path, caplog):
    record = ProcessRecord(tmp_path)
    with (
        caplog.at_level(logging.WARNING),
        Watchdog(record, 0.0, lambda: 3),
        activity.waiting_for("nothing"),
    ):
        time.sleep(0.3)
    assert caplog.text == ""
    (state,) = read_processes(tmp_path)
    assert state.step == 3


def test_another_process_is_named_by_what_it_is_at(tmp_path, caplog):
    other = ProcessRecord(tmp_path, rank=1, size=2)
    mine = ProcessRecord(tmp_path, rank=0, size=2)
    other.beat(step=3, doing="reward slow, 2 of 8 answers, 31 s")
    with (
        caplog.at_level(logging.WARNING),
        Watchdog(mine, 0.2, lambda: 3),
        activity.waiting_for("process 0 at all_reduce"),
    ):
        time.sleep(0.5)
    line = next(r.getMessage() for r in caplog.records if "nothing has moved" in r.getMessage())
    assert "step 4 waits for process 0 at all_reduce, " in line
    assert line.endswith(". Process 1 is at step 4, reward slow, 2 of 8 answers, 31 s")


def test_counts_and_the_newest_wait_first():
    with activity.waiting_for("outer"), activity.waiting_for("reward a", "answers", total=4):
        activity.advance("reward a", 3)
        activity.advance("nobody waits for this")
        now = activity.current()
        assert [text.rpartition(",")[0] for text in now] == ["reward a, 3 of 4 answers", "outer"]
        activity.advance("reward a")
        assert [text.rpartition(",")[0] for text in activity.current()] == ["outer"]


def test_the_first_last_words_stay_and_a_damaged_file_is_left_out(tmp_path):
    record = ProcessRecord(tmp_path)
    record.beat(step=7, doing="sampler")
    record.die("exception", "ValueError: \ud800 first", exception="ValueError", sample="7.0.1")
    record.die("exception", "second")
    record.beat(step=8, doing="later")
    record.leave()
    (death,) = deaths(tmp_path)
    assert (death.step, death.words.sample, death.words.kind) == (7, "7.0.1", "exception")
    assert "first" in death_line(death)
    assert deaths(tmp_path, since="9999") == []
    (tmp_path / "processes" / "0.json").write_text("{")
    assert deaths(tmp_path) == []


SCRIPT = """
import os, signal, sys
os.environ["BURNISH_TEST_WAY"] = sys.argv[1]
from burnish.training.update import Updater

whole = Updater.run

def run(self, step, *rest, **more):
    if step == 1 and os.environ.get("RANK", "0") == sys.argv[2]:
        end()
    return whole(self, step, *rest, **more)

def end():
    way = sys.argv[1]
    if way == "raise":
        raise ArithmeticError("lost count")
    if way == "exit":
        os._exit(7)
    if way == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if way == "term":
        os.kill(os.getpid(), signal.SIGTERM)
    if way == "memory":
        bytearray(1 << 60)

Updater.run = run
from burnish.cli.entry import run as type_command
sys.exit(type_command(["train", "config.toml", "--quiet"]))
"""
WAYS = {
    "raise": "ArithmeticError: lost count (script.py:",
    "exit": "os._exit(7) was called (script.py:",
    "kill": "ended without a word at step 2",
    "term": "interrupted with SIGTERM (script.py:",
    "memory": "out of memory: MemoryError (script.py:",
}


def play(folder, way, rank, processes=1):
    """The exit codes and the errors of each process of a run, one of which ends in this way."""
    settings = {"steps": 3, "run": {"name": "run", "folder": "."}, "evaluation": {"prompts": 0}}
    (folder / "config.toml").write_text(render(resolved(folder, settings)))
    (folder / "script.py").write_text(SCRIPT)
    ended = warm.together("script.py", [way, rank], [folder] * processes, timeout=200)
    return ended.codes, ended.said


def end_of(folder):
    with RunStore.open(folder, read_only=True) as store:
        return store.end()


@pytest.mark.parametrize("way", ["exit", "kill", "term"])
def test_whatever_ends_a_process_is_named(tmp_path, way):
    (code,), (said,) = play(tmp_path, way, "0")
    assert code != 0
    assert ("the same command goes on at the last checkpoint" in said) == (way == "term")
    status = "stopped" if way == "term" else "crashed"
    with RunStore.open(tmp_path / "run", read_only=True) as store:
        end = store.end()
        assert store.status() == store.summary().status == end.status == status
    assert end.step == 1
    assert WAYS[way] in end.reason


@pytest.mark.parametrize("way", ["raise", "exit", "kill", "memory"])
def test_the_process_that_died_first_is_named_first(tmp_path, way):
    codes, said = play(tmp_path, way, "1", processes=2)
    assert all(codes)
    end = end_of(tmp_path / "run")
    first = end.reason.partition("; then ")[0]
    assert end.status == "crashed"
    assert first.startswith("process 1 of 2"), end.reason
    assert WAYS[way] in first
    assert "at step 2" in first
    assert first in " ".join(said[0].split())


def test_an_evaluation_says_how_far_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr("burnish.training.trainer.TELL_S", 0.0)
    trained = trainer(tmp_path, {"steps": 1, "evaluation": {"prompts": 4}})
    told = []
    trained.tell = told.append
    finish(trained)
    sampled = [event for event in told if event.doing == "sampler"]
    assert [event.done for event in sampled if event.step == 0] == [1, 2, 3, 4]
    assert {event.total for event in sampled} == {4}
    assert {event.step for event in told} == {0, 1}
    assert any(event.doing.startswith("reward ") for event in told)
    assert str(sampled[1]).startswith("2 of 4 prompts, ")


def test_a_slow_machine_is_not_warned_of_at_every_step(tmp_path, caplog):
    dog = Watchdog(ProcessRecord(tmp_path), quiet_s=30, step=lambda: 0)
    for quiet_s in (31, 1, 45, 1, 95):
        dog._look(quiet_s)
    said = [record.message for record in caplog.records if "nothing has moved" in record.message]
    assert [line.split(" s:")[0] for line in said] == [
        "nothing has moved for 31",
        "nothing has moved for 95",
    ]


def test_a_process_that_computes_is_not_said_to_wait(tmp_path, caplog):
    dog = Watchdog(ProcessRecord(tmp_path), quiet_s=0.01, step=lambda: 0)
    assert "waits for" in dog._line(1000.0)
    until = time.process_time() + 0.2
    while time.process_time() < until:
        pass
    assert "still computes" in dog._line(0.3)
