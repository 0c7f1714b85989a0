"""What GAP measures and minimises, as functions of tensors (arXiv 2605.12374).

The basis, the principal subspace of vision embeddings, is fitted once and never trained: it is detached
wherever it is used. Letters of axes: N embeddings, D width of the language model, K components.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import torch
import torch.nn.functional as F
from msgspec import Meta

from burnish.arguments import refused
from burnish.boundary import (
    SOME,
    UNREAD,
    NonNegative,
    Number,
    PositiveInt,
    PositiveShare,
    Share,
    public,
)
from burnish.tensors import check_finite

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Float64
    from torch import Tensor

    Vectors = Annotated[Float[Tensor, "*B D"], SOME]
    Unread = Annotated[Float[Tensor, "*B K"], UNREAD]
    Columns = Float64[Tensor, "D K"]
    Mean = Float64[Tensor, " D"]

TARGET = 0.95
"""Share of the variance that a basis without a given size keeps."""
LEAST = 8
"""Components that such a basis has at least, where half the width allows it."""


@public
def norm_ratio(
    hidden: Annotated[Float[Tensor, "*A D"], SOME],
    inputs: Annotated[Float[Tensor, "*B E"], SOME],
) -> float:
    """Mean length of hidden states over the mean length of input embeddings: (..., D), (..., D).

    >>> norm_ratio(hidden=[[30.0, 40.0]], inputs=[[0.6, 0.8], [3.0, 0.0]])
    25.0
    """
    length, base = (x.detach().double().norm(dim=-1).mean() for x in (hidden, inputs))
    if not base > 0:
        raise refused("inputs", inputs, "embeddings that are not all 0")
    return float(length / base)


@public
def norm_match(
    h: Vectors, norm: Annotated[Float64[Tensor, ""] | Float64[Tensor, "*B"], Meta(ge=0)]
) -> Tensor:
    """Hidden states rescaled to one length, `h norm / |h|`: (..., D) -> (..., D).

    `norm` is one number, or one for each vector. A vector of zeros stays as it is.

    >>> norm_match([[30.0, 40.0], [0.0, 0.0]], norm=2.5).tolist()
    [[1.5, 2.0], [0.0, 0.0]]
    """
    return rescaled(h, norm.to(h))


def rescaled(h: Tensor, norm: Tensor) -> Tensor:
    """As `norm_match`; values are not looked at."""
    # The square of a large entry would be infinite, and that of a small one 0.
    largest = h.detach().abs().amax(-1, keepdim=True)
    h = h / torch.where(largest > 0, largest, 1.0)
    square = h.square().sum(-1, keepdim=True)
    # The root of 0 has no gradient: such a vector is divided by 1.
    length = torch.where(square > 0, square, 1.0).sqrt()
    return h * (norm.unsqueeze(-1) if norm.ndim else norm) / length


@public
def norm_ema(
    value: NonNegative | None,
    norms: Annotated[Float64[Tensor, "*B"], Meta(ge=0)],
    decay: Share = 0.99,
) -> float:
    """Moving average of lengths: `decay value + (1 - decay) mean(norms)`.

    `norms` are those of one batch. Without a value yet (None) it is their mean; a batch without any
    leaves the value.

    >>> norm_ema(2.0, norms=[3.0, 5.0], decay=0.75)
    2.5
    """
    if not norms.numel():
        if value is None:
            raise refused("norms", norms, "at least one length, as there is no value yet")
        return value
    mean = float(norms.mean())
    return mean if value is None else decay * value + (1 - decay) * mean


@public
def use_latent(
    correct: Sequence[bool | Share | Sequence[bool | Share | None] | None],
    tau: Number = 0.5,
    assume_hard: bool = False,
) -> Tensor:
    """Whether each query is hard enough for latents: its share of right answers is at most tau.

    `correct` has a row of 0s and 1s for each query, one a sampled answer, or one share for each. Rows
    may differ in length; None is an answer that could not be verified. A query of which nothing is
    known counts as hard only with `assume_hard`. tau below 0 chooses none, 1 or more all.

    >>> use_latent([[1, 1, 1, 0], [0, 1, 0, 1], []], tau=0.5).tolist()
    [False, True, False]
    """
    found = []
    for row in correct:
        answers = [row] if row is None or isinstance(row, bool | float | int) else row
        known = [float(one) for one in answers if one is not None]
        found.append(sum(known) / len(known) <= tau if known else assume_hard)
    return torch.tensor(found, dtype=torch.bool)


@public
def pool_tokens(
    tokens: Annotated[Float[Tensor, "*B N D"], SOME],
    grid: tuple[PositiveInt, PositiveInt],
    K: PositiveInt,
) -> Tensor:
    """Average a grid of tokens to exactly K, row by row: (..., R C, D) -> (..., K, D).

    `grid` is (R, C), rows and columns. K is split into the rows and columns nearest to the grid's
    shape; each pooled token is the mean over its part of the grid, as in adaptive average pooling:
    parts overlap where sizes do not divide.

    >>> pool_tokens([[1.0], [2.0], [3.0], [4.0]], grid=(2, 2), K=2).tolist()
    [[1.5], [3.5]]
    """
    rows, columns = grid
    *more, count, size = tokens.shape
    if count != rows * columns or count < K:
        raise refused("tokens", count, f"{rows * columns} for the grid, at least K = {K}")
    maps = tokens.reshape(-1, rows, columns, size).permute(0, 3, 1, 2)
    pooled = F.adaptive_avg_pool2d(maps, pooled_grid(K, rows, columns))
    return pooled.flatten(2).transpose(1, 2).reshape(*more, K, size)


@public
def latent_loss(pred: Unread, target: Unread, mask: Bool[Tensor, "*B"] | None = None) -> Tensor:
    """Squared error summed over coefficients, mean over the slots of the mask: (..., K), (..., K), (...).

    Exactly 0 where the mask is empty; what it leaves out does not count, whatever its value.

    >>> latent_loss([[1.0, 2.0], [9.0, 9.0]], [[0.0, 0.0], [0.0, 0.0]], mask=[1, 0]).item()
    5.0
    """
    predicted, targets, chosen = _pairs(pred, target, mask)
    return masked_mean((predicted - targets).square(), chosen)


def masked_mean(errors: Tensor, chosen: Tensor) -> Tensor:
    """Errors (..., K) summed over K, mean over the chosen (...); values are not looked at."""
    kept = torch.where(chosen.unsqueeze(-1), errors, 0.0)
    return kept.sum() / chosen.sum().clamp(min=1)


@public
def cosine_loss(pred: Unread, target: Unread, mask: Bool[Tensor, "*B"] | None = None) -> Tensor:
    """Mean of `1 - cos` over vectors, or over those of the mask: (..., D), (..., D), (...).

    A vector of zeros has no direction: its cosine is 0. Exactly 0 where the mask is empty.

    >>> cosine_loss([[2.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [1.0, 0.0]]).item()
    0.5
    """
    predicted, targets, chosen = _pairs(pred, target, mask)
    one = predicted.new_ones(())
    predicted = torch.where(chosen.unsqueeze(-1), predicted, 0.0)
    targets = torch.where(chosen.unsqueeze(-1), targets, 0.0)
    cosines = (rescaled(predicted, one) * rescaled(targets, one)).sum(-1)
    return masked_mean((1 - cosines).unsqueeze(-1), chosen)


def _pairs(pred: Tensor, target: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Vectors and targets of the mask alone, which have to be finite, and the mask."""
    if mask is None and not pred.numel():
        raise refused("pred", pred, "at least one vector, where there is no mask")
    whole = torch.ones(pred.shape[:-1], dtype=torch.bool, device=pred.device)
    chosen = whole if mask is None else mask
    among, target = chosen.unsqueeze(-1).expand_as(pred), target.to(pred)
    check_finite(pred, "pred", among)
    check_finite(target, "target", among)
    # Left out before the difference: an infinite value times 0 would be NaN in the gradient.
    return pred.where(among, 0.0), target.where(among, 0.0), chosen


def pooled_grid(count: int, rows: int, columns: int) -> tuple[int, int]:
    """Rows and columns of `count` cells, nearest to the grid's shape; more rows where two are as near."""
    pairs = [
        (high > rows or wide > columns, abs(math.log(high * columns / (wide * rows))), high, wide)
        for high in range(1, count + 1)
        if count % high == 0 and (wide := count // high)
    ]
    *_, high, wide = min(pairs, key=lambda one: (one[0], round(one[1], 9), -one[2]))
    return high, wide


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


@public
def fit_pca(
    embeddings: Annotated[Float64[Tensor, "N D"], SOME], k: PositiveInt | None = None
) -> Subspace:
    """The k main directions of embeddings (N, D), computed in float64.

    Directions without variance are left out, so there may be fewer than k. Without k, the smallest
    number that holds 95 % of the variance, from 8 to D / 2.

    >>> basis = fit_pca([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.5], [0.0, -0.5]], k=1)
    >>> basis.components.tolist(), basis.eigenvalues.tolist(), basis.explained
    ([[1.0], [0.0]], [0.5], 0.8)
    """
    count, size = embeddings.shape
    if k is not None and k > min(count, size):
        raise refused("k", k, f"at most {min(count, size)}, rows and width")
    mean_D = embeddings.mean(0)
    centred_ND = embeddings - mean_D
    values_D, vectors_DD = torch.linalg.eigh(centred_ND.T @ centred_ND / count)
    values_D, vectors_DD = values_D.flip(0).clamp(min=0), vectors_DD.flip(1)
    # Variance below which a direction has none: rounding of the decomposition and of the mean.
    eps = torch.finfo(embeddings.dtype).eps
    rounding = (16 * eps * float(embeddings.abs().max())) ** 2 * size
    rank = int((values_D > max(count, size) * eps * float(values_D[0]) + rounding).sum())
    values_D[rank:] = 0.0
    if k is None:
        k = min(max(pca_rank.plain(values_D, TARGET), LEAST), max(size // 2, 1))
    kept = min(k, rank)
    total = float(values_D.sum())
    columns_DK = vectors_DD[:, :kept]
    if kept:
        largest_1K = columns_DK.gather(0, columns_DK.abs().argmax(0, keepdim=True))
        columns_DK = columns_DK * torch.where(largest_1K < 0, -1.0, 1.0).to(columns_DK)
    explained = float(values_D[:kept].sum()) / total if total else 1.0
    return Subspace(mean_D, columns_DK.contiguous(), values_D[:kept].clone(), explained)


@public
def pca_rank(
    eigenvalues: Annotated[Float64[Tensor, " D"], SOME],
    target: PositiveShare = TARGET,
) -> int:
    """The smallest number of components whose share of the variance reaches the target.

    The order of the eigenvalues does not matter; 0 where there is no variance.

    >>> pca_rank([4.0, 3.0, 2.0, 1.0], target=0.7)
    2
    """
    # What a decomposition gives for 0 may be below it by a rounding error.
    if (eigenvalues < -1e-9 * eigenvalues.abs().max()).any():
        raise refused("eigenvalues", eigenvalues.tolist(), "numbers of at least 0")
    sums_D = eigenvalues.clamp(min=0).sort(descending=True).values.cumsum(0)
    if not sums_D[-1]:
        return 0
    # 0.4 + 0.3 + 0.2 is 0.8999... in floats, and reaches 0.9 all the same.
    return int((sums_D / sums_D[-1] < target - 1e-12).sum()) + 1


@public
def reconstruct_latents(coeffs: Float[Tensor, "*B K"], components: Columns, mean: Mean) -> Tensor:
    """Vectors of coefficients, `mean + P c`: (..., K), (D, K), (D,) -> (..., D).

    The gradient of `coeffs` is kept, the basis has none.

    >>> reconstruct_latents([[2.0]], components=[[0.6], [0.8]], mean=[1.0, 1.0]).tolist()
    [[2.2, 2.6]]
    """
    return coeffs @ components.to(coeffs).T + mean.to(coeffs)


@public
def project_latents(v: Vectors, components: Columns, mean: Mean) -> Tensor:
    """The nearest vectors of the subspace, `mean + P P^T (v - mean)`: (..., D) -> (..., D).

    >>> project_latents([[3.0, 4.0]], components=[[1.0], [0.0]], mean=[0.0, 1.0]).tolist()
    [[3.0, 1.0]]
    """
    columns_DK, mean_D = components.to(v), mean.to(v)
    return (v - mean_D) @ columns_DK @ columns_DK.T + mean_D


@public
def whiten_latents(
    v: Vectors,
    components: Columns,
    mean: Mean,
    eigenvalues: Annotated[Float64[Tensor, " K"], Meta(gt=0)],
) -> Tensor:
    """Coefficients of unit variance, `P^T (v - mean) / sqrt(eigenvalues)`: (..., D) -> (..., K).

    Components without variance are left out beforehand, as `fit_pca` does.

    >>> whiten_latents([[3.0, 4.0]], [[1.0], [0.0]], mean=[1.0, 1.0], eigenvalues=[4.0]).tolist()
    [[1.0]]
    """
    return (v - mean.to(v)) @ components.to(v) / eigenvalues.to(v).sqrt()
