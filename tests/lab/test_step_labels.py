"""The study of step labels without its models: splits, controls and figures on made-up solutions."""

import json

import pytest
from lab.process_reward import step_labels as study


@pytest.fixture
def data(tmp_path):
    """Solutions of two tasks: in one the mistake stands third, in the other it is the long step."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    big, mr = [], []
    for i in range(60):
        steps = ["a step", "and one", "third", "last"]
        wrong = None if i % 3 == 0 else 2
        row = {"id": f"sorting-{i}", "task": "sorting", "input": f"question {i}", "steps": steps}
        big.append(row | {"mistake_index": wrong})
        start = "model_output_solution_"
        grade = {"uuid": f"u{i}", "question": f"sum {i}", "question_type": "original"}
        grade |= {"model_output_steps": ["Step 1: x", f"Step 2: {'y' * 80}"]}
        mr.append(grade | {f"{start}correctness": "wrong", f"{start}first_error_step": "2"})
    for name, rows in (("bigbench_mistake", big), ("mr_gsm8k", mr)):
        parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / f"{name}.parquet")
    return tmp_path


def test_a_prompt_is_on_one_side_and_shuffling_keeps_the_shares(data):
    split = study.read_split(data)
    sides = [{study.text_of(row, steps=False) for row in rows} for rows in split]
    assert not sides[0] & sides[1]
    assert len(split.train) + len(split.test) == 120
    dealt = study.shuffled(split.train, 1)
    for name in study.SETS:
        before, after = (
            sorted(str(r["first_wrong"]) for r in rows if r["set"] == name)
            for rows in (split.train, dealt)
        )
        assert before == after
    assert [row["labels"] for row in dealt] != [row["labels"] for row in split.train]
    assert all(len(row["labels"]) == len(row["steps"]) for row in dealt)


def test_a_finished_job_is_not_repeated(data, tmp_path):
    job = {"arm": "length", "seed": 0, "name": "length", "data": str(data), "limit": 0}
    study.run_job(job, tmp_path)
    first = (tmp_path / "length.json").read_text()
    assert json.loads(first)["figures"]["test"] > 0
    study.run_job(job | {"data": "nowhere"}, tmp_path)
    assert (tmp_path / "length.json").read_text() == first
