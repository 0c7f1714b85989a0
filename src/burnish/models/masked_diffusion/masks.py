"""Samplers of masks: from fields of uniform numbers to the masks of one or more forward passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from burnish.arguments import as_whole
from burnish.models.masked_diffusion.objective import mirrored
from burnish.tensors import torch

if TYPE_CHECKING:
    from torch import Generator, Tensor


class MaskPass(NamedTuple):
    """One forward pass of a batch."""

    mask_BL: Tensor
    chance_BX: Tensor
    """What a masked token's nll is divided by, (B,) or (B, L)."""


class MaskSampler(Protocol):
    """From fields of uniform numbers to the masks of one or more forward passes."""

    @property
    def fields(self) -> int:
        """How many fields of uniform numbers it takes."""

    @property
    def forwards(self) -> int:
        """Forward passes of a row."""

    def passes(self, u_FBL: Tensor, chance_BX: Tensor, eligible_BL: Tensor) -> list[MaskPass]:
        """Masks for chances (B,) or (B, L); the loss is the mean over the passes."""


@dataclass(frozen=True)
class IndependentMasks:
    """So many masks a row, each of its own field."""

    count: int = 1

    def __post_init__(self) -> None:
        as_whole("count", self.count, low=1, high=1000)

    @property
    def fields(self) -> int:
        """One a mask."""
        return self.count

    @property
    def forwards(self) -> int:
        """One a mask."""
        return self.count

    def passes(self, u_FBL: Tensor, chance_BX: Tensor, eligible_BL: Tensor) -> list[MaskPass]:
        """`u < p` of each field."""
        p_BX = _by_token(chance_BX)
        return [MaskPass((u_BL < p_BX) & eligible_BL, chance_BX) for u_BL in u_FBL]


@dataclass(frozen=True)
class MirrorMasks:
    """Two complementary masks of one field, `u < p` and `u > 1 - p` (MIRROR)."""

    deduplicated: bool = False
    """Count a token that both masks cover once: with chances above 1/2 every token then has the
    same weight. The expected loss is the same."""

    @property
    def fields(self) -> int:
        """Both masks share one."""
        return 1

    @property
    def forwards(self) -> int:
        """Two masks."""
        return 2

    def passes(self, u_FBL: Tensor, chance_BX: Tensor, eligible_BL: Tensor) -> list[MaskPass]:
        """Both masks."""
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
    return NonemptyFields(_to_both_ends(u_FBL, q_BL) if is_mirror else u_FBL, chance_B)


def _to_both_ends(v_FBL: Tensor, q_BL: Tensor) -> Tensor:
    """What lies below 2q laid to the lowest and the highest q, which MIRROR masks."""
    high_FBL = torch.where(v_FBL < 2 * q_BL, 1 - (2 * q_BL - v_FBL), v_FBL - q_BL)
    return torch.where((v_FBL < q_BL) | (q_BL >= 0.5), v_FBL, high_FBL)


def _by_token(chance_BX: Tensor) -> Tensor:
    return chance_BX[:, None] if chance_BX.ndim == 1 else chance_BX
