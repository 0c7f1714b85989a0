"""The studies of ATP-Bench: the simulation's order, function calls by code, and the arms."""

import json

import anyio
import pyarrow as pa
import pyarrow.parquet as pq
from lab.atp import function_calls, simulation

from burnish.records import Message, Response, Task


def test_three_roles_see_more_than_one_of_them_and_the_table_is_written(tmp_path):
    simulation.main(seeds=(0,), responses=400, place=tmp_path)
    found = simulation.correlations(0, 400)
    for error in simulation.ERRORS:
        assert found[f"three roles, error {error}"] > found[f"precision alone, error {error}"]
    assert "no test of language models" in (tmp_path / "simulation.md").read_text()
    falls = simulation.sensitivity(0, 400)
    assert falls["three roles, error 0.2"] > falls["precision alone, error 0.2"]


def test_spoilt_function_calls_come_out_as_they_were_spoilt(tmp_path):
    truth = [{"gcd": {"a": [12], "b": [18, 6], "c": ["", 1]}}, {"f": {}}]
    for name in function_calls.FILES:
        want = None if name == "irrelevance" else truth
        row = {"id": name, "question": "q", "ground_truth": json.dumps(want)}
        pq.write_table(pa.Table.from_pylist([row]), tmp_path / f"{name}.parquet")
    found = function_calls.measure(tmp_path)
    assert (found["as expected"]["f1"], found["as expected"]["rows"]) == (1.0, 6)
    assert (found["one left out"]["recall"], found["one left out"]["precision"]) == (0.5, 1.0)
    assert found["one too many"]["recall"] == 1.0
    assert found["one argument changed"]["missed"] == 1.0


QUESTION = (Message("user", "Write a guide."),)


def test_function_calls_by_the_same_pattern():
    gold = [
        {"name": "gcd", "arguments": {"a": 12, "b": 18}},
        {"name": "gcd", "arguments": {"a": 4, "b": 6}},
    ]
    task = Task("t", QUESTION, {"answer": gold})
    said = [{"name": "gcd", "arguments": {"b": 6, "a": 4}}, {"name": "lcm", "arguments": {"a": 1}}]
    (reward,) = anyio.run(
        function_calls.function_call_scorer().score, task, [Response("r", json.dumps(said))]
    )
    assert reward.components | {"validity": 1.0} == {
        "f1": 0.5, "precision": 0.5, "recall": 0.5, "missed": 1.0, "validity": 1.0,
    }  # fmt: skip
    assert [v.reason for v in reward.verdicts[:2]] == ["as expected", "not expected"]
    (broken,) = anyio.run(
        function_calls.function_call_scorer().score, task, [Response("r", "no JSON")]
    )
    assert (broken.value, broken.components["missed"]) == (0.0, 2.0)
