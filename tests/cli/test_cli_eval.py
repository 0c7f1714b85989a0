"""`burnish eval` and `burnish generate`: the Python functions behind a command line."""

from __future__ import annotations

import io
import json
import sys

import pytest

import burnish


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text(
        '{"prompt": "Say 7.", "answer": "7"}\n{"prompt": "Say 8.", "answer": "8"}\n'
    )
    return tmp_path


def lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


# --- eval


def test_a_recipe_is_scored_as_by_the_python_function(typed, here):
    done = typed("eval", "tiny", "tiny", "task.level=2", "--prompts", 4, "--json")
    assert done.code == 0
    (record,) = lines(done.out)
    found = burnish.evaluate("tiny", burnish.Config.load("tiny", "task.level=2"), prompts=4)
    assert record == {**found.record(), "file": record["file"]}
    kept = lines((here / str(record["file"])).read_text())
    assert kept == found.rows()
    assert len(kept) == 4


def test_the_number_of_prompts_may_be_typed_as_a_setting(typed, here):
    done = typed("eval", "tiny", "tiny", "evaluation.prompts=3", "--max-tokens", 2, "--json")
    assert lines(done.out)[0]["count"] == 3


def test_a_run_is_evaluated_on_its_own_task(typed, here):
    words = ("steps=1", "task.level=2", "run.name=mine", "evaluation.prompts=0")
    run = burnish.train("tiny", *words, show=False)
    done = typed("eval", "runs/mine", "--prompts", 4, "--json")
    assert done.code == 0
    (record,) = lines(done.out)
    own = lines((here / str(record["file"])).read_text())
    assert own == burnish.evaluate(run, prompts=4).rows()
    (record,) = lines(typed("eval", "mine", "--prompts", 4, "--json").out)  # by its name
    assert lines((here / str(record["file"])).read_text()) == own
    (record,) = lines(typed("eval", "runs/mine", "task.level=1", "--prompts", 4, "--json").out)
    other = lines((here / str(record["file"])).read_text())
    level_1 = burnish.evaluate(run, run.config.replace(task={"level": 1}), prompts=4)
    assert other == level_1.rows() != own


def test_a_log_hears_how_far_it_is(typed, here, monkeypatch):
    assert "held out" not in typed("eval", "tiny", "tiny", "--prompts", 4).err
    monkeypatch.setattr("burnish.cli.eval.TELL_S", 0.0)
    told = typed("eval", "tiny", "tiny", "--prompts", 4).err
    assert "held out: 4 of 4 prompts, " in told
    assert "held out: reward digit, 4 of 4 answers, " in told
    assert "held out" not in typed("eval", "tiny", "tiny", "--prompts", 4, "--json").err


def test_a_model_alone_has_no_task(typed, here):
    done = typed("eval", "tiny")
    assert done.code == 2
    assert "task: got None; expected a recipe" in done.err


def test_a_file_is_scored_by_a_function_of_ones_own(typed, here):
    (here / "own.py").write_text(
        "def odd(text: str, answer: str) -> float | None:\n"
        "    return None if answer == '8' else 1.0\n"
    )
    words = ("eval", "tiny", "rows.jsonl", "--reward", "own.py:odd", "--max-tokens", 3)
    done = typed(*words, "--out", "kept.jsonl")
    assert done.code == 0
    assert "score  1.000 (too few to say)" in done.out
    assert "valid  50% could be scored" in done.out
    kept = {row["prompt"]: row["score"] for row in lines((here / "kept.jsonl").read_text())}
    assert kept == {"Say 7.": 1.0, "Say 8.": None}


def test_where_nothing_could_be_scored_there_is_no_number(typed, here):
    (here / "own.py").write_text("def none(text: str) -> float | None:\n    return None\n")
    words = ("eval", "tiny", "rows.jsonl", "--reward", "own.py:none", "--max-tokens", 3)
    done = typed(*words, "--json")
    assert done.code == 3
    (record,) = lines(done.out)
    assert (record["score"], record["low"], record["valid"]) == (None, None, 0.0)


def test_ifeval_is_read_by_its_loader(typed, here):
    row = {
        "key": 1, "prompt": "No commas.", "instruction_id_list": ["punctuation:no_comma"],
        "kwargs": [{}],
    }  # fmt: skip
    (here / "ifeval.jsonl").write_text(json.dumps(row) + "\n")
    words = ("eval", "tiny", "ifeval", "--data", "ifeval.jsonl", "--max-tokens", 4, "--json")
    (record,) = lines(typed(*words).out)
    (kept,) = lines((here / str(record["file"])).read_text())
    said = str(kept["response"]).strip()
    assert kept["score"] == float("," not in said and bool(said))  # nothing said obeys nothing


# --- generate


def test_answers_are_those_of_the_python_function(typed, here):
    words = ("generate", "tiny", "Hello", "Bye", "--n", 2, "--temperature", 1, "--seed", 5)
    done = typed(*words, "--max-tokens", 4)
    assert done.code == 0
    rows = lines(done.out)
    found = burnish.generate("tiny", ["Hello", "Bye"], n=2, temperature=1, seed=5, max_tokens=4)
    assert [row["response"] for row in rows] == found.texts
    assert [row["index"] for row in rows] == [0, 1, 0, 1]
    assert [row["prompt"] for row in rows] == ["Hello", "Hello", "Bye", "Bye"]


def test_prompts_come_from_files_and_the_standard_input(typed, here, monkeypatch):
    (here / "plain.txt").write_text("One\n\nTwo\n")
    chat = {"messages": [{"role": "user", "content": "Three"}]}
    (here / "chats.jsonl").write_text(json.dumps(chat) + "\n")
    monkeypatch.setattr(sys, "stdin", io.StringIO("Four\n"))
    for file, prompts in (
        ("plain.txt", ["One", "Two"]),
        ("rows.jsonl", ["Say 7.", "Say 8."]),
        ("chats.jsonl", ["Three"]),
        ("-", ["Four"]),
    ):
        done = typed("generate", "tiny", "--file", file, "--max-tokens", 2)
        assert [row["prompt"] for row in lines(done.out)] == prompts


def test_a_file_is_written_once(typed, here):
    words = ("generate", "tiny", "Hello", "--max-tokens", 2, "--out", "new/answers.jsonl")
    assert typed(*words).code == 0
    assert len(lines((here / "new" / "answers.jsonl").read_text())) == 1
    again = typed(*words)
    assert again.code == 2
    assert "exists already" in again.err


def test_the_newest_weights_of_a_run_are_taken(typed, here):
    done = typed("train", "tiny", "steps=1", "run.name=first", "evaluation.prompts=0", "--quiet")
    assert done.code == 0
    rows = lines(typed("generate", "runs/first", "Hello", "--max-tokens", 6).out)
    weights = here / "runs" / "first" / "checkpoints" / "step-000001"
    assert rows[0]["response"] == burnish.generate(weights, "Hello", max_tokens=6).texts[0]
