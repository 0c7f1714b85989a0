"""Marks of tokens that need the whole mini-batch, made before it is cut into micro-batches.

`clip_cov`, `kl_cov` and `high_entropy` compare a token with all others of its update. The trainer
measures log-probs and entropies of the mini-batch with the current weights, on all processes; the marks
are made here, on the CPU and in the order of the rollouts, so that every process makes the same.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from burnish.policy.batch import Advantages
from burnish.policy.recipe import Recipe
from burnish.policy.tokens import TokenBatch, mark_tokens
from burnish.training.packing import PackedBatch, scatter, to_device

Marks = Mapping[str, Mapping[int, Tensor]]
"""Slot of a component -> rollout -> which of its trained tokens are marked, (T,) bool."""


def mark_rollouts(
    recipe: Recipe,
    values: Advantages,
    measured: Mapping[int, Tensor],
    old: Mapping[int, Tensor],
    seed: int,
) -> dict[str, dict[int, Tensor]]:
    """The marks of a mini-batch, from log-probs and entropies (2, T) of each of its rollouts.

    `old` are the log-probs before the step's first update; empty where this is the first.
    """
    rows = {i: measured[i].cpu().double() for i in sorted(measured)}
    is_counted_N = _counted(values, rows)
    tokens = _token_batch(values, rows, old, is_counted_N, seed)
    lengths = [row_2T.shape[1] for row_2T in rows.values()]
    marks = {}
    for slot, marked_N in mark_tokens(recipe.token_markers, tokens).items():
        whole_N = torch.zeros_like(is_counted_N).masked_scatter(is_counted_N, marked_N)
        marks[slot] = dict(zip(rows, torch.split(whole_N, lengths), strict=True))
    return marks


def packed_marks(marks: Marks, packed: PackedBatch, device: torch.device) -> dict[str, Tensor]:
    """The marks of one micro-batch: slot -> (B, T) bool."""
    found = {}
    for slot, rows in marks.items():
        marked_N = torch.cat([rows[i] for i in packed.members])
        found[slot] = scatter(to_device(marked_N, device), packed)
    return found


def _counted(values: Advantages, rows: Mapping[int, Tensor]) -> Tensor:
    """Which trained tokens enter the loss at all, rollout by rollout, (N,) bool."""
    counted_BT = values.counted_BT
    if counted_BT is None:
        return torch.ones(sum(row.shape[1] for row in rows.values()), dtype=torch.bool)
    return torch.cat([counted_BT[i, : row.shape[1]].cpu() for i, row in rows.items()])


def _token_batch(
    values: Advantages,
    rows: Mapping[int, Tensor],
    old: Mapping[int, Tensor],
    is_counted_N: Tensor,
    seed: int,
) -> TokenBatch:
    def spread(part: Tensor) -> Tensor:
        """A value a rollout, or one a token, as one row of tokens."""
        cells = [
            part[i].expand(row.shape[1]) if part.dim() == 1 else part[i, : row.shape[1]]
            for i, row in rows.items()
        ]
        return torch.cat(cells).cpu().double()[is_counted_N]

    logp_N, entropy_N = torch.cat(list(rows.values()), 1)[:, is_counted_N]
    old_logp_N = logp_N
    if old:
        old_logp_N = torch.cat([old[i].cpu().double() for i in rows])[is_counted_N]
    bounds = spread(values.low_B), spread(values.high_B)
    return TokenBatch(logp_N, old_logp_N, spread(values.values_B), *bounds, entropy_N, seed)
