import math

import pytest
import torch
from hypothesis import given, strategies as st

from burnish.policy import SFT, BalanceState, PolicyState, adapted_coefficient, gradient_overlap

POSITIVE = st.floats(1e-3, 1e3)


def test_worked_numbers():
    # exp(0.5 * (3 - 2) / 2) = exp(0.25) = 1.2840254...
    assert adapted_coefficient(0.4, 3.0, 2.0, 0.5, 0.1, 4.0) == pytest.approx(0.51361017)
    # exp(0.5 * (1 - 2) / 2) = exp(-0.25) = 0.7788008...
    assert adapted_coefficient(0.4, 1.0, 2.0, 0.5, 0.1, 4.0) == pytest.approx(0.31152031)
    assert adapted_coefficient(0.4, 2.0, 2.0, 0.5, 0.1, 4.0) == 0.4
    # exp(2 * (8 - 2) / 2) = exp(6) = 403.4, cut; exp(2 * (0 - 2) / 2) = exp(-2), 0.054, cut.
    assert adapted_coefficient(0.4, 8.0, 2.0, 2.0, 0.1, 4.0) == 4.0
    assert adapted_coefficient(0.4, 0.0, 2.0, 2.0, 0.1, 4.0) == 0.1


@pytest.mark.parametrize("nll", [None, math.nan, math.inf, -math.inf])
def test_without_a_measurement_it_stays(nll):
    assert adapted_coefficient.plain(0.4, nll, 2.0, 0.5, 0.1, 4.0) == 0.4


def test_a_huge_nll_goes_to_the_bound_and_does_not_overflow():
    assert adapted_coefficient(0.4, 1e99, 1e-99, 1.0, 0.1, 4.0) == 4.0


@given(POSITIVE, POSITIVE, POSITIVE, st.floats(0, 10), POSITIVE, POSITIVE)
def test_it_moves_towards_the_target_and_never_leaves_its_bounds(
    coefficient, nll, target, rate, one, other
):
    low, high = min(one, other, coefficient), max(one, other, coefficient)
    found = adapted_coefficient(coefficient, nll, target, rate, low, high)
    assert low <= found <= high
    if nll > target:
        assert found >= coefficient
    if nll < target:
        assert found <= coefficient
    assert adapted_coefficient(coefficient, nll, target, 0.0, low, high) == coefficient


def test_it_holds_a_model_of_forgetting_at_the_target():
    """NLL drifts up by 0.05 a step and imitation takes 0.2 of its weighted self: rest at 0.25."""
    nll, weight = 1.0, 0.1
    for _ in range(400):
        weight = adapted_coefficient(weight, nll, 1.0, 0.5, 0.01, 10.0)
        nll += 0.05 - 0.2 * weight * nll
    assert nll == pytest.approx(1.0, abs=0.02)
    assert weight == pytest.approx(0.25, abs=0.01)


def test_the_piece_has_bounds_of_its_own_unless_given():
    assert SFT(0.4, schedule="adaptive").bounds == (0.1, 4.0)
    assert SFT(0.4, schedule="adaptive", low=0.0, high=1.0).bounds == (0.0, 1.0)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"low": 0.5}, "low: got 0.5"),
        ({"high": 0.2}, "expected at most high, 0.2"),
        ({"coefficient": 0.0, "high": 1.0}, "coefficient: got"),
        ({"schedule": "constant", "target": 2.0}, "'constant' does not read target; set it to"),
        (
            {"schedule": "adaptive", "final_ratio": 0.5},
            "does not read final_ratio; set it to 'linear'",
        ),
        ({"schedule": "constant", "rate": 0.0, "held_out": 8}, "does not read rate, held_out; set"),
    ],
)
def test_a_piece_without_sense_is_refused(change, line):
    with pytest.raises(ValueError, match=line) as caught:
        SFT(**{"coefficient": 0.4, "schedule": "adaptive", **change})
    assert "\n" not in str(caught.value)


def test_the_state_comes_back_bit_for_bit():
    state = PolicyState(steps=3, balance=BalanceState(0.1 + 0.2, 1 / 3, 7))
    assert PolicyState.from_tensors(state.tensors()) == state
    assert PolicyState.from_tensors(PolicyState().tensors()).balance is None


def test_norms_and_cosine_over_all_parameters():
    first = [torch.tensor([3.0, 0.0]), torch.tensor([[4.0]])]
    second = [torch.tensor([0.0, 2.0]), torch.tensor([[1.5]])]
    # Norms 5 and 2.5; the dot product is 4 * 1.5 = 6, and 6 / 12.5 = 0.48.
    assert gradient_overlap(first, second) == (5.0, 2.5, 0.48)
    assert gradient_overlap(first, [-3 * t for t in first]) == (5.0, 15.0, -1.0)


def test_a_gradient_of_zero_has_no_direction():
    one, none = [torch.tensor([3.0, 4.0])], [torch.zeros(2)]
    assert gradient_overlap(one, none) == (5.0, 0.0, None)
    assert gradient_overlap(none, one) == (0.0, 5.0, None)
    assert gradient_overlap([], []) == (0.0, 0.0, None)


def test_sums_are_in_double_precision():
    large = [torch.full((1000,), 1e25, dtype=torch.float32)]
    found = gradient_overlap(large, large)
    assert found.first_norm == pytest.approx(1e25 * math.sqrt(1000), rel=1e-6)
    assert found.cosine == pytest.approx(1.0)
    one, tiny = torch.ones(1).double(), torch.tensor([6.085e-162], dtype=torch.float64)
    assert gradient_overlap([tiny], [one]).cosine is None
    assert gradient_overlap([tiny * 1e30], [one]).cosine == pytest.approx(1.0)


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=6), st.integers(0, 99), POSITIVE)
def test_the_cosine_knows_no_scale(numbers, seed, scale):
    first = [torch.tensor(numbers, dtype=torch.float64)]
    second = [torch.randn(len(numbers), generator=torch.Generator().manual_seed(seed)).double()]
    found = gradient_overlap(first, second)
    again = gradient_overlap(first, [scale * t for t in second])
    turned = gradient_overlap(second, first)
    if found.cosine is None:
        assert again.cosine is turned.cosine is None
        return
    assert -1 - 1e-9 <= found.cosine <= 1 + 1e-9
    assert again.cosine == pytest.approx(found.cosine, abs=1e-9)
    assert turned == (found.second_norm, found.first_norm, pytest.approx(found.cosine, abs=1e-9))
