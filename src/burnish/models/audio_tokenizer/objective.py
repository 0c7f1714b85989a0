"""Latents of the audio tokenizer and what is learned from them, as pure functions (arXiv 2606.06357).

Frames are (T, D), with any axes before them. No random numbers are drawn here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

from burnish.arguments import refused
from burnish.boundary import SOME, UNREAD, Draws, NonNegative, public
from burnish.tensors import check_finite, check_shape, torch

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Float64
    from torch import Tensor

    Latents = Float[Tensor, "*B T D"]

EPS = 1e-5
"""Added to the standard deviation of a frame."""
TIE = 1e-12
"""Cosines that differ by less are equal; the code of the lower number is taken."""


@public
def channel_normalise(z: Float[Tensor, "*B D"], eps: NonNegative = EPS) -> Tensor:
    """Normalise each frame over its channels, `(z - mean) / (std + eps)`: (..., D) -> (..., D) (eq. 1).

    The standard deviation is that of the population. A constant frame, silence, becomes 0.

    >>> channel_normalise([[1.0, 3.0], [5.0, 5.0]], eps=0.0).tolist()
    [[-1.0, 1.0], [0.0, 0.0]]
    """
    return normalise_frames(z, eps)


def normalise_frames(z_XD: Tensor, eps: float = EPS) -> Tensor:
    """As `channel_normalise`; values are not looked at."""
    is_flat_X1 = z_XD.amax(-1, keepdim=True) == z_XD.amin(-1, keepdim=True)
    centred_XD = torch.where(is_flat_X1, 0.0, z_XD - z_XD.mean(-1, keepdim=True))
    # By the largest part first: squares of small numbers would vanish, those of large ones overflow.
    largest_X1 = centred_XD.detach().abs().amax(-1, keepdim=True)
    is_still_X1 = largest_X1 == 0
    size_X1 = torch.where(is_still_X1, 1.0, largest_X1)
    square_X1 = (centred_XD / size_X1).square().mean(-1, keepdim=True)
    # Not of 0, where the root has no gradient.
    std_X1 = size_X1 * torch.where(is_still_X1, 1.0, square_X1).sqrt()
    return centred_XD / (std_X1 + eps)


@public
def perturb_latents(zn: Latents, alpha: Float[Tensor, "*A"], noise: Latents) -> Tensor:
    """Add noise of one strength a sequence, `zn + alpha noise`: (..., T, D), (...), (..., T, D) (eq. 2).

    >>> perturb_latents(zn=[[1.0, -1.0]], alpha=0.5, noise=[[2.0, 0.0]]).tolist()
    [[2.0, -1.0]]
    """
    rows = tuple(zn.shape[:-2])
    check_shape(alpha, "alpha", (), rows, (*rows, 1, 1), *([(1,)] if not rows else []))
    strength = alpha[..., None, None] if alpha.ndim == len(rows) else alpha
    return zn + strength.to(zn) * noise.to(zn)


@public
def rq_codes(
    x: Float64[Tensor, "*B F"],
    projection: Float64[Tensor, "F C"],
    codebook: Annotated[Float64[Tensor, "V C"], SOME],
) -> Tensor:
    """Code of each frame by a fixed random quantiser: (..., F), (F, C), (V, C) -> int64 (...).

    `argmax_v cos(x @ projection, codebook[v])`, the first of equal ones (BEST-RQ). A frame that is
    projected to 0 has code 0. Standardise the channels of `x` over the corpus beforehand.

    >>> rq_codes([[2.0, 1.0], [0.0, -3.0]], [[1.0, 0.0], [0.0, 1.0]], [[1, 0], [0, 1], [0, -1]]).tolist()
    [0, 2]
    """
    cosine_XV = _unit(x @ projection) @ _unit(codebook).T
    is_best_XV = cosine_XV >= cosine_XV.amax(-1, keepdim=True) - TIE
    numbers_V = torch.arange(len(codebook), device=x.device)
    return torch.where(is_best_XV, numbers_V, len(codebook)).amin(-1)


class MtpLoss(NamedTuple):
    """Of K heads that each predict one frame ahead of the last; both keep the gradient."""

    loss: Tensor
    """Sum over the heads."""
    per_head: Tensor
    """Mean cross-entropy of each head over its valid pairs, (K,); 0 where it has none."""


@public
def rq_mtp_loss(
    logits: Annotated[Float[Tensor, "K *B T V"], UNREAD, SOME],
    codes: Annotated[Float64[Tensor, "*B T"], UNREAD],
    valid: Bool[Tensor, "*B T"] | None = None,
) -> MtpLoss:
    """Predict the codes of the next K frames: (K, ..., T, V), (..., T), (..., T) (eq. 5).

    Head k, from 0, pairs frame t with frame t + k + 1; a pair counts where both frames are `valid`,
    all without a value. What stands at other frames is not looked at. A sequence that is too short
    for a head has no pair for it.

    >>> found = rq_mtp_loss(logits=[[[0.0, 0.0], [9.0, 0.0]]] * 2, codes=[1, 0], valid=[1, 1])
    >>> [round(value, 4) for value in found.per_head.tolist()]
    [0.6931, 0.0]
    """
    valid_XT = torch.ones_like(codes, dtype=torch.bool) if valid is None else valid
    size, is_read = logits.shape[-1], valid_XT[None, ..., None]
    check_finite(logits, "logits", is_read.expand(logits.shape))
    is_code_XT = (codes >= 0) & (codes < size) & (codes == codes.round())
    if not (is_code_XT | ~valid_XT).all():
        raise refused("codes", codes, f"whole numbers from 0 to {size - 1} at valid frames")
    codes_XT = torch.where(valid_XT, codes, 0.0).long()
    safe_KXTV = torch.where(is_read, logits, 0.0)
    heads = [mtp_head_loss(head, codes_XT, valid_XT, k + 1) for k, head in enumerate(safe_KXTV)]
    per_head_K = torch.stack(heads)
    return MtpLoss(per_head_K.sum(), per_head_K)


def mtp_head_loss(logits_XTV: Tensor, codes_XT: Tensor, valid_XT: Tensor, ahead: int) -> Tensor:
    """Mean cross-entropy of frame t's logits on the code of frame t + ahead; 0 without a pair."""
    pairs = max(codes_XT.shape[-1] - ahead, 0)
    is_pair_XT = valid_XT[..., :pairs] & valid_XT[..., ahead:]
    logp_XTV = logits_XTV[..., :pairs, :].log_softmax(-1)
    nll_XT = -logp_XTV.gather(-1, codes_XT[..., ahead:, None]).squeeze(-1)
    return torch.where(is_pair_XT, nll_XT, 0.0).sum() / is_pair_XT.sum().clamp(min=1)


@public
def patchify_latents(z: Latents, P: Draws = 2) -> Tensor:
    """Join each P frames to one patch: (..., T, D) -> (..., T // P, P D); an incomplete tail is dropped.

    >>> patchify_latents([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], P=2).tolist()
    [[1.0, 2.0, 3.0, 4.0]]
    """
    *rows, count, size = z.shape
    kept = count // P
    return z[..., : kept * P, :].reshape(*rows, kept, P * size)


def _unit(values_XC: Tensor) -> Tensor:
    """Vectors of length 1; 0 stays 0."""
    # By the largest part first: squares of small numbers would vanish.
    largest_X1 = values_XC.abs().amax(-1, keepdim=True)
    scaled_XC = values_XC / torch.where(largest_X1 > 0, largest_X1, 1.0)
    length_X1 = scaled_XC.square().sum(-1, keepdim=True).sqrt()
    return scaled_XC / torch.where(length_X1 > 0, length_X1, 1.0)
