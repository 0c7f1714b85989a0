"""Select `all` and `informative_groups`, shaping `overlong_penalty` (DAPO, arXiv 2503.14476).

Dynamic sampling drops prompts whose answers are all right or all wrong. Here a group is dropped when
its advantages are all 0, which is the same rule for one 0/1 reward and also holds for graded and for
several rewards. Rewards count as they were given: a length penalty alone does not make a group
informative.

The soft penalty for long responses is 0 up to `limit - buffer` tokens, falls linearly to -1 at `limit`
and stays there: a slope instead of the cliff of a wrong answer at the limit.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from burnish.arguments import ordered
from burnish.boundary import Count, Number, PositiveInt, public
from burnish.errors import UserError
from burnish.policy.base import Component, Selection
from burnish.policy.groups import as_groups, group_sum
from burnish.tensors import torch

if TYPE_CHECKING:
    from jaxtyping import Float64
    from torch import Tensor

    from burnish.policy.base import Shaped
    from burnish.policy.batch import Estimate, RewardBatch
    from burnish.policy.groups import GroupLabels, Lengths


class KeepAll(Component, frozen=True, tag="all"):
    """Every rollout is trained on."""

    def select(self, estimate: Estimate, signal_B: Tensor, batch: RewardBatch) -> Selection:
        return Selection(torch.ones_like(signal_B), torch.ones_like(signal_B, dtype=torch.float64))


class InformativeGroups(Component, frozen=True, tag="informative_groups"):
    """Groups whose rewards are all equal are dropped; `refill` samples more prompts (DAPO)."""

    refill: bool = True
    """Sample more prompts in place of dropped groups."""
    max_rounds: PositiveInt = 4
    """How many times a step may sample more prompts to fill its batch."""

    def select(self, estimate: Estimate, signal_B: Tensor, batch: RewardBatch) -> Selection:
        return Selection(signal_B, torch.ones_like(signal_B, dtype=torch.float64))


@public
def informative_groups(advantages: Float64[Tensor, " B"], groups: GroupLabels) -> Tensor:
    """True for every rollout of a group in which some advantage is not 0: (B,) -> bool (B,)."""
    has_signal_B1 = (advantages != 0).to(advantages)[:, None]
    return group_sum(has_signal_B1, as_groups(groups))[:, 0] > 0


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
            ordered("buffer", self.buffer, "the limit", self.limit)

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
    ordered("buffer", buffer, "the limit", limit)
    return ((limit - buffer - lengths) / buffer).clamp(-1.0, 0.0)
