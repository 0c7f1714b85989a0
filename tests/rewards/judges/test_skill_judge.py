"""Skill-RM as a scorer: points, ablations, the direct judge, both orders, best of N, RL."""

from __future__ import annotations

import json
import math
from typing import Any

import anyio
import pytest
from skill_cases import (
    EchoRunner,
    a_judge,
    a_skill,
    a_task,
    answers,
    call,
    entry,
    judged,
    summary,
    verifier,
    write_skill,
)

from burnish.engines import as_verl
from burnish.errors import UserError
from burnish.lm.replay import ScriptedLM
from burnish.records import Status
from burnish.rewards.judges.build import build_judge
from burnish.rewards.judges.judge_model import JudgeModel
from burnish.rewards.judges.simple import DirectPair
from burnish.rewards.judges.skill_rm import Mode, load_skill, score_function
from burnish.rewards.judges.skill_rm.judge import build
from burnish.rewards.scorer import Scope, checked, fingerprint
from burnish.rewards.select import best_of_n

USE = call("use_skill", name="demo")
PICK_A = call("final_answer", verdict="A", rationale="better")


@pytest.fixture
def skill(tmp_path):
    return a_skill(
        tmp_path / "demo",
        resources=[
            entry("rules"),
            entry("key", leakage_level="oracle_only", allowed_setting="skill_operational"),
        ],
        runtime=[verifier("match", options={"flag": "wrong_language"})],
    )


def point_answer(met: int, total: int, **more: Any) -> str:
    rows = [{"constraint": f"c{i}", "satisfied": i < met, "evidence": "seen"} for i in range(total)]
    return call("final_answer", constraints=rows, **more)


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        (point_answer(3, 4), 0.75),
        (point_answer(3, 4, score=0.9), 0.75),
        (point_answer(4, 4, flags=["missing_deliverable"]), 0.5),
        (call("final_answer", score=0.8), 0.8),
        (call("final_answer", score=0.8, flags=["polluted_answer"]), 0.6),
        (call("final_answer", score=0), 0.0),
    ],
)
def test_points_are_counted_and_capped(skill, answer, value):
    judge, _ = a_judge([USE, answer], [skill], scope="point")
    (reward,) = judged(judge, a_task(), "It is 4.")
    assert reward.value == value
    assert judge.scope is Scope.POINT


@pytest.mark.parametrize(
    "answer",
    [
        call("final_answer"), call("final_answer", score=1.5), call("final_answer", score="0.5"),
        call("final_answer", score=True), call("final_answer", score=0.5, flags=["bad"]),
        call("final_answer", score=0.5, flags=[["wrong_task"]]),
        call("final_answer", constraints=[{"constraint": "x", "satisfied": "yes"}]),
    ],
)  # fmt: skip
def test_points_that_are_none(skill, answer):
    judge, _ = a_judge(lambda messages, index: answer, [skill], scope="point")
    (reward,) = judged(judge, a_task(), "It is 4.")
    assert reward.value is None
    assert reward.status is Status.PARSE_ERROR


def test_a_plain_share_is_the_last_way_to_a_point(skill):
    judge, _ = a_judge(["hm"] * 6 + ["Final: 3/4"], [skill], scope="point")
    (reward,) = judged(judge, a_task(), "It is 4.")
    assert reward.value == 0.75
    judge, _ = a_judge(["hm"] * 6 + ["Final: 5/4"] + ["hm"] * 2, [skill], scope="point")
    assert judged(judge, a_task(), "It is 4.")[0].value is None


def test_a_verifier_of_a_point_caps_it(skill):
    run = call("run_resource", id="match")
    script = [USE, run, point_answer(9, 9)]
    judge, _ = a_judge(script, [skill], scope="point", mode=Mode.OPERATIONAL)
    (reward,) = judged(judge, a_task(reference="4"), "It is 5.")
    assert reward.value == 0.65
    assert "9 of 10 requirements met; capped for wrong_language" in reward.reason


def direct_rewards(script: list[str], *texts: str) -> tuple[list[Any], list[Any]]:
    lm = ScriptedLM(script)
    rewards = anyio.run(checked, DirectPair(JudgeModel(lm)), a_task(), answers(*texts))
    return rewards, [asked.prompt for asked in lm.calls]


@pytest.mark.parametrize(
    "script",
    [
        [json.dumps({"reasons": "clear", "winner": "A"})],
        ["prose", json.dumps({"reasons": "clear", "winner": "Tie"})],
        ["prose", "more prose"],
    ],
)
@pytest.mark.parametrize("how", [{}, {"method": "direct"}, {"mode": Mode.BASELINE}])
def test_without_a_skill_it_is_the_direct_judge(skill, script, how):
    expected, prompts = direct_rewards(script, "one", "two")
    judge, lm = a_judge(script, [skill] if how else [], **how)
    rewards = judged(judge, a_task(), "one", "two")
    assert [asked.prompt for asked in lm.calls] == prompts
    for reward, wanted in zip(rewards, expected, strict=True):
        assert (reward.value, reward.status) == (wanted.value, wanted.status)
        assert (reward.evidence, reward.verdicts) == (wanted.evidence, wanted.verdicts)


def test_flat_pastes_what_the_mode_may_see(skill):
    judge, lm = a_judge([PICK_A], [skill], method="flat")
    first, _ = judged(judge, a_task(reference="plugh"), "one", "two")
    text = lm.calls[0].prompt[0].content
    assert first.value == 1
    assert "text of rules" in text
    assert "text of key" not in text
    assert "plugh" not in text
    judge, lm = a_judge([PICK_A], [skill], method="flat", mode=Mode.OPERATIONAL)
    first, _ = judged(judge, a_task(reference="plugh"), "one", "it is plugh")
    text = lm.calls[0].prompt[0].content
    assert "text of key" in text
    assert "decision: B" in text
    assert first.value == 1  # an ablation: the judge's word alone
    assert summary(first)["oracle"] == 2


def test_flat_is_cut(tmp_path):
    long = a_skill(tmp_path, resources=[entry("rules")], files={"rules.md": "r" * 20_000})
    judge, lm = a_judge([PICK_A], [long], method="flat")
    judged(judge, a_task(), "a" * 7_000, "b")
    text = lm.calls[0].prompt[0].content
    assert 11_800 < text.count("r" * 100) * 100 < 12_000
    assert "a" * 6_000 in text
    assert "a" * 6_001 not in text


def test_tool_only_has_python_and_four_steps(skill):
    runner = EchoRunner()
    script = [call("python_sandbox", code="1"), call("use_skill", name="demo"), "x", "x", PICK_A]
    judge, lm = a_judge(script, [skill], method="tool", runner=runner)
    first, _ = judged(judge, a_task(), "one", "two")
    assert first.value == 1
    assert (summary(first)["answer"], summary(first)["steps"]) == ("forced", 4)
    assert len(runner.cases) == 1
    assert "use_skill" not in lm.calls[0].prompt[0].content


def a_fair_reader(messages: Any, index: int) -> str:
    """Prefers the response that says 4, wherever it stands; opens the skill first."""
    opening = messages[0].content
    if len(messages) == 1:
        return USE
    a = opening.split("=== response A")[1].split("=== end")[0]
    return call("final_answer", verdict="A" if "says 4" in a else "B")


def test_by_name_in_both_orders(tmp_path):
    folder = write_skill(tmp_path / "demo", resources=[entry("rules")])
    judge = JudgeModel(ScriptedLM(a_fair_reader))
    scorer = build_judge("skill_rm", judge, {"skills": [str(folder)], "python": False})
    rewards = anyio.run(checked, scorer, a_task(), answers("says 4", "says 5"))
    assert [reward.value for reward in rewards] == [1.0, -1.0]
    always_first = JudgeModel(ScriptedLM(lambda messages, index: PICK_A))
    biased = build_judge("skill_rm", always_first, {"skills": [str(folder)], "python": False})
    rewards = anyio.run(checked, biased, a_task(), answers("says 4", "says 5"))
    assert all(not reward.value for reward in rewards)


def test_best_of_n_by_knockout(tmp_path):
    folder = write_skill(tmp_path / "demo", resources=[entry("rules")])
    lm = ScriptedLM(a_fair_reader)
    scorer = build(JudgeModel(lm), {"skills": [str(folder)], "python": False})
    texts = ("says 5", "says 6", "says 4", "says 7")
    picked = anyio.run(best_of_n, scorer, a_task(), answers(*texts))
    assert picked.index == 2
    assert picked.calls == 3
    assert len(lm.calls) == 2 * 3


def test_options_reach_the_limits():
    judge = build(JudgeModel(ScriptedLM([])), {"mode": "operational", "steps": 8, "skills": []})
    assert (judge.limits.steps, judge.limits.resources, judge.limits.run_calls) == (8, 5, 3)
    assert judge.is_direct


def test_the_fingerprint_changes_with_what_matters(tmp_path):
    model = JudgeModel(ScriptedLM([]))
    folder = write_skill(tmp_path / "demo", resources=[entry("rules")])
    base: dict[str, Any] = {"skills": [str(folder)], "python": False}
    before = [
        fingerprint(build(model, base | more))
        for more in (
            {}, {"mode": "operational"}, {"steps": 9}, {"scope": "point"}, {"method": "flat"},
        )
    ]  # fmt: skip
    (folder / "rules.md").write_text("changed")
    assert len({*before, fingerprint(build(model, base))}) == 6


def test_another_vote_is_another_question(skill):
    judge, lm = a_judge(lambda messages, index: PICK_A, [skill])
    again = judge.for_vote(1)
    for one in (judge, again):
        judged(one, a_task(), "one", "two")
    assert lm.calls[0].prompt == lm.calls[1].prompt
    assert lm.calls[0].sampling.seed != lm.calls[1].sampling.seed
    assert fingerprint(judge) != fingerprint(again)


def test_the_reward_function_masks_failures(skill):
    judge, _ = a_judge([USE, point_answer(3, 4)], [skill], scope="point")
    extra = {"prompt": "What is 2 + 2?", "index": 7}
    found = anyio.run(score_function(judge), "demo", "It is 4.", "4", extra)
    assert (found["score"], found["valid"], found["satisfied"], found["total"]) == (0.75, 1, 3, 4)
    assert (found["steps"], found["tool_calls"], found["oracle"]) == (2, 1, 0)
    broken, _ = a_judge(lambda messages, index: "hm", [skill], scope="point")
    failed = anyio.run(score_function(broken), "demo", "It is 4.", "4", extra)
    assert math.isnan(failed["score"])
    assert failed["valid"] == 0
    assert failed.keys() == found.keys()
    pair, _ = a_judge([], [skill])
    with pytest.raises(UserError, match="expected point"):
        score_function(pair)


def test_the_adapter_for_any_scorer_can_say_the_same_of_a_failure(skill):
    broken, _ = a_judge(lambda messages, index: "hm", [skill], scope="point")
    given = ("demo", "It is 4.", "4", {"prompt": "What is 2 + 2?"})
    own = anyio.run(score_function(broken), *given)
    general = anyio.run(as_verl(broken, missing="nan"), *given)
    assert math.isnan(own["score"])
    assert math.isnan(general["score"])
    assert own["valid"] == general["valid"] == 0
    marked = anyio.run(score_function(broken, failed=0.0), *given)
    flagged = anyio.run(as_verl(broken), *given)
    assert marked["score"] == flagged["score"] == 0


def test_the_ground_truth_is_not_shown_unless_declared(skill):
    judge, lm = a_judge([USE, point_answer(1, 1)], [skill], scope="point")
    extra = {"prompt": [{"role": "user", "content": "Say it."}], "winner": "xyzzy"}
    anyio.run(score_function(judge), "demo", "It is 4.", "plugh", extra)
    said = "".join(m.content for asked in lm.calls for m in asked.prompt)
    assert "plugh" not in said
    assert "xyzzy" not in said


def test_shipped_skills_judge_end_to_end():
    skills = [load_skill("instruction_following")]
    script = [
        call("use_skill", name="instruction_following"),
        call("view_resource", id="demand_types", reason="how are sentences counted"),
        call("final_answer", verdict="Tie", rationale="equal"),
    ]
    judge, lm = a_judge(script, skills)
    first, second = judged(judge, a_task(), "one", "two")
    assert (first.value, second.value) == (0.0, 0.0)
    assert "constraint_checks (run" not in lm.calls[1].prompt[-1].content
    assert "How demands are counted" in lm.calls[2].prompt[-1].content


def test_a_model_too_small_for_the_prompt_gives_no_value():
    """The tiny model in-process reads 1,024 tokens: a real failure, with its reason."""
    pytest.importorskip("torch")
    from burnish.lm.named import open_lm

    options = {"skills": ["open_chat"], "python": False}
    scorer = build(JudgeModel(open_lm("tiny")), options)
    rewards = anyio.run(checked, scorer, a_task(), answers("one", "two"))
    assert [reward.value for reward in rewards] == [None, None]
    assert {reward.status for reward in rewards} == {Status.INFRA_ERROR}
    assert "leaves no room to answer" in rewards[0].reason
