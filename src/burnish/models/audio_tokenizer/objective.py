"""Latents of the audio tokenizer and what is learned from them, as pure functions (arXiv 2606.06357).

    z = channel_normalise(z0)                       # every frame has mean 0 and standard deviation 1
    z_noised = perturb_latents(z, alpha, noise)     # in training; alpha ~ U(0, gamma), one a sequence
    codes = rq_codes(z, projection, codebook)       # targets of a fixed random quantiser
    loss = rq_mtp_loss(logits, codes, valid).loss   # the codes of the next K frames
    patches = patchify_latents(z, P=2)              # what a flow head generates

Frames are (T, D), with any axes before them. No random numbers are drawn here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from burnish.arguments import LARGEST_COUNT, as_number, as_whole, refused
from burnish.errors import ArgumentError
from burnish.models.blocks.flow import finite
from burnish.tensors import as_finite, as_logp, as_mask, check_finite, check_shape, torch

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.tensors import Numbers

EPS = 1e-5
"""Added to the standard deviation of a frame."""
TIE = 1e-12
"""Cosines that differ by less are equal; the code of the lower number is taken."""


def channel_normalise(z: Numbers, eps: float = EPS) -> Tensor:
    """Normalise each frame over its channels, `(z - mean) / (std + eps)`: (..., D) -> (..., D) (eq. 1).

    The standard deviation is that of the population. A constant frame, silence, becomes 0.

    >>> from burnish.models.audio_tokenizer import channel_normalise
    >>> channel_normalise([[1.0, 3.0], [5.0, 5.0]], eps=0.0).tolist()
    [[-1.0, 1.0], [0.0, 0.0]]
    """
    z_XD = finite(z, "z")
    if not z_XD.ndim:
        raise refused("z", z, "frames (..., D)")
    return normalise_frames(z_XD, as_number("eps", eps, low=0))


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


def perturb_latents(zn: Numbers, alpha: Numbers, noise: Numbers) -> Tensor:
    """Add noise of one strength a sequence, `zn + alpha noise`: (..., T, D), (...), (..., T, D) (eq. 2).

    >>> from burnish.models.audio_tokenizer import perturb_latents
    >>> perturb_latents(zn=[[1.0, -1.0]], alpha=0.5, noise=[[2.0, 0.0]]).tolist()
    [[2.0, -1.0]]
    """
    z_XTD = finite(zn, "zn")
    if z_XTD.ndim < 2:
        raise ArgumentError(f"zn: got shape {tuple(z_XTD.shape)}, expected (..., T, D)")
    noise_XTD = finite(noise, "noise", z_XTD)
    check_shape(noise_XTD, "noise", tuple(z_XTD.shape))
    alpha_X = finite(alpha, "alpha", z_XTD)
    rows = tuple(z_XTD.shape[:-2])
    check_shape(alpha_X, "alpha", (), rows, (*rows, 1, 1), *([(1,)] if not rows else []))
    if alpha_X.ndim == len(rows):
        alpha_X = alpha_X[..., None, None]
    return z_XTD + alpha_X * noise_XTD


def rq_codes(x: Numbers, projection: Numbers, codebook: Numbers) -> Tensor:
    """Code of each frame by a fixed random quantiser: (..., F), (F, C), (V, C) -> int64 (...).

    `argmax_v cos(x @ projection, codebook[v])`, the first of equal ones (BEST-RQ). A frame that is
    projected to 0 has code 0. Standardise the channels of `x` over the corpus beforehand.

    >>> from burnish.models.audio_tokenizer import rq_codes
    >>> rq_codes([[2.0, 1.0], [0.0, -3.0]], [[1.0, 0.0], [0.0, 1.0]], [[1, 0], [0, 1], [0, -1]]).tolist()
    [0, 2]
    """
    x_XF = finite(x, "x").detach().double()
    matrix_FC = finite(projection, "projection", x_XF).detach()
    codes_VC = finite(codebook, "codebook", x_XF).detach()
    if not x_XF.ndim:
        raise refused("x", x, "frames (..., F)")
    if matrix_FC.ndim != 2 or len(matrix_FC) != x_XF.shape[-1]:
        raise ArgumentError(
            f"projection: got shape {tuple(matrix_FC.shape)}, expected ({x_XF.shape[-1]}, C)"
        )
    if codes_VC.ndim != 2 or codes_VC.shape[1] != matrix_FC.shape[1]:
        raise ArgumentError(
            f"codebook: got shape {tuple(codes_VC.shape)}, expected (V, {matrix_FC.shape[1]})"
        )
    cosine_XV = _unit(x_XF @ matrix_FC) @ _unit(codes_VC).T
    is_best_XV = cosine_XV >= cosine_XV.amax(-1, keepdim=True) - TIE
    numbers_V = torch.arange(len(codes_VC), device=x_XF.device)
    return torch.where(is_best_XV, numbers_V, len(codes_VC)).amin(-1)


class MtpLoss(NamedTuple):
    """Of K heads that each predict one frame ahead of the last; both keep the gradient."""

    loss: Tensor
    """Sum over the heads."""
    per_head: Tensor
    """Mean cross-entropy of each head over its valid pairs, (K,); 0 where it has none."""


def rq_mtp_loss(logits: Numbers, codes: Numbers, valid: Numbers | None = None) -> MtpLoss:
    """Predict the codes of the next K frames: (K, ..., T, V), (..., T), (..., T) (eq. 5).

    Head k, from 0, pairs frame t with frame t + k + 1; a pair counts where both frames are `valid`,
    all without a value. What stands at other frames is not looked at. A sequence that is too short
    for a head has no pair for it.

    >>> from burnish.models.audio_tokenizer import rq_mtp_loss
    >>> found = rq_mtp_loss(logits=[[[0.0, 0.0], [9.0, 0.0]]] * 2, codes=[1, 0], valid=[1, 1])
    >>> [round(value, 4) for value in found.per_head.tolist()]
    [0.6931, 0.0]
    """
    logits_KXTV = as_logp(logits, "logits")
    shape = tuple(logits_KXTV.shape)
    if len(shape) < 3 or not logits_KXTV.numel():
        raise ArgumentError(f"logits: got shape {shape}, expected (K, ..., T, V)")
    frames, size = shape[1:-1], shape[-1]
    if valid is None:
        valid_XT = torch.ones(frames, dtype=torch.bool, device=logits_KXTV.device)
    else:
        valid_XT = as_mask(valid, "valid", frames).to(logits_KXTV.device)
    codes_XT = _codes(codes, valid_XT, size)
    check_finite(logits_KXTV, "logits", valid_XT[None, ..., None].expand(shape))
    safe_KXTV = torch.where(valid_XT[None, ..., None], logits_KXTV, 0.0)
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


def patchify_latents(z: Numbers, P: int = 2) -> Tensor:
    """Join each P frames to one patch: (..., T, D) -> (..., T // P, P D); an incomplete tail is dropped.

    >>> from burnish.models.audio_tokenizer import patchify_latents
    >>> patchify_latents([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], P=2).tolist()
    [[1.0, 2.0, 3.0, 4.0]]
    """
    z_XTD = finite(z, "z")
    if z_XTD.ndim < 2:
        raise ArgumentError(f"z: got shape {tuple(z_XTD.shape)}, expected (..., T, D)")
    frames = as_whole("P", P, low=1, high=LARGEST_COUNT)
    *rows, count, size = z_XTD.shape
    kept = count // frames
    return z_XTD[..., : kept * frames, :].reshape(*rows, kept, frames * size)


def _unit(values_XC: Tensor) -> Tensor:
    """Vectors of length 1; 0 stays 0."""
    # By the largest part first: squares of small numbers would vanish.
    largest_X1 = values_XC.abs().amax(-1, keepdim=True)
    scaled_XC = values_XC / torch.where(largest_X1 > 0, largest_X1, 1.0)
    length_X1 = scaled_XC.square().sum(-1, keepdim=True).sqrt()
    return scaled_XC / torch.where(length_X1 > 0, length_X1, 1.0)


def _codes(values: Numbers, valid_XT: Tensor, size: int) -> Tensor:
    codes_XT = as_finite(values, "codes").to(valid_XT.device)
    check_shape(codes_XT, "codes", tuple(valid_XT.shape))
    is_code_XT = (codes_XT >= 0) & (codes_XT < size) & (codes_XT == codes_XT.round())
    if not (is_code_XT | ~valid_XT).all():
        raise refused("codes", values, f"whole numbers from 0 to {size - 1} at valid frames")
    return torch.where(valid_XT, codes_XT, 0.0).long()
