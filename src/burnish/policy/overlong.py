"""Shaping `overlong_penalty`: a soft penalty for responses near the token limit (DAPO).

The penalty is 0 up to `limit - buffer` tokens, falls linearly to -1 at `limit` and stays there
(arXiv 2503.14476). It replaces the cliff of a wrong answer at the limit by a slope.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from burnish.arguments import as_number
from burnish.errors import UserError
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
    """Length in tokens at which the penalty is whole; 0 takes the rollout's token budget."""
    buffer: int
    """Tokens before `limit` over which it grows."""
    scale: float = 1.0
    """Size of the whole penalty."""
    reward: str = ""
    """Name of the reward it is added to; empty takes the first whose weight is not 0."""

    def check(self) -> None:
        require(self.limit >= 0, "limit", self.limit, "at least 0")
        most = f"1 to {self.limit}" if self.limit else "at least 1"
        require(1 <= self.buffer <= (self.limit or self.buffer), "buffer", self.buffer, most)
        require(math.isfinite(self.scale), "scale", self.scale, "a finite number")

    def shape(self, shaped: Shaped, batch: RewardBatch) -> Shaped:
        """Add the penalty to one reward."""
        rewards_BK = shaped.rewards_BK.clone()
        column = batch.counted_column(self.reward, "policy.shaping: overlong_penalty")
        limit = self.limit or batch.max_tokens
        if not limit:
            raise UserError(
                "policy.shaping: overlong_penalty: limit is 0; expected a length of at least 1, "
                "because the batch names no token budget."
            )
        penalty_B = overlong_penalty(batch.lengths_B, limit, min(self.buffer, limit))
        rewards_BK[:, column] += self.scale * penalty_B
        return dataclasses.replace(shaped, rewards_BK=rewards_BK)


def overlong_penalty(lengths: Numbers, limit: float, buffer: float) -> Tensor:
    """`clip((limit - buffer - length) / buffer, -1, 0)` for each response: (B,) -> (B,)."""
    limit = as_number("limit", limit, low=1)
    buffer = as_number("buffer", buffer, low=1, high=limit)
    read_B = as_float64(lengths, "lengths")
    return ((limit - buffer - as_lengths(read_B, "lengths", read_B)) / buffer).clamp(-1.0, 0.0)
