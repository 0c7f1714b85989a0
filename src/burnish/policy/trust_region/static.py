"""Piece 6: the same clip interval for every rollout (PPO, arXiv 1707.06347).

With `high > low` it is the asymmetric interval of DAPO (arXiv 2503.14476), which leaves unlikely
tokens more room to grow.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from burnish.arguments import as_number
from burnish.policy.tensors import check_tensor


class ClipBounds(NamedTuple):
    """How far a ratio may fall below and rise above 1 before it is clipped, each (B,)."""

    low_B: Tensor
    high_B: Tensor


def static_bounds(advantages_B: Tensor, low: float = 0.2, high: float = 0.2) -> ClipBounds:
    """Clip every ratio to `1 - low .. 1 + high`; the advantages give the shape and the device."""
    check_tensor(advantages_B, "advantages_B", "(B,) or (B, T)")
    low = as_number("low", low, low=0, below=1)
    high = as_number("high", high, low=0)
    return ClipBounds(torch.full_like(advantages_B, low), torch.full_like(advantages_B, high))
