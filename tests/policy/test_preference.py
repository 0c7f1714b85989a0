import math

import pytest
import torch
from hypothesis import given, strategies as st
from policy_cases import f64

from burnish.errors import ArgumentError
from burnish.policy import completion_logp, dpo_loss, ipo_loss

assert_close = torch.testing.assert_close
LOGPS = st.lists(st.floats(-30, -0.01), min_size=4, max_size=4)


def test_dpo_by_hand():
    # h = (-1 + 3) - (-4 + 2) = 4 for the first pair, (-2 + 2) - (-1 + 1) = 0 for the second.
    given = ([-1.0, -2.0], [-4.0, -1.0], [-3.0, -2.0], [-2.0, -1.0])
    losses = dpo_loss(*given, beta=0.5, reduction="none")
    assert_close(losses, f64([math.log1p(math.exp(-2)), math.log(2)]))
    assert_close(dpo_loss(*given, beta=0.5), losses.mean())


def test_label_smoothing_by_hand():
    found = dpo_loss([2.0], [0.0], None, None, beta=1.0, label_smoothing=0.25)
    assert_close(found, f64(0.75 * math.log1p(math.exp(-2)) + 0.25 * math.log1p(math.exp(2))))


def test_ipo_by_hand_and_least_at_its_target():
    assert_close(ipo_loss([2.0], [-1.0], None, None, beta=0.25), f64((3 - 2) ** 2.0))
    assert ipo_loss([2.0], [0.0], None, None, beta=0.25).item() == 0.0


def test_reference_free_is_a_reference_of_equal_log_probs():
    free = dpo_loss([-1.0, -2.0], [-3.0, -1.0], None, None)
    assert_close(free, dpo_loss([-1.0, -2.0], [-3.0, -1.0], [-5.0, -7.0], [-5.0, -7.0]))
    with pytest.raises(ArgumentError, match="ref_chosen_logp: got None"):
        dpo_loss([-1.0], [-3.0], None, [-2.0])


@given(LOGPS, st.floats(0.01, 2.0), st.floats(0, 0.45))
def test_dpo_raises_the_chosen_and_lowers_the_rejected(logps, beta, smoothing):
    chosen, rejected = (f64([value]).requires_grad_() for value in logps[:2])
    dpo_loss(chosen, rejected, logps[2:3], logps[3:], beta).backward()
    assert chosen.grad < 0 < rejected.grad
    assert_close(chosen.grad, -rejected.grad)
    # Smoothed, the loss is least where sigmoid(beta h) = 1 - s: beyond it the signs turn.
    chosen.grad = rejected.grad = None
    dpo_loss(chosen, rejected, logps[2:3], logps[3:], beta, label_smoothing=smoothing).backward()
    margin = beta * (logps[0] - logps[1] - logps[2] + logps[3])
    slope = 1 / (1 + math.exp(-margin)) - (1 - smoothing)
    assert_close(chosen.grad, f64([beta * slope]), atol=1e-12, rtol=1e-6)


@given(LOGPS, st.floats(-20, 20))
def test_a_shift_of_policy_and_reference_changes_nothing(logps, shift):
    one = [f64([value]) for value in logps]
    moved = [one[0] + shift, one[1], one[2] + shift, one[3]]
    assert_close(dpo_loss(*one), dpo_loss(*moved), atol=1e-9, rtol=1e-9)
    assert_close(ipo_loss(*one), ipo_loss(*moved), atol=1e-6, rtol=1e-9)


@given(LOGPS)
def test_labels_turned_round_cost_the_difference(logps):
    # -log sigmoid(x) + log sigmoid(-x) = -x
    here = dpo_loss(*([v] for v in logps), beta=1.0)
    there = dpo_loss([logps[1]], [logps[0]], [logps[3]], [logps[2]], beta=1.0)
    margin = logps[0] - logps[1] - logps[2] + logps[3]
    assert_close(here - there, f64(-margin), atol=1e-9, rtol=1e-9)


def test_completion_log_probs_by_hand():
    logp, mask = f64([[-1.0, -2.0, -3.0], [-4.0, -5.0, 9.0]]), [[1, 1, 1], [1, 1, 0]]
    assert_close(completion_logp(logp, mask), f64([-6.0, -9.0]))
    assert_close(completion_logp(logp, mask, mean=True), f64([-2.0, -4.5]))
    # The pair shares two tokens; the third counts half.
    assert_close(completion_logp(logp, mask, shared=[2, 2], ld_alpha=0.5), f64([-4.5, -9.0]))
    assert_close(completion_logp(logp, mask, shared=[2, 2], ld_alpha=0.0), f64([-3.0, -9.0]))
    assert_close(completion_logp(logp[:, :0], f64([[], []])), f64([0.0, 0.0]))


@given(st.floats(0, 1), st.integers(0, 4))
def test_masked_tokens_get_no_gradient_and_late_ones_their_share(alpha, shared):
    logp = torch.full((1, 5), -1.0, dtype=torch.float64, requires_grad=True)
    mask = [[1, 0, 1, 1, 0]]
    completion_logp(logp, mask, shared=[shared], ld_alpha=alpha).sum().backward()
    weights = [1.0 if count <= shared else alpha for count in (1, 2, 3)]
    assert logp.grad.tolist() == [[weights[0], 0.0, weights[1], weights[2], 0.0]]


@given(st.integers(1, 6), st.integers(1, 6))
def test_means_do_not_see_how_long_a_completion_is(short, long):
    masks = torch.zeros(2, 6)
    masks[0, :short], masks[1, :long] = 1, 1
    logp = torch.full((2, 6), -0.7, dtype=torch.float64)
    means = completion_logp(logp, masks, mean=True)
    assert_close(means[0], means[1])
    # LD-DPO at 0 neither: the first `shared` tokens alone count.
    both = completion_logp(logp, masks, shared=[min(short, long)] * 2, ld_alpha=0.0)
    assert_close(both[0], both[1])
