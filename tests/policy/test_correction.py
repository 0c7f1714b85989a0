import pytest
import torch
from hypothesis import given, strategies as st
from policy_cases import loss_batch

from burnish.policy import (
    Aggregate,
    MaskedImportance,
    Recipe,
    TruncatedImportance,
    loss,
    masked_importance,
    truncated_importance,
)

LOGP = torch.tensor([[-1.0, -1.0, -1.0]], dtype=torch.float64)
SAMPLER = LOGP - torch.tensor([2.0, 0.5, 4.0], dtype=torch.float64).log()
"""Ratios 2, 0.5 and 4."""
KINDS = [
    TruncatedImportance(),
    TruncatedImportance(level="sequence"),
    MaskedImportance(),
    MaskedImportance(level="sequence"),
]


def assert_close(found, expected):
    torch.testing.assert_close(found, torch.tensor([expected], dtype=torch.float64))


def test_truncated_by_hand():
    weights, is_cut = truncated_importance(LOGP, SAMPLER, [[1, 1, 1]], "token", cap=3.0)
    assert_close(weights, [2.0, 0.5, 3.0])
    assert is_cut.tolist() == [[False, False, True]]
    # The ratio of the response is 2 * 0.5 * 4 = 4.
    weights, is_cut = truncated_importance(LOGP, SAMPLER, [[1, 1, 1]], "sequence", cap=3.0)
    assert_close(weights, [3.0, 3.0, 3.0])
    assert is_cut.all()
    # Without the last token it is 1; a token that is not trained has weight 0.
    weights, is_cut = truncated_importance(LOGP, SAMPLER, [[1, 1, 0]], "sequence", cap=3.0)
    assert_close(weights, [1.0, 1.0, 0.0])
    assert not is_cut.any()


def test_masked_by_hand():
    weights, is_cut = masked_importance(LOGP, SAMPLER, [[1, 1, 1]], "token", low=0.6, high=3.0)
    assert_close(weights, [2.0, 0.0, 0.0])
    assert is_cut.tolist() == [[False, True, True]]
    weights, _ = masked_importance(LOGP, SAMPLER, [[1, 1, 1]], "sequence", low=0.6, high=3.0)
    assert_close(weights, [0.0, 0.0, 0.0])
    weights, _ = masked_importance(LOGP, SAMPLER, [[1, 1, 1]], "sequence", low=0.6, high=4.5)
    assert_close(weights, [4.0, 4.0, 4.0])


def test_token_weights_make_an_expectation_under_the_sampler_one_under_the_policy():
    policy, sampler, values = (
        torch.tensor(x, dtype=torch.float64)
        for x in ([0.5, 0.3, 0.2], [0.2, 0.3, 0.5], [1.0, -2.0, 3.0])
    )
    weights = truncated_importance(policy.log()[:, None], sampler.log()[:, None], [[1]] * 3, cap=10)
    corrected = (sampler * weights.weights_BT[:, 0] * values).sum()
    torch.testing.assert_close(corrected, (policy * values).sum())


@given(st.integers(0, 50), st.sampled_from(["token", "sequence"]), st.floats(1.0, 5.0))
def test_weights_stay_within_their_bounds(seed, level, high):
    draw = torch.Generator().manual_seed(seed)
    logp, sampler = -3 * torch.rand(2, 4, 5, generator=draw, dtype=torch.float64)
    mask = torch.rand(4, 5, generator=draw) < 0.7
    truncated = truncated_importance(logp, sampler, mask, level, high)
    masked = masked_importance(logp, sampler, mask, level, 0.5, high)
    assert (truncated.weights_BT <= high).all()
    is_kept = masked.weights_BT > 0
    assert ((masked.weights_BT >= 0.5) & (masked.weights_BT <= high))[is_kept].all()
    # Inside the interval the two agree; outside the mask both are 0.
    assert torch.equal(truncated.weights_BT[is_kept], masked.weights_BT[is_kept])
    assert (is_kept | masked.is_cut_BT | ~mask).all()
    for found in (truncated, masked):
        assert (found.weights_BT[~mask] == 0).all()
        assert not found.is_cut_BT[~mask].any()


def with_sampler(batch, sampler_logp):
    from dataclasses import replace

    return replace(batch, sampler_logp_BT=sampler_logp)


@pytest.mark.parametrize("correction", KINDS)
def test_the_policys_own_samples_are_left_alone_to_the_bit(correction):
    batch = loss_batch()
    plain = loss(Recipe(), batch)
    (expected,) = torch.autograd.grad(plain.total, batch.logp_BT)
    found = loss(Recipe(correction=correction), with_sampler(batch, batch.old_logp_BT))
    (gradient,) = torch.autograd.grad(found.total, batch.logp_BT)
    assert torch.equal(found.total, plain.total)
    assert torch.equal(gradient, expected)
    assert found.correction["weight"] == 1
    assert found.correction["cut_share"] == 0
    assert plain.correction == {}


@pytest.mark.parametrize("correction", KINDS)
def test_the_gradient_of_each_token_is_multiplied_by_its_weight(correction):
    batch = loss_batch()
    draw = torch.Generator().manual_seed(1)
    shift = torch.randn(batch.logp_BT.shape, generator=draw, dtype=batch.logp_BT.dtype)
    shifted = with_sampler(batch, batch.old_logp_BT - shift)
    # By token and without the mean over tokens, so that each token's gradient stands alone.
    recipe = Recipe(aggregate=Aggregate(mode="token-mean"))
    corrected = Recipe(aggregate=recipe.aggregate, correction=correction)
    (plain,) = torch.autograd.grad(loss(recipe, shifted).total, batch.logp_BT)
    found = loss(corrected, shifted)
    (gradient,) = torch.autograd.grad(found.total, batch.logp_BT)
    weights = correction.token_weights(shifted).weights_BT
    torch.testing.assert_close(gradient, plain * weights)
    assert found.correction["cut_share"] > 0
