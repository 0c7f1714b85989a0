import math
from functools import partial

import policy_cases
import pytest
import torch
from hypothesis import assume, given, settings, strategies as st
from policy_cases import f64

from burnish.policy.grpo import grpo_advantage
from burnish.policy.reference import (
    fit_reference_stats,
    reference_frozen_normalise,
    saturated_share,
)
from burnish.policy.state import PolicyState
from burnish.policy.tri_factor import (
    WeightState,
    medalign_advantage,
    next_weights,
    redundancy_factor,
    risk_factor,
    tri_factor_weights,
    weakness_factor,
)

NAN = math.nan


assert_close = partial(policy_cases.assert_close, equal_nan=True)


def tables(columns=None, rows=(3, 8)):
    def of(width):
        row = st.lists(st.integers(-8, 8).map(float), min_size=width, max_size=width)
        return st.lists(row, min_size=rows[0], max_size=rows[1]).map(f64)

    return of(columns) if columns else st.integers(1, 4).flatmap(of)


def varies(table):
    return bool((table.std(0) > 0).all())


def test_reference_statistics_by_hand():
    # 1, 3 without the missing one: mean 2, population deviation 1. 0, 0, 6: mean 2, sqrt(8).
    stats = fit_reference_stats([[1, 0], [NAN, 0], [3, 6]])
    assert_close(stats.mean_K, [2, 2])
    assert_close(stats.sd_K, [1, math.sqrt(8)])
    assert stats.count_K.tolist() == [2, 3]


def test_a_reward_constant_on_the_reference_gets_the_floor_and_then_the_clip():
    stats = fit_reference_stats([[0.1]] * 7, sd_floor=0.5)
    assert stats.sd_K.tolist() == [0.5]
    assert fit_reference_stats([0.1] * 7).sd_K.tolist() == [1e-3]
    assert_close(
        reference_frozen_normalise([[0.1], [0.4], [9.0]], stats.mean_K, stats.sd_K),
        [[0], [0.6], [5]],
    )


def test_robust_statistics_do_not_see_an_outlier():
    # 1, 2, 3, 4, 100: median 3, absolute deviations 2, 1, 0, 1, 97 with median 1.
    stats = fit_reference_stats([1, 2, 3, 4, 100], robust=True)
    assert_close(stats.mean_K, [3])
    assert_close(stats.sd_K, [1.4826])
    # An even count: the median is half way.
    assert_close(fit_reference_stats([1, 2, 4, NAN, 8], robust=True).mean_K, [3])
    # More than half of 0/1 rewards are equal: their median deviation is 0, though they vary.
    assert_close(fit_reference_stats([1, 0, 0, 0], robust=True).sd_K, [math.sqrt(3) / 4])


def test_normalised_rewards_by_hand():
    rewards = [[12.0, 0.0], [10.0, NAN], [-90.0, 1.5]]
    normalised = reference_frozen_normalise(rewards, [10, 1], [2, 0.5], clip=3.0)
    assert_close(normalised, [[1, -2], [0, NAN], [-3, 1]])
    assert_close(saturated_share(normalised, 3.0), [1 / 3, 0])
    assert_close(saturated_share([[NAN, 5.0], [NAN, -5.0]], 5.0), [NAN, 1])
    assert_close(reference_frozen_normalise([3.0, NAN], 1.0, 4.0), [0.5, NAN])


@given(tables())
def test_the_reference_batch_itself_has_mean_zero_and_deviation_one(table):
    assume(varies(table))
    stats = fit_reference_stats(table)
    normalised = reference_frozen_normalise(table, stats.mean_K, stats.sd_K, clip=math.inf)
    assert_close(normalised.mean(0), torch.zeros(table.shape[1]))
    assert_close(normalised.std(0, correction=0), torch.ones(table.shape[1]))


@settings(max_examples=40)
@given(tables(columns=2), tables(columns=2), st.floats(0.1, 100), st.floats(-100, 100))
def test_a_reward_on_another_scale_with_its_own_statistics_is_the_same(
    reference, table, slope, offset
):
    assume(varies(reference))

    def normalise(change):
        stats = fit_reference_stats(change(reference))
        return reference_frozen_normalise(change(table), stats.mean_K, stats.sd_K)

    assert_close(
        normalise(lambda values: values * slope + offset), normalise(lambda values: values), 1e-6
    )


def test_statistics_and_weights_survive_a_checkpoint():
    stats = fit_reference_stats([[1, 0], [NAN, 0], [3, 6]])
    state = PolicyState(reference=stats, weights=WeightState.initial(3))
    back = PolicyState.from_tensors(state.tensors())
    for left, right in zip(stats, back.reference, strict=True):
        assert torch.equal(left, right)
    assert torch.equal(back.weights.weights_K, state.weights.weights_K)
    assert back.weights.progress_K.isnan().all()


def test_factors_by_hand():
    # Progress 0, 1, 2 with mean 1: exp(0.5), 1, exp(-0.5).
    assert_close(weakness_factor([0, 1, 2], 0.5), [math.exp(0.5), 1, math.exp(-0.5)])
    assert_close(weakness_factor([0, NAN, 2], 0.5), [math.exp(0.5), 1, math.exp(-0.5)])
    assert_close(risk_factor([0, 2, 5, 3], [0.9, 0.25, 0, NAN]), [1, 1.5, 1, 1])


def test_redundancy_by_hand():
    # Columns 0 and 1 rise together (correlation 1), 2 falls (-1), 3 is constant.
    table = [[0, 1, 3, 0.1], [1, 3, 2, 0.1], [2, 5, 1, 0.1]]
    assert_close(redundancy_factor(table, 1.0), [0.5, 0.5, 1, 1])
    assert_close(redundancy_factor(table, 3.0), [0.25, 0.25, 1, 1])
    # (-1, 0, 1) and (-1, 1, 0): product 1 over sqrt(2 * 2).
    assert_close(redundancy_factor([[-1, -1], [0, 1], [1, 0]], 1.0), [2 / 3, 2 / 3])


def test_redundancy_uses_the_rollouts_that_have_both():
    together = [[-1, -1], [0, 1], [1, 0]]
    assert_close(redundancy_factor([*together, [NAN, 50], [70, NAN]], 1.0), [2 / 3, 2 / 3])
    # Two points always lie on a line.
    assert_close(redundancy_factor([[0, 0], [1, 1], [NAN, 5], [7, NAN]], 1.0), [1, 1])


@given(tables(columns=3))
def test_redundancy_agrees_with_the_library(table):
    assume(varies(table))
    positive = torch.corrcoef(table.T).clamp(min=0).fill_diagonal_(0).sum(1)
    assert_close(redundancy_factor(table, 0.7), 1 / (1 + 0.7 * positive))


# Three rewards whose columns are uncorrelated by construction.
ORTHOGONAL = f64([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]])


def weigh(**changes):
    arguments = {
        "progress": [0.0, 0.0, 0.0],
        "severity": [0.0, 0.0, 0.0],
        "violation_rate": [0.0, 0.0, 0.0],
        "normalised": ORTHOGONAL,
        "previous": [1.0, 1.0, 1.0],
        "beta": 0.0,
    }
    return tri_factor_weights(**(arguments | changes))


def test_weights_by_hand():
    # Risk 1 + 5 * 0.4 = 3 on the last: 1, 1, 3 over their mean 5/3.
    assert_close(weigh(severity=[0, 0, 5], violation_rate=[1, 1, 0.4]), [0.6, 0.6, 1.8])
    # Half of it with beta 0.5.
    assert_close(weigh(severity=[0, 0, 5], violation_rate=[1, 1, 0.4], beta=0.5), [0.8, 0.8, 1.4])
    # Held: 1, 1, 16 over 6 is 1/6, 1/6, 8/3; held to 1/2 and 2 it is 1/2, 1/2, 2, of mean 1.
    assert_close(
        weigh(severity=[0, 0, 15], violation_rate=[0, 0, 1], w_min=0.5, w_max=2.0), [0.5, 0.5, 2]
    )
    # Held and off the mean: 1/2, 1/2, 3/2 over 5/6.
    assert_close(
        weigh(severity=[0, 0, 15], violation_rate=[0, 0, 1], w_min=0.5, w_max=1.5), [0.6, 0.6, 1.8]
    )


def test_nothing_to_tell_apart_gives_uniform_weights():
    assert weigh().tolist() == [1, 1, 1]
    assert weigh(progress=[2.0, 2.0, 2.0], beta=0.8).tolist() == [1, 1, 1]
    # A perfectly correlated batch is uniform too where eta_red is 0.
    line = [[0, 0, 0], [1, 1, 1], [2, 2, 2]]
    assert weigh(normalised=line, eta_weak=0, eta_red=0, progress=[0, 1, 2]).tolist() == [1, 1, 1]
    one = tri_factor_weights([3.0], [5.0], [0.7], [[1], [2], [4]], [1.0])
    assert one.tolist() == [1]


def test_a_duplicated_reward_shares_the_weight_of_one():
    doubled = torch.cat([ORTHOGONAL, ORTHOGONAL[:, :1]], 1)
    four = [0.0] * 4
    weights = tri_factor_weights(four, four, four, doubled, [1.0] * 4, beta=0.0)
    shares = weights / weights.sum()
    assert_close(shares, [1 / 6, 1 / 3, 1 / 3, 1 / 6])


def test_fewer_than_three_rollouts_keep_the_weights():
    previous = [0.5, 1.25, 1.25]
    two = ORTHOGONAL[:2]
    assert weigh(normalised=two, previous=previous, progress=[0, 5, 9]).tolist() == previous
    empty_row = torch.cat([two, torch.full((1, 3), NAN)])
    assert weigh(normalised=empty_row, previous=previous, progress=[0, 5, 9]).tolist() == previous


STEPS = st.tuples(
    tables(columns=3),
    st.lists(st.floats(-4, 4), min_size=3, max_size=3),
    st.lists(st.floats(0, 5), min_size=3, max_size=3),
    st.lists(st.floats(0, 1), min_size=3, max_size=3),
    st.lists(st.floats(0.2, 4), min_size=3, max_size=3),
)


@settings(max_examples=40)
@given(STEPS, st.floats(0, 1))
def test_weights_have_mean_one_and_follow_their_rewards(step, beta):
    table, progress, severity, rate, previous = step
    weights = tri_factor_weights(progress, severity, rate, table, previous, beta=beta)
    assert_close(weights.mean(), 1.0)
    assert (weights > 0).all()
    order = [2, 0, 1]

    def turned(values):
        return [values[i] for i in order]

    again = tri_factor_weights(
        turned(progress),
        turned(severity),
        turned(rate),
        table[:, order],
        turned(previous),
        beta=beta,
    )
    assert_close(again, weights[order])


@settings(max_examples=40)
@given(STEPS, st.floats(0.1, 3))
def test_a_reward_that_falls_back_or_is_violated_more_gains_weight(step, change):
    table, progress, severity, rate, previous = step
    options = {"normalised": table, "previous": previous, "w_min": 1e-9, "w_max": 1e9}
    weights = weigh(progress=progress, severity=severity, violation_rate=rate, **options)
    weaker = [progress[0] - change, *progress[1:]]
    fallen = weigh(progress=weaker, severity=severity, violation_rate=rate, **options)
    assert fallen[0] > weights[0]
    severe = [2.0, *severity[1:]]
    calm, worse = (
        weigh(progress=progress, severity=severe, violation_rate=[v, *rate[1:]], **options)
        for v in (0.2, 0.9)
    )
    assert worse[0] > calm[0]


def test_one_step_of_the_state_by_hand():
    rewards = [[10.0, -1.0], [30.0, 0.0], [20.0, -1.0], [NAN, 0.0]]
    normalised = [[-1.0, -2.0], [1.0, 0.0], [0.0, -2.0], [NAN, 0.0]]
    state, factors = next_weights(
        WeightState.initial(2), normalised, rewards, [NAN, 0.0], [9.0, 2.0], eta_red=0.0, beta=0.5
    )
    # The averages start at the batch: progress 0 and -1; no threshold, and half below 0.
    assert_close(state.progress_K, [0, -1])
    assert_close(state.violation_K, [0, 0.5])
    assert_close(factors["weakness"], [math.exp(-0.25), math.exp(0.25)])
    assert_close(factors["risk"], [1, 2])
    assert_close(factors["redundancy"], [1, 1])
    raw = f64([math.exp(-0.25), 2 * math.exp(0.25)])
    assert_close(state.weights_K, 0.5 + 0.5 * raw / raw.mean())
    # The second step mixes: progress 0.8 * (0, -1) + 0.2 * (1, 1), violations 0.9 * 0.5.
    ones = torch.ones(3, 2)
    state, _ = next_weights(
        state, ones, ones, [NAN, 0.0], [9.0, 2.0], beta_progress=0.8, beta_violation=0.9
    )
    assert_close(state.progress_K, [0.2, -0.6])
    assert_close(state.violation_K, [0, 0.45])


def test_a_reward_without_values_waits():
    blind = [[NAN, 1.0], [NAN, 2.0], [NAN, 4.0]]
    state, factors = next_weights(WeightState.initial(2), blind, blind, [0.0, 0.0], [1.0, 1.0])
    assert state.progress_K.isnan().tolist() == [True, False]
    assert factors["weakness"].tolist() == [1, 1]
    seen = [[2.0, 1.0], [1.0, 2.0], [3.0, 4.0]]
    state, _ = next_weights(state, seen, seen, [0.0, 0.0], [1.0, 1.0])
    assert_close(state.progress_K, [2, 7 / 3])
    waiting, _ = next_weights(state, blind, blind, [0.0, 0.0], [1.0, 1.0])
    assert waiting.progress_K[0] == state.progress_K[0]


def test_two_rollouts_move_the_averages_but_not_the_weights():
    state = WeightState(f64([0.0, 0.0]), f64([0.0, 0.0]), f64([0.7, 1.3]))
    table = [[1.0, -1.0], [1.0, -3.0]]
    after, _ = next_weights(state, table, table, [0.0, 0.0], [1.0, 1.0])
    assert torch.equal(after.weights_K, state.weights_K)
    assert_close(after.progress_K, [0.2, -0.4])
    assert_close(after.violation_K, [0.0, 0.2])


@settings(max_examples=8)
@given(tables(columns=3), st.lists(st.floats(0, 5), min_size=3, max_size=3))
def test_identical_batches_let_the_weights_settle(table, severity):
    state = WeightState.initial(3)
    seen = []
    for _ in range(80):
        state, _ = next_weights(state, table, table, [0.0, NAN, -3.0], severity)
        seen.append(state.weights_K)
    assert_close(seen[-1], seen[-2], 1e-6)
    assert_close(seen[-1].mean(), 1.0)


def test_weight_moves_from_a_copied_reward_to_a_violated_one():
    # Correct, useful, its copy, safe: the copies share a weight and safety is violated by half.
    draw = torch.Generator().manual_seed(0)
    state = WeightState.initial(4)
    for _ in range(40):
        correct, useful = torch.randn(2, 64, generator=draw, dtype=torch.float64)
        copy = useful + 0.1 * torch.randn(64, generator=draw, dtype=torch.float64)
        safe = -(torch.rand(64, generator=draw, dtype=torch.float64) < 0.5).double()
        rewards = torch.stack([correct, useful, copy, safe], 1)
        normalised = (rewards - rewards.mean(0)) / rewards.std(0)
        state, _ = next_weights(state, normalised, rewards, [NAN] * 3 + [-0.5], [0, 0, 0, 3.0])
    correct_w, useful_w, copy_w, safe_w = state.weights_K.tolist()
    # About 1, 1/2, 1/2 and 2.5 over their mean of 1.125.
    assert safe_w == pytest.approx(2.5 / 1.125, abs=0.2)
    assert correct_w == pytest.approx(1 / 1.125, abs=0.15)
    assert useful_w == pytest.approx(0.5 / 1.125, abs=0.1)
    assert copy_w == pytest.approx(useful_w, abs=0.05)


def test_advantages_by_hand():
    # z: (1, -2), (0, missing), (-1, 1); with weights 1, 0.5: 0, 0 ("as the start model"), -0.5.
    rewards = [[12.0, 0.0], [10.0, NAN], [8.0, 1.5]]
    values = medalign_advantage(
        rewards, mean=[10, 1], sd=[2, 0.5], clip=5.0, weights=[1, 0.5], groups=[0] * 3, eps=0.0
    )
    expected = grpo_advantage([0.0, 0.0, -0.5], [0] * 3, eps=0.0)
    assert_close(values, expected)
    assert_close(values, [1 / math.sqrt(3), 1 / math.sqrt(3), -2 / math.sqrt(3)])


def test_a_rollout_without_any_reward_that_counts_leaves_the_statistics():
    rewards = [[1.0, 5.0], [3.0, 5.0], [NAN, NAN], [NAN, 9.0]]
    values = medalign_advantage(rewards, [0, 0], [1, 1], 5.0, [1, 0], [0] * 4)
    pair = medalign_advantage([[1.0], [3.0]], [0], [1], 5.0, None, [0] * 2)
    assert_close(values, [*pair.tolist(), 0, 0])


def test_a_constant_group_gets_zero_also_where_only_the_clip_makes_it_so():
    rewards = [[0.1, 7.0]] * 6 + [[100.0, 0.0], [200.0, 0.0]]
    values = medalign_advantage(rewards, [0, 0], [1, 1], 5.0, [0.3, 1.7], [0] * 6 + [1] * 2)
    assert values.tolist() == [0] * 8


@given(tables(columns=2), st.integers(1, 2))
def test_uniform_weights_make_it_grpo_on_normalised_rewards(table, divisor):
    groups = [i % divisor for i in range(len(table))]
    arguments = [1.0, -2.0], [2.0, 3.0]
    normalised = reference_frozen_normalise(table, *arguments, clip=2.0)
    assert_close(
        medalign_advantage(table, *arguments, 2.0, [1.0, 1.0], groups),
        grpo_advantage(normalised, groups),
    )


def test_nothing_carries_a_gradient():
    rewards = ORTHOGONAL.clone().requires_grad_(True)
    stats = fit_reference_stats(rewards)
    state, factors = next_weights(WeightState.initial(3), rewards, rewards, [0.0] * 3, [1.0] * 3)
    values = medalign_advantage(rewards, stats.mean_K, stats.sd_K, 5.0, state.weights_K, [0] * 4)
    found = [stats.mean_K, stats.sd_K, state.weights_K, state.progress_K, values]
    assert not any(tensor.requires_grad for tensor in [*found, *factors.values()])
