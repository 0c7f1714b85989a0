"""`burnish try`: prompts, tokens, rewards and what training would make of them."""

import time

import pytest
from judge_server import JudgeServer, winner

from burnish.bench.scripted_answers import answer_fields, script_for, scripts_for, wrong_answer
from burnish.records import Message, Task
from burnish.rewards.checks.match import MatchConfig
from burnish.rewards.checks.numeric import NumericConfig
from burnish.rewards.checks.rules import TagsConfig
from burnish.rewards.config import GateConfig, build_all
from burnish.tasks.base import FiniteTasks

RECIPE = """
[model]
path = "tiny"

[task]
kind = "arithmetic"

[[rewards]]
kind = "numeric"
name = "correct"
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "sums.toml"
    path.write_text(RECIPE)
    return path


def test_three_prompts_with_three_answers_each(typed, recipe):
    start = time.process_time()
    shown = typed("try", recipe)
    assert time.process_time() - start < 60  # a second, and what a slow machine needs for torch
    assert shown.code == 0
    assert shown.out.count("<|im_start|>assistant") == 3
    assert shown.out.count("right: ") == 3
    assert shown.out.count("loss mask 0 on all of them") == 3
    assert "loss mask 1" in shown.out
    assert "no number in ''" in shown.out
    rows = [line.split() for line in shown.out.splitlines() if line.startswith("arithmetic/0 ")]
    assert [row[1] for row in rows] == ["right", "wrong", "empty"]
    assert [row[2] for row in rows] == ["1.000", "0.000", "0.000"]
    # (1, 0, 0): mean 1/3, standard deviation 0.577 with ddof 1.
    assert [row[3] for row in rows] == ["+1.155", "-0.577", "-0.577"]
    # The mean over nine answers of the mean over tokens: each answer pulls with A / 9.
    assert [row[-1] for row in rows] == ["+0.1283", "-0.0641", "-0.0641"]
    assert "loss terms at the first update: surrogate 0.0000" in shown.out


def test_constant_groups_pull_nothing(typed, recipe):
    shown = typed("try", recipe, "rewards.0.kind=regex", "rewards.0.pattern=.*", "--prompts", 1)
    assert shown.err == ""
    rows = [line.split() for line in shown.out.splitlines() if line.startswith("arithmetic/0 ")]
    assert [row[3] for row in rows] == ["+0.000"] * 3


def test_a_field_that_the_data_lacks_is_told_before_anything_runs(typed, recipe):
    shown = typed("try", recipe, "rewards.0.field=anser")
    assert shown.code == 2
    assert shown.out == ""
    assert "reward 'correct' needs 'anser'" in shown.err
    assert "Did you mean 'answer'?" in shown.err


def test_data_typed_on_the_command_line_starts_at_the_current_folder(
    typed, recipe, tmp_path, monkeypatch
):
    here = tmp_path / "here"
    here.mkdir()
    rows = "\n".join(f'{{"question": "What is {i} + {i}?", "answer": "{2 * i}"}}' for i in range(9))
    (here / "rows.jsonl").write_text(rows)
    monkeypatch.chdir(here)
    recipe.write_text(
        RECIPE.replace('"arithmetic"', '"file"\npath = "other.jsonl"\nprompt = "question"')
        + '\n[task.fields]\nanswer = "answer"\n'
    )
    assert "other.jsonl" in typed("try", recipe).err
    shown = typed("try", recipe, "task.path=rows.jsonl")
    assert shown.err == ""
    assert "task 'rows'" in shown.out


@pytest.mark.parametrize(
    ("right", "wrong"), [("7", "8"), ("-1", "0"), ("C", "B"), ("b", "A"), ("x^2", "I do not know.")]
)
def test_wrong_answers_have_the_form_of_right_ones(right, wrong):
    assert wrong_answer(right) == wrong


def test_ids_of_tasks_are_no_markup(typed, recipe, tmp_path):
    row = '{"key": "q[/1]", "question": "What is 1 + 1?", "total": "2", "answer": "9"}\n'
    (tmp_path / "rows.jsonl").write_text(row + row.replace("q[/1]", "q[/2]").replace("1 +", "2 +"))
    recipe.write_text(
        RECIPE.replace(
            '"arithmetic"', '"file"\npath = "rows.jsonl"\nprompt = "question"\nid = "key"'
        )
        + 'field = "total"\n[task.fields]\nanswer = "answer"\ntotal = "total"\n'
        + "[task.held_out]\nshare = 0.5\n"
    )
    shown = typed("try", recipe, "--prompts", 1)
    assert shown.err == ""
    rows = [line.split() for line in shown.out.splitlines() if line.startswith("rows/q[/")]
    assert [row[1:3] for row in rows] == [
        ["right", "1.000"],
        ["wrong", "0.000"],
        ["empty", "0.000"],
    ]


@pytest.mark.parametrize(
    ("compared", "right"), [(["value"], "4"), (["absent"], "7"), ([], "7"), (["answers"], "8")]
)
def test_right_is_what_the_rewards_compare_with(compared, right):
    fields = {"solution": "3 + 4 = 7", "answer": "7", "value": "4", "answers": ["8", "7"]}
    task = Task("t", (Message("user", "?"),), fields, labels=("solution", "answer", "value"))
    assert script_for(task, compared)[0].text == right


def test_the_first_label_is_right_where_nothing_is_called_answer():
    task = Task("t", (Message("user", "?"),), {"key": "B", "note": "x"}, labels=("key", "note"))
    assert [line.text for line in script_for(task)] == ["B", "A", ""]


def test_an_experts_answer_is_tried_at_another_prompt_too():
    task = Task(
        "t", (Message("user", "?"),), {"demonstration": "so: 7", "answer": "7"}, ("answer",)
    )
    lines = script_for(task, ["answer"], misplaced="so: 9")
    assert [line.label for line in lines] == [
        "expert", "misplaced", "label alone", "wrong", "empty",
    ]  # fmt: skip
    assert lines[1].text == "so: 9"
    same = script_for(task, ["answer"], misplaced="so: 7")
    assert [line.label for line in same] == ["expert", "label alone", "wrong", "empty"]


def test_what_experts_say_is_what_is_compared_with_stands_there_once():
    task = Task("t", (Message("user", "?"),), {"demonstration": "7", "answer": "7"}, ("answer",))
    assert [line.label for line in script_for(task, ["answer"])] == ["expert", "wrong", "empty"]


@pytest.mark.parametrize(("size", "prompts"), [(3, 2), (2, 2), (2, 5)])
def test_every_prompt_meets_the_next_ones_answer(size, prompts):
    rows = [
        Task(f"{n}", (Message("user", f"{n}?"),), {"demonstration": f"say {n}"})
        for n in range(size)
    ]
    tasks = FiniteTasks("three", frozenset({"demonstration"}), "", 0, tuple(rows), ())
    asked = tasks.sample(size)
    chosen, scripts = scripts_for(tasks, prompts, [], "demonstration")
    assert chosen == asked[:prompts]
    said = [task.fields["demonstration"] for task in asked]
    assert [script[1].text for script in scripts] == [*said[1:], said[0]][:prompts]


def test_gd2po_shows_an_answer_that_its_filter_drops(typed):
    shown = typed("try", "gd2po", "model.path=tiny", "rollout.max_tokens=400", "--prompts", 1)
    rows = [line.split() for line in shown.out.splitlines()]
    kept = {row[1]: row[4] for row in rows if len(row) > 5 and row[0].startswith("tool_calls/")}
    assert kept == {"expert": "yes", "misplaced": "no", "wrong": "yes", "empty": "yes"}


def test_the_fields_of_rewards_are_found_inside_combinations():
    numeric, match = NumericConfig(field="value"), MatchConfig(field="name")
    configs = [GateConfig(hard=TagsConfig(), then=numeric), match]
    assert answer_fields(build_all(configs)) == ["value", "name"]


def test_a_task_without_an_answer_gets_some_text():
    lines = script_for(Task("t", (Message("user", "Write a poem."),), {"style": "short"}))
    assert [line.label for line in lines] == ["some text", "empty"]


JUDGED = """
steps = 1

[model]
path = "tiny"

[task]
kind = "arithmetic"

[rollout]
prompts = 1
samples = 3
max_tokens = 6

[evaluation]
prompts = 0

[[rewards]]
kind = "versus"

[rewards.judge]
kind = "judge"
with = "direct"
model = "{model}"
prompt_usd = 100
"""


@pytest.mark.parametrize("command", ["try", "train"])
def test_the_number_of_judge_calls_is_told_before_anything_is_asked(typed, tmp_path, command):
    recipe = tmp_path / "judged.toml"
    with JudgeServer(lambda prompt: winner("Tie")) as server:
        recipe.write_text(JUDGED.format(model=server.model))
        words = ("--runs", tmp_path / "runs") if command == "train" else ()
        shown = typed(command, recipe, *words)
    told = "up to 4 calls a group (2 in one order), 4 a step, 4 for 1 step (about "
    assert told in shown.out
    line = next(line for line in shown.out.splitlines() if told in line)
    assert ", $0." in line
    if command == "train":
        assert 0 < len(server.prompts) <= 4
        assert shown.out.index(told) < shown.out.index("model     tiny")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("diffusion", ["learned: ", "masked: ", "▒"]),
        ("diffusion_words", ["learned: ", "masked: ", "▒"]),
        ("process_reward_model", ["right: ", "wrong: "]),
        ("diffusion_policy", ["right: ", "what training would make of these answers"]),
    ],
)
def test_recipes_that_learn_otherwise_are_shown_too(typed, name, parts):
    shown = typed("try", name)
    assert shown.code == 0, shown.err
    assert shown.out.count("loss mask 0 on all of them") == 3
    assert all(part in shown.out for part in parts)
