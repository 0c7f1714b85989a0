"""The principal subspace of vision embeddings: fitted once, then fixed (GAP, arXiv 2605.12374).

    basis = fit_pca(embeddings_ND, k=64)
    a = whiten_latents(v, basis.components, basis.mean, basis.eigenvalues)      # targets of unit scale
    v_hat = reconstruct_latents(a * basis.eigenvalues.sqrt(), basis.components, basis.mean)

The basis is never trained: it is detached wherever it is used. Letters of axes: N embeddings, D
width of the language model, K components.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from burnish.arguments import as_number, as_whole, refused
from burnish.errors import ArgumentError
from burnish.tensors import as_finite, as_logp, check_finite, check_shape

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.tensors import Numbers

TARGET = 0.95
"""Share of the variance that a basis without a given size keeps."""
LEAST = 8
"""Components that such a basis has at least, where half the width allows it."""


class Subspace(NamedTuple):
    """Mean and main directions of embeddings, float64."""

    mean: Tensor
    """(D,)."""
    components: Tensor
    """Orthonormal columns (D, K), the largest first; the largest entry of each is positive."""
    eigenvalues: Tensor
    """Variance along each, of the population (divided by N), (K,)."""
    explained: float
    """Share of all the variance that they hold; 1 where there is none."""


def fit_pca(embeddings: Numbers, k: int | None = None) -> Subspace:
    """The k main directions of embeddings (N, D), computed in float64.

    Directions without variance are left out, so there may be fewer than k. Without k, the smallest
    number that holds 95 % of the variance, from 8 to D / 2.

    >>> from burnish.models.visual_latent import fit_pca
    >>> basis = fit_pca([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.5], [0.0, -0.5]], k=1)
    >>> basis.components.tolist(), basis.eigenvalues.tolist(), basis.explained
    ([[1.0], [0.0]], [0.5], 0.8)
    """
    x_ND = as_finite(embeddings, "embeddings")
    if x_ND.ndim != 2 or not x_ND.numel():
        raise ArgumentError(f"embeddings: got shape {tuple(x_ND.shape)}, expected (N, D)")
    count, size = x_ND.shape
    if k is not None:
        k = as_whole("k", k, low=1, high=size)
        if count < k:
            raise ArgumentError(
                f"embeddings: got {count}, expected at least k = {k}; give more or a smaller k"
            )
    mean_D = x_ND.mean(0)
    centred_ND = x_ND - mean_D
    values_D, vectors_DD = torch.linalg.eigh(centred_ND.T @ centred_ND / count)
    values_D, vectors_DD = values_D.flip(0).clamp(min=0), vectors_DD.flip(1)
    rank = int((values_D > _noise(x_ND, float(values_D[0]))).sum())
    values_D[rank:] = 0.0
    if k is None:
        k = min(max(pca_rank(values_D, TARGET), LEAST), max(size // 2, 1))
    kept = min(k, rank)
    total = float(values_D.sum())
    columns_DK = vectors_DD[:, :kept]
    if kept:
        columns_DK = columns_DK * _signs(columns_DK)
    explained = float(values_D[:kept].sum()) / total if total else 1.0
    return Subspace(mean_D, columns_DK.contiguous(), values_D[:kept].clone(), explained)


def pca_rank(eigenvalues: Numbers, target: float = TARGET) -> int:
    """The smallest number of components whose share of the variance reaches the target.

    The order of the eigenvalues does not matter; 0 where there is no variance.

    >>> from burnish.models.visual_latent import pca_rank
    >>> pca_rank([4.0, 3.0, 2.0, 1.0], target=0.7)
    2
    """
    target = as_number("target", target, above=0, high=1)
    values_D = as_finite(eigenvalues, "eigenvalues")
    if values_D.ndim != 1 or not values_D.numel():
        raise refused("eigenvalues", eigenvalues, "a list of numbers of at least 0")
    # What a decomposition gives for 0 may be below it by a rounding error.
    if (values_D < -1e-9 * values_D.abs().max()).any():
        raise refused("eigenvalues", values_D.tolist(), "numbers of at least 0")
    sums_D = values_D.clamp(min=0).sort(descending=True).values.cumsum(0)
    if not sums_D[-1]:
        return 0
    # 0.4 + 0.3 + 0.2 is 0.8999... in floats, and reaches 0.9 all the same.
    return int((sums_D / sums_D[-1] < target - 1e-12).sum()) + 1


def reconstruct_latents(coeffs: Numbers, components: Numbers, mean: Numbers) -> Tensor:
    """Vectors of coefficients, `mean + P c`: (..., K), (D, K), (D,) -> (..., D).

    The gradient of `coeffs` is kept, the basis has none.

    >>> from burnish.models.visual_latent import reconstruct_latents
    >>> reconstruct_latents([[2.0]], components=[[0.6], [0.8]], mean=[1.0, 1.0]).tolist()
    [[2.2, 2.6]]
    """
    c = as_vectors(coeffs, "coeffs")
    columns_DK, mean_D = _basis(components, mean, c)
    check_shape(c, "coeffs", (*c.shape[:-1], columns_DK.shape[1]))
    return c @ columns_DK.T + mean_D


def project_latents(v: Numbers, components: Numbers, mean: Numbers) -> Tensor:
    """The nearest vectors of the subspace, `mean + P P^T (v - mean)`: (..., D) -> (..., D).

    >>> from burnish.models.visual_latent import project_latents
    >>> project_latents([[3.0, 4.0]], components=[[1.0], [0.0]], mean=[0.0, 1.0]).tolist()
    [[3.0, 1.0]]
    """
    vectors = as_vectors(v, "v")
    columns_DK, mean_D = _basis(components, mean, vectors)
    check_shape(vectors, "v", (*vectors.shape[:-1], len(mean_D)))
    return (vectors - mean_D) @ columns_DK @ columns_DK.T + mean_D


def whiten_latents(v: Numbers, components: Numbers, mean: Numbers, eigenvalues: Numbers) -> Tensor:
    """Coefficients of unit variance, `P^T (v - mean) / sqrt(eigenvalues)`: (..., D) -> (..., K).

    >>> from burnish.models.visual_latent import whiten_latents
    >>> whiten_latents([[3.0, 4.0]], [[1.0], [0.0]], mean=[1.0, 1.0], eigenvalues=[4.0]).tolist()
    [[1.0]]
    """
    vectors = as_vectors(v, "v")
    columns_DK, mean_D = _basis(components, mean, vectors)
    check_shape(vectors, "v", (*vectors.shape[:-1], len(mean_D)))
    values_K = as_finite(eigenvalues, "eigenvalues").to(vectors)
    check_shape(values_K, "eigenvalues", (columns_DK.shape[1],))
    if not (values_K > 0).all():
        raise refused(
            "eigenvalues",
            values_K.tolist(),
            "numbers above 0; leave out components without variance, as fit_pca does",
        )
    return (vectors - mean_D) @ columns_DK / values_K.sqrt()


def as_vectors(values: Numbers, what: str) -> Tensor:
    """Finite vectors (..., D) that keep their graph; at least float32."""
    read = as_logp(values, what)
    if not read.ndim or not read.numel():
        raise ArgumentError(f"{what}: got shape {tuple(read.shape)}, expected (..., D)")
    check_finite(read, what)
    return read


def _basis(components: Numbers, mean: Numbers, like: Tensor) -> tuple[Tensor, Tensor]:
    columns_DK = as_finite(components, "components").to(like)
    mean_D = as_finite(mean, "mean").to(like)
    if mean_D.ndim != 1 or not mean_D.numel():
        raise ArgumentError(f"mean: got shape {tuple(mean_D.shape)}, expected (D,)")
    if columns_DK.ndim != 2 or len(columns_DK) != len(mean_D):
        raise ArgumentError(
            f"components: got shape {tuple(columns_DK.shape)}, expected ({len(mean_D)}, K)"
        )
    return columns_DK, mean_D


def _noise(x_ND: Tensor, largest: float) -> float:
    """Variance below which a direction has none: rounding of the mean and of the decomposition."""
    eps = torch.finfo(x_ND.dtype).eps
    rounding = (16 * eps * float(x_ND.abs().max())) ** 2 * x_ND.shape[1]
    return max(x_ND.shape) * eps * largest + rounding


def _signs(columns_DK: Tensor) -> Tensor:
    """1 or -1 for each column (1, K), so that its entry of largest size becomes positive."""
    places_1K = columns_DK.abs().argmax(0, keepdim=True)
    return torch.where(columns_DK.gather(0, places_1K) < 0, -1.0, 1.0).to(columns_DK)
