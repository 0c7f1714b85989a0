import math

import pytest
import torch
from hypothesis import given, strategies as st
from policy_cases import f64

from burnish.policy.conflict import (
    conflict_keep,
    group_keep_ratio,
    magnitude_filter,
    random_filter,
    sign_conflict,
    snr_ratio,
)
from burnish.policy.groups import per_reward_advantages

NAN = math.nan

TABLES = st.integers(1, 4).flatmap(
    lambda columns: st.lists(
        st.lists(st.floats(-5, 5), min_size=columns, max_size=columns), min_size=1, max_size=8
    )
)


def test_sign_conflict_by_hand():
    table = [[1, -1], [1, 2], [-1, -2], [0, -1], [0, 0], [2, -0.1], [NAN, 1], [NAN, NAN]]
    assert sign_conflict(table).tolist() == [True, False, False, False, False, True, False, False]
    assert sign_conflict([[1.0, -0.1]], sign_eps=0.1).tolist() == [False]
    assert sign_conflict([[1.0, -0.11]], sign_eps=0.1).tolist() == [True]


def test_rounding_at_the_mean_of_a_group_is_no_opinion():
    # 0.2 is the mean of the first reward, but what is left of it there is 8e-17 and not 0.
    rewards = [[0.1, 0.0], [0.2, 1.0], [0.3, 2.0], [0.2, 5.0]]
    values = per_reward_advantages(rewards, [0] * 4)
    assert 0 < values[1, 0] < 1e-15
    assert sign_conflict(values, sign_eps=0.0)[1]
    assert not sign_conflict(values)[1]


def test_snr_ratio_by_hand():
    ratio = snr_ratio([[2, -0.1], [1, -1], [1, 1], [-3, 1], [0, 0], [NAN, -2]], eps=1e-8)
    expected = [1.9 / 2.1, 0, 1, -0.5, 0, -1]
    torch.testing.assert_close(ratio, f64(expected), atol=2e-8, rtol=0)
    assert snr_ratio([[1.0, 2.0]], eps=1.0).item() == 0.75


def test_weights_scale_and_silence_rewards():
    table = [[1.0, -1.0, 2.0]]
    assert not sign_conflict(table, weights=[1, 0, 1]).any()
    assert not sign_conflict(table, weights=[1, -1, 1]).any()
    assert sign_conflict(table, weights=[1, -1, -1]).all()
    assert snr_ratio(table, weights=[4, 1, 0]).item() == pytest.approx(0.6)
    assert conflict_keep(table, "snr", 0.6, weights=[5, 1, 0]).all()
    assert not conflict_keep(table, "snr", 0.7, weights=[5, 1, 0]).any()


def test_the_snr_filter_keeps_a_conflict_with_a_clear_winner():
    table = [[2.0, -0.1], [1.0, -0.9], [0.1, 0.2], [0.0, 0.0]]
    assert conflict_keep(table, "hard").tolist() == [False, False, True, True]
    assert conflict_keep(table, "snr", 0.8).tolist() == [True, False, True, True]


@given(TABLES, st.floats(0, 1), st.floats(0, 1))
def test_the_filters_are_nested_and_monotone_in_tau(table, one, other):
    few, many = max(one, other), min(one, other)
    hard = conflict_keep(table, "hard")
    strict, lax = conflict_keep(table, "snr", few), conflict_keep(table, "snr", many)
    assert (hard <= strict).all()
    assert (strict <= lax).all()
    assert conflict_keep(table, "snr", 0.0).all()
    assert torch.equal(conflict_keep(table, "snr", 1.0), hard)


@given(TABLES, st.randoms(use_true_random=False))
def test_order_and_direction_of_rewards_change_nothing(table, random):
    values = f64(table)
    columns = random.sample(range(values.shape[1]), values.shape[1])
    assert torch.equal(sign_conflict(values[:, columns]), sign_conflict(values))
    assert torch.equal(sign_conflict(-values), sign_conflict(values))
    torch.testing.assert_close(snr_ratio(-values), -snr_ratio(values))
    assert (snr_ratio(values).abs() <= 1).all()
    assert not sign_conflict(values[:, :1]).any()


@pytest.mark.parametrize("columns", [2, 3, 4])
def test_independent_rewards_leave_two_to_the_one_minus_k(columns):
    draw = torch.Generator().manual_seed(columns)
    rewards = torch.randn(20_000, columns, generator=draw, dtype=torch.float64)
    kept = conflict_keep(per_reward_advantages(rewards, [0] * 20_000)).double().mean()
    assert kept.item() == pytest.approx(2.0 ** (1 - columns), abs=0.01)


def test_group_keep_ratio_by_hand():
    keep, groups = [1, 0, 1, 1, 0, 0], ["a", "b", "a", "b", "b", "c"]
    third = 1 / 3
    torch.testing.assert_close(group_keep_ratio(keep, groups), f64([1, third, 1, third, third, 0]))
    present = [True, False, True, True, True, False]
    torch.testing.assert_close(
        group_keep_ratio(torch.tensor(keep).bool(), groups, present=present),
        f64([1, 0.5, 1, 0.5, 0.5, 0]),
    )


def test_magnitude_keeps_the_largest_and_of_equals_the_first():
    values = [0.5, -2.0, 1.0, -1.0, NAN, 1.0]
    assert magnitude_filter(values, 3).tolist() == [False, True, True, True, False, False]
    assert magnitude_filter(values, share=0.5).tolist() == magnitude_filter(values, 3).tolist()
    assert magnitude_filter([0.0, NAN, 0.0], 2).tolist() == [True, False, True]
    among = [1, 0, 1, 1, 1, 0]
    assert magnitude_filter(values, 1, among=among).tolist() == [0, 0, 1, 0, 0, 0]
    assert magnitude_filter(values, share=1.0, among=among).tolist() == [1, 0, 1, 1, 1, 0]


@given(st.lists(st.floats(-3, 3), max_size=12), st.data())
def test_controls_keep_the_number_they_are_given(values, data):
    count = data.draw(st.integers(0, len(values)))
    largest = magnitude_filter(values, count)
    drawn = random_filter(len(values), count, data.draw(st.integers(0, 2**62)))
    assert largest.sum() == drawn.sum() == count
    sizes = f64(values).abs()
    if 0 < count < len(values):
        assert sizes[largest].min() >= sizes[~largest].max()


def test_the_random_control_depends_on_its_seed_and_on_nothing_else():
    torch.manual_seed(1)
    first = random_filter(32, 8, 7)
    torch.manual_seed(2)
    assert torch.equal(first, random_filter(32, seed=7, share=0.25))
    # Fixed by SHA-256, so the same on every machine and version.
    assert random_filter(8, 3, 7).nonzero()[:, 0].tolist() == [1, 3, 7]
    assert not torch.equal(first, random_filter(32, 8, 8))
    odd = [position % 2 for position in range(32)]
    assert not random_filter(32, 16, 7, among=odd)[::2].any()


def test_the_random_control_is_fair():
    kept = torch.stack([random_filter(10, 3, seed) for seed in range(2000)]).double().mean(0)
    # Five standard errors of a share of 0.3 over 2000 draws.
    assert ((kept - 0.3).abs() < 5 * math.sqrt(0.21 / 2000)).all()
