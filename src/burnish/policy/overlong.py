"""Shaping `overlong_penalty`: a soft penalty for responses near the token limit (DAPO).

The penalty is 0 up to `limit - buffer` tokens, falls linearly to -1 at `limit` and stays there
(arXiv 2503.14476). It replaces the cliff of a wrong answer at the limit by a slope.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from burnish.boundary import Count, Number, PositiveInt, public
from burnish.errors import ArgumentError, UserError
from burnish.policy.base import Component

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.policy.base import Shaped
    from burnish.policy.batch import RewardBatch
    from burnish.policy.groups import Lengths


class OverlongPenalty(Component, frozen=True, tag="overlong_penalty"):
    """Soft penalty for long responses (DAPO): 0 up to `limit - buffer`, then down to -1 at `limit`."""

    limit: Count
    """Length in tokens at which the penalty is whole; 0 takes the rollout's token budget."""
    buffer: PositiveInt
    """Tokens before `limit` over which it grows."""
    scale: Number = 1.0
    """Size of the whole penalty."""
    reward: str = ""
    """Name of the reward it is added to; empty takes the first whose weight is not 0."""

    def check(self) -> None:
        if self.limit:
            _check_buffer(self.limit, self.buffer)

    def shape(self, shaped: Shaped, batch: RewardBatch) -> Shaped:
        rewards_BK = shaped.rewards_BK.clone()
        column = batch.counted_column(self.reward, "policy.shaping: overlong_penalty")
        limit = self.limit or batch.max_tokens
        if not limit:
            raise UserError(
                "policy.shaping: overlong_penalty: limit is 0; expected a length of at least 1, "
                "because the batch names no token budget."
            )
        penalty_B = overlong_penalty.plain(batch.lengths_B.double(), limit, min(self.buffer, limit))
        rewards_BK[:, column] += self.scale * penalty_B
        return dataclasses.replace(shaped, rewards_BK=rewards_BK)


@public
def overlong_penalty(lengths: Lengths, limit: PositiveInt, buffer: PositiveInt) -> Tensor:
    """`clip((limit - buffer - length) / buffer, -1, 0)` for each response: (B,) -> (B,)."""
    _check_buffer(limit, buffer)
    return ((limit - buffer - lengths) / buffer).clamp(-1.0, 0.0)


def _check_buffer(limit: int, buffer: int) -> None:
    if buffer > limit:
        raise ArgumentError(f"buffer: got {buffer}, expected at most the limit, {limit}")
