"""What GAP measures and minimises, as functions of tensors (arXiv 2605.12374).

norm_ratio, norm_match, norm_ema     how far hidden states are from input embeddings; the repair
pool_tokens                          an auxiliary image's embeddings as K targets
latent_loss, cosine_loss             the loss of predicted latents
use_latent                           which queries get latents: those the base model fails
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from burnish.arguments import as_flag, as_list, as_number, as_numbers, as_whole, refused
from burnish.errors import ArgumentError
from burnish.models.visual_latent.subspace import as_vectors
from burnish.tensors import as_finite, as_logp, as_mask, check_finite, check_shape

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.tensors import Numbers


def norm_ratio(hidden: Numbers, inputs: Numbers) -> float:
    """Mean length of hidden states over the mean length of input embeddings: (..., D), (..., D).

    >>> from burnish.models.visual_latent import norm_ratio
    >>> norm_ratio(hidden=[[30.0, 40.0]], inputs=[[0.6, 0.8], [3.0, 0.0]])
    25.0
    """
    length = as_vectors(hidden, "hidden").detach().double().norm(dim=-1).mean()
    base = as_vectors(inputs, "inputs").detach().double().norm(dim=-1).mean()
    if not base > 0:
        raise refused("inputs", inputs, "embeddings that are not all 0")
    return float(length / base)


def norm_match(h: Numbers, norm: Numbers) -> Tensor:
    """Hidden states rescaled to one length, `h norm / |h|`: (..., D) -> (..., D).

    `norm` is one number, or one for each vector. A vector of zeros stays as it is.

    >>> from burnish.models.visual_latent import norm_match
    >>> norm_match([[30.0, 40.0], [0.0, 0.0]], norm=2.5).tolist()
    [[1.5, 2.0], [0.0, 0.0]]
    """
    vectors = as_vectors(h, "h")
    lengths = as_finite(norm, "norm").to(vectors)
    check_shape(lengths, "norm", (), tuple(vectors.shape[:-1]))
    if (lengths < 0).any():
        raise refused("norm", norm, "lengths of at least 0")
    return rescaled(vectors, lengths)


def rescaled(h: Tensor, norm: Tensor) -> Tensor:
    """As `norm_match`; values are not looked at."""
    # The square of a large entry would be infinite, and that of a small one 0.
    largest = h.detach().abs().amax(-1, keepdim=True)
    h = h / torch.where(largest > 0, largest, 1.0)
    square = h.square().sum(-1, keepdim=True)
    # The root of 0 has no gradient: such a vector is divided by 1.
    length = torch.where(square > 0, square, 1.0).sqrt()
    return h * (norm.unsqueeze(-1) if norm.ndim else norm) / length


def norm_ema(value: float | None, norms: Numbers, decay: float = 0.99) -> float:
    """Moving average of lengths: `decay value + (1 - decay) mean(norms)`.

    `norms` are those of one batch. Without a value yet (None) it is their mean; a batch without any
    leaves the value.

    >>> from burnish.models.visual_latent import norm_ema
    >>> norm_ema(2.0, norms=[3.0, 5.0], decay=0.75)
    2.5
    """
    decay = as_number("decay", decay, low=0, high=1)
    lengths = as_finite(norms, "norms")
    if (lengths < 0).any():
        raise refused("norms", norms, "lengths of at least 0")
    if value is not None:
        value = as_number("value", value, low=0)
    if not lengths.numel():
        if value is None:
            raise refused("norms", norms, "at least one length, as there is no value yet")
        return value
    mean = float(lengths.mean())
    return mean if value is None else decay * value + (1 - decay) * mean


def use_latent(correct: Any, tau: float = 0.5, assume_hard: bool = False) -> Tensor:
    """Whether each query is hard enough for latents: its share of right answers is at most tau.

    `correct` has a row of 0s and 1s for each query, one a sampled answer, or one share for each. Rows
    may differ in length; None is an answer that could not be verified. A query of which nothing is
    known counts as hard only with `assume_hard`. tau below 0 chooses none, 1 or more all.

    >>> from burnish.models.visual_latent import use_latent
    >>> use_latent([[1, 1, 1, 0], [0, 1, 0, 1], []], tau=0.5).tolist()
    [False, True, False]
    """
    tau = as_number("tau", tau)
    is_hard = as_flag("assume_hard", assume_hard)
    found = []
    for place, row in enumerate(as_list("correct", correct)):
        share = _share(f"correct[{place}]", row)
        found.append(is_hard if share is None else share <= tau)
    return torch.tensor(found, dtype=torch.bool)


def pool_tokens(tokens: Numbers, grid: tuple[int, int], K: int) -> Tensor:
    """Average a grid of tokens to exactly K, row by row: (..., R C, D) -> (..., K, D).

    `grid` is (R, C), rows and columns. K is split into the rows and columns nearest to the grid's
    shape; each pooled token is the mean over its part of the grid, as in adaptive average pooling:
    parts overlap where sizes do not divide.

    >>> from burnish.models.visual_latent import pool_tokens
    >>> pool_tokens([[1.0], [2.0], [3.0], [4.0]], grid=(2, 2), K=2).tolist()
    [[1.5], [3.5]]
    """
    sides = [as_whole("grid", side, low=1) for side in as_list("grid", grid)]
    if len(sides) != 2:
        raise refused("grid", grid, "rows and columns")
    rows, columns = sides
    vectors = as_logp(tokens, "tokens")
    if vectors.ndim < 2 or vectors.shape[-2] != rows * columns or not vectors.numel():
        raise ArgumentError(
            f"tokens: got shape {tuple(vectors.shape)}, expected ({rows * columns}, D) for the grid"
        )
    check_finite(vectors, "tokens")
    count = as_whole("K", K, low=1, high=rows * columns)
    high, wide = pooled_grid(count, rows, columns)
    size = vectors.shape[-1]
    maps = vectors.reshape(-1, rows, columns, size).permute(0, 3, 1, 2)
    pooled = F.adaptive_avg_pool2d(maps, (high, wide)).flatten(2).transpose(1, 2)
    return pooled.reshape(*vectors.shape[:-2], count, size)


def latent_loss(pred: Numbers, target: Numbers, mask: Numbers | None = None) -> Tensor:
    """Squared error summed over coefficients, mean over the slots of the mask: (..., K), (..., K), (...).

    Exactly 0 where the mask is empty; what it leaves out does not count, whatever its value.

    >>> from burnish.models.visual_latent import latent_loss
    >>> latent_loss([[1.0, 2.0], [9.0, 9.0]], [[0.0, 0.0], [0.0, 0.0]], mask=[1, 0]).item()
    5.0
    """
    predicted, targets, chosen = _pairs(pred, target, mask)
    return masked_mean((predicted - targets).square(), chosen)


def masked_mean(errors: Tensor, chosen: Tensor) -> Tensor:
    """Errors (..., K) summed over K, mean over the chosen (...); values are not looked at."""
    kept = torch.where(chosen.unsqueeze(-1), errors, 0.0)
    return kept.sum() / chosen.sum().clamp(min=1)


def cosine_loss(pred: Numbers, target: Numbers, mask: Numbers | None = None) -> Tensor:
    """Mean of `1 - cos` over vectors, or over those of the mask: (..., D), (..., D), (...).

    A vector of zeros has no direction: its cosine is 0. Exactly 0 where the mask is empty.

    >>> from burnish.models.visual_latent import cosine_loss
    >>> cosine_loss([[2.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [1.0, 0.0]]).item()
    0.5
    """
    predicted, targets, chosen = _pairs(pred, target, mask)
    one = predicted.new_ones(())
    predicted = torch.where(chosen.unsqueeze(-1), predicted, 0.0)
    targets = torch.where(chosen.unsqueeze(-1), targets, 0.0)
    cosines = (rescaled(predicted, one) * rescaled(targets, one)).sum(-1)
    return masked_mean((1 - cosines).unsqueeze(-1), chosen)


def _pairs(pred: Numbers, target: Numbers, mask: Numbers | None) -> tuple[Tensor, Tensor, Tensor]:
    predicted = as_logp(pred, "pred")
    if not predicted.ndim or not predicted.shape[-1]:
        raise ArgumentError(f"pred: got shape {tuple(predicted.shape)}, expected (..., K)")
    targets = as_logp(target, "target").to(predicted)
    check_shape(targets, "target", tuple(predicted.shape))
    if mask is None:
        if not predicted.numel():
            raise refused("pred", pred, "at least one vector, where there is no mask")
        chosen = torch.ones(predicted.shape[:-1], dtype=torch.bool, device=predicted.device)
    else:
        chosen = as_mask(mask, "mask", tuple(predicted.shape[:-1])).to(predicted.device)
    among = chosen.unsqueeze(-1).expand_as(predicted)
    check_finite(predicted, "pred", among)
    check_finite(targets, "target", among)
    # Left out before the difference: an infinite value times 0 would be NaN in the gradient.
    return predicted.where(among, 0.0), targets.where(among, 0.0), chosen


def _share(what: str, row: Any) -> float | None:
    """The share of right answers, or None where nothing is known."""
    if row is None:
        return None
    if isinstance(row, bool | int | float) or getattr(row, "ndim", 1) == 0:
        return as_number(what, row, low=0, high=1)
    known = [value for value in as_numbers(what, row, missing=True) if value is not None]
    if any(value not in (0.0, 1.0) for value in known):
        raise refused(what, row, "1 (right), 0 (wrong) or None (not verifiable) for each answer")
    return sum(known) / len(known) if known else None


def pooled_grid(count: int, rows: int, columns: int) -> tuple[int, int]:
    """Rows and columns of `count` cells, nearest to the grid's shape; more rows where two are as near."""
    pairs = [(high, count // high) for high in range(1, count + 1) if count % high == 0]

    def distance(pair: tuple[int, int]) -> tuple[bool, float, int]:
        high, wide = pair
        is_too_large = high > rows or wide > columns
        return is_too_large, round(abs(math.log(high * columns / (wide * rows))), 9), -high

    return min(pairs, key=distance)
