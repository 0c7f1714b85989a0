"""Divergences to a teacher: worked numbers, closed-form gradients, bounds of the tail bucket."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from burnish.errors import ArgumentError
from burnish.policy import distil_loss, sampled_kl, token_forward_kl, token_reverse_kl

assert_close = torch.testing.assert_close
BOTH = pytest.mark.parametrize("kl", [token_reverse_kl, token_forward_kl])
SIZE = 7


def draw(seed, *shape, scale=3.0):
    rng = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*shape, SIZE, generator=rng, dtype=torch.float64)


def logs(*shares):
    return torch.tensor(shares, dtype=torch.float64).log()


def test_both_directions_by_hand():
    student, teacher = logs(0.5, 0.25, 0.25), logs(0.25, 0.25, 0.5)
    expected = 0.5 * math.log(2) - 0.25 * math.log(2)
    assert_close(token_reverse_kl(student, teacher), torch.tensor(expected, dtype=torch.float64))
    student = logs(0.5, 0.5, 1e-30)
    forward = 0.25 * math.log(0.25 / 0.5) * 2 + 0.5 * math.log(0.5 / 1e-30)
    assert_close(token_forward_kl(student, teacher).item(), forward)


def test_the_tail_bucket_by_hand():
    student, teacher = logs(0.6, 0.3, 0.1), logs(0.2, 0.3, 0.5)
    expected = 0.6 * math.log(0.6 / 0.2) + 0.4 * math.log(0.4 / 0.8)
    assert_close(token_reverse_kl(student, teacher, top_k=1).item(), expected)
    # The teacher's likeliest token is another one.
    expected = 0.5 * math.log(0.5 / 0.1) + 0.5 * math.log(0.5 / 0.9)
    assert_close(token_forward_kl(student, teacher, top_k=1).item(), expected)


@BOTH
@given(seed=st.integers(0, 10**6))
def test_the_bucket_bounds_rise_to_the_full_divergence(kl, seed):
    student, teacher = draw(seed, 4), draw(seed + 1, 4)
    full = kl(student, teacher)
    before = torch.zeros(4, dtype=torch.float64)
    for k in range(1, SIZE + 1):
        found = kl(student, teacher, top_k=k)
        assert (found >= before - 1e-12).all()
        before = found
    assert_close(before, full)
    assert_close(kl(student, teacher, top_k=SIZE - 1), full)  # a bucket of one token
    assert_close(kl(student, teacher, top_k=SIZE + 5), full)


@BOTH
@given(seed=st.integers(0, 10**6), shift=st.floats(-50, 50), k=st.integers(0, SIZE))
def test_a_constant_in_the_logits_and_the_order_of_tokens_change_nothing(kl, seed, shift, k):
    student, teacher = draw(seed, 2), draw(seed + 1, 2)
    found = kl(student, teacher, top_k=k)
    assert_close(kl(student + shift, teacher - shift, top_k=k), found)
    order = torch.randperm(SIZE, generator=torch.Generator().manual_seed(seed))
    assert_close(kl(student[:, order], teacher[:, order], top_k=k), found)
    assert (kl(student, student, top_k=k).abs() < 1e-12).all()


@BOTH
def test_temperature_divides_both_logits(kl):
    student, teacher = draw(1, 3), draw(2, 3)
    assert_close(kl(student, teacher, temperature=2.0), kl(student / 2, teacher / 2))


@given(seed=st.integers(0, 10**6))
def test_gradients_are_the_closed_forms_and_the_teacher_gets_none(seed):
    student = draw(seed).requires_grad_()
    teacher = draw(seed + 1).requires_grad_()
    value = token_reverse_kl(student, teacher)
    value.backward()
    p, log_p, log_q = student.softmax(-1), student.log_softmax(-1), teacher.log_softmax(-1)
    assert_close(student.grad, (p * (log_p - log_q - value)).detach())
    student.grad = None
    token_forward_kl(student, teacher).backward()
    assert_close(student.grad, (p - teacher.softmax(-1)).detach())
    assert teacher.grad is None


@given(seed=st.integers(0, 10**6))
def test_sampled_is_the_reverse_divergence_in_expectation(seed):
    student, teacher = draw(seed, scale=1.5).requires_grad_(), draw(seed + 1, scale=1.5)
    log_p = student.log_softmax(-1)
    # The mean over all tokens a student may sample, each with its probability.
    estimate = sampled_kl(log_p, teacher.log_softmax(-1))
    expected = (log_p.exp().detach() * estimate).sum()
    expected.backward()
    sampled, student.grad = student.grad, None
    full = token_reverse_kl(student, teacher)
    full.backward()
    assert_close(expected.detach(), full.detach())
    assert_close(sampled, student.grad)


@pytest.mark.parametrize("divergence", ["reverse", "forward"])
def test_masked_tokens_get_no_gradient_and_parts_add_up(divergence):
    student, teacher = draw(3, 2, 4).requires_grad_(), draw(4, 2, 4)
    mask = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 1]])
    loss = distil_loss(student, teacher, mask, divergence, top_k=3)
    loss.backward()
    has_gradient = student.grad.abs().sum(-1) > 0
    assert has_gradient.tolist() == (mask == 1).tolist()
    halves = [
        distil_loss(student[i], teacher[i], mask[i], divergence, top_k=3, tokens=4) for i in (0, 1)
    ]
    assert_close(sum(halves), loss)
    assert distil_loss(student, teacher, 0 * mask, divergence).item() == 0.0


def test_a_token_that_the_teacher_forbids_stays_finite():
    student, teacher = logs(0.5, 0.5, 1e-9), logs(1.0, 0.0, 0.0)
    expected = 0.5 * math.log(0.5) + 0.5 * (math.log(0.5) + 100)
    assert_close(token_reverse_kl(student, teacher).item(), expected, atol=1e-6, rtol=0.0)
    assert token_forward_kl(student, teacher).item() == pytest.approx(math.log(2), abs=1e-6)
    with pytest.raises(ArgumentError, match="teacher_logits"):
        token_reverse_kl(student, logs(0.0, 0.0, 0.0))
