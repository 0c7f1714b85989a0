"""Piece 7: the clipped objective of PPO (arXiv 1707.06347), with the dual clip as an option.

For a negative advantage the plain clip leaves the loss unbounded as the ratio grows; the dual clip
(arXiv 1912.09729) stops it at `-c A`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from burnish.arguments import as_number
from burnish.errors import ArgumentError
from burnish.policy.tensors import check_tensor


class Surrogate(NamedTuple):
    """Token losses and where they were cut off, each (B, T)."""

    loss_BT: Tensor
    is_clipped_BT: Tensor
    """The ratio left its interval on the side that would lower the loss: no gradient."""
    is_dual_clipped_BT: Tensor
    """The advantage is negative and the ratio is above c: no gradient."""


def clipped_surrogate(
    ratio_BT: Tensor,
    advantages_BT: Tensor,
    low_BT: Tensor,
    high_BT: Tensor,
    dual_clip: float | None = None,
) -> Surrogate:
    """`-min(r A, clip(r, 1 - low, 1 + high) A)`; with `dual_clip` c also at most `-c A` for A < 0.

    A `dual_clip` of 0 or None is off. All tensors broadcast to (B, T).
    """
    given = {
        "ratio_BT": ratio_BT,
        "advantages_BT": advantages_BT,
        "low_BT": low_BT,
        "high_BT": high_BT,
    }
    for what, values in given.items():
        check_tensor(values, what, "that broadcasts to (B, T)")
    try:
        torch.broadcast_shapes(*(v.shape for v in given.values()))  # type: ignore[no-untyped-call]
    except RuntimeError:
        shapes = ", ".join(f"{what} {tuple(values.shape)}" for what, values in given.items())
        raise ArgumentError(f"{shapes}: expected shapes that broadcast to one (B, T)") from None
    is_dual = dual_clip is not None and dual_clip != 0
    if is_dual:
        dual_clip = as_number("dual_clip", dual_clip, above=1)
    free_BT = ratio_BT * advantages_BT
    held_BT = torch.clamp(ratio_BT, 1 - low_BT, 1 + high_BT) * advantages_BT
    loss_BT = -torch.minimum(free_BT, held_BT)
    is_clipped_BT = held_BT < free_BT
    is_dual_BT = torch.zeros_like(is_clipped_BT)
    if is_dual and dual_clip is not None:
        ceiling_BT = (-dual_clip * advantages_BT).expand_as(loss_BT)
        is_dual_BT = (advantages_BT < 0) & (loss_BT > ceiling_BT)
        loss_BT = torch.where(is_dual_BT, ceiling_BT, loss_BT)
    return Surrogate(loss_BT, is_clipped_BT, is_dual_BT)
