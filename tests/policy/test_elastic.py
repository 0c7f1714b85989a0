import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from policy_cases import f64

from burnish.policy import policy_loss, policy_loss_gradient
from burnish.policy.elastic import elastic_bounds, group_variance, mean_elastic_budget
from burnish.policy.grpo import grpo_advantage

NAN = math.nan
SIZES = st.floats(-20, 20)


def test_bounds_by_hand():
    # k = 1 + 0.5 (min(|A|, 3) - 1): 1/2, 1, 1.25, 2, 2 (capped), and 1 for a missing advantage.
    low, high = elastic_bounds([0.0, -1.0, 1.5, 3.0, -7.9, NAN], 0.2, 0.28)
    torch.testing.assert_close(low, f64([0.1, 0.2, 0.25, 0.4, 0.4, 0.2]))
    torch.testing.assert_close(high, f64([0.14, 0.28, 0.35, 0.56, 0.56, 0.28]))


def test_a_center_of_zero_only_widens():
    low, _ = elastic_bounds([0.0, 0.5, 2.0], center=0.0)
    torch.testing.assert_close(low, f64([0.2, 0.25, 0.4]))


def test_floor_and_ceilings():
    # strength * center = 2 makes k = -1 at A = 0; k = 5 at A = 3 asks for bounds of 1.0.
    low, high = elastic_bounds([0.0, 3.0], strength=2.0, max_eps_low=0.7)
    assert low.tolist() == [0.05, 0.7]
    assert high.tolist() == [0.05, 0.8]


def test_the_macro_factor_by_hand():
    # |A| = 1, so that k is the macro factor: 1 + 0.5 (2 v - 1), and 1 where v is missing.
    _, high = elastic_bounds(
        [1.0, -1.0, 1.0, 1.0], macro_strength=0.5, group_variance=[0.0, 0.5, 1.0, NAN]
    )
    torch.testing.assert_close(high, f64([0.1, 0.2, 0.3, 0.2]))


def test_bounds_of_tokens_follow_their_own_advantages():
    values = f64([[0.0, 1.0], [3.0, -2.0]])
    low, high = elastic_bounds(values, macro_strength=0.5, group_variance=[1.0, 0.0])
    torch.testing.assert_close(low, f64([[0.15, 0.3], [0.2, 0.15]]))
    assert torch.equal(low, high)
    whole, _ = elastic_bounds(values, macro_strength=0.5, group_variance=[[1.0, 1.0], [0.0, 0.0]])
    assert torch.equal(whole, low)


def test_bounds_of_sequence_ratios_with_limits_of_their_size():
    low, _ = elastic_bounds([0.0, 1.0, 3.0], 3e-4, 4e-4, min_eps=0.75e-4, max_eps_low=1.2e-3)
    torch.testing.assert_close(low, f64([1.5e-4, 3e-4, 6e-4]))


@given(st.floats(0, 4), st.floats(0, 2), st.floats(0.05, 0.8))
def test_an_advantage_at_the_center_has_static_bounds(strength, center, eps):
    low, high = elastic_bounds([center, -center], eps, eps, strength, center)
    assert low.tolist() == high.tolist() == [eps, eps]


@given(st.lists(SIZES, min_size=2, max_size=8), st.floats(0, 5), st.floats(0, 3), st.floats(0, 1))
def test_bounds_are_monotone_symmetric_and_within_their_limits(values, strength, center, macro):
    variance = [0.3] * len(values)
    low, high = elastic_bounds(values, 0.2, 0.28, strength, center, 3.0, macro, variance)
    mirrored, _ = elastic_bounds(
        [-v for v in values], 0.2, 0.28, strength, center, 3.0, macro, variance
    )
    assert torch.equal(low, mirrored)
    if strength or macro:
        assert ((low >= 0.05) & (low <= 0.8) & (high >= 0.05) & (high <= 0.8)).all()
    order = f64(values).abs().argsort()
    assert (low[order].diff() >= 0).all()
    assert (high[order].diff() >= 0).all()


def test_bounds_carry_no_gradient():
    values = f64([1.0, -2.0]).requires_grad_(True)
    low, high = elastic_bounds(values)
    assert not low.requires_grad
    assert not high.requires_grad


def test_group_variance_by_hand():
    # Pass rates 1/4, 1/2, 1 and a group of one: 4 p (1 - p); a missing reward leaves its group.
    rewards = [1, 0, 0, 0, 1, 0, NAN, 1, 1, 1]
    groups = [0, 0, 0, 0, 1, 1, 1, 2, 2, 3]
    expected = [0.75] * 4 + [1.0] * 3 + [0.0] * 3
    torch.testing.assert_close(group_variance(rewards, groups, 0, 1), f64(expected))


def test_group_variance_takes_the_range_into_account_and_stops_at_one():
    # -3, 0, 3: population variance 6; range 6: 4 * 6 / 36.
    torch.testing.assert_close(group_variance([-3, 0, 3], [0] * 3, -3, 3), f64([2 / 3] * 3))
    assert group_variance([-9, 9], [0, 0], 0, 1).tolist() == [1, 1]
    assert group_variance([0.1] * 7, [0] * 7, 0, 1).tolist() == [0] * 7


@pytest.mark.parametrize("wins", range(1, 16))
@pytest.mark.parametrize(("strength", "center"), [(0.5, 1.0), (1.0, 1.0), (0.7, 0.0), (3.0, 2.0)])
def test_the_mean_bound_of_a_group_is_widest_at_one_half(wins, strength, center):
    p = wins / 16
    rewards = [1.0] * wins + [0.0] * (16 - wins)
    budget = mean_elastic_budget(rewards, 0.2, strength, center, ddof=0).item()
    expected = 0.2 * (1 + strength * (2 * math.sqrt(p * (1 - p)) - center))
    assert budget == pytest.approx(expected, rel=1e-12)
    half = mean_elastic_budget([1.0, 0.0] * 8, 0.2, strength, center, ddof=0).item()
    assert budget <= half + 1e-15


def test_the_mean_bound_is_that_of_the_bounds_themselves():
    rewards = [1.0, 0.0, 0.0, NAN, 0.5]
    values = grpo_advantage([1.0, 0.0, 0.0, 0.5], [0] * 4, eps=0.0, ddof=1)
    low, _ = elastic_bounds(values, adv_cap=None, min_eps=0.0)
    torch.testing.assert_close(mean_elastic_budget(rewards, ddof=1), low.mean())
    # A constant group has A = 0: 0.2 (1 - 0.5).
    assert mean_elastic_budget([0.1] * 6).item() == pytest.approx(0.1)


def test_the_macro_term_is_recoverable_from_the_advantages_of_binary_rewards():
    rewards, groups = [1.0] * 3 + [0.0] * 13, [0] * 16
    square = grpo_advantage(rewards, groups, eps=0.0, ddof=0).square()
    torch.testing.assert_close(
        4 * square / (1 + square) ** 2, group_variance(rewards, groups, 0, 1)
    )


@pytest.mark.parametrize("level", ["token", "sequence"])
@settings(max_examples=40)
@given(st.floats(0, 4), st.integers(0, 99))
def test_before_the_policy_moves_every_strength_is_grpo(level, strength, seed):
    draw = torch.Generator().manual_seed(seed)
    logp = torch.randn(4, 3, generator=draw, dtype=torch.float64) - 2
    values, mask = f64([1.7, -0.6, -0.6, 0.1]), torch.ones(4, 3)
    low, high = elastic_bounds(values, strength=strength)
    static = policy_loss(logp, logp, values, mask, level)["loss"]
    elastic = policy_loss(logp, logp, values, mask, level, low, high)["loss"]
    assert torch.equal(static, elastic)
    assert torch.equal(
        policy_loss_gradient(logp, logp, values, mask, level),
        policy_loss_gradient(logp, logp, values, mask, level, low, high),
    )


def moved(values, ratio, **options):
    """The loss after every token's ratio became `ratio`, and its gradient."""
    rows = len(values)
    old = torch.full((rows, 1), -2.0, dtype=torch.float64)
    logp = old + torch.as_tensor(ratio, dtype=torch.float64).reshape(-1, 1).log()
    low, high = elastic_bounds(values, **options)
    arguments = logp, old, f64(values), torch.ones(rows, 1), "token", low, high
    return policy_loss(*arguments), policy_loss_gradient(*arguments)


def test_after_the_policy_moved_strong_signals_go_on_and_weak_ones_stop():
    # Bounds 0.4 for |A| = 3 and 0.11 for |A| = 0.1: at a ratio of 1.15 the static 0.2 clips neither.
    elastic, gradient = moved([3.0, 0.1], 1.15, strength=0.5)
    static, static_gradient = moved([3.0, 0.1], 1.15, strength=0.0)
    assert elastic["clip_fraction"] == 0.5
    assert static["clip_fraction"] == 0
    assert gradient[0] == static_gradient[0] != 0
    assert gradient[1] == 0 != static_gradient[1]
    # At 1.3 the static interval clips both, the elastic one only the weak signal.
    elastic, gradient = moved([3.0, 0.1], 1.3, strength=0.5)
    static, static_gradient = moved([3.0, 0.1], 1.3, strength=0.0)
    assert (elastic["clip_fraction"], static["clip_fraction"]) == (0.5, 1.0)
    assert gradient[0] != 0
    assert static_gradient.tolist() == [[0], [0]]


def test_only_the_bound_on_the_side_of_the_advantage_binds():
    # Low bounds 0.4 and 0.11; A < 0 is clipped where the ratio falls below 1 - low.
    down, gradient = moved([-3.0, -0.1], 0.75, strength=0.5)
    assert down["clip_low_fraction"] == 0.5
    assert gradient[0] != 0
    assert gradient[1] == 0
    assert moved([-3.0, -0.1], 1.9, strength=0.5)[0]["clip_fraction"] == 0


def test_clipped_share_falls_with_strength_above_the_center_and_rises_below():
    ratios = torch.linspace(1.01, 1.6, 60, dtype=torch.float64)
    shares = {
        size: [
            moved([size] * 60, ratios, strength=s)[0]["clip_fraction"].item()
            for s in (0.0, 0.25, 0.5, 1.0)
        ]
        for size in (2.5, 0.3)
    }
    assert shares[2.5] == sorted(shares[2.5], reverse=True)
    assert shares[2.5][-1] < shares[2.5][0]
    assert shares[0.3] == sorted(shares[0.3])
    assert shares[0.3][-1] > shares[0.3][0]


@settings(max_examples=40)
@given(st.lists(st.floats(-3, 3), min_size=4, max_size=4), st.integers(0, 99))
def test_no_strength_is_the_static_loss_bit_for_bit(values, seed):
    draw = torch.Generator().manual_seed(seed)
    old, logp = torch.randn(2, 4, 3, generator=draw) - 2
    low, high = elastic_bounds(values, strength=0.0)
    arguments = logp, old, f64(values), torch.ones(4, 3), "token"
    assert torch.equal(policy_loss(*arguments)["loss"], policy_loss(*arguments, low, high)["loss"])
    assert torch.equal(
        policy_loss_gradient(*arguments), policy_loss_gradient(*arguments, low, high)
    )


@given(st.lists(st.one_of(SIZES, st.just(NAN)), max_size=6), st.floats(0, 0.99), st.floats(0, 3))
def test_no_strength_is_the_static_interval_exactly(values, eps_low, eps_high):
    low, high = elastic_bounds(values, eps_low, eps_high, strength=0.0)
    assert low.tolist() == [eps_low] * len(values)
    assert high.tolist() == [eps_high] * len(values)
