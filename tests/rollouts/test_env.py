"""Environments, tools and roles with scripted models: forms, faults and limits."""

from functools import partial
from pathlib import Path

import anyio
import games
import msgspec
import pytest
from rollout_cases import Speaker, a_task, assert_masked, tokenizer

from burnish.bench.evaluation import evaluate
from burnish.errors import ModelError
from burnish.lm.base import Sampling
from burnish.records import Author, Finish, Message, Response, Status, Task
from burnish.rewards import best_rollout, from_function
from burnish.rewards.checks.rules import EnvConfig, EnvReward
from burnish.rewards.config import RewardConfig, build_all
from burnish.rollouts import (
    EnvRollout,
    FunctionRollout,
    Limits,
    Recorded,
    Tool,
    ToolEnv,
    env_rollout,
    roll_out,
)
from burnish.rollouts.env import ToolConfig
from burnish.rollouts.tool import parse_bare, parse_tagged, tool_form

GAMES = Path(games.__file__)
CALL = '<tool_call>\n{"name": "double", "arguments": {"number": 4}}\n</tool_call>'
BARE = '{"name": "double", "parameters": {"number": 4}}'


def play(rollout, lm, *, n=1, tokens=400, **fields):
    sampling = Sampling(n=n, max_tokens=tokens)
    ((*played,),) = anyio.run(
        partial(roll_out, [(0, a_task(**fields))], lm, sampling, rollout, seed=7)
    )
    for trajectory in played:
        assert_masked(trajectory)
    return played


def with_tools(*functions, **options):
    tools = [Tool(function, **options) for function in functions]
    return env_rollout(partial(ToolEnv, tools))


# --- the chat template's own form, and the tagged one


@pytest.mark.parametrize(
    ("family", "form", "call"),
    [
        ("qwen2.5", "template, tagged", CALL),
        ("llama3", "template, bare", BARE),
        ("smollm2", "tagged", CALL),
        ("chatml", "tagged", CALL),
        ("none", "tagged", CALL),
    ],
)
def test_a_tool_is_called_in_the_form_of_the_template(family, form, call):
    assert tool_form(tokenizer(family), [Tool(games.double)]).name == form
    lm = Speaker([call, "it is 8"], family)
    (played,) = play(env_rollout(games.Doubling), lm)
    assert [(m.role, m.content) for m in played.messages] == [
        ("assistant", call), ("tool", "8"), ("assistant", "it is 8"),
    ]  # fmt: skip
    function = played.messages[0].tool_calls[0]["function"]
    assert function == {"name": "double", "arguments": {"number": 4}}
    assert (played.text, played.status, played.finish) == ("it is 8", Status.OK, Finish.STOP)
    assert played.info["rewards"] == {"won": 1.0}
    assert played.info["tool_calls"] == {"count": 1, "errors": 0}
    prompt = lm.tokenizer.decode(lm.calls[0][0])
    assert "Double a number." in prompt
    assert "how often" in prompt
    observed = [s for s in played.spans if s.author is Author.TOOL]
    assert "8" in lm.tokenizer.decode(observed[0].token_ids)


def test_in_qwens_form_the_tokens_are_those_of_the_whole_conversation():
    lm = Speaker([CALL, "it is 8"], "qwen2.5")
    (played,) = play(env_rollout(games.Doubling), lm)
    call = {"type": "function", "function": {"name": "double", "arguments": {"number": 4}}}
    conversation = [
        Message("user", "q?"), Message("assistant", "", tool_calls=(call,)),
        Message("tool", "8", name="double"), Message("assistant", "it is 8"),
    ]  # fmt: skip
    renderer = tokenizer("qwen2.5").with_tools([Tool(games.double).schema])
    assert list(played.token_ids) == renderer.render(conversation, add_generation_prompt=False)[:-1]


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("plain", []),
        (CALL, [("double", {"number": 4}, False)]),
        (f"I think. {CALL}{CALL} done", [("double", {"number": 4}, False)] * 2),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', [("f", {"a": 1}, False)]),
        ('<tool_call>{"name": "f"}', [("f", {}, False)]),
        ('<tool_call>{"name": "f", "argum', [("", {}, True)]),
        ("<tool_call>[1]</tool_call>", [("", {}, True)]),
        ('<tool_call>{"name": 3}</tool_call>', [("", {}, True)]),
        ('<tool_call>{"name": "f", "arguments": [1]}</tool_call>', [("f", {}, True)]),
        (f"<tool_call>{'[' * 20_000}", [("", {}, True)]),
    ],
)  # fmt: skip
def test_tagged_calls_are_read(text, calls):
    found = [(c.name, c.arguments, bool(c.problem)) for c in parse_tagged(text)]
    assert found == calls


def test_bare_calls_are_read():
    assert parse_bare("a {} b") == []
    assert [c.name for c in parse_bare(f"<|python_tag|>{BARE}")] == ["double"]
    assert parse_bare('{"name": "f", "para')[0].problem


# --- tools


def test_a_schema_comes_from_the_signature():
    assert Tool(games.double).schema == {
        "type": "function",
        "function": {
            "name": "double",
            "description": "Double a number.",
            "parameters": {
                "type": "object",
                "properties": {
                    "number": {"type": "integer", "description": "what is doubled"},
                    "times": {"type": "integer", "default": 1, "description": "how often"},
                },
                "required": ["number"],
            },
        },
    }


@pytest.mark.parametrize(
    ("arguments", "result"),
    [
        ({"number": 3, "times": 2}, "12"),
        ({"number": "3"}, "6"),
        ({"number": "three"}, "Error: wrong arguments for double: Expected `int`, got `str`"),
        ({}, "Error: wrong arguments for double: Object missing required field `number`"),
        ({"number": 3, "base": 1}, "Error: wrong arguments"),
    ],
)
def test_arguments_are_checked(arguments, result):
    assert anyio.run(Tool(games.double).call, arguments).text.startswith(result)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (games.raises, "Error: LookupError: no x"),
        (games.hangs, "Error: no result within 0.2 s"),
        (games.nan, "Error: ValueError: Out of range float values are not JSON compliant"),
        (games.unserialisable, "Error: TypeError"),
        (games.exits, "Error: SystemExit: 3"),
        (games.huge, "x" * 50 + "... (cut: 10000000 characters)"),
        (games.half, "? half a character"),
    ],
)
def test_a_tool_that_fails_is_an_observation(function, says):
    name = function.__name__
    call = f'<tool_call>{{"name": "{name}", "arguments": {{"text": "x"}}}}</tool_call>'
    rollout = with_tools(function, deadline_s=0.2, max_characters=50)
    (played,) = play(rollout, Speaker([call, "sorry"]))
    assert played.status is Status.OK
    assert played.messages[1].content.startswith(says)
    assert played.info["tool_calls"]["errors"] == int(says.startswith("Error"))
    assert played.text == "sorry"


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ('<tool_call>{"name": "dubble", "arguments": {}}</tool_call>', "Did you mean 'double'?"),
        ('<tool_call>{"name": "double", "argu', "not whole JSON"),
        (r'<tool_call>{"name": "\ud800", "arguments": {}}</tool_call>', 'no "name"'),
        (r'<tool_call>{"name": "double", "arguments": {"\ud800": 1}}</tool_call>', "valid Unicode"),
        (
            r'<tool_call>{"name": "double", "arguments": "{\"n\": \"\\ud800\"}"}</tool_call>',
            "valid Unicode",
        ),
    ],
)
@pytest.mark.parametrize("family", ["plain", "qwen2.5"])
def test_a_wrong_call_is_told_to_the_model(call, says, family):
    speaker = Speaker([call, "ok"]) if family == "plain" else Speaker([call, "ok"], family)
    (played,) = play(with_tools(games.double), speaker)
    assert says in played.messages[1].content
    assert (played.status, played.text) == (Status.OK, "ok")


def test_calls_of_one_reply_are_answered_in_their_order():
    second = CALL.replace("4", "5")
    (played,) = play(with_tools(games.double), Speaker([CALL + second, "done"], "qwen2.5"))
    assert [m.content for m in played.messages[1:3]] == ["8", "10"]


def test_too_many_tools_that_hang_fail_the_rollout(monkeypatch):
    monkeypatch.setattr("burnish.rollouts.tool.MOST_STRAYS", 0)
    (played,) = play(with_tools(games.double), Speaker([CALL, "done"]))
    assert (played.status, "never returned" in played.reason) == (Status.INFRA_ERROR, True)


# --- environments that fail, and limits


@pytest.mark.parametrize("where", ["reset", "step"])
@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("raise", "the board fell off the table"),
        ("nan", "rewards.won: got nan"),
        ("text", "rewards.won: got 'yes'"),
        ("other", "expected an Observation"),
        ("messages", "expected an Observation of Message"),
        ("info", "a dict that JSON can hold"),
    ],
)
def test_an_environment_that_fails_is_a_rollout_with_a_status(where, how, says):
    rollout = env_rollout(partial(games.Broken, where=where, how=how))
    (played,) = play(rollout, Speaker(["one", "two", "three"]))
    assert (played.status, says in played.reason) == (Status.INFRA_ERROR, True)
    assert "\n" not in played.reason
    assert (played.text == "one") == (where == "step")


def test_a_step_that_says_nothing_and_goes_on_fails():
    rollout = env_rollout(partial(games.Broken, where="step", how="nothing"))
    (played,) = play(rollout, Speaker(["one", "two"]))
    assert "no messages and is not done" in played.reason


def test_turns_and_tokens_cut_a_rollout_that_stays_valid():
    settings = EnvRollout(path="given", limits=Limits(turns=2))
    rollout = env_rollout(partial(games.Echo, turns=9), settings=settings)
    (played,) = play(rollout, Speaker(["ab", "cd", "ef"]))
    assert (played.status, played.finish) == (Status.OK, Finish.LENGTH)
    assert (played.info["ended_by"], played.info["turns"]) == ("turns", 2)
    assert played.info["rewards"] == {"letters": 2.0}
    (shorter,) = play(rollout, Speaker(["ab", "cd", "ef"]), limits={"turns": 1})
    assert shorter.info["turns"] == 1
    (cut,) = play(rollout, Speaker(["abcdef", "cd"], ends=False), tokens=4)
    assert (cut.text, cut.finish, cut.info["ended_by"]) == ("abcd", Finish.LENGTH, "tokens")


def test_time_fails_one_rollout_and_not_its_neighbours():
    settings = FunctionRollout(path=f"{GAMES}:slow", limits=Limits(time_s=0.5))
    played = play(settings.build(), Speaker(lambda prompt, sampling: "a"), n=3)
    assert [t.status for t in played] == [Status.TIMEOUT, Status.OK, Status.OK]
    assert played[0].reason == "the rollout took over 0.5 s"


def test_several_roles_have_a_group_each():
    rollout = FunctionRollout(path=f"{GAMES}:two_roles").build()
    played = play(rollout, Speaker(lambda prompt, sampling: f"w{sampling.seed % 97}"), n=2)
    assert [(t.role, t.group) for t in played] == [
        ("writer", "t1.writer"), ("reader", "t1.reader"),
    ] * 2  # fmt: skip
    assert len({t.text for t in played}) == 4  # each role and each sample has its own seed
    assert all(t.info["rewards"]["shared"] >= 1 for t in played)


def test_a_function_that_fails_names_itself():
    (played,) = play(FunctionRollout(path=f"{GAMES}:always_fails").build(), Speaker(["a"]))
    assert played.status is Status.INFRA_ERROR
    assert played.reason.startswith(f"rollout function '{GAMES}:always_fails' failed: KeyError")


def test_a_config_names_an_environment_and_tools():
    tool = ToolConfig(path=f"{GAMES}:double", name="twice")
    rollout = EnvRollout(path=f"{GAMES}:Echo", options={"turns": 1}, tools=(tool,)).build()
    lm = Speaker([CALL.replace("double", "twice"), "ok"])
    (played,) = play(rollout, lm)
    assert [m.content for m in played.messages][1:] == ["8", "ok"]
    with pytest.raises(ValueError, match="needs a path"):
        EnvRollout()


# --- replies from the data


def test_recorded_replies_keep_their_tokens_and_log_probs():
    class Knowing(Speaker):
        async def score(self, prompt_ids, response_ids, *, top_k=0):
            from burnish.lm.base import Scores

            self.asked = (list(prompt_ids), list(response_ids))
            return Scores(tuple(-1.0 for _ in response_ids))

    lm = Knowing([])
    given = {"text": "8", "token_ids": [40, 41], "logprobs": [-0.1, -0.2], "finish": "length"}
    played = play(Recorded().build(), lm, n=3, completions=["7", given])
    end = lm.tokenizer.eos_ids[0]
    assert [t.spans[-1].token_ids for t in played] == [(*lm.tokenizer.encode("7"), end), (40, 41)]
    assert [t.logprobs for t in played] == [(-1.0, -1.0), (-0.1, -0.2)]
    assert [t.info["logprobs"] for t in played] == ["scored", "given"]
    assert played[1].finish is Finish.LENGTH
    assert lm.asked[0] == lm.tokenizer.render(a_task().messages)


def test_an_env_reward_says_why_where_the_rollout_does():
    check = EnvReward(EnvConfig(name="won"))
    for reasons, why in (({"won": "it is 8"}, "it is 8"), ({}, ""), ("odd", ""), ({"won": 3}, "")):
        response = Response("r", "8", info={"rewards": {"won": 1.0}, "reasons": reasons})
        reward = check.judge(a_task(), response)
        assert (reward.value, reward.reason) == (1.0, why)


# --- the same rollouts in evaluation and best of N


def test_evaluation_plays_the_turns_that_training_plays():
    scorer = build_all([msgspec.convert({"kind": "env", "name": "won"}, RewardConfig)])
    tasks = [a_task(), Task("t2", (Message("user", "r?"),))]

    def script(prompt, sampling):
        text = tokenizer().decode(prompt)
        if "r?" in text:
            raise ModelError("the server is gone")
        return "it is 8" if "tool_response>\n8" in text else CALL

    found = anyio.run(
        partial(
            evaluate, Speaker(script), tasks, scorer, Sampling(max_tokens=200),
            rollout=env_rollout(games.Doubling),
        )
    )  # fmt: skip
    assert found.marks == [1.0, None]
    assert [m.role for m in found.items[0].trajectory.messages] == [
        "assistant",
        "tool",
        "assistant",
    ]
    assert found.items[1].reward.reason == "the server is gone"


def test_best_of_n_picks_among_rollouts_that_did_not_fail():
    scorer = from_function(lambda text: float(text), "number")
    rollout = FunctionRollout(path=f"{GAMES}:fails_sometimes", options={"of": 3}).build()
    lm = Speaker(["1", "9", "4", "8"])
    best = anyio.run(partial(best_rollout, scorer, a_task(), lm, Sampling(n=4), rollout=rollout))
    assert (best.trajectory.text, best.selection.method) == ("9", "highest value")
    assert [t.text for t in best.played] == ["9", "4"]
    assert [t.reason for t in best.failed] == ["this one was lost"] * 2
    everything = FunctionRollout(path=f"{GAMES}:always_fails").build()
    with pytest.raises(ModelError, match=r"all 2 rollouts failed, .*KeyError"):
        anyio.run(partial(best_rollout, scorer, a_task(), lm, Sampling(n=2), rollout=everything))
