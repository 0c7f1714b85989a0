"""Bradley-Terry: worked numbers, properties, calibration, and what a card says of scores."""

from __future__ import annotations

import math

import msgspec
import pytest
import torch
from hypothesis import given, strategies as st

from burnish.rewards.models import bradley_terry_loss, centring_loss
from burnish.rewards.models.card import (
    RewardModelCard,
    ScoredPair,
    calibrate,
    read_card,
    write_card,
)

scores = st.lists(st.floats(-20, 20), min_size=1, max_size=8)


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def test_worked_numbers():
    assert bradley_terry_loss([0.0], [0.0]).item() == pytest.approx(math.log(2))
    assert bradley_terry_loss([2.0], [1.0]).item() == pytest.approx(-math.log(sigmoid(1)))
    # Llama 2's margin: the difference counts from 0.5 on.
    with_margin = bradley_terry_loss([2.0], [1.0], margin=0.5).item()
    assert with_margin == pytest.approx(-math.log(sigmoid(0.5)))
    # A tie is half a label each way.
    half = bradley_terry_loss([2.0], [1.0], target=0.5).item()
    assert half == pytest.approx(-0.5 * math.log(sigmoid(1)) - 0.5 * math.log(sigmoid(-1)))
    each = bradley_terry_loss([2.0, 0.0], [1.0, 3.0], reduction="none").tolist()
    assert each == pytest.approx([0.3132617, 3.0485874])
    assert centring_loss([1.0, 2.0], [0.5, -2.0]).item() == pytest.approx(1.125)


def test_it_does_not_overflow():
    assert bradley_terry_loss([-1e4], [1e4]).item() == pytest.approx(2e4)
    assert bradley_terry_loss([1e4], [-1e4]).item() == 0.0


@given(scores, st.floats(-5, 5), st.floats(0, 1))
def test_only_differences_count_and_swapping_swaps_the_target(chosen, shift, target):
    rejected = [value / 2 - 1 for value in chosen]
    loss = bradley_terry_loss(chosen, rejected, target=target)
    moved = bradley_terry_loss(
        [value + shift for value in chosen], [value + shift for value in rejected], target=target
    )
    swapped = bradley_terry_loss(rejected, chosen, target=1 - target)
    assert float(loss) == pytest.approx(float(moved), abs=1e-9)
    assert float(loss) == pytest.approx(float(swapped), abs=1e-9)


@given(scores)
def test_a_tie_is_least_at_equal_scores(chosen):
    rejected = [value + 1 for value in chosen]
    apart = bradley_terry_loss(chosen, rejected, target=0.5)
    assert float(apart) > float(bradley_terry_loss(chosen, chosen, target=0.5))


def test_the_gradient_is_the_probability_of_being_wrong():
    chosen = torch.tensor([1.0, -0.5], dtype=torch.float64, requires_grad=True)
    rejected = torch.tensor([0.0, 0.5], dtype=torch.float64, requires_grad=True)
    bradley_terry_loss(chosen, rejected, reduction="sum").backward()
    wrong = torch.sigmoid(rejected - chosen).detach()
    torch.testing.assert_close(chosen.grad, -wrong)
    torch.testing.assert_close(rejected.grad, wrong)


def test_calibration_by_hand():
    sure = math.log(17 / 3)  # sigma = 0.85
    found = calibrate([sure, sure, 0.0, 0.1], [0.0, 0.0, sure, 0.1], bins=5)
    assert found.pairs == 4
    assert [cell.count for cell in found.bins] == [1, 0, 0, 3, 0]
    first, full = found.bins[0], found.bins[3]
    assert (full.low, full.high) == pytest.approx((0.8, 0.9))
    assert full.predicted == pytest.approx(0.85)
    assert full.right == pytest.approx(2 / 3)
    assert (first.count, first.predicted, first.right) == (1, 0.5, 0.5)
    assert found.ece == pytest.approx(3 / 4 * (0.85 - 2 / 3))


@given(st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9)), min_size=1, max_size=30))
def test_calibration_counts_every_pair_once(pairs):
    found = calibrate([a for a, _ in pairs], [b for _, b in pairs])
    assert sum(cell.count for cell in found.bins) == len(pairs)
    assert 0 <= found.ece <= 1
    for cell in found.bins:
        assert cell.predicted is None or cell.low - 1e-9 <= cell.predicted <= cell.high + 1e-9


def test_a_card_comes_back_and_knows_positions(tmp_path):
    pairs = [ScoredPair(float(k), -float(k), "x" * 2 * (k + 1), "x" * (k + 1)) for k in range(1, 6)]
    card = RewardModelCard.of(pairs, step=3, max_tokens=64, accuracy=(1.0, 0.6, 1.0))
    write_card(tmp_path, card)
    assert read_card(tmp_path) == card
    assert read_card(tmp_path / "none") is None
    assert (card.percentile(-9.0), card.percentile(9.0)) == (0.0, 100.0)
    assert card.percentile(0.0) == pytest.approx(50.0)
    tied = msgspec.structs.replace(card, percentiles=(*range(10), *[10.0] * 80, *range(11, 22)))
    assert tied.percentile(10.0) == 10.0, "a tenth is lower, most are equal"
    assert tied.percentile(9.5) == 9.5
    assert tied.percentile(10.5) == 89.5
    # Twice the text on the better side: the slope is the mean margin.
    assert card.length_slope == pytest.approx(sum(2 * k for k in range(1, 6)) / 5)
    same = [ScoredPair(1.0, 0.0, "ab", "cd")]
    assert RewardModelCard.of(same, step=0, max_tokens=0, accuracy=(1, 0, 1)).length_slope is None
