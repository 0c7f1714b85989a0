"""Pair scores: reading them, who won, votes, and what a judge in training earns."""

import math
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from burnish.rewards import genrm_reward, pair_outcome, parse_pair_scores, vote

on_scale = st.floats(0, 10)
outcome = st.sampled_from([-1.0, 0.0, 1.0])


@settings(deadline=None)
@given(on_scale, on_scale, st.text())
def test_scores_written_out_are_read_back(a, b, before):
    assert parse_pair_scores(f"{before}\n<scores>{a}, {b}</scores>") == [a, b]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<scores>7.5, 6</scores>", [7.5, 6.0]),
        ("<scores> 10 ,\n0.0 </scores> done.", [10.0, 0.0]),
        ("draft <scores>1, 2</scores>, no: <scores>8, 3</scores>", [8.0, 3.0]),
        ("<SCORES>8,3</SCORES>", [8.0, 3.0]), ("<scores><scores>4, 5</scores>", [4.0, 5.0]),
        ("<scores>.5, 5.</scores>", [0.5, 5.0]), ("", None), ("7, 8", None),
        ("<scores>7</scores>", None), ("<scores>7, 8, 9</scores>", None),
        ("<scores>nan, 5</scores>", None), ("<scores>inf, 5</scores>", None),
        ("<scores>10.1, 5</scores>", None), ("<scores>5, -1</scores>", None),
        ("<scores>1_0, 5</scores>", None), ("<scores>8/10, 5/10</scores>", None),
        ("<scores>٥, 5</scores>", None), ("<scores>7, 8", None),
        ("<scores>7, 8</scores> better: <scores>nine, 8</scores>", None),
    ],
)  # fmt: skip
def test_reading_scores(text, expected):
    assert parse_pair_scores(text) == expected


def test_a_long_reply_without_an_end_is_read_in_linear_time():
    start = time.process_time()
    assert parse_pair_scores("<scores>" * 200_000) is None
    assert parse_pair_scores("<scores>" + "1" * 1_000_000) is None
    assert time.process_time() - start < 10.0


def test_outcomes_by_hand():
    assert pair_outcome([7.5, 6.0]) == 1.0
    assert pair_outcome((6.0, 7.5)) == -1.0
    assert pair_outcome([5, 5]) == 0.0
    assert pair_outcome([5, 5], tie=-1.0) == -1.0
    assert pair_outcome(None) == 0.0
    assert pair_outcome(scores=None, tie=0.0, parse_failure=-1.0) == -1.0
    for unreadable in ([], [7.0], [math.nan, 1.0], [1.0, math.inf], [1, 2, 3], ["8", "7"]):
        assert pair_outcome(unreadable, parse_failure=-1.0) == -1.0
    assert pair_outcome(torch.tensor([2.0, 9.0])) == -1.0
    assert pair_outcome(np.array([9, 2])) == 1.0


@settings(deadline=None)
@given(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9))
def test_an_outcome_without_a_price_on_ties_is_antisymmetric(a, b):
    assert pair_outcome([a, b]) == -pair_outcome([b, a])


def test_votes_by_hand():
    assert vote([1, 1, 1]) == 1.0
    assert vote([-1, -1]) == -1.0
    assert vote([1, -1]) == 0.0
    assert vote([1, 1, -1], "unanimous", -1.0) == -1.0
    assert vote([1, 1, -1], "majority") == 1.0
    assert vote([-1, -1, 0, 1], "majority") == -1.0
    assert vote([1, -1], "majority", inconsistent=-1.0) == -1.0
    assert vote([0, 0], "majority", inconsistent=-1.0) == 0.0
    assert vote([1, 1, -1, -1, 1], "mean") == pytest.approx(0.2)
    assert vote([0, 0], "unanimous", inconsistent=-1.0) == 0.0
    assert vote(torch.tensor([1.0, 1.0]), rule="unanimous", inconsistent=0) == 1.0


def test_votes_are_not_unanimous_where_one_is_missing():
    assert vote([1, None, math.nan]) is None
    assert vote([-1, -1, None], "unanimous", -1.0) is None
    # Two that differ are no unanimity, whatever the missing one would have said.
    assert vote([1, -1, None]) == 0.0
    assert vote([1, -1, None], "unanimous", -1.0) == -1.0


def test_missing_votes_are_left_out_of_the_other_rules_and_no_vote_is_none():
    assert vote([1, None, math.nan], "majority") == 1.0
    assert vote([None, 1, -1], "mean") == 0.0
    assert vote([]) is None
    assert vote([None, math.nan], "majority") is None


@settings(deadline=None)
@given(
    st.lists(outcome, min_size=1, max_size=7), st.sampled_from(["unanimous", "majority", "mean"])
)
def test_votes_with_neutral_disagreement_are_antisymmetric(outcomes, rule):
    assert vote(outcomes, rule) == pytest.approx(-vote([-x for x in outcomes], rule))
    assert vote(outcomes, rule) == pytest.approx(vote(outcomes[::-1], rule))


def test_what_a_judge_in_training_earns_by_hand():
    # A margin of 1.5 of 2 is 0.75; the first place is picked half of the time: weight 1.
    assert genrm_reward([8.0, 6.5], 1, 0.5) == pytest.approx(0.75)
    assert genrm_reward([8.0, 6.5], "a", 0.5) == pytest.approx(0.75)
    assert genrm_reward([8.0, 6.5], -1, 0.5) == pytest.approx(-0.75)
    assert genrm_reward([8.0, 6.5], "b", 0.5) == pytest.approx(-0.75)
    # Picked too often (0.8): 0.5 / 0.8 = 0.625. The other place then has 0.5 / 0.2, capped at 2.
    assert genrm_reward([9.0, 3.0], 1, 0.8) == pytest.approx(0.625)
    assert genrm_reward([3.0, 9.0], -1, 0.8) == pytest.approx(2.0)
    assert genrm_reward([9.0, 3.0], 1, 1.0) == pytest.approx(0.5)
    assert genrm_reward([9.0, 3.0], 1, 0.0) == pytest.approx(2.0)
    assert genrm_reward([5.1, 5.0], 1, 0.5) == pytest.approx(0.2)
    assert genrm_reward([5.1, 5.0], -1, 0.9) == pytest.approx(-0.2)
    assert genrm_reward([5.0, 5.0], 1, 0.5) == pytest.approx(-0.2)
    for unreadable in (None, [7.0], [math.nan, 2.0]):
        assert genrm_reward(unreadable, 1, 0.5) == -1.0
    assert genrm_reward([6.0, 5.0], 1, 0.5, margin_scale=4.0, margin_floor=0.1) == 0.25
    assert genrm_reward([9.0, 0.0], 1, 0.1, pos_weight_max=3.0) == 3.0
    assert genrm_reward([9.0, 0.0], 1, 0.9, pos_weight_min=0.9) == 0.9


@settings(deadline=None)
@given(on_scale, on_scale, st.floats(0, 1), st.sampled_from([1, -1]))
def test_exchanging_texts_label_and_rate_changes_nothing(a, b, rate, label):
    swapped = genrm_reward([b, a], -label, 1 - rate)
    assert genrm_reward([a, b], label, rate) == pytest.approx(swapped)


@settings(deadline=None)
@given(on_scale, on_scale, st.floats(0, 1))
def test_the_right_winner_always_earns_and_the_wrong_one_never_does(a, b, rate):
    if a != b:
        right = 1 if a > b else -1
        assert genrm_reward([a, b], right, rate) >= 0.1
        assert genrm_reward([a, b], -right, rate) <= -0.2
