"""Select `all` and `informative_groups`: drop groups with nothing to learn from (DAPO).

DAPO's dynamic sampling (arXiv 2503.14476) drops prompts whose answers are all right or all wrong.
Here a group is dropped when its advantages are all 0, which is the same rule for one 0/1 reward and
also holds for graded and for several rewards: advantages are exactly 0 where every reward is
constant by range. Rewards count as they were given: a length penalty alone does not make a group
informative.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from burnish.policy.base import Component, Selection, require
from burnish.policy.groups import as_groups, group_sum
from burnish.tensors import as_finite, check_tensor, torch

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.policy.batch import Estimate, RewardBatch
    from burnish.policy.groups import GroupLabels
    from burnish.tensors import Numbers


class KeepAll(Component, frozen=True, tag="all"):
    """Every rollout is trained on."""

    def select(self, estimate: Estimate, signal_B: Tensor, batch: RewardBatch) -> Selection:
        """Keep everything."""
        return Selection(torch.ones_like(signal_B), torch.ones_like(signal_B, dtype=torch.float64))


class InformativeGroups(Component, frozen=True, tag="informative_groups"):
    """Groups whose rewards are all equal are dropped; `refill` samples more prompts (DAPO)."""

    refill: bool = True
    """Sample more prompts in place of dropped groups."""
    max_rounds: int = 4
    """How many times a step may sample more prompts to fill its batch."""

    def check(self) -> None:
        require(self.max_rounds >= 1, "max_rounds", self.max_rounds, "at least 1")

    def select(self, estimate: Estimate, signal_B: Tensor, batch: RewardBatch) -> Selection:
        """Keep the groups with signal."""
        return Selection(signal_B, torch.ones_like(signal_B, dtype=torch.float64))


def informative_groups(advantages: Numbers, groups: GroupLabels) -> Tensor:
    """True for every rollout of a group in which some advantage is not 0: (B,) -> bool (B,)."""
    values_B = as_finite(advantages, "advantages")
    check_tensor(values_B, "advantages", "(B,)", 1)
    has_signal_B1 = (values_B != 0).to(values_B)[:, None]
    return group_sum(has_signal_B1, as_groups(groups, values_B))[:, 0] > 0
