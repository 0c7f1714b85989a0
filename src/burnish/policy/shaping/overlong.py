"""Piece 1: a soft penalty for responses that come near the token limit (DAPO, arXiv 2503.14476).

The penalty is 0 up to `limit - buffer` tokens, falls linearly to -1 at `limit` and stays there. It
replaces the cliff of a wrong answer at the limit by a slope that a policy can feel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from burnish.policy.tensors import as_float64

if TYPE_CHECKING:
    from burnish.policy.tensors import Numbers


def overlong_penalty(lengths: Numbers, limit: int, buffer: int) -> Tensor:
    """`clip((limit - buffer - length) / buffer, -1, 0)` for each response: (B,) -> (B,)."""
    if not 1 <= buffer <= limit:
        raise ValueError(f"buffer: got {buffer}, expected 1 to the limit of {limit} tokens")
    return ((limit - buffer - as_float64(lengths, "lengths")) / buffer).clamp(-1.0, 0.0)
