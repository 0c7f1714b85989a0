"""Stabilisers and agreement: worked numbers, limits and properties."""

import pytest
import torch
from hypothesis import given, strategies as st

from burnish.rewards.judges.rubric import (
    band,
    bootstrap_interval,
    concordance,
    equal,
    family_deltas,
    merge_equal,
    scale_reward,
)

NUMBERS = st.floats(-1, 1)


def test_equality_is_strict_and_takes_one_pair_or_many():
    assert equal((0.5, 0.5625), 0.0625) is False
    assert equal((0.5, 0.56), 0.0625) is True
    assert equal([(0.1, 0.1), (0.1, 0.9)], L=0.05) == [True, False]
    assert equal(pairs=torch.tensor([[0.1, 0.11], [0.0, 1.0]]), L=0.05) == [True, False]
    assert equal((0.3, 0.3), 0.0) is False


def test_merging_is_single_linkage_on_sorted_scores():
    assert merge_equal([0.9, 0.5, 0.53, None, 0.56], 0.05) == [
        0.9, *[pytest.approx(0.53)] * 2, None, pytest.approx(0.53),
    ]  # fmt: skip
    assert merge_equal([], 0.05) == []


@given(st.lists(st.one_of(st.none(), NUMBERS), max_size=8), st.floats(0, 0.5))
def test_merging_keeps_order_sum_and_gaps(scores, width):
    merged = merge_equal(scores, width)
    known = [(a, b) for a, b in zip(scores, merged, strict=True) if a is not None]
    assert sum(b for _, b in known) == pytest.approx(sum(a for a, _ in known), abs=1e-9)
    for a, b in known:
        for c, d in known:
            assert not (a < c and b > d + 1e-9)
            assert b == d or abs(b - d) >= width - 1e-9
    assert merge_equal(scores, 0.0) == scores


@given(NUMBERS, NUMBERS, NUMBERS, st.floats(0.5, 4))
def test_scaling_is_continuous_increasing_and_identity_at_one(a, b, mean, width):
    low, high = sorted((a, b))
    assert scale_reward(low, mean, width) <= scale_reward(high, mean, width)
    assert scale_reward(a, mean, 1.0) == pytest.approx(a)
    assert scale_reward(mean, mean, width) == mean


def test_scaling_by_hand():
    assert scale_reward([0.2, 0.5, 0.7], 0.5, 2.0) == pytest.approx([0.2, 0.5, 0.9])
    assert scale_reward(scores=0.7, mean_of_references=0.5, w_scale=3.0) == pytest.approx(1.1)


def test_concordance_counts_ordered_pairs():
    rows = [(1, 0.8, 0.5), (-1, 0.2, 0.4), (1, 0.3, 0.6), (1, 0.5, 0.5), (0, 0.9, 0.1)]
    assert concordance(rows) == (2, 1, 1, 2.0)
    assert concordance(human_sign_and_scores=[(1, (0.8, 0.5))]).ratio is None
    assert concordance([(-1, -0.3)]) == (1, 0, 0, None)
    assert concordance([]).correct == 0


def test_bands():
    assert band([0, 4, -4.01, 8, 8.5, 12, -12.5]) == [
        "consistent", "consistent", "acceptable", "acceptable", "unlabelled", "unlabelled", "severe",
    ]  # fmt: skip
    assert band(deviations=3) == "consistent"


def test_the_interval_holds_the_mean_and_leaves_missing_queries_out():
    found = bootstrap_interval([0.2, None, 0.4, 0.6, 0.8], seed=1)
    assert found.mean == pytest.approx(0.5)
    assert found.low < found.mean < found.high
    assert found.queries == 4
    assert found == bootstrap_interval([0.2, 0.4, None, 0.6, 0.8], seed=1)
    assert bootstrap_interval([None]) is None


def test_a_family_that_favours_its_own_shows():
    rows = [("a", "a", 0.9), ("a", "b", 0.5), ("b", "a", 0.6), ("b", "b", 0.6)]
    assert family_deltas(rows)["a"] == pytest.approx(0.4)
    assert family_deltas(rows)["b"] == pytest.approx(0.4)
    assert family_deltas([("a", "a", 0.9), ("a", "b", 0.5)]) == {}
