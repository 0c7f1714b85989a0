"""Piece 6: the same clip interval for every rollout (PPO, arXiv 1707.06347).

With `high > low` it is the asymmetric interval of DAPO (arXiv 2503.14476), which leaves unlikely
tokens more room to grow.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class ClipBounds(NamedTuple):
    """How far a ratio may fall below and rise above 1 before it is clipped, each (B,)."""

    low_B: Tensor
    high_B: Tensor


def static_bounds(advantages_B: Tensor, low: float = 0.2, high: float = 0.2) -> ClipBounds:
    """Clip every ratio to `1 - low .. 1 + high`; the advantages give the shape and the device."""
    return ClipBounds(torch.full_like(advantages_B, low), torch.full_like(advantages_B, high))
