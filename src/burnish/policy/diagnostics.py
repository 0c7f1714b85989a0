"""What a person wants to know about a step before its update, as plain numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from burnish.policy.batch import RewardBatch
from burnish.policy.groups import Groups, as_groups, is_constant


def describe(
    batch: RewardBatch, values_B: Tensor, keep_B: Tensor, signal_B: Tensor
) -> dict[str, float]:
    """Shares, counts and reward statistics of a step.

    `groups` and `constant_groups` are counts (constant: every reward of non-zero weight is the same
    for the whole group), `useful_groups` the share of groups with signal, `kept` the share of
    rollouts kept, `advantage_abs` the mean |A| of the kept. `reward/<name>/mean`, `/std` (ddof 1)
    and `/missing` (share) describe each reward before shaping; a statistic of too few values is
    left out, not made up.
    """
    groups = as_groups(batch.groups_B, batch.rewards_BK)
    counted_BK = batch.rewards_BK[:, batch.weights_K != 0]
    is_flat_B = is_constant(counted_BK, groups).all(1)
    found = {
        "groups": float(groups.total),
        "constant_groups": float(_groups_among(is_flat_B, groups)),
    }
    if len(values_B):
        found["useful_groups"] = _groups_among(signal_B, groups) / groups.total
        found["kept"] = keep_B.double().mean().item()
    if keep_B.any():
        found["advantage_abs"] = values_B[keep_B].abs().mean().item()
    for position, name in enumerate(batch.titles):
        values = batch.rewards_BK[:, position]
        present = values[~values.isnan()]
        if len(values):
            found[f"reward/{name}/missing"] = 1 - len(present) / len(values)
        if len(present):
            found[f"reward/{name}/mean"] = present.mean().item()
        if len(present) > 1:
            found[f"reward/{name}/std"] = present.std().item()
    return found


def _groups_among(chosen_B: Tensor, groups: Groups) -> int:
    return len(torch.unique(groups.index_B[chosen_B]))
