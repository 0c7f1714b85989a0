"""GAP's functions: worked numbers by numpy alone, properties of the subspace, and edge cases."""

import math

import numpy as np
import pytest
import torch

from burnish.errors import ArgumentError
from burnish.models.visual_latent import (
    cosine_loss,
    fit_pca,
    latent_loss,
    norm_ema,
    norm_match,
    norm_ratio,
    pca_rank,
    pool_tokens,
    project_latents,
    reconstruct_latents,
    use_latent,
    whiten_latents,
)

RNG = np.random.default_rng(3)
EMBEDDINGS = RNG.normal(size=(60, 7)) @ RNG.normal(size=(7, 7)) + RNG.normal(size=7)


def by_svd(x, k):
    """The same by another road: singular values of the centred matrix."""
    centred = x - x.mean(0)
    _, sizes, rows = np.linalg.svd(centred, full_matrices=False)
    return x.mean(0), rows[:k].T, sizes**2 / len(x)


@pytest.mark.parametrize("k", [1, 3, 7])
def test_pca_agrees_with_singular_values(k):
    mean, columns, values = by_svd(EMBEDDINGS, k)
    found = fit_pca(EMBEDDINGS, k)
    assert found._fields == ("mean", "components", "eigenvalues", "explained")
    assert found.components.shape == (7, k)
    np.testing.assert_allclose(found.mean, mean, atol=1e-12)
    np.testing.assert_allclose(
        found.components @ found.components.T, columns @ columns.T, atol=1e-9
    )
    np.testing.assert_allclose(found.eigenvalues, values[:k], rtol=1e-10)
    assert found.explained == pytest.approx(values[:k].sum() / values.sum())
    largest = found.components.abs().argmax(0)
    assert (found.components[largest, torch.arange(k)] > 0).all()


@pytest.mark.parametrize("k", [1, 4, 7])
def test_the_reconstruction_error_is_the_discarded_variance_and_projection_is_idempotent(k):
    basis = fit_pca(EMBEDDINGS, k)
    once = project_latents(EMBEDDINGS, basis.components, basis.mean)
    twice = project_latents(once, basis.components, basis.mean)
    torch.testing.assert_close(once, twice, atol=1e-11, rtol=0)
    error = (torch.tensor(EMBEDDINGS) - once).square().sum(1).mean().item()
    discarded = fit_pca(EMBEDDINGS, 7).eigenvalues[k:].sum().item()
    assert error == pytest.approx(discarded, abs=1e-9)


def test_whitening_and_reconstruction_undo_each_other_and_have_unit_variance():
    basis = fit_pca(EMBEDDINGS, 4)
    a = whiten_latents(EMBEDDINGS, basis.components, basis.mean, basis.eigenvalues)
    np.testing.assert_allclose(np.cov(a.numpy().T, bias=True), np.eye(4), atol=1e-9)
    back = reconstruct_latents(a * basis.eigenvalues.sqrt(), basis.components, basis.mean)
    torch.testing.assert_close(back, project_latents(EMBEDDINGS, basis.components, basis.mean))
    again = whiten_latents(back, basis.components, basis.mean, basis.eigenvalues)
    torch.testing.assert_close(again, a, atol=1e-9, rtol=0)


def test_with_as_many_components_as_the_width_every_vector_is_reached():
    basis = fit_pca(EMBEDDINGS, 7)
    far = torch.tensor(RNG.normal(size=(5, 7)) * 100)
    torch.testing.assert_close(project_latents(far, basis.components, basis.mean), far)


def test_bounded_coefficients_bound_the_norm():
    basis = fit_pca(EMBEDDINGS, 7)
    a = torch.tensor(RNG.uniform(-2, 2, size=(500, 7)))
    v = reconstruct_latents(a * basis.eigenvalues.sqrt(), basis.components, basis.mean)
    most = basis.mean.norm() + 2 * basis.eigenvalues.sum().sqrt()
    assert (v.norm(dim=1) <= most).all()


def test_directions_without_variance_are_left_out():
    flat = EMBEDDINGS[:, :3] @ RNG.normal(size=(3, 7))
    assert fit_pca(flat, 6).components.shape == (7, 3)
    assert fit_pca(EMBEDDINGS[:5], 5).components.shape == (7, 4)
    constant = fit_pca(np.full((9, 4), 0.1), 2)
    assert constant.components.shape == (4, 0)
    assert constant.eigenvalues.numel() == 0
    assert constant.explained == 1.0
    assert constant.mean.tolist() == pytest.approx([0.1] * 4)


def test_without_k_the_basis_holds_95_percent_from_8_to_half_the_width():
    wide = RNG.normal(size=(200, 40)) * np.r_[100.0, np.ones(39)]
    assert fit_pca(wide).components.shape == (40, 8)
    even = RNG.normal(size=(200, 40))
    assert fit_pca(even).components.shape == (40, 20)
    some = RNG.normal(size=(4000, 40)) * np.r_[np.ones(12), np.full(28, 1e-3)]
    assert fit_pca(some).components.shape == (40, 12)
    assert fit_pca(EMBEDDINGS).components.shape == (7, 3)


@pytest.mark.parametrize(
    ("values", "target", "rank"),
    [
        ([4, 3, 2, 1], 0.7, 2),
        ([4, 3, 2, 1], 0.71, 3),
        ([0.4, 0.3, 0.2, 0.1], 0.9, 3),
        ([1, 2, 3, 4], 0.4, 1),
        ([5, 0, 0], 1.0, 1),
        ([0.1] * 10, 1.0, 10),
        ([2.0, -1e-18], 1.0, 1),
        ([0.0, 0.0], 0.9, 0),
    ],
)
def test_rank_is_the_smallest_that_reaches_the_target(values, target, rank):
    assert pca_rank(values, target) == rank


def test_norm_matching_scales_each_vector_and_leaves_zeros():
    h = torch.tensor([[3.0, 4.0], [0.0, 0.0]], requires_grad=True)
    found = norm_match(h, 10.0)
    assert found.tolist() == [[6.0, 8.0], [0.0, 0.0]]
    found.sum().backward()
    assert h.grad.isfinite().all()
    by_row = norm_match([[3.0, 4.0], [0.0, 2.0]], [1.0, 5.0])
    np.testing.assert_allclose(by_row, [[0.6, 0.8], [0.0, 5.0]])


def test_moving_average_of_norms_by_hand():
    value = None
    for norms in ([2.0, 4.0], [5.0], [1.0, 3.0]):
        value = norm_ema(value, norms, 0.9)
    assert value == pytest.approx(0.9 * (0.9 * 3 + 0.1 * 5) + 0.1 * 2)
    assert norm_ema(1.5, [], 0.9) == 1.5
    with pytest.raises(ArgumentError, match="norms"):
        norm_ema(None, [], 0.9)


def test_ratio_of_mean_norms():
    hidden, inputs = RNG.normal(size=(2, 5, 4)) * 50, RNG.normal(size=(6, 4))
    expected = np.linalg.norm(hidden, axis=-1).mean() / np.linalg.norm(inputs, axis=-1).mean()
    assert norm_ratio(hidden, inputs) == pytest.approx(expected)
    with pytest.raises(ArgumentError, match="inputs"):
        norm_ratio(hidden, np.zeros((2, 4)))


def test_gate_by_the_share_of_right_answers():
    correct = [[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 1], [], [None, None], [None, 1]]
    assert use_latent(correct, 0.5).tolist() == [False, True, True, False, False, False]
    assert use_latent(correct, 0.5, assume_hard=True).tolist()[3:] == [True, True, False]
    assert use_latent(np.array(correct[:3]), -0.1).tolist() == [False] * 3
    assert use_latent(torch.tensor(correct[:3]), 1.0).tolist() == [True] * 3
    assert use_latent([0.5, 0.51, None], 0.5).tolist() == [True, False, False]
    assert use_latent([[1] * 3 + [0] * 7], 0.3).tolist() == [True]


def test_pooled_tokens_are_means_of_parts_of_the_grid():
    tokens = np.arange(16.0)[:, None] * [1.0, 10.0]
    cells = tokens.reshape(4, 4, 2)
    expected = [cells[r : r + 2, c : c + 2].mean((0, 1)) for r in (0, 2) for c in (0, 2)]
    np.testing.assert_allclose(pool_tokens(tokens, (4, 4), 4), expected)
    np.testing.assert_allclose(pool_tokens(tokens, (4, 4), 16), tokens)
    np.testing.assert_allclose(pool_tokens(tokens, (4, 4), 1), [tokens.mean(0)])
    np.testing.assert_allclose(
        pool_tokens(tokens, (4, 4), 2), [tokens[:8].mean(0), tokens[8:].mean(0)]
    )
    # A wide grid gives more columns than rows.
    wide = tokens.reshape(2, 8, 2)
    expected = [wide[r, c : c + 4].mean(0) for r in (0, 1) for c in (0, 4)]
    np.testing.assert_allclose(pool_tokens(tokens, (2, 8), 4)[0], wide[:, :2].mean((0, 1)))
    np.testing.assert_allclose(pool_tokens(tokens, (1, 16), 4)[1], tokens[4:8].mean(0))
    # Where 3 does not divide into 2, parts share the middle.
    square = np.arange(9.0)[:, None]
    np.testing.assert_allclose(pool_tokens(square, (3, 3), 4), [[2.0], [3.0], [5.0], [6.0]])
    batch = np.stack([tokens, tokens + 1])
    np.testing.assert_allclose(pool_tokens(batch, (4, 4), 4)[1], pool_tokens(tokens, (4, 4), 4) + 1)


def test_latent_loss_counts_the_slots_of_its_mask_alone():
    pred, target = RNG.normal(size=(2, 3, 4)), RNG.normal(size=(2, 3, 4))
    mask = np.array([[1, 0, 1], [0, 0, 1]])
    errors = ((pred - target) ** 2).sum(-1)
    assert latent_loss(pred, target, mask).item() == pytest.approx(errors[mask == 1].mean())
    assert latent_loss(pred, target).item() == pytest.approx(errors.mean())
    assert latent_loss(pred, target, np.zeros((2, 3))).item() == 0.0
    spoilt = torch.tensor(pred)
    spoilt[0, 1] = math.nan
    spoilt.requires_grad_()
    loss = latent_loss(spoilt, target, mask)
    assert loss.item() == pytest.approx(errors[mask == 1].mean())
    loss.backward()
    assert spoilt.grad.isfinite().all()
    assert (spoilt.grad.abs().sum(-1) > 0).tolist() == mask.astype(bool).tolist()
    with pytest.raises(ArgumentError, match=r"pred: \[0, 1, 0\] is nan"):
        latent_loss(spoilt, target)


@pytest.mark.parametrize("scale", [1e30, 1.0, 1e-30, 1e-44])
def test_directions_do_not_hang_on_the_size_of_numbers(scale):
    """Squares of float32 end at 1e38 and begin at 1e-45."""
    h = torch.tensor([[3.0, 4.0], [0.0, 0.0], [-1.0, 0.0]]) * scale
    expected = torch.tensor([[0.6, 0.8], [0.0, 0.0], [-1.0, 0.0]])
    torch.testing.assert_close(norm_match(h, 1.0), expected, rtol=1e-2, atol=1e-2)
    assert cosine_loss(h[::2], h[::2]).item() == pytest.approx(0.0, abs=1e-6)
    assert cosine_loss(h[:1], -h[:1]).item() == pytest.approx(2.0, abs=1e-6)


def test_rescaling_has_the_gradient_of_a_direction():
    h = torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    norm_match(h, 10.0)[0, 0].backward()
    # 10 (1/|h| - h0²/|h|³), -10 h0 h1/|h|³
    torch.testing.assert_close(h.grad, torch.tensor([[1.28, -0.96], [0.0, 0.0]]).double())


def test_cosine_loss_is_the_mean_of_one_minus_the_cosine():
    pred, target = RNG.normal(size=(5, 4)), RNG.normal(size=(5, 4))
    lengths = np.linalg.norm(pred, axis=1) * np.linalg.norm(target, axis=1)
    expected = 1 - (pred * target).sum(1) / lengths
    assert cosine_loss(pred, target).item() == pytest.approx(expected.mean())
    assert cosine_loss(pred, target, [1, 0, 0, 0, 1]).item() == pytest.approx(
        expected[[0, 4]].mean()
    )
    assert cosine_loss(pred, target, [0] * 5).item() == 0.0
    assert cosine_loss(pred, 3 * pred).item() == pytest.approx(0.0, abs=1e-12)
    zero = torch.zeros(1, 4, requires_grad=True)
    loss = cosine_loss(zero, target[:1])
    assert loss.item() == 1.0
    loss.backward()
    assert zero.grad.isfinite().all()


def test_gradients_reach_the_coefficients_and_never_the_basis():
    basis = fit_pca(EMBEDDINGS, 3)
    mean, columns, values = (part.clone().requires_grad_() for part in basis[:3])
    v = torch.tensor(EMBEDDINGS, requires_grad=True)
    a = whiten_latents(v, columns, mean, values)
    total = reconstruct_latents(a, columns, mean).sum() + project_latents(v, columns, mean).sum()
    total.backward()
    assert v.grad.abs().sum() > 0
    assert mean.grad is columns.grad is values.grad is None


def test_float32_and_half_stay_close_to_float64():
    basis = fit_pca(EMBEDDINGS, 3)
    exact = project_latents(EMBEDDINGS, basis.components, basis.mean)
    for kind in (torch.float32, torch.float16):
        found = project_latents(torch.tensor(EMBEDDINGS, dtype=kind), basis.components, basis.mean)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), exact, atol=2e-2, rtol=1e-2)
