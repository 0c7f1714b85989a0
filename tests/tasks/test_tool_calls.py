"""Tool calling: the synthetic game, and three real data sets as tasks with readable references."""

import json
import random
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from lab.real.tool_data import from_api_bank, from_bfcl, from_toolrl, write_tool_tasks
from recipes.gd2po.tool_calls import TOOLS, make

from burnish.errors import UserError
from burnish.records import Message, Response, Task
from burnish.rewards import tool_call_rewards
from burnish.rewards.checks.tool_call import ToolCall, ToolCallConfig
from burnish.tasks import File, Function, FunctionTasks, HeldOutShare, build
from burnish.tasks.mapping import RowError

DATA = Path(__file__).parents[2] / ".." / "shared" / "data"
PATH = "recipes.gd2po.tool_calls:make"


def exact(text, answer, dialect):
    check = ToolCall(ToolCallConfig(part="exact", dialect=dialect))
    task = Task("t", (Message("user", "?"),), {"answer": answer})
    return check.judge(task, Response("r", text)).value


def test_the_answer_is_what_was_asked_with_the_tool_that_is_listed():
    by_name = {tool.name: tool for tool in TOOLS}
    assert len(by_name) == 10
    for seed in range(500):
        made = make(random.Random(seed))
        call = json.loads(made["answer"])
        tool = by_name[call["name"]]
        lines = made["prompt"].split("\n")
        request = lines[4].removeprefix("Request: ")
        assert made["tool"] == tool.name
        assert tool.signature in lines[1:4]
        assert list(call["arguments"]) == [parameter.name for parameter in tool.parameters]
        kinds = {"str": str, "int": int}
        for parameter in tool.parameters:
            value = call["arguments"][parameter.name]
            assert type(value) is kinds[parameter.type]
            assert str(value) in request
        assert exact(made["demonstration"], made["answer"], "json") == 1.0
        assert tool_call_rewards("", made["answer"], dialect="json")["correctness"] == -3.0


def test_tools_are_asked_for_equally_often():
    asked = Counter(make(random.Random(seed))["tool"] for seed in range(4000))
    assert len(asked) == 10
    assert all(320 < count < 480 for count in asked.values())


def test_several_calls_and_more_tools():
    for seed in range(100):
        made = make(random.Random(seed), tools=5, calls=2)
        lines = made["answer"].split("\n")
        names = [json.loads(line)["name"] for line in lines]
        assert len(set(names)) == 2
        assert made["tool"] == ", ".join(names)
        assert exact("\n".join(reversed(lines)), made["answer"], "json") == 1.0
        assert exact(lines[0], made["answer"], "json") == 0.0
    for wrong in ({"tools": 1, "calls": 2}, {"tools": 11}, {"calls": 0}):
        with pytest.raises(UserError, match="expected 1 <= calls <= tools <= 10"):
            FunctionTasks(Function(path=PATH, options=wrong), seed=0)


def test_a_held_out_call_is_not_trained_in_any_wording():
    tasks = FunctionTasks(Function(path=PATH), seed=4)
    held_out = {task.fields["answer"] for task in tasks.held_out()}
    assert len(held_out) > 150
    assert not held_out & {task.fields["answer"] for task in tasks.sample(1500)}


def test_prompts_and_answers_are_short_for_the_embedded_model():
    embedded = pytest.importorskip("burnish.lm.embedded")
    from burnish.errors import BurnishError
    from burnish.lm.tokenizer import Tokenizer

    try:
        folder = embedded.embedded_model()
    except (BurnishError, ImportError):
        pytest.skip("the embedded model is not installed")
    tokenizer = Tokenizer.from_folder(folder)
    tasks = FunctionTasks(Function(path=PATH), seed=0).sample(400)
    assert max(len(tokenizer.render(task.messages)) for task in tasks) <= 120
    assert max(len(tokenizer.encode(task.fields["answer"])) for task in tasks) <= 40


def real(*names):
    pytest.importorskip("pyarrow")
    files = [DATA / f"{name}.parquet" for name in names]
    if not all(file.exists() for file in files):
        pytest.skip(f"shared data {', '.join(names)} is not here")
    return files


def as_tasks(kind, files, folder):
    """Through the JSONL file and the task kind `file`, as a recipe reads it; every row of it."""
    written = write_tool_tasks(kind, files, folder / "tasks.jsonl")
    fields = {name: name for name in ("answer", "demonstration", "category")}
    config = File(path="tasks.jsonl", messages="messages", id="id", fields=fields)
    tasks = build(config, seed=0, root=folder)
    assert tasks.held_out_tasks
    everything = msgspec.structs.replace(config, held_out=HeldOutShare(0.0))
    return written, build(everything, seed=0, root=folder).train_tasks


def assert_all(tasks, dialect):
    for task in tasks:
        answer, shown = task.fields["answer"], task.fields["demonstration"]
        assert exact(shown, answer, dialect) == 1.0, task.id
        assert exact("", answer, dialect) == 0.0, task.id
        assert exact("I do not know.", answer, dialect) == 0.0, task.id
        rewards = tool_call_rewards(shown, answer, dialect=dialect)
        assert rewards["format"] == 1.0, task.id
        assert rewards["correctness"] in (0.0, 3.0), task.id


def test_toolrl(tmp_path):
    names = ("toolrl/rl_test", "toolrl/sft_train", "toolrl/sft_dev")
    written, tasks = as_tasks("toolrl", real(*names), tmp_path)
    assert (written.tasks, written.skipped) == (370, ())
    assert_all(tasks, "blocks")
    counts = Counter(task.fields["category"] for task in tasks)
    assert counts["call"] == 321
    assert counts["response"] == 49


def test_api_bank(tmp_path):
    names = ("api_bank/level1", "api_bank/level2", "api_bank/level3")
    written, tasks = as_tasks("api_bank", real(*names), tmp_path)
    assert (written.tasks, written.skipped) == (357, ())
    assert_all(tasks, "blocks")


def test_bfcl(tmp_path):
    names = ["irrelevance", "live_relevance", "live_simple", "multi_turn_base", "multiple"]
    names += ["parallel", "parallel_multiple", "simple_python"]
    written, tasks = as_tasks("bfcl", real(*(f"bfcl/{name}" for name in names)), tmp_path)
    assert written.tasks == 149 + 169 + 131 + 118 + 130 + 271
    why = Counter("simulated" in reason for reason in written.skipped)
    assert why == {True: 126, False: 10}
    assert_all(tasks, "json")
    empty = [task for task in tasks if not task.fields["answer"]]
    assert {task.fields["category"] for task in empty} == {"irrelevance"}


def bfcl_row(**truth):
    function = {
        "name": "find",
        "description": "Find it.",
        "parameters": {
            "properties": {
                "city": {"type": "string"},
                "kinds": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}},
            },
            "required": ["city"],
        },
    }
    return {
        "id": "x_1", "category": "simple",
        "question": json.dumps([[{"role": "user", "content": "Find it."}]]),
        "function": json.dumps([function]), "ground_truth": json.dumps([{"find": truth}]),
    }  # fmt: skip


def test_bfcl_latitude_by_hand():
    row = bfcl_row(city=["Rome", "Roma"], kinds=["", ["a"]], where=[{"x": [1, 2], "y": ["", 3]}])
    task = from_bfcl(row)
    system = task["messages"][0]["content"]
    assert "find(city: string, kinds?: list of a | b): Find it." in system
    (call,) = task["answer"]
    assert call["arguments"] == {"city": "Rome", "kinds": ["a"], "where": {"x": 1, "y": 3}}
    assert call["optional"] == ["kinds"]
    nested = [{"x": 1, "y": 3}, {"x": 1}, {"x": 2, "y": 3}, {"x": 2}]
    assert call["accepted"]["where"] == nested
    for where in nested:
        said = {"name": "find", "arguments": {"city": "Roma", "where": where}}
        assert exact(json.dumps(said), task["answer"], "json") == 1.0
    said = {"name": "find", "arguments": {"city": "Roma", "where": {"x": 3}}}
    assert exact(json.dumps(said), task["answer"], "json") == 0.0


@pytest.mark.parametrize(
    ("convert", "row", "message"),
    [
        (from_toolrl, {"id": 1}, "'instruction' is None, expected text"),
        (from_toolrl, {"reward_model": 3}, "'reward_model' is int, expected a dict"),
        (
            from_toolrl,
            {"instruction": "a", "input": "b", "output": "<think> hm </think>"},
            "neither a tool_call nor a response block",
        ),
        (from_api_bank, {}, "no 'answer' in this row"),
        (from_api_bank, {"answer": "[oops"}, "'answer' is not JSON"),
        (from_api_bank, {"answer": '{"name": "x"}'}, "has no parameters"),
        (from_api_bank, {"answer": "[]"}, "the answer has no call"),
        (from_bfcl, {"question": "3"}, "'question' is int, expected a list"),
        (from_bfcl, bfcl_row() | {"ground_truth": "null"}, "no reference call"),
        (from_bfcl, bfcl_row() | {"question": "[[], []]"}, "a conversation of 2 turns"),
        (from_bfcl, bfcl_row() | {"question": '[["hi"]]'}, "expected role and content"),
        (from_bfcl, bfcl_row() | {"ground_truth": '[{"a": {}, "b": {}}]'}, "has 2 names"),
    ],
)
def test_rows_that_are_no_tasks(convert, row, message):
    with pytest.raises(RowError) as caught:
        convert(row)
    assert message in str(caught.value)
