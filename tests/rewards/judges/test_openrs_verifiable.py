"""Checks in front of the judge: what decides, what goes on, and what is declared."""

import json

import anyio
import pytest
from openrs_cases import answer, fair, judge, mark_in, task

from burnish.errors import UserError
from burnish.records import Status, Visibility
from burnish.rewards.combine import BothOrders, FirstDecisive
from burnish.rewards.function import from_function
from burnish.rewards.judges.openrs import (
    Constraints,
    GroundTruth,
    LanguageMatch,
    OpenRS,
    Verifiable,
    anchored,
)
from burnish.rewards.judges.openrs.judge import build
from burnish.rewards.scorer import checked

GOOD, BAD = answer("It is 4.", "good"), answer("It is 5, surely and certainly.", "bad")
ENGLISH = "This is a plain English sentence with many words in it."
GERMAN = "Das ist ein ganz gewöhnlicher deutscher Satz mit vielen Wörtern."


def score(scorer, responses=(GOOD, BAD), prompt="What is 2 + 2?", **fields):
    return anyio.run(lambda: checked(scorer, task(prompt, **fields), list(responses)))


def say(prompt):
    """Answers every kind of question of OpenRS about these two responses."""
    if "rubric_compares" in prompt:
        return fair(prompt)
    mark = mark_in(prompt)
    body = prompt.split("=== response ")[1]
    if '"satisfied"' in prompt:
        return json.dumps({"mark": mark, "satisfied": "yes" if "4" in body else "no"})
    return json.dumps({"mark": mark, "reason": "", "score": 1 if "4." in body else -1})


def constant(value, name="check"):
    return from_function(lambda **_: value, name)


def test_ground_truth_is_oracle_evidence():
    both = score(GroundTruth(judge(say)), answer="4")
    assert [r.value for r in both] == [1, -1]
    assert {e.visibility for r in both for e in r.evidence} == {Visibility.ORACLE}
    (silent, _) = score(GroundTruth(judge(say)))
    assert silent.status is Status.ABSTAIN
    (odd, _) = score(GroundTruth(judge(lambda p: json.dumps({"mark": mark_in(p), "score": 2}))), answer="4")  # fmt: skip
    assert odd.status is Status.PARSE_ERROR
    assert odd.value is None
    assert '"score" to be a whole number from -1 to 1, got 2' in odd.reason


def test_language_follows_the_request_or_the_field():
    responses = [answer(ENGLISH), answer(GERMAN)]
    prompt = "Please write one more sentence of the same kind, about the weather."
    both = score(LanguageMatch(), responses, prompt)
    assert [r.value for r in both] == [1, 0]
    both = score(LanguageMatch(), responses, prompt, response_language="de")
    assert [r.value for r in both] == [0, 1]
    both = score(LanguageMatch(), [answer("4"), answer(GERMAN)], prompt)
    assert both[0].status is Status.ABSTAIN
    with pytest.raises(UserError, match="response_language"):
        score(LanguageMatch(), responses, prompt, response_language="klingon")


def test_all_constraints_count_as_a_share():
    fields = {
        "instruction_id_list": ["punctuation:no_comma", "length_constraints:number_words"],
        "kwargs": [{}, {"relation": "less than", "num_words": 5}],
        "constraints": json.dumps([{"rule": "Give the right number."}]),
    }
    both = score(Constraints(judge(say)), **fields)
    assert both[0].value == 1
    assert both[1].value == 0
    both = score(Constraints(judge(say)), **{**fields, "constraints": []})
    assert [r.value for r in both] == [1, 0]
    assert both[1].reason == "0 of 2 constraints kept"
    assert score(Constraints())[0].status is Status.ABSTAIN
    with pytest.raises(UserError, match="give a judge"):
        score(Constraints(), constraints=["be kind"])
    with pytest.raises(UserError, match="tables with a text 'rule'"):
        score(Constraints(judge(say)), constraints=[1])


def test_an_undecided_constraint_leaves_no_value():
    both = score(Constraints(judge(lambda p: "prose")), constraints=["be kind", "be brief"])
    assert both[0].status is Status.PARSE_ERROR
    assert both[0].reason == "2 of 2 constraints undecided"
    assert both[0].verdicts[0].value is None


def test_the_first_check_that_tells_them_apart_decides():
    gate = Verifiable([GroundTruth(judge(say)), constant(1.0)])
    both = score(gate, answer="4")
    assert [r.value for r in both] == [1, -1]
    assert both[0].reason == "ground_truth: 1 against -1"
    assert [part.name for part in both[0].parts] == ["ground_truth"]
    both = score(gate)
    assert both[0].status is Status.ABSTAIN
    assert "check: equal" in both[0].reason
    both = score(Verifiable([GroundTruth(judge(lambda p: "prose"))]), answer="4")
    assert both[0].status is Status.PARSE_ERROR


def test_equal_checks_leave_the_judge_alone():
    model = judge(say)
    pair = BothOrders(OpenRS(model))
    alone = score(pair)
    gated = score(FirstDecisive(Verifiable([constant(1.0)]), pair))
    assert [r.value for r in gated] == [r.value for r in alone]
    decided = score(FirstDecisive(Verifiable([GroundTruth(model)]), pair), answer="4")
    assert decided[0].value == 1  # although the judge likes the longer one
    assert alone[0].value < 0


def test_by_name_with_a_gate_in_front():
    scorer = build(judge(say), {"verify": ["ground_truth", "constraints"]})
    assert [r.value for r in score(scorer, answer="4")] == [1, -1]
    by_constraint = score(scorer, constraints=["Give the right number."])
    assert by_constraint[0].reason == "constraints: 1 against 0"


def test_the_training_reward_is_the_pair_plus_mu_times_the_check():
    pair, check = BothOrders(OpenRS(judge(say))), constant(0.5)
    (plain,) = score(anchored(pair, GOOD), [BAD])
    for mu in (0.0, 1.0, 2.0):
        (reward,) = score(anchored(pair, GOOD, check, mu=mu), [BAD])
        assert reward.value == pytest.approx(plain.value + mu * 0.5)
    (same,) = score(anchored(pair, GOOD, check, mu=0.0), [GOOD])
    assert same.value == 0
    (masked,) = score(anchored(BothOrders(OpenRS(judge(lambda p: "?"))), GOOD, check), [BAD])
    assert masked.value is None
    assert masked.status is Status.PARSE_ERROR
