"""Command line, TOML and Python build the same object; rows and functions become settings."""

from __future__ import annotations

from typing import Any

import pytest

import burnish
from burnish.api.launch import choose_folder
from burnish.api.settings import as_rewards, as_rows, as_task
from burnish.config import rooted
from burnish.config.recipes import all_recipes, resolve
from burnish.errors import UserError
from burnish.memory import code_digest, keep_object, recall
from burnish.records import Message, Task
from burnish.rewards.config import NumericConfig
from burnish.tasks.arithmetic import Arithmetic

ROWS = [{"prompt": f"Say {n}.", "answer": str(n)} for n in range(4)]


@pytest.mark.parametrize("name", all_recipes())
def test_command_line_toml_and_python_build_the_same_object(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["steps=7", "optimiser.learning_rate=3e-6", "run.seed=5", "model.path=tiny"]
    typed = resolve([name, *words])
    by_words = burnish.Config.load(name, *words)
    by_values = burnish.Config.load(
        name, steps=7, optimiser={"learning_rate": 3e-6}, seed=5, model="tiny"
    )
    changed = burnish.Config.load(name).replace(
        **{"steps": 7, "optimiser.learning_rate": 3e-6, "run.seed": 5, "model": "tiny"}
    )
    for config in (by_words, by_values, changed):
        assert config.asked.resolved.value == typed.resolved.value
        assert config.asked.resolved.flat() == typed.resolved.flat()
        assert config.asked.root == typed.root
        assert choose_folder(config.asked) == choose_folder(typed)
    built = burnish.Config(**{f: getattr(by_values, f) for f in by_values.__struct_fields__})
    assert built.asked.resolved.value == typed.resolved.value
    by_values.save("mine.toml")
    again = burnish.Config.load("mine.toml")
    assert again.asked.resolved.value == rooted(typed.resolved.value, typed.root)
    shipped = burnish.Config.load(name).asked.resolved.value
    assert shipped == resolve([name]).resolved.value


def test_a_config_prints_its_origins():
    text = str(burnish.Config.load("grpo", "steps=5", seed=3))
    assert "steps = 5  # Python" in text
    assert "seed = 3  # Python" in text
    assert "samples = 8  # " in text
    assert "grpo.toml:" in text
    assert "warmup_steps = 0  # default" in text


def test_a_config_built_of_typed_parts_is_checked():
    config = burnish.Config(task=Arithmetic(level=1), rewards=(NumericConfig(),), steps=3)
    assert config.replace(task={"level": 2}).task == Arithmetic(level=2)
    with pytest.raises(UserError, match="steps: got 0, expected a whole number of at least 1"):
        burnish.Config(task=Arithmetic(), rewards=(NumericConfig(),), steps=0).replace(seed=1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stpes": 3}, "Python, 'stpes=3': unknown key 'stpes'. Did you mean 'steps'?"),
        ({"steps": float("nan")}, "steps is nan; expected a whole number of at least 1"),
        ({"rewards": ["nmeric"]}, "Did you mean 'numeric'?"),
        ({"rewards": [3]}, "rewards: got 3, expected a function"),
        ({"data": [1]}, "data: row 0 is int; expected a dict"),
        ({"data": 5}, "data: got int; expected a list of dicts"),
        ({"data": {"train": ROWS}}, "Choose a split: data=dataset['train']"),
        ({"data": [{"text": "x"}]}, "no column holds the prompt; it has text. Name it: columns="),
        ({"data": "arithmetik"}, "Did you mean 'arithmetic'?"),
        ({"columns": {"prompt": "x"}}, "columns is given without data"),
        ({"data": "arithmetic", "held_out": 0.5}, "columns and held_out belong to rows or a file"),
        ({"": 3}, "'' is no setting"),
    ],
)
def test_mistakes_get_one_line(settings, message):
    with pytest.raises(UserError) as caught:
        burnish.Config.load("grpo", **settings)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_rows_come_in_many_shapes():
    pandas = pytest.importorskip("pandas")
    arrow = pytest.importorskip("pyarrow")
    frame = pandas.DataFrame(ROWS)
    assert as_rows(frame) == as_rows(arrow.Table.from_pylist(ROWS)) == as_rows(ROWS) == ROWS
    frame.loc[0, "answer"] = float("nan")
    assert as_rows(frame)[0]["answer"] is None
    assert as_rows(["Hi"]) == [{"prompt": "Hi"}]
    task = Task("one", (Message("user", "Hi"),), {"answer": "x"})
    assert as_rows([task])[0] == {
        "id": "one", "answer": "x",
        "messages": [{"role": "user", "content": "Hi", "name": None, "tool_calls": []}],
    }  # fmt: skip


def test_a_dataset_is_rows():
    datasets = pytest.importorskip("datasets")
    assert as_rows(datasets.Dataset.from_list(ROWS)) == ROWS


def test_columns_are_found_or_named(tmp_path):
    assert as_task(ROWS).fields == {"answer": "answer"}
    assert as_task([{"question": "x", "n": 1}, {"question": "y"}]).optional == ("n",)
    chat = [{"messages": [{"role": "user", "content": "x"}], "k": 1}]
    assert (as_task(chat).messages, as_task(chat).prompt) == ("messages", "")
    named = as_task([{"q": "x", "a": {"b": 1}}], {"prompt": "Q: {q}", "answer": "a.b"})
    assert (named.prompt, named.fields) == ("Q: {q}", {"answer": "a.b"})
    assert as_task([{"prompt": "x", "completion": "y"}]).fields["demonstration"] == "completion"
    file = tmp_path / "rows.csv"
    file.write_text("question,answer\nx,1\ny,2\n")
    assert as_task(file).path == str(file)
    assert as_task(str(file)).prompt == "question"
    assert as_task(ROWS, held_out=ROWS[:1]).held_out.path.startswith("memory:rows-")
    assert as_task("arithmetic") == {"kind": "arithmetic"}


def test_rewards_get_different_names():
    tables = as_rewards([lambda text: 1, lambda text: 2, ("numeric", 0.5)])
    assert [table.get("name") for table in tables] == ["lambda", "lambda_2", None]
    assert tables[2]["weight"] == 0.5


# --- what a function's digest hangs on

LIMIT = 3


def centred(rewards: Any, groups: Any, weights: Any) -> Any:
    return rewards.sum(1) - rewards.mean(), rewards


def test_a_function_stands_in_a_slot_of_the_policy():
    short = burnish.Config.load("grpo", policy={"advantage": centred, "shaping": [centred]})
    table = {"kind": "function", "path": centred}
    assert short == burnish.Config.load("grpo", policy={"advantage": table, "shaping": [table]})
    assert recall(short.policy.advantage.path) is centred
    assert burnish.Config.load("tiny").replace(policy={"advantage": centred}).policy.advantage == (
        short.policy.advantage
    )


def helper(text: str) -> int:
    return len(text)


def uses(text: str) -> bool:
    return helper(text) > LIMIT


def made(k: int, default: int = 1) -> Any:
    def inner(text: str, d: int = default) -> int:
        return len(text) * k + d

    return inner


def test_a_digest_changes_with_code_helpers_constants_closures_and_defaults(monkeypatch):
    before = code_digest(uses)
    assert code_digest(uses) == before
    assert code_digest(made(2)) == code_digest(made(2))
    assert len({code_digest(made(k, d)) for k in (1, 2) for d in (1, 2)}) == 4
    monkeypatch.setitem(uses.__globals__, "LIMIT", 4)
    other = code_digest(uses)
    assert other != before
    monkeypatch.setitem(uses.__globals__, "helper", lambda text: len(text) + 1)
    assert code_digest(uses) not in (before, other)


def test_a_function_that_collects_stays_the_same():
    seen: list[str] = []
    count = 0

    def collects(text: str) -> float:
        nonlocal count
        count += 1
        seen.append(text)
        return float(count)

    class Counting:
        calls = 0

        def __init__(self) -> None:
            self.texts: list[str] = []

        def __call__(self, text: str) -> float:
            self.texts.append(text)
            return 1.0

    counting = Counting()
    before = [code_digest(collects), code_digest(counting)]
    collects("x")
    counting("x")
    assert [code_digest(collects), code_digest(counting)] == before


def test_what_is_not_in_this_process_says_so():
    assert recall(keep_object(uses)) is uses
    with pytest.raises(UserError, match="'gone', which was given in Python and is not in this"):
        recall("memory:gone@0123")
