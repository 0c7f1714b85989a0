"""Select `all` and `informative_groups`: drop groups with nothing to learn from (DAPO).

DAPO's dynamic sampling (arXiv 2503.14476) drops prompts whose answers are all right or all wrong.
Here a group is dropped when its advantages are all 0, which is the same rule for one 0/1 reward and
also holds for graded and for several rewards: advantages are exactly 0 where every reward is
constant by range. Rewards count as they were given: a length penalty alone does not make a group
informative.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from burnish.boundary import PositiveInt, public
from burnish.policy.base import Component, Selection
from burnish.policy.groups import as_groups, group_sum
from burnish.tensors import torch

if TYPE_CHECKING:
    from jaxtyping import Float64
    from torch import Tensor

    from burnish.policy.batch import Estimate, RewardBatch
    from burnish.policy.groups import GroupLabels


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
