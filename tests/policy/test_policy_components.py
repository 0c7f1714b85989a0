import math

import pytest
import torch
from hypothesis import given, strategies as st
from policy_cases import f64

from burnish.policy import (
    KL,
    Normaliser,
    aggregate_loss,
    batch_whiten,
    clipped_surrogate,
    informative_groups,
    kl_penalty,
    log_ratio,
    normaliser_of,
    overlong_penalty,
    static_bounds,
    token_entropy,
)

MODES = ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]


def test_overlong_penalty_by_hand():
    # Limit 20, buffer 4: free up to 16, half way down at 18, -1 from 20 on.
    lengths = [0, 16, 17, 18, 20, 21, 500]
    assert overlong_penalty(lengths, 20, 4).tolist() == [0, 0, -0.25, -0.5, -1, -1, -1]


def test_informative_groups_by_hand():
    keep = informative_groups([0.0, 0.5, 0.0, 0.0, -0.0, 1e-12], ["a", "a", "b", "b", "c", "d"])
    assert keep.tolist() == [True, True, False, False, False, True]


def test_whiten_by_hand_over_rollouts_and_tokens():
    # Values 0, 2, 4: mean 2, sample variance 4.
    close = torch.testing.assert_close
    close(batch_whiten([0.0, 2.0, 4.0], scope="rollout", eps=0.0), f64([-1, 0, 1]))
    # Over tokens 0, 4, 4, 4: mean 3, sample variance 4.
    close(batch_whiten([0.0, 4.0], [1, 3], eps=0.0), f64([-1.5, 0.5]))
    close(batch_whiten([0.0, 4.0], [1, 3], shift=False, eps=0.0), f64([0, 2]))


def test_whiten_leaves_out_what_is_not_kept_or_has_no_signal():
    values = f64([0.0, 4.0, 99.0, 0.0])
    keep = torch.tensor([True, True, False, True])
    signal = torch.tensor([True, True, True, False])
    whitened = batch_whiten(values, keep=keep, signal=signal, scope="rollout", eps=0.0)
    torch.testing.assert_close(whitened, f64([-math.sqrt(0.5), math.sqrt(0.5), 0, 0]))
    published = batch_whiten(
        values, keep=keep, signal=signal, scope="rollout", ignore_zero_signal=False
    )
    assert published[3] < 0
    assert published[2] == 0


@pytest.mark.parametrize(
    ("values", "lengths"),
    [([], []), ([3.0], [1]), ([3.0, 1.0], [0, 1]), ([0.1] * 7, [3] * 7), ([0.0, 0.0], [2, 2])],
)
@pytest.mark.parametrize("shift", [True, False])
def test_whiten_without_two_different_entries_gives_zeros(values, lengths, shift):
    assert (batch_whiten(values, lengths, shift=shift) == 0).all()


def test_log_ratios_by_hand():
    logp, old = f64([[-1.0, -2.0, -9.0]]), f64([[-1.5, -1.8, -1.0]])
    mask = torch.tensor([[1, 1, 0]])
    close = torch.testing.assert_close
    close(log_ratio(logp, old, mask, "token"), f64([[0.5, -0.2, 0]]))
    close(log_ratio(logp, old, mask, "sequence"), f64([[0.15, 0.15, 0]]))
    close(log_ratio(logp, old, mask, "sequence_token"), f64([[0.15, 0.15, 0]]))


def test_sequence_ratio_spreads_its_gradient_and_sequence_token_does_not():
    gradients = {}
    for level in ("token", "sequence", "sequence_token"):
        logp = f64([[-1.0, -2.0, -9.0]]).requires_grad_(True)
        log_ratio(logp, torch.zeros(1, 3), torch.tensor([[1, 1, 0]]), level)[0, 0].backward()
        gradients[level] = logp.grad.tolist()[0]
    assert gradients == {"token": [1, 0, 0], "sequence": [0.5, 0.5, 0], "sequence_token": [1, 0, 0]}


def test_surrogate_by_hand():
    # r, A -> -min(r A, clip(r, 0.8, 1.2) A)
    ratio = f64([[1.5, 1.5, 0.5, 0.5, 1.1, 1.0]])
    values = f64([[1.0, -1.0, 1.0, -1.0, 2.0, -3.0]])
    found = clipped_surrogate(ratio, values, f64([[0.2]]), f64([[0.2]]))
    torch.testing.assert_close(found.loss_BT, f64([[-1.2, 1.5, -0.5, 0.8, -2.2, 3.0]]))
    assert found.is_clipped_BT.tolist() == [[True, False, False, True, False, False]]


def test_dual_clip_bounds_the_loss_of_negative_advantages_only():
    ratio, values = f64([[5.0, 5.0, 2.9]]), f64([[-2.0, 2.0, -2.0]])
    found = clipped_surrogate(ratio, values, f64([[0.2]]), f64([[0.2]]), 3.0)
    torch.testing.assert_close(found.loss_BT, f64([[6.0, -2.4, 5.8]]))
    assert found.is_dual_clipped_BT.tolist() == [[True, False, False]]
    with pytest.raises(ValueError, match=r"dual_clip: got 0.5, expected above 1"):
        clipped_surrogate(ratio, values, f64([[0.2]]), f64([[0.2]]), 0.5)


def test_static_bounds_are_the_same_for_all():
    low, high = static_bounds(f64([1.0, -2.0, 0.0]), 0.2, 0.28)
    assert low.tolist() == [0.2] * 3
    assert high.tolist() == [0.28] * 3


VALUES = [[1.0, 2.0, 3.0], [4.0, 50.0, 60.0], [7.0, 8.0, 9.0]]
MASK = [[1, 1, 1], [1, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", 10 / 4),
        ("seq-mean-token-mean", (2 + 4) / 2),
        ("seq-mean-token-sum", (6 + 4) / 2),
        ("seq-mean-token-sum-norm", (6 + 4) / 2 / 3),
    ],
)
def test_aggregates_by_hand(mode, expected):
    assert aggregate_loss(f64(VALUES), torch.tensor(MASK), mode).item() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("mode", "left", "counted"),
    [
        ("token-mean", 4 / 1, 4 / 4),
        ("seq-mean-token-mean", 4 / 1, 4 / 3),
        ("seq-mean-token-sum", 4 / 1, 4 / 3),
        ("seq-mean-token-sum-norm", 4 / 1 / 10, 4 / 3 / 10),
    ],
)
def test_what_is_not_kept_leaves_the_denominator_unless_told(mode, left, counted):
    more = {"keep_B": torch.tensor([False, True, True]), "max_tokens": 10}
    values, mask = f64(VALUES), torch.tensor(MASK)
    assert aggregate_loss(values, mask, mode, **more).item() == pytest.approx(left)
    kept = aggregate_loss(values, mask, mode, keep_denominator=True, **more)
    assert kept.item() == pytest.approx(counted)


def test_normaliser_counts_what_the_loss_divides_by():
    mask, keep = torch.tensor(MASK), torch.tensor([False, True, True])
    assert normaliser_of(mask) == Normaliser(tokens=4, rollouts=2)
    assert normaliser_of(mask, keep) == Normaliser(tokens=1, rollouts=1)
    assert normaliser_of(mask, keep, keep_denominator=True) == Normaliser(tokens=4, rollouts=3)
    assert normaliser_of(mask.bool(), keep, keep_denominator=True).rollouts == 3


@pytest.mark.parametrize("mode", MODES)
def test_nothing_left_is_a_zero_with_a_zero_gradient(mode):
    values = f64(VALUES).requires_grad_(True)
    total = aggregate_loss(values, torch.zeros(3, 3), mode)
    total.backward()
    assert total.item() == 0
    assert (values.grad == 0).all()


@pytest.mark.parametrize("mode", MODES)
def test_what_stands_in_the_padding_does_not_matter(mode):
    mask = torch.tensor(MASK)
    values = f64(VALUES).masked_fill(mask == 0, math.nan).requires_grad_(True)
    total = aggregate_loss(values, mask, mode)
    total.backward()
    assert total == aggregate_loss(f64(VALUES), mask, mode)
    assert (values.grad[mask == 0] == 0).all()


@given(st.sampled_from(MODES), st.integers(1, 5), st.booleans())
def test_parts_of_a_batch_add_up_to_the_whole(mode, cut, keep_denominator):
    draw = torch.Generator().manual_seed(cut)
    values = torch.randn(6, 4, generator=draw, dtype=torch.float64)
    mask = torch.rand(6, 4, generator=draw) < 0.6
    keep = torch.rand(6, generator=draw) < 0.7
    whole = aggregate_loss(values, mask, mode, keep_B=keep, keep_denominator=keep_denominator)
    shared = normaliser_of(mask, keep, keep_denominator=keep_denominator)
    parts = [
        aggregate_loss(values[s], mask[s], mode, keep_B=keep[s], normaliser=shared)
        for s in (slice(0, cut), slice(cut, 6))
    ]
    torch.testing.assert_close(sum(parts), whole, rtol=1e-12, atol=1e-12)


def test_kl_estimators_by_hand():
    logp, ref = [[-1.0, -2.0]], [[-1.5, -1.0]]
    close = torch.testing.assert_close
    close(kl_penalty(logp, ref, "k1"), f64([[0.5, -1.0]]))
    close(kl_penalty(logp, ref, "k2"), f64([[0.125, 0.5]]))
    close(kl_penalty(logp, ref, "k3"), f64([[math.exp(-0.5) - 0.5, math.e - 2]]))
    with pytest.raises(ValueError, match="kind: got 'k4', expected k1, k2, k3"):
        kl_penalty(logp, ref, "k4")


def test_corrected_kl_by_hand():
    logp, ref = f64([[-1.0, -2.0]]), f64([[-1.5, -1.0]])
    ratio = (logp - f64([[-1.2, -2.0]])).exp()
    close = torch.testing.assert_close
    k3 = f64([[math.exp(-0.5) - 0.5, math.e - 2]])
    close(kl_penalty(logp, ref, "k3", ratio=ratio), k3 * f64([[math.exp(0.2), 1.0]]))
    close(kl_penalty(logp, ref, "k3+"), k3)
    close(kl_penalty(logp, ref, "k1+"), f64([[0.5, -1.0]]))
    with pytest.raises(ValueError, match=r"ratio: expected none with kind 'k3\+'"):
        kl_penalty(logp, ref, "k3+", ratio=ratio)
    with pytest.raises(ValueError, match=r"correction: expected false with estimator 'k3\+'"):
        KL(0.1, "k3+", correction=True)


def test_gradients_of_the_kinds_on_one_token():
    """With d = ref - logp = 0.7: k1 gives 1, k2 -d, k3 1 - exp(d); + or the ratio turn it to -d."""

    def slope(kind, *, corrected=False):
        logp = f64([-1.0]).requires_grad_(True)
        ratio = (logp - logp.detach()).exp() if corrected else None
        (found,) = torch.autograd.grad(kl_penalty(logp, f64([-0.3]), kind, ratio=ratio).sum(), logp)
        return found.item()

    assert slope("k1") == pytest.approx(1)
    assert slope("k2") == pytest.approx(-0.7)
    assert slope("k3") == pytest.approx(1 - math.exp(0.7))
    assert slope("k1+") == slope("k3+") == slope("k2")
    assert slope("k3", corrected=True) == pytest.approx(-0.7)
    assert slope("k1", corrected=True) == pytest.approx(1 - 0.7)  # 1 has mean 0 over tokens


@pytest.mark.parametrize(
    ("kind", "corrected", "is_right"),
    [
        ("k1", False, False),
        ("k2", False, True),
        ("k3", False, False),
        ("k1+", False, True),
        ("k3+", False, True),
        ("k1", True, True),
        ("k3", True, True),
    ],
)
def test_which_kinds_have_the_gradient_of_the_divergence(kind, corrected, is_right):
    """The expected gradient over all tokens, exactly, beside that of KL(policy || reference)."""
    reference = f64([0.2, 0.2, 0.6]).log()
    logits = f64([0.3, -0.4, 0.1]).requires_grad_(True)
    logp = logits.log_softmax(0)
    (truth,) = torch.autograd.grad((logp.exp() * (logp - reference)).sum(), logits)
    logp = logits.log_softmax(0)
    ratio = (logp - logp.detach()).exp() if corrected else None
    sampled = (logp.detach().exp() * kl_penalty(logp, reference, kind, ratio=ratio)).sum()
    (found,) = torch.autograd.grad(sampled, logits)
    assert torch.allclose(found, truth, rtol=1e-12, atol=1e-14) == is_right


def test_the_ratio_keeps_the_value_right_after_the_policy_has_moved():
    sampler, policy, reference = f64([0.6, 0.2, 0.2]), f64([0.5, 0.3, 0.2]), f64([0.2, 0.2, 0.6])
    truth = (policy * (policy / reference).log()).sum()
    for kind in ("k1", "k3"):
        found = kl_penalty(policy.log(), reference.log(), kind, ratio=policy / sampler)
        torch.testing.assert_close((sampler * found).sum(), truth)


@given(st.lists(st.floats(-30, 0), min_size=1), st.floats(-5, 5))
def test_k3_is_never_negative_and_zero_at_the_reference(logp, shift):
    values = f64(logp)
    assert (kl_penalty(values, values + shift, "k3") >= 0).all()
    assert (kl_penalty(values, values, "k3") == 0).all()


def test_k1_and_k3_estimate_the_true_divergence():
    policy, reference = f64([0.5, 0.3, 0.2]), f64([0.2, 0.2, 0.6])
    truth = (policy * (policy / reference).log()).sum()
    for kind in ("k1", "k3"):
        estimate = (policy * kl_penalty(policy.log(), reference.log(), kind)).sum()
        torch.testing.assert_close(estimate, truth)


def test_k3_stays_finite_far_from_the_reference():
    logp = torch.tensor([-500.0], requires_grad=True)
    kl_penalty(logp, torch.zeros(1), "k3").sum().backward()
    assert logp.grad.isfinite().all()


def test_entropy_of_known_distributions():
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.0, 0.0, -math.inf, -math.inf], [99.0, 0, 0, 0]])
    expected = torch.tensor([math.log(4), math.log(2), 0.0])
    torch.testing.assert_close(token_entropy(logits), expected)


def test_half_precision_is_raised_before_subtracting():
    assert kl_penalty(torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2)).dtype == torch.float32
