"""The number of judge calls, told before a run, is the number that a server is asked."""

from functools import partial

import anyio
import pytest
from hostile_server import HostileServer, ok

from burnish.bench.judge_calls import all_texts, count_judge_calls
from burnish.config.recipes import resolve
from burnish.lm.replay import ScriptedLM
from burnish.records import Message, Response, Task
from burnish.rewards import build, checked
from burnish.rewards.judges import JudgeModel, build_judge

VERDICT = '{"reasons": "x", "winner": "A"}'
TASK = Task("t", (Message("user", "Say something."),), {"answer": "7"})

JUDGE = 'with = "direct"\nretries = 0\nprompt_usd = 1.0\ncompletion_usd = 2.0'
REWARDS = {
    "reference": 'kind = "versus"\n[rewards.judge]\nkind = "judge"\n{judge}\nmodel = "{model}"',
    "one_order": 'kind = "versus"\nboth_orders = false\n[rewards.judge]\nkind = "judge"\n{judge}\nmodel = "{model}"',
    "round_robin": 'kind = "versus"\nscheme = "round_robin"\n[rewards.judge]\nkind = "judge"\n{judge}\nmodel = "{model}"',
    "anchored": 'kind = "judge"\nanchor = "answer"\n{judge}\nmodel = "{model}"',
    "gated": 'kind = "gate"\nhard = {{ kind = "numeric" }}\n[rewards.then]\nkind = "judge"\nanchor = "answer"\n{judge}\nmodel = "{model}"',
}
# For a group of four: three comparisons, six pairs, or four answers; twice that in both orders.
EXPECTED = {
    "reference": (6, 3), "one_order": (3, 3), "round_robin": (12, 6), "anchored": (8, 4),
    "gated": (8, 4),
}  # fmt: skip


def recipe(folder, text, more=""):
    path = folder / "r.toml"
    path.write_text(
        f'steps = 10\n[model]\npath = "tiny"\n[task]\nkind = "arithmetic"\n[rollout]\nprompts = 3\n'
        f"samples = 4\nmax_tokens = 8\n[evaluation]\nprompts = 5\nevery = 4\n[[rewards]]\n{text}\n{more}"
    )
    return resolve([str(path)])


def counted(asked):
    config = asked.resolved.value
    return anyio.run(partial(count_judge_calls, config, TASK, base=asked.root))


@pytest.mark.parametrize("kind", list(REWARDS))
def test_the_forecast_is_what_a_server_is_asked(tmp_path, kind):
    with HostileServer([ok(VERDICT)]) as server:
        text = REWARDS[kind].format(judge=JUDGE, model=f"{server.url}#m")
        asked = recipe(tmp_path, text)
        (found,) = counted(asked)
        assert server.requests == []  # counting asks nobody
        assert (found.group, found.one_order) == EXPECTED[kind]
        scorer = build(asked.resolved.value.rewards[0], base=tmp_path)
        right = "7" if kind == "gated" else ""
        group = [Response(f"r{k}", f"{right or k}{' ' * k}") for k in range(4)]
        anyio.run(checked, scorer, TASK, group)
    if kind != "gated":  # behind a gate it is the most: equal answers are asked about once
        assert len(server.requests) == found.group
    assert len(server.requests) <= found.group


def test_steps_evaluations_money_and_budget_are_counted(tmp_path):
    text = REWARDS["anchored"].format(judge=JUDGE, model="http://127.0.0.1:9/v1#m")
    (found,) = counted(recipe(tmp_path, text, "budget = { calls = 132 }"))
    # Four evaluations: before, after, and after steps 4 and 8; two orders of five answers each.
    assert found.evaluations == 4 * 5 * 2
    assert found.step.calls == 3 * 8
    assert found.run.calls == 10 * 24 + 40 == 280
    assert found.run.usd == pytest.approx(
        (found.run.prompt_tokens + 2 * found.run.completion_tokens) / 1e6, rel=1e-3
    )
    line, warning = all_texts([found], 10)
    assert "up to 8 calls a group (4 in one order), 24 a step, 280 for 10 steps" in line
    assert f"${found.run.usd:.2f}" in line
    assert "the budget of 132 calls ends after about 47% of it" in warning


def test_a_record_answers_without_calls(tmp_path):
    recorded = JudgeModel(ScriptedLM([VERDICT]), record=tmp_path / "judge.jsonl")
    pair = [Response("a", "one"), Response("b", "two")]
    anyio.run(checked, build_judge("direct", recorded, both_orders=False), TASK, pair)
    text = REWARDS["anchored"].format(judge='with = "direct"', model="replay:judge.jsonl")
    (found,) = counted(recipe(tmp_path, text))
    assert found.is_replayed
    assert all_texts([found], 10)[0].endswith("no calls")


def test_a_proxy_that_reads_rubrics_is_counted(tmp_path):
    text = 'kind = "proxy_rubric"\n{more}\n[rewards.proxy]\nkind = "model"\nmodel = "{model}"'
    rubric = "<rubric>Facts {k}0%</rubric><eval>e</eval><answer>1</answer>"
    fields = {"question": "q", "response_1": "x", "response_2": "y", "label": 2}
    with HostileServer([ok("<answer>1</answer>")]) as server:
        asked = recipe(tmp_path, text.format(more="", model=f"{server.url}#m"))
        (found,) = counted(asked)  # the task at hand has no label
        assert server.requests == []
        scorer = build(asked.resolved.value.rewards[0], base=tmp_path)
        group = [Response(f"r{k}", rubric.format(k=k)) for k in range(4)]
        anyio.run(checked, scorer, Task("t", TASK.messages, fields), group)
        assert len(server.requests) == found.group == found.one_order == 4
        assert found.model == f"{server.url}#m"
        assert found.step.calls == 12
        assert found.run.calls == 10 * 12 + 4 * 5
    for more in ('value = "accuracy"', "weights = [1.0, 0.0, 0.5]"):  # these ask no proxy
        assert (
            counted(recipe(tmp_path, text.format(more=more, model="http://127.0.0.1:9/v1#m"))) == []
        )


@pytest.mark.parametrize(
    ("more", "calls"),
    [("", 4), ("temperature = 0.0", 2), ('options = { checkers = 5, matcher = "judge" }', 7)],
)
@pytest.mark.parametrize("name", ["", 'name = "mine"'])
def test_the_checkers_of_march_are_counted(tmp_path, more, calls, name):
    """One call for the claims, three Checkers or one, and with a judge of equality one more."""
    claims = "- Question: how many? [Answer: 3]"
    task = Task("t", TASK.messages, {"documents": ["There are three."], "answer": "7"})
    with HostileServer([ok(f"{claims}\n1. Evidence: none. [Answer: 4]")]) as server:
        text = f'kind = "march"\nretries = 0\nrepairs = 0\nmodel = "{server.url}#m"\n{name}\n{more}'
        asked = recipe(tmp_path, text)
        config = asked.resolved.value
        (found,) = anyio.run(partial(count_judge_calls, config, task, base=asked.root))
        assert server.requests == []
        scorer = build(config.rewards[0], base=tmp_path)
        anyio.run(checked, scorer, task, [Response("r", "There are 3.")])
    assert len(server.requests) == calls
    assert found.group == 4 * calls
    assert found.step.calls == 3 * 4 * calls
    assert found.evaluations == 4 * 5 * calls


@pytest.mark.parametrize(
    ("rate", "limits", "named"),
    [
        (12, "", ""),  # three groups of four calls begin within the first minute
        (11, "", "rollout.score_timeout_s is 60"),
        (6, "deadline_s = 90", "rollout.score_timeout_s is 60"),
        (5, "deadline_s = 90", "rollout.score_timeout_s is 60 and deadline_s of the judge is 90"),
    ],
)
def test_a_rate_that_makes_groups_wait_past_a_deadline_is_said(tmp_path, rate, limits, named):
    text = (
        'kind = "judge"\nwith = "point"\nmodel = "http://127.0.0.1:9/v1#m"\n'
        f"requests_per_minute = {rate}\n{limits}"
    )
    lines = all_texts(counted(recipe(tmp_path, text)), 10)
    assert len(lines) == (2 if named else 1)
    assert named in lines[-1]
