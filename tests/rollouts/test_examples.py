"""The examples, played by scripted models; their recipes load and build."""

import random
from functools import partial

import anyio
import msgspec
import pytest
from recipes.calculator import calculator
from recipes.number_game import number_game
from recipes.python_tool import programs
from recipes.relay import relay
from recipes.search_tool import towns
from rollout_cases import Speaker, assert_masked

from burnish.config import Config, load
from burnish.config.recipes import all_recipes
from burnish.lm.base import Sampling
from burnish.records import Message, Status, Task
from burnish.rewards.config import build_all
from burnish.rewards.scorer import checked
from burnish.rollouts import roll_out

EXAMPLES = {
    "calculator": calculator.make,
    "search_tool": towns.make,
    "python_tool": programs.make,
    "number_game": number_game.make,
    "relay": relay.make,
}


def call(name, **arguments):
    import json

    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def played(recipe, made, script, n=1):
    """Rollouts of a recipe's own kind, and the rewards that its scorers give them."""
    path = all_recipes()[recipe]
    config = load(Config, path).value
    fields = {k: v for k, v in made.items() if k not in ("prompt", "split_by")}
    task = Task("t1", (Message("user", made["prompt"]),), fields)
    sampling = Sampling(n=n, max_tokens=config.rollout.max_tokens * 8)
    # These models write a token for each byte.
    settings = msgspec.structs.replace(config.rollout, turn_tokens=0)
    lm = Speaker(script, "smollm2")
    (group,) = anyio.run(
        partial(roll_out, [(0, task)], lm, sampling, settings.build(path.parent), seed=1)
    )
    for trajectory in group:
        assert_masked(trajectory)
        assert trajectory.status is Status.OK, trajectory.reason
    scorer = build_all(config.rewards, base=path.parent)
    rewards = anyio.run(checked, scorer, task, [t.as_response() for t in group])
    return group, rewards


def test_the_calculator():
    made = calculator.make(random.Random(3))
    script = [call("calculate", expression=made["expression"]), f"It is {made['answer']}."]
    (trajectory,), (reward,) = played("calculator", made, script)
    assert [m.role for m in trajectory.messages] == ["assistant", "tool", "assistant"]
    assert trajectory.messages[1].content == made["answer"]
    assert reward.components == {"correct": 1.0}


@pytest.mark.parametrize(
    ("expression", "result"),
    [("6 * 7", "42"), ("(1 + 2) / 4", "0.75"), ("-3 - 4", "-7"), ("1/3", "0.3333333333")],
)
def test_what_the_calculator_computes(expression, result):
    assert calculator.calculate(expression) == result


def test_demonstrations_are_the_turns_of_a_real_rollout():
    """The warm start shows exactly the tokens that a rollout has at that turn."""
    rng = random.Random(1)
    by_turns = {len(d["messages"]): d for d in (calculator.demonstrate(rng) for _ in range(30))}
    first, second = by_turns[2], by_turns[4]
    asked = second["messages"][1]["content"]
    expression = asked.removeprefix("What is ").removesuffix("?")
    made = {"prompt": asked, "answer": second["answer"], "expression": expression}
    script = [second["messages"][2]["content"], second["demonstration"]]
    (trajectory,), (reward,) = played("calculator", made, script)
    renderer = Speaker([], "smollm2").tokenizer
    shown = [Message(m["role"], m["content"]) for m in second["messages"]]
    last = len(trajectory.spans[-1].token_ids)
    assert list(trajectory.token_ids[:-last]) == renderer.render(shown)
    assert reward.value == 1.0
    assert first["demonstration"].startswith("<tool_call>")


def test_the_search_tool_finds_what_no_model_knows():
    made = towns.make(random.Random(5))
    name = next(town for town in towns.towns() if town in made["prompt"])
    script = [call("search", query=made["prompt"]), f"{made['answer']}"]
    (trajectory,), (reward,) = played("search_tool", made, script)
    assert name in trajectory.messages[1].content
    assert made["answer"] in trajectory.messages[1].content
    assert reward.value == 1.0
    assert towns.search("xyzzy") == "nothing found"


def test_the_python_tool_runs_in_the_sandbox():
    made = {"prompt": "How many?", "answer": "385"}
    code = "print(sum(n * n for n in range(1, 11)))"
    script = [call("python", code="1 / 0"), call("python", code=code), "385"]
    (trajectory,), (reward,) = played("python_tool", made, script)
    results = [m.content for m in trajectory.messages if m.role == "tool"]
    assert "ZeroDivisionError" in results[0]
    assert (results[1], reward.value) == ("385", 1.0)


@pytest.mark.parametrize("seed", range(4))
def test_the_questions_for_python_have_their_answers(seed):
    made = programs.make(random.Random(seed))
    assert int(made["answer"]) > 0


@pytest.mark.parametrize(
    ("script", "won", "near", "turns"),
    [
        (["10", "15", "12"], 1.0, 1.0, 3),
        (["none", "20", "1", "11"], 0.0, 0.95, 4),
        (["12"], 1.0, 1.0, 1),
    ],
)
def test_the_number_game(script, won, near, turns):
    made = {"prompt": "Guess", "number": 12, "largest": 20}
    (trajectory,), (reward,) = played("number_game", made, script)
    assert reward.components["won"] == won
    assert reward.components["near"] == pytest.approx(near)
    assert sum(m.role == "assistant" for m in trajectory.messages) == turns


def test_the_relay_has_two_roles():
    made = relay.make(random.Random(2))

    def script(prompt, sampling):
        is_reader = "digits only" in lm_decode(prompt)
        return made["answer"] if is_reader else "some words"

    lm_decode = Speaker([], "smollm2").tokenizer.decode
    group, rewards = played("relay", made, script, n=2)
    assert [t.role for t in group] == ["writer", "reader"] * 2
    assert [r.components["won"] for r in rewards] == [1.0] * 4
    assert [r.components["hidden"] for r in rewards] == [1.0, 0.0] * 2


@pytest.mark.parametrize("name", EXAMPLES)
def test_tasks_repeat_by_seed(name):
    first, second = (EXAMPLES[name](random.Random(9)) for _ in range(2))
    assert first == second
