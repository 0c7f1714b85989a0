import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from burnish.policy import Normaliser, policy_loss, policy_loss_gradient

LEVELS = ["token", "sequence", "sequence_token"]
MODES = ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]


def log(values):
    return torch.tensor(values, dtype=torch.float64).log()


def example():
    """Two rollouts with ratios (1.5, 1.1 | masked) and (0.5, 1.0, 2.0)."""
    old = torch.full((2, 3), -1.0, dtype=torch.float64)
    logp = old + log([[1.5, 1.1, 7.0], [0.5, 1.0, 2.0]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    return logp, old, torch.tensor([1.0, -2.0]), mask


def test_loss_by_hand():
    # Token losses: -1.2 (clipped), -1.1 | 1.6 (clipped), 2.0, 4.0.
    result = policy_loss(*example())
    assert result["loss"].item() == pytest.approx((-1.2 - 1.1 + 1.6 + 2.0 + 4.0) / 5)
    assert result["clip_fraction"].item() == pytest.approx(2 / 5)
    assert result["clip_low_fraction"].item() == pytest.approx(1 / 5)
    assert result["clip_high_fraction"].item() == pytest.approx(1 / 5)
    assert result["ratio_mean"].item() == pytest.approx((1.5 + 1.1 + 0.5 + 1 + 2) / 5)
    assert result["ratio_max"].item() == pytest.approx(2.0)
    kl = sum(r - 1 - math.log(r) for r in (1.5, 1.1, 0.5, 1.0, 2.0)) / 5
    assert result["approx_kl"].item() == pytest.approx(kl)


def test_dual_clip_by_hand():
    result = policy_loss(*example(), dual_clip=1.5)
    assert result["loss"].item() == pytest.approx((-1.2 - 1.1 + 1.6 + 2.0 + 3.0) / 5)
    assert result["dual_clip_fraction"].item() == pytest.approx(1 / 5)


def test_sequence_level_by_hand():
    logp, old, values, mask = example()
    first, second = math.sqrt(1.5 * 1.1), 1.0
    result = policy_loss(
        logp, old, values, mask, ratio_level="sequence", aggregation="seq-mean-token-mean"
    )
    assert result["loss"].item() == pytest.approx((-min(first, 1.2) + 2 * second) / 2)


def test_gradient_by_hand_at_the_old_policy():
    # At ratio 1 the gradient of a token is -A / tokens, whatever the interval.
    _, old, values, mask = example()
    gradient = policy_loss_gradient(old, old, values, mask, clip_low=0.0, clip_high=0.0)
    expected = torch.tensor([[-0.2, -0.2, 0.0], [0.4, 0.4, 0.4]], dtype=torch.float64)
    torch.testing.assert_close(gradient, expected)


def test_clipped_tokens_have_no_gradient():
    gradient = policy_loss_gradient(*example(), dual_clip=1.5)
    assert gradient[0, 0] == 0
    assert gradient[1, 0] == 0
    assert gradient[1, 2] == 0
    assert gradient[0, 1].item() == pytest.approx(-1.1 / 5)


def test_bounds_of_one_rollout_each_clip_bit_for_bit_like_a_number():
    logp, old, values, mask = (t.float() for t in example())
    plain = policy_loss(logp, old, values, mask, clip_low=0.2, clip_high=0.28)
    each = policy_loss(
        logp, old, values, mask, clip_low=torch.full((2,), 0.2), clip_high=[0.28, 0.28]
    )
    assert all(torch.equal(plain[key], each[key]) for key in plain)


def test_wider_bounds_free_only_their_own_rollout():
    gradient = policy_loss_gradient(*example(), clip_low=0.2, clip_high=torch.tensor([0.6, 0.2]))
    assert gradient[0, 0].item() == pytest.approx(-1.5 / 5)
    assert gradient[1, 0] == 0


def test_advantages_may_differ_between_tokens():
    logp, old, values, mask = example()
    spread = values[:, None].expand(2, 3).clone()
    assert torch.equal(
        policy_loss(logp, old, values, mask)["loss"], policy_loss(logp, old, spread, mask)["loss"]
    )
    spread[1, 1] = 0.0
    assert policy_loss_gradient(logp, old, spread, mask)[1, 1] == 0


def test_plain_lists_and_arrays_give_the_same():
    tensors = example()
    lists = [t.tolist() for t in tensors]
    arrays = [np.array(values) for values in lists]
    expected = policy_loss(*tensors)["loss"]
    torch.testing.assert_close(policy_loss(*lists)["loss"], expected)
    torch.testing.assert_close(policy_loss(*arrays)["loss"], expected)


def test_gradient_is_found_without_touching_the_callers_graph():
    logp, old, values, mask = example()
    logp.requires_grad_(True)
    with torch.no_grad():
        gradient = policy_loss_gradient(logp, old, values, mask)
    policy_loss(logp, old, values, mask)["loss"].backward()
    assert torch.equal(gradient, logp.grad)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_masked_tokens_and_dropped_rollouts_cannot_poison_the_gradient(level, mode, poison):
    logp, old, values, mask = example()
    logp, values = logp[[0, 1, 1]].clone(), torch.tensor([1.0, -2.0, poison])
    old, mask = old[[0, 1, 1]], mask[[0, 1, 1]]
    logp[0, 2], logp[2, 1] = poison, poison
    keep = torch.tensor([True, True, False])
    found = policy_loss_gradient(
        logp, old, values, mask, ratio_level=level, aggregation=mode, keep=keep
    )
    clean = policy_loss_gradient(*example(), ratio_level=level, aggregation=mode)
    torch.testing.assert_close(found[:2], clean, rtol=1e-12, atol=1e-12)
    assert (found[2] == 0).all()
    assert found[0, 2] == 0


@pytest.mark.parametrize("level", LEVELS)
def test_absurd_ratios_stay_finite(level):
    logp = torch.tensor([[0.0, -500.0], [-500.0, 0.0]])
    gradient = policy_loss_gradient(
        logp, logp.flip(0), torch.tensor([1.0, -1.0]), torch.ones(2, 2), ratio_level=level
    )
    assert gradient.isfinite().all()


@settings(max_examples=40)
@given(st.sampled_from(LEVELS), st.sampled_from(MODES), st.permutations(range(5)))
def test_order_of_rollouts_and_padding_change_nothing(level, mode, order):
    draw = torch.Generator().manual_seed(1)
    old = torch.randn(5, 4, generator=draw, dtype=torch.float64) - 3
    logp = old + 0.3 * torch.randn(5, 4, generator=draw, dtype=torch.float64)
    values = torch.randn(5, generator=draw, dtype=torch.float64)
    mask = torch.rand(5, 4, generator=draw) < 0.7
    more = {"ratio_level": level, "aggregation": mode, "max_tokens": 9}
    gradient = policy_loss_gradient(logp, old, values, mask, **more)
    pad = torch.nn.functional.pad
    moved = policy_loss_gradient(
        pad(logp[order], (0, 2)),
        pad(old[order], (0, 2)),
        values[order],
        pad(mask[order], (0, 2)),
        **more,
    )
    torch.testing.assert_close(moved[:, :4], gradient[order], rtol=1e-12, atol=1e-12)
    assert (moved[:, 4:] == 0).all()


def test_sequence_and_sequence_token_agree_where_a_rollout_has_one_advantage():
    for mode in MODES:
        one, other = (
            policy_loss_gradient(*example(), ratio_level=level, aggregation=mode)
            for level in ("sequence", "sequence_token")
        )
        torch.testing.assert_close(one, other)


def test_half_precision_log_probs_are_summed_in_float32():
    logp, old, values, mask = example()
    assert policy_loss(logp.bfloat16(), old, values, mask)["loss"].dtype == torch.float32


def test_nothing_to_train_on_is_a_zero():
    logp, old, values, mask = example()
    result = policy_loss(logp, old, values, torch.zeros_like(mask))
    assert all(value == 0 for value in result.values())
    empty = policy_loss(logp[:0], old[:0], values[:0], mask[:0])
    assert empty["loss"] == 0


def test_a_normaliser_brings_its_own_denominator():
    result = policy_loss(*example(), normaliser=Normaliser(tokens=50, rollouts=20))
    assert result["loss"].item() == pytest.approx((-1.2 - 1.1 + 1.6 + 2.0 + 4.0) / 50)
