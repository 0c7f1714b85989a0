"""Piece 3: keep the groups that can teach something (dynamic sampling of DAPO, arXiv 2503.14476).

DAPO drops prompts whose answers are all right or all wrong. Here a group is dropped when its
advantages are all 0, which is the same rule for one 0/1 reward and also holds for graded and for
several rewards: advantages are exactly 0 where every reward is constant by range. Rewards count as
they were given: a length penalty alone does not make a group informative.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from burnish.policy.groups import as_groups, group_sum
from burnish.policy.tensors import as_finite, check_tensor

if TYPE_CHECKING:
    from burnish.policy.groups import GroupLabels
    from burnish.policy.tensors import Numbers


def informative_groups(advantages: Numbers, groups: GroupLabels) -> Tensor:
    """True for every rollout of a group in which some advantage is not 0: (B,) -> bool (B,)."""
    values_B = as_finite(advantages, "advantages")
    check_tensor(values_B, "advantages", "(B,)", 1)
    has_signal_B1 = (values_B != 0).to(values_B)[:, None]
    return group_sum(has_signal_B1, as_groups(groups, values_B))[:, 0] > 0
