"""Shaping `overlong_penalty`: a soft penalty for responses near the token limit (DAPO).

The penalty is 0 up to `limit - buffer` tokens, falls linearly to -1 at `limit` and stays there
(arXiv 2503.14476). It replaces the cliff of a wrong answer at the limit by a slope.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from burnish.arguments import as_number
from burnish.policy.base import Component, require
from burnish.tensors import as_float64, as_lengths

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.policy.base import Shaped
    from burnish.policy.batch import RewardBatch
    from burnish.tensors import Numbers


class OverlongPenalty(Component, frozen=True, tag="overlong_penalty"):
    """Soft penalty for long responses (DAPO): 0 up to `limit - buffer`, then down to -1 at `limit`."""

    limit: int
    """Length in tokens at which the penalty is whole."""
    buffer: int
    """Tokens before `limit` over which it grows."""
    scale: float = 1.0
    """Size of the whole penalty."""
    reward: str = ""
    """Name of the reward it is added to; empty takes the first whose weight is not 0."""

    def check(self) -> None:
        require(1 <= self.buffer <= self.limit, "buffer", self.buffer, f"1 to {self.limit}")
        require(math.isfinite(self.scale), "scale", self.scale, "a finite number")

    def shape(self, shaped: Shaped, batch: RewardBatch) -> Shaped:
        """Add the penalty to one reward."""
        rewards_BK = shaped.rewards_BK.clone()
        column = batch.counted_column(self.reward, "policy.shaping: overlong_penalty")
        penalty_B = overlong_penalty(batch.lengths_B, self.limit, self.buffer)
        rewards_BK[:, column] += self.scale * penalty_B
        return dataclasses.replace(shaped, rewards_BK=rewards_BK)


def overlong_penalty(lengths: Numbers, limit: float, buffer: float) -> Tensor:
    """`clip((limit - buffer - length) / buffer, -1, 0)` for each response: (B,) -> (B,)."""
    limit = as_number("limit", limit, low=1)
    buffer = as_number("buffer", buffer, low=1, high=limit)
    read_B = as_float64(lengths, "lengths")
    return ((limit - buffer - as_lengths(read_B, "lengths", read_B)) / buffer).clamp(-1.0, 0.0)
