"""The loss of a masked diffusion model, and the masks that it is taken over.

    masks = mirror_masks(u_BL, t_B, eligible_BL)            # two complementary masks of one field
    loss = mdm_loss(token_nll_BL, masks.mask_first, masks.p, masks.eligible_count, weight_B)

A rate t gives the chance `p = (1 - eps) t + eps` that a token of the answer is masked. The loss of a
row is `l_b = (1/n_b) sum_i m_bi nll_bi / p_b`, that of a batch the mean of `w_b l_b` over all rows
with an answer (arXiv 2511.18159, LLaDA). A row in which nothing was masked counts with 0: leaving it
out, as the reference does, raises the loss at small t. No random numbers are drawn here: `u` is an
argument.

MIRROR masks with `u < p` and with `u > 1 - p`, both of one field u. Each mask alone is as if drawn
independently; together they cover `min(1, 2p)` of the answer, and where one loss is high by chance
the other is low.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from burnish.arguments import as_number, as_whole, refused
from burnish.errors import ArgumentError
from burnish.tensors import as_finite, as_logp, as_mask, check_finite, check_shape, torch

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.tensors import Numbers

EPS = 1e-3
"""Least chance of a token to be masked, at t = 0."""


class MaskPair(NamedTuple):
    """Two complementary masks of each row."""

    p: Tensor
    """Chance of an eligible token to be masked, float64 (B,)."""
    mask_first: Tensor
    """bool (B, L)."""
    mask_second: Tensor
    eligible_count: Tensor
    """Eligible tokens of each row, int64 (B,)."""


def mask_chance(t: Tensor, eps: float = EPS) -> Tensor:
    """Chance of a token to be masked at rate t: `(1 - eps) t + eps`."""
    return (1 - eps) * t + eps


def mirror_masks(u: Numbers, t: Numbers, eligible: Numbers, eps: float = EPS) -> MaskPair:
    """Two masks of one uniform field, each as likely as the other: (B, L), (B,), (B, L) (MIRROR).

    `u` holds uniform numbers from 0 to 1, `t` the rates, `eligible` what may be masked: the answer.
    At t = 1 both masks are the whole answer.

    >>> from burnish.models.masked_diffusion import mirror_masks
    >>> found = mirror_masks(u=[[0.1, 0.5, 0.9, 0.2]], t=[0.3], eligible=[[1, 1, 1, 0]], eps=0.0)
    >>> found.mask_first.tolist(), found.mask_second.tolist()
    ([[True, False, False, False]], [[False, False, True, False]])
    """
    u_BL, t_B, eligible_BL = _fields(u, t, eligible)
    p_B = mask_chance(t_B, as_number("eps", eps, low=0, below=1))
    first_BL, second_BL = mirrored(u_BL, p_B[:, None], eligible_BL)
    return MaskPair(p_B, first_BL, second_BL, eligible_BL.sum(1))


def mirrored(u_BL: Tensor, p_BX: Tensor, eligible_BL: Tensor) -> tuple[Tensor, Tensor]:
    """`u < p` and `u > 1 - p`; at p = 1 the whole answer, numbers at the ends included."""
    is_all_BX = p_BX >= 1
    first_BL = ((u_BL < p_BX) | is_all_BX) & eligible_BL
    second_BL = ((u_BL > 1 - p_BX) | is_all_BX) & eligible_BL
    return first_BL, second_BL


class MaskedLoss(NamedTuple):
    """Of one mask a row; both keep the gradient of `token_nll`."""

    loss: Tensor
    """Weighted mean over the rows that have an answer; 0 where none has."""
    row_loss: Tensor
    """Unweighted loss of each row, (B,); 0 where nothing was masked."""


def mdm_loss(
    token_nll: Numbers,
    mask: Numbers,
    p: Numbers,
    eligible_count: Numbers,
    weight: Numbers | None = None,
) -> MaskedLoss:
    """Loss of a masked diffusion model: (B, L), (B, L), (B,), (B,), (B,) -> () and (B,).

    `token_nll` is the negative log-probability of each true token, `p` the chance with which it was
    masked: one a row, or (B, L) where it differs by token (ISAD). `eligible_count` is how many tokens
    of a row could be masked; a row with 0 has no part in the mean. `weight` is 1 without a value: the
    right one for rates drawn uniformly. What is not masked does not count, whatever its nll is.

    >>> from burnish.models.masked_diffusion import mdm_loss
    >>> found = mdm_loss([[2.0, 1.0], [3.0, 1.0]], [[1, 0], [0, 0]], [0.5, 0.5], [2, 2], [1.0, 1.0])
    >>> found.loss.item(), found.row_loss.tolist()
    (1.0, [2.0, 0.0])
    """
    nll_BL = as_logp(token_nll, "token_nll")
    if nll_BL.ndim != 2:
        raise ArgumentError(f"token_nll: got shape {tuple(nll_BL.shape)}, expected (B, L)")
    rows, shape = nll_BL.shape[0], tuple(nll_BL.shape)
    mask_BL = as_mask(mask, "mask", shape).to(nll_BL.device)
    check_finite(nll_BL, "token_nll", mask_BL)
    p_BX = as_finite(p, "p").to(nll_BL)
    check_shape(p_BX, "p", (rows,), shape)
    if not ((p_BX > 0) & (p_BX <= 1)).all():
        raise refused("p", p_BX.tolist(), "chances above 0, up to 1")
    count_B = _counts(eligible_count, mask_BL)
    if weight is None:
        weight_B = nll_BL.new_ones(rows)
    else:
        weight_B = as_finite(weight, "weight").to(nll_BL)
        check_shape(weight_B, "weight", (rows,))
        if (weight_B < 0).any():
            raise refused("weight", weight_B.tolist(), "weights of at least 0")
    row_B = row_losses(nll_BL, mask_BL, p_BX, count_B)
    loss = batch_loss(row_B, count_B, weight_B)
    if not (row_B.isfinite().all() and loss.isfinite()):
        raise ArgumentError(
            f"the loss of these p, weight and token_nll is beyond {nll_BL.dtype}; expected larger "
            "chances or smaller weights"
        )
    return MaskedLoss(loss, row_B)


def row_losses(nll_BL: Tensor, mask_BL: Tensor, p: Tensor, count_B: Tensor) -> Tensor:
    """Loss of each row, (B,), for p (B,) or (B, L); shapes and values are not looked at."""
    p_BX = p[:, None] if p.ndim == 1 else p
    kept_BL = torch.where(mask_BL, nll_BL / p_BX, 0.0)
    return kept_BL.sum(1) / count_B.clamp(min=1).to(nll_BL)


def batch_loss(row_B: Tensor, count_B: Tensor, weight_B: Tensor) -> Tensor:
    """Weighted mean over the rows with an answer; values are not looked at."""
    has_answer_B = count_B > 0
    return (row_B * weight_B * has_answer_B).sum() / has_answer_B.sum().clamp(min=1)


def token_nll(logits_BLV: Tensor, ids_BL: Tensor, mask_id: int) -> Tensor:
    """Negative log-prob of each true token, (B, L), where the model may not answer with the mask.

    The mask token's logit is taken as -inf, in training as in decoding.
    """
    check_shape(ids_BL, "ids_BL", tuple(logits_BLV.shape[:-1]))
    mask_id = as_whole("mask_id", mask_id, low=0, high=logits_BLV.shape[-1] - 1)
    check_finite(logits_BLV, "logits_BLV")
    is_odd_BL = ~((ids_BL >= 0) & (ids_BL < logits_BLV.shape[-1]))
    if is_odd_BL.any():
        place = is_odd_BL.nonzero()[0].tolist()
        raise ArgumentError(
            f"ids_BL: {place} is {ids_BL[tuple(place)].item()}, expected a token id from 0 to "
            f"{logits_BLV.shape[-1] - 1}. Leave tokens out of the loss by the mask, not by their id"
        )
    logits_BLV = logits_BLV.float() if logits_BLV.dtype.itemsize < 4 else logits_BLV
    is_mask_V = torch.arange(logits_BLV.shape[-1], device=logits_BLV.device) == mask_id
    allowed_BLV = logits_BLV.masked_fill(is_mask_V, -torch.inf)
    return torch.nn.functional.cross_entropy(allowed_BLV.transpose(1, 2), ids_BL, reduction="none")


class MaskChance(NamedTuple):
    """Of each token, float64 (B, L)."""

    q: Tensor
    """Chance to be masked."""
    weight: Tensor
    """`1/q`, what a masked token's nll is multiplied by."""


def isad_mask_prob(p: Numbers, is_delimiter: Numbers, delta: float = 0.2) -> MaskChance:
    """Mask delimiters of the answer more often, `q = min(p + delta, 1)`, at weight `1/q` (ISAD).

    `p` is one chance, one a row (B,) for `is_delimiter` (B, L), or one a token. The weight is
    Horvitz-Thompson's, which leaves the expected loss of a token as it is for the masks it is seen with;
    the reference's `p/q^2` does not. That delimiters are hidden more often from *other* tokens it does
    not correct: `Noise(delimiter_weight="row")` does.

    >>> from burnish.models.masked_diffusion import isad_mask_prob
    >>> found = isad_mask_prob(p=[0.3], is_delimiter=[[0, 1]], delta=0.2)
    >>> found.q.tolist(), found.weight.tolist()[0][1]
    ([[0.3, 0.5]], 2.0)
    """
    delta = as_number("delta", delta, low=0, high=1)
    p_X = as_finite(p, "p")
    is_delimiter_X = as_finite(is_delimiter, "is_delimiter").to(p_X.device) != 0
    if not is_delimiter_X.numel():
        raise refused("is_delimiter", is_delimiter, "at least one token")
    if not ((p_X > 0) & (p_X <= 1)).all():
        raise refused("p", p, "chances above 0, up to 1")
    shape = tuple(is_delimiter_X.shape)
    if len(shape) > 2:
        raise ArgumentError(f"is_delimiter: got shape {shape}, expected (L,) or (B, L)")
    check_shape(p_X, "p", (), shape[:1], shape)
    if p_X.ndim == 1 and len(shape) == 2:
        p_X = p_X[:, None]
    q_X = torch.where(is_delimiter_X, (p_X + delta).clamp(max=1), p_X)
    weight_X = 1 / q_X
    if not weight_X.isfinite().all():
        raise refused("p", p, "chances whose inverse float64 holds")
    return MaskChance(q_X, weight_X)


def _fields(u: Numbers, t: Numbers, eligible: Numbers) -> tuple[Tensor, Tensor, Tensor]:
    u_BL = as_finite(u, "u")
    if u_BL.ndim != 2 or not u_BL.numel():
        raise ArgumentError(f"u: got shape {tuple(u_BL.shape)}, expected (B, L)")
    if not ((u_BL >= 0) & (u_BL <= 1)).all():
        raise refused("u", u, "numbers from 0 to 1")
    t_B = as_rates(t, "t").to(u_BL.device)
    check_shape(t_B, "t", (), (len(u_BL),))
    eligible_BL = as_mask(eligible, "eligible", tuple(u_BL.shape)).to(u_BL.device)
    return u_BL, t_B.expand(len(u_BL)), eligible_BL


def as_rates(values: Numbers, what: str) -> Tensor:
    """Mask rates, float64, from 0 to 1."""
    t = as_finite(values, what)
    if not ((t >= 0) & (t <= 1)).all():
        raise refused(what, values, "rates from 0 to 1")
    return t


def _counts(values: Numbers, mask_BL: Tensor) -> Tensor:
    count_B = as_finite(values, "eligible_count").to(mask_BL.device)
    check_shape(count_B, "eligible_count", (len(mask_BL),))
    if not ((count_B >= 0) & (count_B == count_B.round())).all():
        raise refused("eligible_count", count_B.tolist(), "a count of tokens for each row")
    masked_B = mask_BL.sum(1)
    if (masked_B > count_B).any():
        row = int((masked_B > count_B).nonzero()[0])
        raise ArgumentError(
            f"eligible_count: row {row} has {count_B[row]:g} and {int(masked_B[row])} masked tokens, "
            "expected at least as many as are masked"
        )
    return count_B
