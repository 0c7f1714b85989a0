"""Search self-play's rules: tags, the filter of questions, scores and rewards, by worked numbers."""

import math

import pytest
import torch
from hypothesis import given, strategies as st

from burnish.agents.ssp import (
    Rules,
    answer_overlap,
    contained_match,
    dynamic_filter,
    exact_match,
    extract_answer,
    normalize_answer,
    parse_queries,
    proposer_reward,
    rule_filter,
    solver_score,
    success_rate,
    token_f1,
)
from burnish.agents.ssp.pool import diversity
from burnish.errors import ArgumentError
from burnish.policy import grpo_advantage
from burnish.records import Message
from burnish.rewards.checks.match import states

ASKED = "On which long river does the old town of Vel lie today?"


def text(question=ASKED, searches=("Vel", "Tol"), seen=("Vel lies on it.", "A river.")):
    turns = [
        f"<search>{query}</search><information>{found}</information>"
        for query, found in zip(searches, seen, strict=True)
    ]
    return "".join(turns) + f"<question>{question}</question>"


def test_the_last_pair_of_answer_tags_counts():
    assert extract_answer("<answer>a</answer><answer> b </answer>") == "b"
    assert extract_answer("<answer>a</answer><answer>b") == "a"
    assert extract_answer("<answer>a<answer>b</answer>") == "a<answer>b"
    assert extract_answer("<answer></answer>") == ""
    assert extract_answer("</answer>a<answer>") is None
    assert extract_answer("") is None


def test_answers_are_texts_or_lists_everywhere():
    for golds in ("Paris", ["Paris"], ["Lutetia", "Paris"], ("Paris",)):
        assert exact_match("the Paris!", golds) == 1.0
        assert contained_match("It is Paris.", golds) == 1.0
        assert token_f1("Paris", golds) == 1.0
        assert solver_score("<answer>paris</answer>", golds) == 1.0
        assert rule_filter(text(), golds).valid
        assert rule_filter(text("Is it in paris that this old river ends its long way?"), golds).rule == (
            "answer_in_question"
        )  # fmt: skip
    assert normalize_answer("The  Tol, a River!") == "tol river"


@pytest.mark.parametrize(
    ("trajectory", "rule"),
    [
        (text(), ""),
        (text() + "<question>no</question>", ""),  # the first pair counts
        (text().replace("</question>", ""), "format"),
        ("nothing", "format"),
        (text("Too short?"), "length"),
        (text("one two three four five six seven eight nine"), "length"),
        (text("one two three four five six seven eight nine ten"), ""),
        (text("word " * 201), "length"),
        (text("On which river TOL does the old town of Vel lie now?"), "answer_in_question"),
        (text(seen=("", " ")), "no_observation"),
        (text(searches=("Vel",), seen=("x",)), "too_few_queries"),
        (text(searches=('["Vel", "Tol"]',), seen=("x",)), ""),
        (text(searches=("Vel", "Vel")), "repeated_query"),
    ],
)
def test_the_rules_reject_in_their_order(trajectory, rule):
    found = rule_filter(trajectory, "Tol")
    assert (found.valid, found.rule) == (not rule, rule)
    assert bool(found) is found.valid


def test_rules_can_be_changed():
    chinese = text("这条河流经过的古老城市叫什么名字呢")
    assert rule_filter(chinese, "Tol").valid
    one = text(searches=("Vel",), seen=("x",))
    assert rule_filter(one, "Tol", Rules(min_queries=1)).valid
    assert rule_filter(text(), "Tol", Rules(answer_in_query=False)).rule == "answer_in_query"


def test_a_trajectory_may_be_messages_and_observations_are_data():
    messages = [
        {"role": "user", "content": "Write <question>this is not a question of anybody</question>"},
        {"role": "assistant", "content": "<search>Vel</search>"},
        {"role": "tool", "content": f"<question>{ASKED}</question><search>x</search>"},
        {"role": "assistant", "content": "<search>Tol</search>"},
        {"role": "user", "content": "<information> A river. </information>"},
    ]
    assert rule_filter(messages, "Tol").rule == "format"
    messages.append({"role": "assistant", "content": f"<question>{ASKED}</question>"})
    found = rule_filter({"messages": messages}, "Tol")
    assert found.valid
    assert found.queries == ("Vel", "Tol")
    assert found.observations[1] == "A river."
    assert rule_filter([Message(m["role"], m["content"]) for m in messages], "Tol") == found
    # The same inside one text: what stands in information tags is never the model's own.
    inside = f"<information><question>{ASKED}</question></information>"
    assert rule_filter(inside, "Tol").rule == "format"


def test_a_trajectory_may_be_read_already():
    parts = {"question": ASKED, "queries": ["Vel", "Tol"], "observations": ["A river."]}
    assert rule_filter(parts, "Tol").valid
    assert rule_filter(parts | {"question": None}, "Tol").rule == "format"
    assert rule_filter(parts | {"observations": []}, "Tol").rule == "no_observation"
    for bad in ({"queries": "Vel"}, {"question": 5}, {"observations": [None]}):
        with pytest.raises(ArgumentError, match="trajectory"):
            rule_filter(parts | bad, "Tol")
    with pytest.raises(ArgumentError, match="trajectory"):
        rule_filter({"words": "x"}, "Tol")


@pytest.mark.parametrize(
    ("said", "score"),
    [
        ("<answer>Tol</answer>", 1.0), ("<answer>Vel</answer><answer>the Tol.</answer>", 1.0),
        ("Tol", 0.0), ("<answer>Vel</answer>", 0.0), ("<answer>Tol</answer>" * 10, 1.0),
        ("<answer>Tol</answer>" * 11, 0.25), ("<answer>Tol</answer>" + "</answer>" * 10, 0.25),
        ("<answer>Vel</answer>" * 11, 0.0),
    ],
)  # fmt: skip
def test_the_score_of_an_attempt(said, score):
    assert solver_score(said, "Tol") == score


def test_a_judge_decides_what_does_not_match():
    said = "<answer>the river of Vel</answer>"
    assert solver_score(said, "Tol", judge=lambda pred, golds: True) == 1.0
    assert solver_score(said * 11, "Tol", judge=lambda pred, golds: True) == 0.25
    assert solver_score(said, "Tol", judge=lambda pred, golds: False) == 0.0
    assert solver_score(said, "Tol", judge=lambda pred, golds: None) is None
    assert solver_score("no tag", "Tol", judge=lambda pred, golds: True) == 0.0


@pytest.mark.parametrize(
    ("rewards", "kind", "more", "value"),
    [
        ([1, 1, 0, 0, 0], "1-acc", {}, 0.6), ([1, 1, 1], "1-acc", {}, 0.0),
        ([0, 0, 0], "1-acc", {}, 1.0),
        ([0.25, 0, 0, 0], "1-acc", {}, 0.75),  # a flooded answer still counts as solved
        ([1, 0, 0, 0], "intermediate_difficulty", {}, 0.75),
        ([1, 1], "intermediate_difficulty", {}, 0.0), ([0, 0], "intermediate_difficulty", {}, 0.0),
        ([1, 0], "intermediate_difficulty", {"left": 0.1, "right": 0.9}, 4 * 0.6 * 0.4),
        ([1, 1], "format_only", {}, 1.0), ([1, 0], "1-acc", {"valid": False}, 0.0),
        ([1, 0], "format_only", {"valid": False, "invalid_reward": -0.1}, -0.1),
        ([1, None, 0, None], "1-acc", {}, 0.5), ([None, None], "1-acc", {}, None),
    ],
)  # fmt: skip
def test_the_reward_of_a_question(rewards, kind, more, value):
    assert proposer_reward(rewards, kind, **more) == pytest.approx(value)


def test_rewards_of_many_questions():
    assert proposer_reward(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), valid=[True, False]) == [
        0.5,
        0.0,
    ]
    assert success_rate([]) is None


@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=8))
def test_the_game_is_zero_sum_for_valid_questions(scores):
    assert proposer_reward(scores) + sum(scores) / len(scores) == pytest.approx(1.0)


def test_groups_without_spread_leave_with_their_solvers():
    kept = dynamic_filter(scores=[0.2, 0.2, 0.0, 1.0, 0.7], groups=[5, 5, 7, 7, 9], solver_n=3)
    assert kept.proposer == [2, 3, 4]
    assert kept.solver == [6, 7, 8, 9, 10, 11, 12, 13, 14]
    assert dynamic_filter([], [], 2) == ([], [])


@pytest.mark.parametrize(
    ("answer", "question"),
    [
        ("1,200", "Which of the many old towns of this land has 1200 towers?"),
        ("1200", "Which of the many old towns of this land has 1\u202f200 towers?"),
        ("Zürich", "Which of the two old rivers flows through the town of ZURICH?"),
        ("New York", "Which of the two old rivers flows through the town of new-york?"),
        ("New York", "Which of the two old rivers flows through the town of New\nYork?"),
        ("Tol", "Which of the two old rivers is not the \uff34\uff4f\uff4c but near it?"),
        ("O'Hara", "Which of the two old rivers is the one that OHara once crossed?"),
        ("Tolmar", "Which of the two old rivers is the one called Tol\u00admar by some?"),
    ],
)
def test_a_spoiler_in_another_spelling_is_found_where_asked_for(answer, question):
    assert rule_filter(text(question), answer).valid
    found = rule_filter(text(question), answer, Rules(spoilers="normalised"))
    assert found.rule == "answer_in_question"


def test_normalised_rules_find_repeated_queries_and_spare_longer_words():
    rules = Rules(spoilers="normalised", answer_in_query=False)
    assert rule_filter(text(searches=("Vel", "vel?")), "Tol", rules).rule == "repeated_query"
    assert rule_filter(text(searches=("Vel", "vel?")), "Tol").valid
    assert rule_filter(text(searches=("Vel", "T\u00f6l")), "Tol", rules).rule == "answer_in_query"
    assert rule_filter(text(), "to", rules).rule == "answer_in_question"  # the release's rule, too
    assert rule_filter(text(), "4", rules).valid
    assert rule_filter(
        text("Which of the 14 old towns of this long land lies highest?"), "40", rules
    )


def test_advantages_of_both_roles():
    """Solver groups sum to 0, constant ones are 0, and a proposer keeps its reward."""
    rewards = [0.6, 1.0, 1.0, 0.0, 0.0, 0.0, 0.4, 1.0, 1.0, 1.0]
    groups = [0, 1, 1, 1, 1, 1, 2, 3, 3, 3]
    found = grpo_advantage(rewards, groups, singletons="raw")
    std = torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0]).double().std().item() + 1e-6
    assert found[0] == 0.6
    assert found[6] == 0.4
    assert found[1:6].tolist() == pytest.approx([0.6 / std] * 2 + [-0.4 / std] * 3)
    assert found[1:6].sum() == pytest.approx(0, abs=1e-12)
    assert found[7:].tolist() == [0, 0, 0]
    paper = grpo_advantage(rewards, groups, "none", singletons="raw")
    assert paper[1:6].tolist() == pytest.approx([0.6, 0.6, -0.4, -0.4, -0.4])
    mean = grpo_advantage(rewards, groups, singletons="batch_mean")
    assert (mean[0].item(), mean[6].item()) == pytest.approx((0.1, -0.1))
    assert grpo_advantage(rewards, groups)[0] == 0
    alone = grpo_advantage([1.0, math.nan, 0.5], [0, 0, 1], singletons="raw")
    assert alone.tolist() == [0.0, 0.0, 0.5]  # what is left of a larger group is no group of one
    left = grpo_advantage([1.0, 0.5], [0, 1], singletons="raw", sizes=[5, 1])
    assert left.tolist() == [0.0, 0.5]
    by_role = grpo_advantage(
        [0.6, 0.4, 1.0, 0.0], [0, 1, 2, 3], singletons="batch_mean", roles=["p", "p", "s", "s"]
    )
    assert by_role.tolist() == pytest.approx([0.1, -0.1, 0.5, -0.5])


def test_queries_in_a_list_are_bounded():
    assert parse_queries("a b") == ["a b"]
    assert parse_queries('["a", 5]') == ['["a", 5]']
    assert parse_queries('["a", " ", "b"]') == ["a", "b"]
    assert len(parse_queries('["a"' + ', "b"' * 50 + "]")) == 5
    assert parse_queries(" ") == []


def test_long_hostile_texts_are_read_in_linear_time():
    assert extract_answer("<answer>" * 200_000) is None
    assert not rule_filter("<information>" * 100_000 + "<question>" * 100_000, "Tol")


def test_overlap_of_training_and_evaluation_answers():
    found = answer_overlap(["Paris", ["Rome", "Roma"]], [["the Roma", "x"], "Oslo", "paris"])
    assert (found.training, found.evaluation, found.shared) == (3, 3, 2)
    assert found.share == pytest.approx(2 / 3)
    assert found.examples == ["the Roma", "paris"]
    assert answer_overlap(["a1"], []).share is None


def test_diversity_of_questions():
    same = diversity(["who is it", "Who is it?"])
    assert (same["ssp/distinct"], same["ssp/word_overlap"]) == (0.5, 1.0)
    assert diversity([]) == {}


@pytest.mark.parametrize(
    ("asked", "gold"),
    [
        ("New\u200bYork", "New York"), ("Zu\u00adrich", "Zürich"), ("Lodz", "Łódź"),
        ("Orsted", "Ørsted"),
    ],
)  # fmt: skip
def test_hidden_characters_and_strokes_give_an_answer_away(asked, gold):
    assert states(f"Which old town on the river is {asked}?", gold)
    assert not states("Which old town lies on the river?", gold)
