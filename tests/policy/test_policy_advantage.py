import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from policy_cases import assert_close

from burnish.policy import (
    gdpo_advantage,
    grpo_advantage,
    informative_groups,
    normalise_then_sum,
    per_reward_advantages,
    raw_advantage,
)
from burnish.policy.post_scale import batch_whiten

NAN = math.nan


FLOATS = st.floats(-10, 10)


@st.composite
def grouped(draw, rewards=FLOATS):
    """Rewards (B, K) of 1 to 4 groups with 1 to 6 rollouts each, one value in ten missing."""
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    groups = [number for number, size in enumerate(sizes) for _ in range(size)]
    columns = draw(st.integers(1, 3))
    cell = st.one_of(*[rewards] * 9, st.just(NAN))
    table = draw(
        st.lists(
            st.lists(cell, min_size=columns, max_size=columns),
            min_size=len(groups),
            max_size=len(groups),
        )
    )
    return torch.tensor(table, dtype=torch.float64), groups


def test_grpo_by_hand():
    # Mean 0.25, sample deviation 0.5: (0.75, -0.25) / 0.5.
    assert_close(grpo_advantage([1, 0, 0, 0], [0] * 4, eps=0.0), [1.5, -0.5, -0.5, -0.5])
    # Population deviation sqrt(3) / 4: sqrt(3), -1 / sqrt(3).
    third = 1 / math.sqrt(3)
    assert_close(grpo_advantage([1, 0, 0, 0], [0] * 4, eps=0.0, ddof=0), [3 * third] + [-third] * 3)
    assert_close(grpo_advantage([1, 0, 0, 0], [0] * 4), [0.75 / 0.500001] + [-0.25 / 0.500001] * 3)


def test_grpo_without_deviation_only_centres():
    assert_close(grpo_advantage([3, 1, 5, 5], ["a", "a", "b", "b"], scale="none"), [1, -1, 0, 0])


def test_grpo_with_the_batch_deviation():
    # Rewards 0, 2, 4, 6: mean 3, sample variance 20 / 3.
    deviation = math.sqrt(20 / 3)
    expected = [-1 / deviation, 1 / deviation, -1 / deviation, 1 / deviation]
    assert_close(grpo_advantage([0, 2, 4, 6], [0, 0, 1, 1], scale="batch_std", eps=0.0), expected)


def test_grpo_sums_several_rewards_with_weights():
    rewards = [[1, 0], [0, 1], [1, 1]]
    assert_close(grpo_advantage(rewards, [0] * 3, scale="none"), [-1 / 3, -1 / 3, 2 / 3])
    assert_close(grpo_advantage(rewards, [0] * 3, scale="none", weights=[3, 0]), [1, -2, 1])
    holes = [[1, NAN], [0, NAN], [1, 1]]
    assert_close(grpo_advantage(holes, [0] * 3, scale="none", weights=[3, 0]), [1, -2, 1])


def test_labels_and_numbers_come_in_any_plain_form():
    expected = grpo_advantage(torch.tensor([1.0, 0.0, 2.0, 5.0]), torch.tensor([7, 7, 3, 3]))
    assert_close(grpo_advantage([1, 0, 2, 5], ["x", "x", ("y", 1), ("y", 1)]), expected)
    assert_close(grpo_advantage(np.array([1, 0, 2, 5]), np.array([7, 7, 3, 3])), expected)
    assert grpo_advantage(torch.tensor([1.0, 0.0]), [0, 0]).dtype == torch.float64


def test_none_and_nan_leave_the_statistics():
    plus, minus = grpo_advantage([1, 0], [0, 0]).tolist()
    assert_close(grpo_advantage([1, None, 0, NAN], [0] * 4), [plus, 0, minus, 0])


def test_a_sum_needs_every_weighted_reward_but_normalising_first_does_not():
    rewards = [[1.0, NAN], [0.0, 2.0], [2.0, 4.0]]
    assert_close(grpo_advantage(rewards, [0] * 3, eps=0.0), [0, -math.sqrt(0.5), math.sqrt(0.5)])
    per_reward = per_reward_advantages(rewards, [0] * 3, eps=0.0)
    assert_close(per_reward, [[0, 0], [-1, -math.sqrt(0.5)], [1, math.sqrt(0.5)]])
    # 5, 0, 2 have mean 7/3 and sample variance 19/3: (5 - 7/3) / sqrt(19/3) = 8 / sqrt(57).
    partly = normalise_then_sum([[5.0, NAN], *rewards[1:]], [0] * 3, eps=0.0)
    assert_close(partly[0], 8 / math.sqrt(57))


@pytest.mark.parametrize("size", [1, 2, 3, 6, 7, 8, 12, 16, 64])
@pytest.mark.parametrize("reward", [0.1, 0.3, 0.7, 1 / 3, -0.9, 1e-7, 12345.678, 0.1 + 0.2])
def test_a_constant_group_gives_exactly_zero(size, reward):
    rewards, groups = torch.full((size,), reward, dtype=torch.float64), [0] * size
    for values in (rewards, rewards.float()):
        for scale in ("group_std", "batch_std", "none"):
            assert (grpo_advantage(values, groups, scale=scale) == 0).all()
        assert (gdpo_advantage(values, groups) == 0).all()
        assert (raw_advantage(values, groups) == 0).all()
        assert not informative_groups(grpo_advantage(values, groups), groups).any()


def test_rounding_noise_within_the_range_rule_is_no_signal():
    noisy = torch.tensor([0.1, 0.1 + 1e-9, 0.1 - 1e-9, 0.1], dtype=torch.float64)
    assert (grpo_advantage(noisy, [0] * 4, eps=0.0) == 0).all()
    assert (grpo_advantage([0.1, 0.1001], [0, 0]) != 0).all()


def test_a_group_of_one_gets_zero_beside_others():
    assert_close(grpo_advantage([9, 1, 0], ["alone", "pair", "pair"], scale="none"), [0, 0.5, -0.5])


def test_large_offsets_do_not_spoil_the_statistics():
    rewards = torch.arange(7, dtype=torch.float64) / 10 + 1e5
    centred = grpo_advantage(rewards, [0] * 7, scale="none")
    assert_close(centred, torch.arange(-3.0, 4.0) / 10, 1e-7)
    assert abs(centred.sum().item()) < 1e-13


def test_raw_is_the_sum_itself_but_for_the_edge_rules():
    assert_close(
        raw_advantage([1, -1, 0, 1, 1, 4, NAN], [0, 0, 0, 1, 1, 2, 0]), [1, -1, 0, 0, 0, 0, 0]
    )


def test_gdpo_by_hand():
    # Each reward standardised: (+-0.7071); sums (1.4142, -1.4142) and (0.7071, -0.7071).
    rewards = [[1, 10], [0, 0], [1, 5], [0, 5]]
    root = math.sqrt(0.5)
    assert_close(
        gdpo_advantage(rewards, [0, 0, 1, 1], whiten=False, eps=0.0),
        [2 * root, -2 * root, root, -root],
    )
    # Whitened over rollouts: mean 0, variance (2 + 2 + 0.5 + 0.5) / 3.
    deviation = math.sqrt(5 / 3 + 1e-8)
    assert_close(
        gdpo_advantage(rewards, [0, 0, 1, 1], eps=0.0),
        [2 * root / deviation, -2 * root / deviation, root / deviation, -root / deviation],
    )


def test_gdpo_whitens_over_tokens_where_lengths_are_given():
    rewards, groups, lengths = [1.0, 0.0, 0.0, 2.0, 1.0], [0, 0, 0, 1, 1], [3, 1, 2, 5, 4]
    values = gdpo_advantage(rewards, groups, response_lengths=lengths)
    tokens = values.repeat_interleave(torch.tensor(lengths))
    assert_close(tokens.mean(), 0.0)
    assert_close(tokens.std(), 1.0, 1e-6)


def test_gdpo_leaves_groups_without_signal_at_zero_and_can_be_told_not_to():
    rewards, groups, lengths = [1, 0, 0.1, 0.1, 0.1], [0, 0, 1, 1, 1], [9, 1, 2, 2, 2]
    assert (gdpo_advantage(rewards, groups, lengths)[2:] == 0).all()
    published = gdpo_advantage(rewards, groups, lengths, ignore_zero_signal=False)
    assert (published[2:] < -0.1).all()


def test_rewards_that_cancel_for_everyone_are_no_signal():
    first = torch.tensor([0.1, 0.7, 0.45])
    rewards = torch.stack([first, 1 - first], 1).double()
    assert (normalise_then_sum(rewards, [0] * 3) == 0).all()


@settings(max_examples=40)
@given(grouped())
def test_one_reward_makes_gdpo_a_whitened_grpo(case):
    rewards, groups = case
    one = rewards[:, 0]
    grpo = grpo_advantage(one, groups)
    whitened = batch_whiten(
        grpo, keep=~one.isnan(), signal=informative_groups(grpo, groups), scope="rollout"
    )
    assert torch.equal(gdpo_advantage(one, groups), whitened)


@settings(max_examples=40)
@given(grouped(), st.randoms(use_true_random=False))
def test_order_and_labels_change_nothing(case, random):
    rewards, groups = case
    order = list(range(len(groups)))
    random.shuffle(order)
    names = random.sample(["v", "w", "x", "y", "z"], len(set(groups)))
    shuffled = [names[groups[i]] for i in order]
    for function in (grpo_advantage, per_reward_advantages, gdpo_advantage, raw_advantage):
        assert_close(function(rewards[order], shuffled), function(rewards, groups)[order], 1e-7)


@settings(max_examples=40)
@given(grouped())
def test_a_missing_rollout_is_as_if_it_were_not_there(case):
    rewards, groups = case
    gone = len(groups) // 2
    without = [i for i in range(len(groups)) if i != gone]
    masked = rewards.clone()
    masked[gone] = NAN
    for function in (grpo_advantage, per_reward_advantages, gdpo_advantage, raw_advantage):
        values = function(masked, groups)
        assert (values[gone] == 0).all()
        assert_close(
            values[without], function(rewards[without], [groups[i] for i in without]), 1e-7
        )


@settings(max_examples=40)
@given(grouped(rewards=st.integers(-20, 20).map(float)), st.floats(0.1, 10), st.floats(-100, 100))
def test_each_reward_may_be_rescaled(case, slope, offset):
    rewards, groups = case
    assert_close(
        per_reward_advantages(rewards * slope + offset, groups, eps=0.0),
        per_reward_advantages(rewards, groups, eps=0.0),
        1e-6,
    )


def test_grpo_is_not_invariant_to_the_scale_of_one_of_its_rewards():
    rewards = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.2]])
    rescaled = rewards * torch.tensor([1.0, 100.0])
    assert not torch.allclose(grpo_advantage(rewards, [0] * 3), grpo_advantage(rescaled, [0] * 3))


@settings(max_examples=40)
@given(grouped())
def test_flipping_every_reward_flips_every_advantage(case):
    rewards, groups = case
    for function in (grpo_advantage, gdpo_advantage):
        assert_close(function(-rewards, groups), -function(rewards, groups), 1e-6)


@settings(max_examples=40)
@given(grouped(rewards=st.integers(-5, 5).map(float)))
def test_advantages_of_a_group_have_mean_zero_and_variance_one(case):
    rewards, groups = case
    values = grpo_advantage(rewards[:, 0], groups, eps=0.0)
    for group in set(groups):
        members = torch.tensor([g == group for g in groups]) & ~rewards[:, 0].isnan()
        assert_close(values[members].sum(), 0.0)
        if len(set(rewards[members, 0].tolist())) > 1:
            assert_close(values[members].std(), 1.0)
