import math

import pytest
import torch
from hypothesis import given, strategies as st

from burnish.errors import ArgumentError
from burnish.policy import (
    distil_loss,
    ema,
    policy_sensitivity,
    sampled_kl,
    token_forward_kl,
    token_reverse_kl,
)
from burnish.policy.distillation import aggregate

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


def test_the_students_top_tokens_by_hand():
    student, teacher = logs(0.6, 0.3, 0.1), logs(0.2, 0.3, 0.5)
    released = {"top_k": 1, "support": "student-topk"}
    assert_close(token_reverse_kl(student, teacher, **released).item(), 0.6 * math.log(3))
    # Biased, and below 0 where the teacher likes the student's first token better.
    assert token_reverse_kl(student, logs(0.9, 0.05, 0.05), **released).item() < 0
    both = 0.6 * math.log(3) + 0.1 * math.log(0.1 / 0.5)
    union = token_reverse_kl(student, teacher, top_k=1, support="union-topk")
    assert_close(union.item(), both)


@given(seed=st.integers(0, 10**6), support=st.sampled_from(["student-topk", "union-topk"]))
def test_supports_without_a_bucket(seed, support):
    student, teacher = draw(seed, 3), draw(seed + 1, 3)
    full = token_reverse_kl(student, teacher)
    for k in (0, SIZE, SIZE + 1):
        assert_close(token_reverse_kl(student, teacher, top_k=k, support=support), full)
    alike = token_reverse_kl(student, teacher, top_k=1, support="student-topk", renormalise=True)
    assert (alike.abs() < 1e-12).all()
    again = token_reverse_kl(student, teacher, top_k=3, support=support, renormalise=True)
    assert (again > -1e-12).all()
    assert_close(
        token_reverse_kl(student, teacher + 7, top_k=3, support=support, renormalise=True), again
    )


@pytest.mark.parametrize("support", ["tail", "student-topk", "union-topk"])
@pytest.mark.parametrize("renormalise", [False, True])
def test_gradients_of_every_support_agree_with_differences(support, renormalise):
    student, teacher = draw(5, 2).requires_grad_(), draw(6, 2)

    def value(logits):
        return token_reverse_kl(
            logits, teacher, top_k=3, support=support, renormalise=renormalise
        ).sum()

    assert torch.autograd.gradcheck(value, student)


def test_a_clipped_token_counts_its_limit_and_has_no_gradient():
    student, teacher = draw(1, 2).requires_grad_(), draw(2, 2)
    full = token_reverse_kl(student, teacher).detach()
    limit = full.mean().item()
    found = token_reverse_kl(student, teacher, kl_clip=limit)
    assert_close(found.detach(), full.clamp(max=limit))
    found.sum().backward()
    assert ((student.grad.abs().sum(-1) > 0) == (full < limit)).all()
    with pytest.raises(ArgumentError, match="kl_clip"):
        token_reverse_kl(student, teacher, kl_clip=0.0)


@given(seed=st.integers(0, 10**6), pad=st.integers(0, 3))
def test_the_token_mean_knows_neither_padding_nor_micro_batches(seed, pad):
    rng = torch.Generator().manual_seed(seed)
    losses = torch.rand(4, 5, generator=rng, dtype=torch.float64)
    mask = torch.rand(4, 5, generator=rng) < 0.6
    whole = aggregate(losses, mask)
    by_hand = losses[mask].sum() / max(int(mask.sum()), 1)
    assert_close(whole, by_hand)
    wide = torch.nn.functional.pad(losses, (0, pad), value=99.0)
    assert_close(aggregate(wide, torch.nn.functional.pad(mask, (0, pad))), whole)
    # Weighted by tokens; parts of three rows and of one would differ by rows.
    parts = [aggregate(losses[i:j], mask[i:j], tokens=mask.sum()) for i, j in ((0, 3), (3, 4))]
    assert_close(sum(parts), whole)
    assert aggregate(losses, 0 * mask).item() == 0.0


def test_the_average_of_weights():
    teacher = {"w": torch.tensor([1.0, 2.0]), "seen": torch.tensor(3), "scale": torch.ones(1)}
    student = {"w": torch.tensor([3.0, 0.1]), "seen": torch.tensor(9), "scale": torch.zeros(1)}
    kept, taken = ema(teacher, student, 1.0), ema(teacher, student, 0.0)
    assert torch.equal(kept["w"], teacher["w"])
    assert torch.equal(taken["w"], student["w"])
    half = ema(teacher, student, 0.5, buffers=["scale"])
    assert_close(half["w"], torch.tensor([2.0, 1.05]))
    assert (half["seen"].item(), half["scale"].item()) == (9, 0.0)
    assert ema(2.0, 4.0, 0.25).item() == 3.5
    for wrong, match in [({"w": [1.0]}, "other names"), ({**student, "w": torch.ones(3)}, "shape")]:
        with pytest.raises(ArgumentError, match=match):
            ema(teacher, wrong, 0.9)
    with pytest.raises(ArgumentError, match="nan"):
        ema({"w": [math.nan]}, {"w": [1.0]}, 0.9)


def test_sensitivity_is_the_mean_or_the_first_divergence_of_a_response():
    student, teacher = draw(1, 3, 4), draw(2, 3, 4)
    mask = torch.tensor([[0, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 1]])
    kl = token_reverse_kl(student, teacher)
    found = policy_sensitivity(student, teacher, mask)
    assert_close(found, torch.stack([kl[0, 1:3].mean(), kl[1].mean(), kl[2, 3]]))
    first = policy_sensitivity(student, teacher, mask, score="first-token")
    assert_close(first, torch.stack([kl[0, 1], kl[1, 0], kl[2, 3]]))
    assert_close(policy_sensitivity(student[0], teacher[0], mask[0]), found[0])
    for score in ("kl", "first-token"):
        mask[1] = 0  # nothing was written: no score
        with pytest.raises(ArgumentError, match=r"row 1 has no token.*leave the row out"):
            policy_sensitivity(student, teacher, mask, score=score)


def test_a_bigram_model_shows_a_shift_by_one():
    """The logits at a token predict the next one; read one place late they are another bigram's."""
    table, other = draw(1, SIZE), draw(2, SIZE)
    prompt, answer = [0, 1], [2, 3, 5]
    ids = torch.tensor(prompt + answer)
    predicts = slice(len(prompt) - 1, len(ids) - 1)
    right = policy_sensitivity(table[ids][predicts], other[ids][predicts], [1, 1, 1])
    p = table[ids[predicts]].log_softmax(-1)
    expected = (p.exp() * (p - other[ids[predicts]].log_softmax(-1))).sum(-1).mean()
    assert_close(right, expected)
    late = slice(len(prompt), len(ids))
    shifted = policy_sensitivity(table[ids][predicts], other[ids][late], [1, 1, 1])
    assert abs(shifted - right) > 0.1
    # Where both bigrams agree on the answer's tokens nothing is to be learned.
    same = table.clone()
    same[5] = other[5]  # after the last token of the answer
    assert policy_sensitivity(table[ids][predicts], same[ids][predicts], [1, 1, 1]).item() == 0.0
    assert policy_sensitivity(table[ids][late], same[ids][late], [1, 1, 1]).item() > 0.1


def test_a_one_hot_teacher_makes_it_sft():
    student = draw(9, 2).requires_grad_()
    labels = torch.tensor([2, 5])
    teacher = torch.full((2, SIZE), -torch.inf, dtype=torch.float64)
    teacher[torch.arange(2), labels] = 0.0
    found = token_forward_kl(student, teacher)
    assert_close(found, -student.log_softmax(-1)[torch.arange(2), labels])
