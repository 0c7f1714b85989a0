"""The loss of a masked diffusion model, the masks it is taken over, and which tokens may be masked.

The loss of a row is `l_b = (1/n_b) sum_i m_bi nll_bi / p_b`, `p = (1 - eps) t + eps`, that of a batch the mean
of `w_b l_b` over all rows with an answer (arXiv 2511.18159, LLaDA). A row in which nothing was masked counts
with 0: leaving it out, as the reference does, raises the loss at small t. No random numbers are drawn here.

MIRROR masks with `u < p` and with `u > 1 - p`, both of one field u: where one loss is high by chance the
other is low. SyRM lets syntax tokens of a structured prompt be masked too: a small bias, on purpose.
"""

from __future__ import annotations

import keyword
import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple, NotRequired, TypedDict

from msgspec import Meta

from burnish.arguments import refused
from burnish.boundary import (
    UNREAD,
    Count,
    Fraction,
    PositiveInt,
    Settings,
    Share,
    public,
)
from burnish.errors import ArgumentError
from burnish.tensors import check_shape, torch

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Float64, Int
    from torch import Generator, Tensor

    Rates = Annotated[Float64[Tensor, " B"], Meta(ge=0, le=1)]
    Chances = Annotated[Float64[Tensor, " B"] | Float64[Tensor, "B L"], Meta(gt=0, le=1)]

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


@public
def mirror_masks(
    u: Annotated[Float64[Tensor, "B L"], Meta(ge=0, le=1)],
    t: Rates,
    eligible: Bool[Tensor, "B L"],
    eps: Fraction = EPS,
) -> MaskPair:
    """Two masks of one uniform field, each as likely as the other: (B, L), (B,), (B, L) (MIRROR).

    `u` holds uniform numbers, `t` the rates, `eligible` what may be masked: the answer. At t = 1 both masks are the whole answer.

    >>> found = mirror_masks(u=[[0.1, 0.5, 0.9, 0.2]], t=[0.3], eligible=[[1, 1, 1, 0]], eps=0.0)
    >>> found.mask_first.tolist(), found.mask_second.tolist()
    ([[True, False, False, False]], [[False, False, True, False]])
    """
    p_B = mask_chance(t, eps)
    return MaskPair(p_B, *mirrored(u, p_B[:, None], eligible), eligible.sum(1))


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


@public
def mdm_loss(
    token_nll: Annotated[Float[Tensor, "B L"], UNREAD],
    mask: Bool[Tensor, "B L"],
    p: Chances,
    eligible_count: Annotated[Int[Tensor, " B"], Meta(ge=0)],
    weight: Annotated[Float64[Tensor, " B"], Meta(ge=0)] | None = None,
) -> MaskedLoss:
    """Loss of a masked diffusion model: (B, L), (B, L), (B,), (B,), (B,) -> () and (B,).

    `token_nll` is the negative log-probability of each true token, `p` the chance with which it was
    masked: one a row, or (B, L) where it differs by token (ISAD). `eligible_count` is how many tokens
    of a row could be masked; a row with 0 has no part in the mean. `weight` is 1 without a value: the
    right one for rates drawn uniformly. What is not masked does not count, whatever its nll is.

    >>> found = mdm_loss([[2.0, 1.0], [3.0, 1.0]], [[1, 0], [0, 0]], [0.5, 0.5], [2, 2], [1.0, 1.0])
    >>> found.loss.item(), found.row_loss.tolist()
    (1.0, [2.0, 0.0])
    """
    if (mask.sum(1) > eligible_count).any():
        raise ArgumentError("eligible_count: below the masked tokens, expected at least these")
    row_B = row_losses(token_nll, mask, p.to(token_nll), eligible_count)
    weight_B = row_B.new_ones(len(row_B)) if weight is None else weight.to(row_B)
    loss = batch_loss(row_B, eligible_count, weight_B)
    if not loss.isfinite():
        raise refused("token_nll", loss.item(), "finite numbers where `mask` is 1")
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


@public
def token_nll(
    logits_BLV: Float[Tensor, "B L V"],
    ids_BL: Annotated[Int[Tensor, "B L"], Meta(ge=0)],
    mask_id: Count,
) -> Tensor:
    """Negative log-prob of each true token, (B, L), where the model may not answer with the mask.

    The mask token's logit is taken as -inf, in training as in decoding.
    """
    size = logits_BLV.shape[-1]
    if max(mask_id, int(ids_BL.max()) if ids_BL.numel() else 0) >= size:
        raise ArgumentError(f"ids_BL, mask_id: got {size} or more, expected token ids below it")
    is_mask_V = torch.arange(size, device=logits_BLV.device) == mask_id
    allowed_BLV = logits_BLV.masked_fill(is_mask_V, -torch.inf)
    return torch.nn.functional.cross_entropy(allowed_BLV.transpose(1, 2), ids_BL, reduction="none")


class MaskChance(NamedTuple):
    """Of each token, float64 (B, L)."""

    q: Tensor
    """Chance to be masked."""
    weight: Tensor
    """`1/q`, what a masked token's nll is multiplied by."""


@public
def isad_mask_prob(
    p: Annotated[
        Float64[Tensor, ""] | Float64[Tensor, " X"] | Float64[Tensor, "X L"], Meta(gt=0, le=1)
    ],
    is_delimiter: Bool[Tensor, " X"] | Bool[Tensor, "X L"],
    delta: Share = 0.2,
) -> MaskChance:
    """Mask delimiters of the answer more often, `q = min(p + delta, 1)`, at weight `1/q` (ISAD).

    `p` is one chance, one a row (B,) for `is_delimiter` (B, L), or one a token. The weight is
    Horvitz-Thompson's, which leaves the expected loss of a token as it is for the masks it is seen with;
    the reference's `p/q^2` does not. That delimiters are hidden more often from *other* tokens it does
    not correct: `Noise(delimiter_weight="row")` does.

    >>> found = isad_mask_prob(p=[0.3], is_delimiter=[[0, 1]], delta=0.2)
    >>> found.q.tolist(), found.weight.tolist()[0][1]
    ([[0.3, 0.5]], 2.0)
    """
    if is_delimiter.ndim < p.ndim:
        check_shape(p, "p", tuple(is_delimiter.shape))
    p_X = p[:, None] if p.ndim < is_delimiter.ndim and p.ndim else p
    q_X = torch.where(is_delimiter, (p_X + delta).clamp(max=1), p_X)
    return MaskChance(q_X, 1 / q_X)


class MaskPass(NamedTuple):
    """One forward pass of a batch."""

    mask_BL: Tensor
    chance_BX: Tensor
    """What a masked token's nll is divided by, (B,) or (B, L)."""


class IndependentMasks(Settings, frozen=True):
    """So many masks a row, each of its own field."""

    count: PositiveInt = 1

    @property
    def fields(self) -> int:
        return self.count

    @property
    def forwards(self) -> int:
        return self.count

    def passes(self, u_FBL: Tensor, chance_BX: Tensor, eligible_BL: Tensor) -> list[MaskPass]:
        p_BX = _by_token(chance_BX)
        return [MaskPass((u_BL < p_BX) & eligible_BL, chance_BX) for u_BL in u_FBL]


class MirrorMasks(Settings, frozen=True):
    """Two complementary masks of one field, `u < p` and `u > 1 - p` (MIRROR)."""

    deduplicated: bool = False
    """Count a token that both masks cover once: with chances above 1/2 every token then has the
    same weight. The expected loss is the same."""

    fields: ClassVar[int] = 1
    forwards: ClassVar[int] = 2

    def passes(self, u_FBL: Tensor, chance_BX: Tensor, eligible_BL: Tensor) -> list[MaskPass]:
        p_BX = _by_token(chance_BX)
        first_BL, second_BL = mirrored(u_FBL[0], p_BX, eligible_BL)
        if not self.deduplicated:
            return [MaskPass(first_BL, chance_BX), MaskPass(second_BL, chance_BX)]
        # Of the mean over two passes: weight 2/pi where seen once, 1/pi where seen twice.
        union_BX = (2 * p_BX).clamp(max=1)
        divisor_BL = torch.where(first_BL & second_BL, union_BX, union_BX / 2)
        return [MaskPass(first_BL, divisor_BL), MaskPass(second_BL, divisor_BL)]


class NonemptyFields(NamedTuple):
    """Fields of uniform numbers under which something is masked in every row."""

    u_FBL: Tensor
    chance_B: Tensor
    """That fields drawn freely mask something in the row; all other masks have loss 0."""


def nonempty_mask_fields(
    masks: IndependentMasks | MirrorMasks,
    chance_BX: Tensor,
    eligible_BL: Tensor,
    generator: Generator,
) -> NonemptyFields:
    """Fields under which at least one token of each row is masked in some pass, and the chance of that.

    Where few tokens are masked, most masks are empty: a moment of the loss over all masks is the chance
    times its moment over these. The first masked token is drawn by the inverse of its distribution
    function; those before it are not masked, those behind it are drawn freely.
    """
    rows, length = eligible_BL.shape
    q_BL = _by_token(chance_BX.double()).expand(rows, length)
    is_mirror = isinstance(masks, MirrorMasks)
    hidden_BL = torch.where(eligible_BL, (2 * q_BL).clamp(max=1) if is_mirror else q_BL, 0.0)
    # All fields of a row one behind the other; a number below the chance masks its token.
    hidden_BS = hidden_BL.repeat(1, masks.fields)
    shape = (rows, hidden_BS.shape[1] + 1)
    drawn = torch.rand(shape, generator=generator, dtype=torch.float64, device=generator.device)
    drawn = drawn.to(hidden_BS.device)
    v_BS, s_B = drawn[:, :-1], drawn[:, -1]
    log_none_BS = torch.log1p(-hidden_BS).cumsum(1)
    chance_B = -torch.expm1(log_none_BS[:, -1])
    asked_B1 = -torch.log1p(-s_B * chance_B)[:, None]
    first_B1 = torch.searchsorted(-log_none_BS, asked_B1, right=True)
    last_B1 = (log_none_BS == log_none_BS[:, -1:]).int().argmax(1, keepdim=True)
    first_B1 = torch.minimum(first_B1, last_B1)
    place_S = torch.arange(hidden_BS.shape[1], device=hidden_BS.device)
    open_BS = hidden_BS + (1 - hidden_BS) * v_BS
    v_BS = torch.where(place_S == first_B1, hidden_BS * v_BS, v_BS)
    v_BS = torch.where(place_S < first_B1, open_BS, v_BS)
    u_FBL = v_BS.view(rows, masks.fields, length).transpose(0, 1)
    if is_mirror:  # what lies below 2q is laid to the lowest and the highest q, which MIRROR masks
        high_FBL = torch.where(u_FBL < 2 * q_BL, 1 - (2 * q_BL - u_FBL), u_FBL - q_BL)
        u_FBL = torch.where((u_FBL < q_BL) | (q_BL >= 0.5), u_FBL, high_FBL)
    return NonemptyFields(u_FBL, chance_B)


def _by_token(chance_BX: Tensor) -> Tensor:
    return chance_BX[:, None] if chance_BX.ndim == 1 else chance_BX


Format = Literal["html", "markdown", "json", "python"]

_TAGS = """
a b body br caption center code col colgroup colspan div em form h1 h2 h3 h4 h5 h6 head html i img input
label li link ol option p pre rowspan script select span strong style sub sup table tbody td tfoot th thead
title tr u ul class id href src align border
"""
"""And attributes."""
_SIGNS = {
    "html": r"[<>/=\"'!&;-]+",
    "markdown": r"[|#*_`>~+=:\[\]()!-]+",
    "json": r"[{}\[\]:,\"]+",
    "python": r"[()\[\]{}:,.;=+*/%<>!&|^~@\\\"'#-]+",
}
_WORDS = {
    "html": set(_TAGS.split()),
    "markdown": set[str](),
    "json": {"true", "false", "null"},
    "python": {*keyword.kwlist, "self"},
}
_BREAKS = {"html": False, "markdown": True, "json": False, "python": True}
"""Where line breaks, and in Python indentation, are part of the syntax."""


class Rows(NamedTuple):
    """Rows of one length, padded on the right."""

    ids_XL: Tensor
    eligible_XL: Tensor
    """The answer, without padding."""
    attention_XL: Tensor
    dropped: int
    """Rows without an answer, or whose answer was cut off."""


class Record(TypedDict):
    """Token ids, and how many of them are the prompt."""

    input_ids: Sequence[Count]
    prompt_length: NotRequired[Count]


@public
def collate(rows: Sequence[Record]) -> Rows:
    """Rows `{"input_ids": [...], "prompt_length": n}` as one batch; rows without an answer are dropped.

    Without a prompt length all is answer.

    >>> rows = [{"input_ids": [5, 6, 7], "prompt_length": 2}, {"input_ids": [5]}]
    >>> collate(rows).eligible_XL.tolist()
    [[False, False, True], [True, False, False]]
    """
    sizes = [(len(row["input_ids"]), row.get("prompt_length", 0)) for row in rows]
    kept = [place for place, (size, prompt) in enumerate(sizes) if size > prompt]
    if not kept:
        raise ArgumentError(f"rows: none of {len(rows)} has an answer")
    tokens = [torch.tensor(list(rows[place]["input_ids"])) for place in kept]
    ids_XL = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True)
    sizes_X, prompt_X = torch.tensor([sizes[place] for place in kept]).T
    place_L = torch.arange(ids_XL.shape[1])
    real_XL = place_L < sizes_X[:, None]
    eligible_XL = real_XL & (place_L >= prompt_X[:, None])
    return Rows(ids_XL, eligible_XL, real_XL, len(rows) - len(kept))


@public
def is_syntax(token: str, format: Format) -> bool:
    """True if a token is syntax of a format: tags, brackets, keywords, indentation.

    Spaces that tokenizers write as `Ġ`, `▁` or `Ċ` are read as such. A token that mixes syntax and
    content, such as `>Name`, is content; `</td` is syntax.

    >>> is_syntax("</td>", "html"), is_syntax("Paris", "html"), is_syntax("Ġdef", "python")
    (True, False, True)
    """
    plain = token.replace("Ġ", " ").replace("▁", " ").replace("Ċ", "\n").replace("ĉ", "\t")
    if not plain.strip():
        breaks = "\n" in plain or (format == "python" and (len(plain) > 1 or "\t" in plain))
        return _BREAKS[format] and breaks
    for piece in re.findall(r"\w+|[^\w\s]+|_+", plain):
        word = piece.lower() if format == "html" else piece
        if word not in _WORDS[format] and not re.fullmatch(_SIGNS[format], piece):
            return False
    return True


@public
def syntax_eligible(tokens: Sequence[str], format: Format) -> list[bool]:
    """Which tokens of a prompt are syntax.

    >>> syntax_eligible(["{", '"', "name", '":'], "json")
    [True, True, False, True]
    """
    return [is_syntax.plain(token, format) for token in tokens]


@public
def template_tokens(
    answers: Annotated[Sequence[Sequence[Count]], Meta(min_length=1)],
) -> list[int]:
    """Ids that at least 95 % of the answers have: their fixed template, such as `####`.

    >>> template_tokens([[5, 9, 7], [6, 9, 8], [9, 4]])
    [9]
    """
    found = Counter(one for row in answers for one in set(row))
    return sorted(one for one, count in found.items() if count >= 0.95 * len(answers))
