import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as st

from burnish.errors import ArgumentError
from burnish.policy import Recipe, RewardBatch, Stepwise, advantages
from burnish.policy.grpo import grpo_advantage
from burnish.policy.stepwise import credited_tokens, process_advantages, stepwise_advantages

R, Z = 1 / math.sqrt(2), 0.0  # two rewards 1 and 0 standardise to +- 0.7071 with ddof 1

REWARDS = [[1.0, 0.0], [0.0, 1.0]]
SEGMENTS = [[0, 1, 1, -1], [0, -1, 1, 1]]
MASK = [[1, 1, 1, 1], [1, 1, 1, 0]]


def assert_close(found, wanted):
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=2e-6)


def test_local_credit_by_hand():
    found = stepwise_advantages(REWARDS, [0, 0], SEGMENTS, MASK, [1.0, 0.5])
    assert_close(found, [[R, -R / 2, -R / 2, Z], [-R, Z, R / 2, Z]])


def test_to_go_credit_by_hand():
    found = stepwise_advantages(REWARDS, [0, 0], SEGMENTS, MASK, [1.0, 0.5], "to_go")
    assert_close(found, [[R - R / 2, -R / 2, -R / 2, Z], [-R + R / 2, Z, R / 2, Z]])


def test_to_go_spreads_the_last_reward_over_all_tokens_and_local_does_not():
    rewards = [[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
    segments = [[0, 1, 1, 2], [0, 1, 2, 2]]
    ones = torch.ones(2, 4)
    assert_close(
        stepwise_advantages(rewards, [5, 5], segments, ones, credit="to_go"), [[R] * 4, [-R] * 4]
    )
    assert_close(
        stepwise_advantages(rewards, [5, 5], segments, ones), [[Z, Z, Z, R], [Z, Z, -R, -R]]
    )


def test_rewards_that_cancel_leave_no_noise():
    rewards = [[0.1, 0.3], [0.2, 0.2], [0.3, 0.1]]
    segments = [[0, 1]] * 3
    found = stepwise_advantages(rewards, [0] * 3, segments, torch.ones(3, 2), credit="to_go")
    assert (found[:, 0] == 0).all()
    assert found[0, 1] > 0.9


numbers = st.floats(-3, 3).map(lambda x: round(x, 2))


@settings(max_examples=40)
@given(st.lists(st.tuples(numbers, st.integers(0, 2)), min_size=1, max_size=12))
def test_one_reward_and_one_segment_is_grpo(rows):
    rewards, groups = [r for r, _ in rows], [g for _, g in rows]
    segments = torch.zeros(len(rows), 3, dtype=torch.int64)
    for credit in ("local", "to_go"):
        found = stepwise_advantages(rewards, groups, segments, segments + 1, credit=credit)
        wanted = grpo_advantage(rewards, groups)[:, None].expand(-1, 3)
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@given(st.lists(numbers, min_size=2, max_size=8), st.lists(numbers, min_size=3, max_size=3))
def test_equal_rewards_in_all_segments_are_weighted_grpo(rewards, weights):
    segments = torch.tensor([[0, 1, 2]] * len(rewards))
    found = stepwise_advantages(
        [[r] * 3 for r in rewards], [0] * len(rewards), segments, segments >= 0, weights
    )
    wanted = grpo_advantage(rewards, [0] * len(rewards))[:, None] * torch.tensor(
        weights, dtype=torch.float64
    )
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


@given(st.permutations(range(6)), st.sampled_from(["local", "to_go"]))
def test_permuting_rollouts_permutes_their_advantages(order, credit):
    draw = torch.Generator().manual_seed(1)
    rewards = torch.rand(6, 3, generator=draw, dtype=torch.float64)
    segments = torch.randint(-1, 3, (6, 5), generator=draw)
    mask = torch.rand(6, 5, generator=draw) < 0.7
    groups = torch.tensor([0, 0, 0, 1, 1, 1])
    whole = stepwise_advantages(rewards, groups, segments, mask, credit=credit)
    mixed = stepwise_advantages(
        rewards[order], groups[order], segments[order], mask[order], credit=credit
    )
    torch.testing.assert_close(mixed, whole[order], rtol=1e-12, atol=1e-12)
    assert (whole[~credited_tokens(segments, mask)] == 0).all()


@pytest.mark.parametrize("credit", ["local", "to_go"])
def test_no_signal_is_exactly_zero(credit):
    segments, mask = torch.tensor([[0, 1], [0, 1], [0, 1]]), torch.ones(3, 2)
    equal = stepwise_advantages([[0.1, 0.7]] * 3, [0] * 3, segments, mask, credit=credit)
    alone = stepwise_advantages([[0.1, 0.7]] * 3, [0, 1, 2], segments, mask, credit=credit)
    assert (equal == 0).all()
    assert (alone == 0).all()


def test_a_missing_reward_leaves_its_own_column_only():
    rewards = [[1.0, math.nan], [0.0, 1.0], [0.0, 0.0]]
    found = stepwise_advantages(rewards, [0] * 3, [[0, 1]] * 3, torch.ones(3, 2))
    assert_close(found[:, 1], [Z, R, -R])
    assert found[0, 0] > 1


# --- steps with a score each

NAN = math.nan


def test_scores_of_steps_by_hand():
    """Three scores 1, 0, 0.5 of one group: mean 0.5, deviation 0.5 with ddof 1."""
    steps, segments = [[1.0, 0.0], [0.5, NAN]], [[0, 0, 1], [0, 0, -1]]
    ones = torch.ones(2, 3)
    assert_close(process_advantages(steps, [0, 0], segments, ones), [[1, 1, -1], [0, 0, 0]])
    assert_close(
        process_advantages(steps, [0, 0], segments, ones, "to_go"), [[0, 0, -1], [0, 0, 0]]
    )
    masked = process_advantages(steps, [0, 0], segments, [[1, 0, 1], [1, 1, 0]])
    assert_close(masked, [[1, 0, -1], [0, 0, 0]])


def test_groups_of_steps_are_apart_and_equal_scores_say_nothing():
    steps, segments = [[1.0, 0.0], [0.3, 0.3]], [[0, 1], [0, 1]]
    found = process_advantages(steps, [0, 1], segments, torch.ones(2, 2))
    assert_close(found, [[R, -R], [0, 0]])


@given(st.lists(numbers, min_size=2, max_size=8))
def test_one_step_an_answer_is_grpo(rewards):
    segments = torch.zeros(len(rewards), 2, dtype=torch.int64)
    for credit in ("local", "to_go"):
        found = process_advantages(rewards, [0] * len(rewards), segments, segments >= 0, credit)
        wanted = grpo_advantage(rewards, [0] * len(rewards))[:, None].expand(-1, 2)
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def test_a_segment_without_a_step_is_refused():
    with pytest.raises(ArgumentError, match=r"expected -1 to 0, for there are 1 steps"):
        process_advantages([[1.0]], [0], [[1]], [[1]])


def test_the_component_adds_rewards_of_the_whole_answer():
    recipe = Recipe(advantage=Stepwise(rewards=("prm", "right"), split="lines", eps=0.0))
    batch = RewardBatch(
        rewards_BK=torch.tensor([[0.0, 1.0], [0.5, 0.0]], dtype=torch.float64),
        weights_K=torch.tensor([1.0, 0.5], dtype=torch.float64),
        groups_B=torch.tensor([0, 0]),
        lengths_B=torch.tensor([3, 2]),
        truncated_B=torch.tensor([False, False]),
        names=("prm", "right"),
        segments_BT=torch.tensor([[0, 0, 1], [0, 0, -1]]),
        steps_BJ=torch.tensor([[1.0, 0.0], [0.5, NAN]], dtype=torch.float64),
    )
    found = advantages(recipe, batch)
    whole = R / 2
    assert_close(found.values_B, [[1 + whole, 1 + whole, -1 + whole], [-whole, -whole, 0]])
    assert found.keep_B.tolist() == [True, True]
    # An answer whose steps nobody could match takes no part.
    lost = replace(batch, segments_BT=torch.tensor([[0, 0, 1], [-1, -1, -1]]))
    assert advantages(recipe, lost).keep_B.tolist() == [True, False]
    with pytest.raises(ArgumentError, match=r"steps_BJ: got none"):
        advantages(recipe, replace(batch, steps_BJ=None))
