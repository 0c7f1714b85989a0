"""Piece 1: a soft penalty for responses that come near the token limit (DAPO, arXiv 2503.14476).

The penalty is 0 up to `limit - buffer` tokens, falls linearly to -1 at `limit` and stays there. It
replaces the cliff of a wrong answer at the limit by a slope that a policy can feel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from burnish.arguments import as_number
from burnish.policy.tensors import as_float64, as_lengths

if TYPE_CHECKING:
    from burnish.policy.tensors import Numbers


def overlong_penalty(lengths: Numbers, limit: float, buffer: float) -> Tensor:
    """`clip((limit - buffer - length) / buffer, -1, 0)` for each response: (B,) -> (B,)."""
    limit = as_number("limit", limit, low=1)
    buffer = as_number("buffer", buffer, low=1, high=limit)
    read_B = as_float64(lengths, "lengths")
    return ((limit - buffer - as_lengths(read_B, "lengths", read_B)) / buffer).clamp(-1.0, 0.0)
