"""Samplers of masks: from fields of uniform numbers to the masks of one or more forward passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from burnish.arguments import as_whole
from burnish.models.masked_diffusion.objective import mirrored
from burnish.tensors import torch

if TYPE_CHECKING:
    from torch import Tensor


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


def _by_token(chance_BX: Tensor) -> Tensor:
    return chance_BX[:, None] if chance_BX.ndim == 1 else chance_BX
