"""What a dry run on recorded rewards is given, checked and as tensors."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from burnish.arguments import as_list, as_texts, as_whole
from burnish.errors import ArgumentError
from burnish.policy.groups import Groups, as_groups, as_rewards, as_weights
from burnish.policy.reference import ReferenceStats, fit_reference_stats

if TYPE_CHECKING:
    from burnish.policy.groups import GroupLabels
    from burnish.policy.tensors import Numbers


def table_of(rewards: Numbers) -> Tensor:
    """Rewards as (B, K); a table without a row or a reward is refused."""
    rewards_BK = as_rewards(rewards)
    if not rewards_BK.numel():
        raise ArgumentError(
            f"rewards: got shape {tuple(rewards_BK.shape)}, expected a row and a reward at least"
        )
    return rewards_BK


def names_of(names: Sequence[str] | None, rewards_BK: Tensor) -> tuple[str, ...]:
    """A name of its own for each reward; its number where none are given."""
    count = rewards_BK.shape[1]
    if names is None:
        return tuple(map(str, range(count)))
    found = tuple(as_texts("names", names))
    if len(set(found)) != count:
        raise ArgumentError(f"names: got {list(found)}, expected {count} different ones")
    return found


def weights_of(weights: Numbers | None, rewards_BK: Tensor, names: Sequence[str]) -> Tensor:
    """The weights of the recipe, (K,); one of 0 is refused."""
    given_K = as_weights(weights, rewards_BK)
    if (given_K == 0).any():
        silent = names[int((given_K == 0).nonzero()[0])]
        raise ArgumentError(f"weights: '{silent}' has weight 0; expected only rewards that count")
    return given_K


def rows_of_steps(steps: Sequence[Hashable] | Tensor | None, count: int) -> list[Tensor]:
    """The rows of each step, in the order in which the steps first appear."""
    if steps is None:
        return [torch.arange(count)]
    labels = as_list("steps", steps)
    if len(labels) != count:
        raise ArgumentError(
            f"steps: got {len(labels)} labels, expected one for each of {count} rows"
        )
    rows: dict[Hashable, list[int]] = {}
    for row, label in enumerate(labels):
        rows.setdefault(label, []).append(row)
    return [torch.tensor(found) for found in rows.values()]


def steps_as_groups(rows_by_step: Sequence[Tensor]) -> Groups:
    """All rows of a step as one group."""
    step_B = torch.empty(sum(map(len, rows_by_step)), dtype=torch.int64)
    for number, rows in enumerate(rows_by_step):
        step_B[rows] = number
    return Groups(step_B, len(rows_by_step))


def groups_of(groups: GroupLabels, steps: Groups, rewards_BK: Tensor) -> Groups:
    """The groups within each step: the same prompt in a later step is another group."""
    found = as_groups(groups, rewards_BK)
    return as_groups(steps.index_B * found.total + found.index_B, rewards_BK)


def check_replayed(replayed: int, count: int) -> None:
    """At least one row has to be left to tell of."""
    as_whole("replayed", replayed, low=0, high=count - 1)


def reference_of(
    reference: ReferenceStats | Numbers | int | None,
    rewards_BK: Tensor,
    *,
    sd_floor: float,
    robust: bool,
) -> ReferenceStats:
    """Mean and deviation of what stands for the start model."""
    if isinstance(reference, ReferenceStats):
        return reference
    if isinstance(reference, bool):
        raise ArgumentError(
            f"reference: got {reference}, expected statistics, a table, a number of rows or None"
        )
    if reference is None:
        start_NK = rewards_BK
    elif isinstance(reference, int):
        if not 1 <= reference <= len(rewards_BK):
            raise ArgumentError(
                f"reference: got the first {reference} rows, expected 1 to {len(rewards_BK)}"
            )
        start_NK = rewards_BK[:reference]
    else:
        start_NK = as_rewards(reference, "reference")
        if start_NK.shape[1] != rewards_BK.shape[1]:
            raise ArgumentError(
                f"reference: got {start_NK.shape[1]} rewards a row, expected {rewards_BK.shape[1]}"
            )
    return fit_reference_stats(start_NK, sd_floor, robust=robust)
