from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, strategies as st

from burnish.rewards.models import tie_preference_loss

MARGINS = st.lists(st.floats(-50, 50), min_size=1, max_size=6)


def minus_log_sigmoid(margin):
    return math.log1p(math.exp(-margin))


def test_the_loss_by_hand():
    loss = tie_preference_loss([2.0, -1.0], [0.0, -3.0], lam=0.5)
    clear = (minus_log_sigmoid(2.0) + minus_log_sigmoid(-1.0)) / 2
    ties = (math.log(2) + minus_log_sigmoid(-3.0)) / 2
    assert loss.item() == pytest.approx(clear + 0.5 * ties, rel=1e-12)


@given(MARGINS, MARGINS)
def test_the_sign_of_a_tie_does_not_matter_and_zero_is_its_least(clear, ties):
    loss = tie_preference_loss(clear, ties)
    torch.testing.assert_close(tie_preference_loss(clear, [-m for m in ties]), loss)
    assert tie_preference_loss(clear, [0.0] * len(ties)) <= loss
    without = tie_preference_loss(clear, ties, lam=0.0)
    torch.testing.assert_close(without, tie_preference_loss(clear, []))


def test_descent_parts_clear_pairs_and_joins_ties():
    # The printed form, -log sigma(+|m|), would move ties the other way.
    clear = torch.tensor([0.0, 1.0], dtype=torch.float64, requires_grad=True)
    ties = torch.tensor([2.0, -2.0, 0.0], dtype=torch.float64, requires_grad=True)
    tie_preference_loss(clear, ties).backward()
    assert (clear.grad < 0).all()
    assert ties.grad[0] > 0 > ties.grad[1]
    assert ties.grad[2] == 0
    # d/dm of softplus(|m|) is sigma(|m|) sign(m), over three ties.
    assert ties.grad[0].item() == pytest.approx(1 / (1 + math.exp(-2)) / 3, rel=1e-12)


def test_large_margins_and_missing_kinds_stay_finite():
    assert tie_preference_loss([-1e4], [1e4]).item() == pytest.approx(2e4)
    nothing = torch.zeros(0, requires_grad=True)
    ties = torch.tensor([1.0], requires_grad=True)
    loss = tie_preference_loss(nothing, ties)
    loss.backward()
    assert loss.item() == pytest.approx(minus_log_sigmoid(-1.0))
    assert nothing.grad.shape == (0,)
    assert tie_preference_loss([], []).item() == 0
