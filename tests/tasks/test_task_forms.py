"""GSM8K, MATH and multiple choice, by hand and on the real files."""

import json
import re
from pathlib import Path

import pytest

from burnish.errors import UserError
from burnish.tasks import (
    GSM8K,
    HeldOutFile,
    HeldOutShare,
    Math,
    MultipleChoice,
    boxed_answers,
    build,
    content_key,
    gsm8k_answer,
)
from burnish.tasks.files import options
from burnish.tasks.mapping import RowError

DATA = Path(__file__).parents[2] / ".." / "shared" / "data"
NOTHING_HELD_OUT = HeldOutShare(0.0)


def real(name: str) -> str:
    path = DATA / f"{name}.parquet"
    if not path.exists():
        pytest.skip(f"shared data '{name}' is not here")
    pytest.importorskip("pyarrow")
    return f"{name}.parquet"


@pytest.mark.parametrize(
    ("solution", "answer"),
    [("so 5\n#### 5", "5"), ("#### 1,234", "1234"), ("#### 3\n#### -7 ", "-7"), ("#### $12", "12")],
)
def test_gsm8k_answers(solution, answer):
    assert gsm8k_answer(solution) == answer


@pytest.mark.parametrize("solution", ["The answer is 5", "#### ", "#### five"])
def test_gsm8k_without_a_number_is_a_bad_row(solution):
    with pytest.raises(RowError, match="no number after '####'"):
        gsm8k_answer(solution)


@pytest.mark.parametrize(
    ("text", "answers"),
    [
        (r"is $\boxed{4}$.", ["4"]), (r"$\boxed{\frac{1}{2}}$", [r"\frac{1}{2}"]),
        (r"\boxed{\{1, 2\}}", [r"\{1, 2\}"]), (r"$\boxed 2$.", ["2"]),
        (r"\fbox{x}, then \boxed{y}", ["x", "y"]), (r"\boxed{\text{(A)}}", [r"\text{(A)}"]),
        (r"\boxed{open", []), (r"\boxed{}", []), ("no box", []),
    ],
)  # fmt: skip
def test_boxed_answers(text, answers):
    assert boxed_answers(text) == answers


def test_options():
    text = "Pick.\n\nOptions:\nA. one\nB. two (B. not a line)\nLet's think."
    assert options(text) == {"A": "one", "B": "two (B. not a line)"}
    assert options("A. no heading") == {}


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_every_gsm8k_answer_is_a_number(split):
    tasks = build(GSM8K(path=real(f"gsm8k/{split}"), held_out=NOTHING_HELD_OUT), 0, DATA)
    assert tasks.train_size == {"train": 6000, "dev": 700, "test": 700}[split]
    assert all(re.fullmatch(r"-?\d+", t.fields["answer"]) for t in tasks.train_tasks)
    assert tasks.notes == ()


def test_gsm8k_train_and_test_share_no_question():
    held_out = HeldOutFile(real("gsm8k/test"))
    tasks = build(GSM8K(path=real("gsm8k/train"), held_out=held_out), 0, DATA)
    trained = {content_key(task.messages) for task in tasks.train_tasks}
    assert not trained & {content_key(task.messages) for task in tasks.held_out()}
    assert len(tasks.held_out(50)) == 50
    assert tasks.train(0).labels == ("solution", "answer")


@pytest.mark.parametrize(("split", "rows"), [("dev", 300), ("test", 250)])
def test_every_math_answer_is_found(split, rows):
    tasks = build(Math(path=real(f"math/{split}"), held_out=NOTHING_HELD_OUT), 0, DATA)
    assert tasks.train_size == rows
    assert all(0 < len(task.fields["answer"]) < 200 for task in tasks.train_tasks)
    assert not any("boxed" in task.fields["answer"] for task in tasks.train_tasks)


def test_math_train_has_two_empty_boxes_and_says_where():
    config = Math(path=real("math/train"), held_out=NOTHING_HELD_OUT)
    with pytest.raises(UserError, match=r"train.parquet:759: no answer in .*train.parquet:962: "):
        build(config, 0, DATA)
    skipped = Math(path=config.path, held_out=NOTHING_HELD_OUT, bad_rows="skip")
    tasks = build(skipped, 0, DATA)
    assert tasks.train_size == 2998
    assert "2 of 3000 rows skipped" in tasks.notes[0]
    assert "13 solutions box several answers" in tasks.notes[1]


@pytest.mark.parametrize("name", ["commonsense_qa", "mmlu2k", "theoremqa", "truthfulqa"])
def test_every_multiple_choice_answer_is_an_option(name):
    tasks = build(MultipleChoice(path=real(f"mcqa/{name}"), held_out=NOTHING_HELD_OUT), 0, DATA)
    assert tasks.train_size == 400
    for task in tasks.train_tasks:
        choices = task.fields["choices"]
        assert (task.fields["answer"] in choices) == (name != "theoremqa")
        assert list(choices) == [chr(ord("A") + k) for k in range(len(choices))]
        assert "answer" not in task.for_judge().fields


def write_rows(folder: Path, truth: str, prompt: str = "Why?", as_text: bool = False) -> str:
    turns, model = [{"role": "user", "content": prompt}], {"ground_truth": truth, "style": "rule"}
    row = {"prompt": turns, "reward_model": model, "data_source": "s"}
    if as_text:
        row |= {"prompt": json.dumps(turns), "reward_model": json.dumps(model)}
    (folder / "d.jsonl").write_text(json.dumps(row))
    return "d.jsonl"


@pytest.mark.parametrize("as_text", [False, True])
def test_nested_columns_may_be_structs_or_json_text(tmp_path, as_text):
    path = write_rows(tmp_path, r"So \boxed{7}.", as_text=as_text)
    task = build(Math(path=path, held_out=NOTHING_HELD_OUT), 0, tmp_path).train(0)
    assert (task.prompt, task.fields["answer"], task.id) == ("Why?", "7", "math/1")


def test_a_long_solution_without_a_box_is_not_taken_for_an_answer(tmp_path):
    path = write_rows(tmp_path, "We compute. " * 40)
    with pytest.raises(UserError, match=r"d.jsonl:1: no answer in \\boxed"):
        build(Math(path=path, held_out=NOTHING_HELD_OUT), 0, tmp_path)


def test_an_answer_that_is_no_option_is_a_bad_row(tmp_path):
    path = write_rows(tmp_path, "E", prompt="Pick.\nOptions:\nA. x\nB. y")
    with pytest.raises(UserError, match="answer 'E' is none of the options A, B"):
        build(MultipleChoice(path=path, held_out=NOTHING_HELD_OUT), 0, tmp_path)


def test_template_rewrites_the_question(tmp_path):
    (tmp_path / "d.jsonl").write_text('{"question": "1+1?", "answer": "#### 2"}')
    config = GSM8K(path="d.jsonl", template="{prompt} Think.", held_out=NOTHING_HELD_OUT)
    assert build(config, 0, tmp_path).train(0).prompt == "1+1? Think."
