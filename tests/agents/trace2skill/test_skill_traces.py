"""Trajectories from files and runs, and what is left out."""

import json

import pytest

from burnish.agents.trace2skill import Trace, pool_of, read_traces
from burnish.errors import UserError
from burnish.records import Message, Response, Reward, Status, Task, Trajectory
from burnish.store import RunStore, StoredSample

ROW = {"task_id": "t1", "instruction": "Do it.", "passed": False,
       "messages": [{"role": "assistant", "content": "no", "tool_calls": [{"name": "run"}]}]}  # fmt: skip


def written(tmp_path, *rows):
    path = tmp_path / "traces.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_rows_by_their_usual_names(tmp_path):
    pool = read_traces(
        written(
            tmp_path,
            ROW,
            {"id": "b", "prompt": "P", "response": "yes", "reward": 1.0, "answer": {"x": [7, "y"]}},
            {"id": "c", "prompt": "P", "response": "half", "score": 0.5},
            {"id": "d", "prompt": "P", "status": "infra_error", "error": "server down"},
            {"id": "e", "prompt": "P"},
            {"id": "f", "prompt": "P", "error": "out of time", "passed": True},
        )
    )
    assert [one.id for one in pool.passed] == ["b"]
    assert [one.id for one in pool.failed] == ["c", "f", "t1"]
    assert pool.left_out == (("d", "server down"), ("e", "no verdict: neither passed nor a score"))
    assert pool.passed[0].gold == ("7", "y")
    assert "out of time" in pool.failed[1].log
    assert '"name": "run"' in pool.failed[2].log
    assert [one.id for one in read_traces(tmp_path / "traces.jsonl", pass_at=0.5).passed] == [
        "b",
        "c",
    ]


def test_the_same_id_twice_gets_a_number_and_the_order_changes_nothing(tmp_path):
    rows = [Trace(id="a", task_id="t", instruction=str(i), passed=i == 0) for i in range(2)]
    assert [one.id for one in pool_of(rows).all] == ["a", "a#2"]
    assert pool_of(rows) == pool_of(rows[::-1])


def stored(index, value, status=Status.OK, rollout=Status.OK):
    task = Task(f"task-{index}", (Message("user", "Q?"),), {"answer": "secret-7", "hint": "h"})
    reward = Reward("r", value) if value is not None else Reward.failed("r", status, "why")
    trajectory = Trajectory(f"r{index}", task.id, task.id, (), "text", status=rollout, reason="broke"
                            if rollout is not Status.OK else "")  # fmt: skip
    assert isinstance(trajectory.as_response(), Response)
    return StoredSample(
        step=0, split="train", index=index, task=task, trajectory=trajectory, reward=reward
    )


def test_samples_of_a_run(tmp_path):
    with RunStore.create(tmp_path / "runs" / "a", {}, {}) as run:
        run.append_rollouts(0, 
            [stored(0, 1.0), stored(1, 0.0), stored(2, None, Status.TIMEOUT),
             stored(3, None, Status.INFRA_ERROR, Status.INFRA_ERROR),
             stored(4, None, Status.TIMEOUT, Status.TIMEOUT)]
        )  # fmt: skip
    pool = read_traces(tmp_path / "runs" / "a")
    assert [one.task_id for one in pool.passed] == ["task-0"]
    assert [one.task_id for one in pool.failed] == ["task-1"]
    assert [name for name, _ in pool.left_out] == ["0/train/2", "0/train/3", "0/train/4"]
    assert pool.passed[0].gold == ("secret-7",)
    assert pool.passed[0].messages[0].text == "Q?"


def test_a_reason_is_an_error_only_where_the_status_says_so(tmp_path):
    row = {"instruction": "P", "response": "done", "passed": True}
    told = row | {"id": "a", "reason": "all cells agree"}
    late = row | {"id": "b", "status": "timeout", "reason": "60 s"}
    pool = read_traces(
        written(tmp_path, told, told | {"id": "c", "status": "ok", "response": "well"}, late)
    )
    assert [(one.id, one.error) for one in pool.passed] == [("a", ""), ("c", "")]
    assert [(one.id, one.error) for one in pool.failed] == [("b", "60 s")]


def test_a_row_without_a_log_teaches_nothing(tmp_path):
    misspelt = {"id": "a", "msgs": [{"role": "user", "content": "x"}], "passed": False}
    pool = read_traces(written(tmp_path, misspelt, ROW))
    ((name, why),) = pool.left_out
    assert (name, why[:21]) == ("a", "no log: none of messa")


def test_odd_rows_are_read_or_refused_in_one_line(tmp_path):
    deep: object = "x"
    for _ in range(150):
        deep = [deep]
    odd = ROW | {
        "id": "odd",
        "gold": deep,
        "messages": [{"role": "assistant", "content": "a\u2028b", "tool_calls": None}],
    }
    path = tmp_path / "odd.jsonl"
    path.write_text(json.dumps(odd, ensure_ascii=False) + "\n", encoding="utf-8")
    (found,) = read_traces(path).all
    assert (found.gold, found.messages[0].text) == (("x",), "a\u2028b")
    for wrong in ({"score": True}, {"passed": 2}):
        row = {"id": "a", "instruction": "x", "response": "y"} | wrong
        with pytest.raises(UserError, match=next(iter(wrong))):
            read_traces(written(tmp_path, row))
