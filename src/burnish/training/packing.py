"""Lay rollouts out for a forward pass: one shared prompt, several responses behind it.

A group's G responses have one prompt. Instead of G rows of prompt + response, a packed row holds
the prompt once and the responses after it; positions restart behind the prompt and the attention
mask hides the responses from each other, so log-probs and gradients are those of separate rows.
With a 40-token prompt and 8 answers of 10 tokens this is 120 tokens instead of 400.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from burnish.records import Trajectory

ROW_TOKENS = 512
"""Rows grow to this many tokens: beyond it the masked part of attention costs more than the
repeated prompt."""


@dataclass(frozen=True)
class Row:
    """Rollouts (by position in the batch) that share one prefix."""

    prefix: tuple[int, ...]
    members: tuple[int, ...]
    tokens: int


@dataclass(frozen=True)
class PackedBatch:
    """Rows as tensors, and where each trained token's prediction is read.

    `source_N` is the flat position (row * S + column) whose hidden state predicts trained token n,
    `target_N` its id, `rollout_N` and `column_N` its place in the (B, T) tensors of the loss.
    """

    ids_RS: Tensor
    positions_RS: Tensor
    mask_RSS: Tensor
    source_N: Tensor
    target_N: Tensor
    rollout_N: Tensor
    column_N: Tensor
    members: tuple[int, ...]
    """Rollouts of this batch, in the order of its (B, T) rows."""
    width: int
    """T: longest trained length among the members."""

    @property
    def trained_BT(self) -> Tensor:
        """True where a rollout has a trained token."""
        ones = torch.ones_like(self.target_N, dtype=torch.bool)
        return scatter(ones, self)


def make_rows(trajectories: Sequence[Trajectory], share: bool) -> list[Row]:
    """Group rollouts with equal prefixes into rows; without `share`, one rollout a row."""
    by_prefix: dict[tuple[int, ...], list[int]] = {}
    for i, trajectory in enumerate(trajectories):
        prefix = trajectory.token_ids[: trajectory.prompt_length]
        by_prefix.setdefault(prefix, []).append(i)
    rows: list[Row] = []
    for prefix, indices in by_prefix.items():
        members: list[int] = []
        tokens = len(prefix)
        for i in indices:
            rest = len(trajectories[i].token_ids) - len(prefix)
            if members and (not share or tokens + rest > ROW_TOKENS):
                rows.append(Row(prefix, tuple(members), tokens))
                members, tokens = [], len(prefix)
            members.append(i)
            tokens += rest
        rows.append(Row(prefix, tuple(members), tokens))
    return rows


def micro_batches(rows: Sequence[Row], budget: int) -> list[list[Row]]:
    """Rows of similar length together, so that rows x longest stays within the token budget."""
    ordered = sorted(range(len(rows)), key=lambda i: (-rows[i].tokens, i))
    batches: list[list[Row]] = []
    for i in ordered:
        row = rows[i]
        if batches and (len(batches[-1]) + 1) * batches[-1][0].tokens <= budget:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def pack(
    rows: Sequence[Row], trajectories: Sequence[Trajectory], device: torch.device, pad: int = 0
) -> PackedBatch:
    """Tensors of one micro-batch."""
    size = max(row.tokens for row in rows)
    ids = torch.full((len(rows), size), pad, dtype=torch.long)
    positions = torch.zeros((len(rows), size), dtype=torch.long)
    segments = torch.full((len(rows), size), -1, dtype=torch.long)
    source: list[int] = []
    target: list[int] = []
    place: list[int] = []
    column: list[int] = []
    members: list[int] = []
    for r, row in enumerate(rows):
        start = len(row.prefix)
        ids[r, :start] = torch.tensor(row.prefix, dtype=torch.long)
        positions[r, :start] = torch.arange(start)
        segments[r, :start] = 0
        at = start
        for j, i in enumerate(row.members, start=1):
            tokens = trajectories[i].token_ids[start:]
            trained = trajectories[i].loss_mask[start:]
            end = at + len(tokens)
            ids[r, at:end] = torch.tensor(tokens, dtype=torch.long)
            positions[r, at:end] = torch.arange(start, start + len(tokens))
            segments[r, at:end] = j
            done = 0
            for k, (token, is_trained) in enumerate(zip(tokens, trained, strict=True)):
                if is_trained:
                    source.append(r * size + (at + k - 1 if k else start - 1))
                    target.append(token)
                    place.append(len(members))
                    column.append(done)
                    done += 1
            members.append(i)
            at = end
    return PackedBatch(
        ids_RS=ids.to(device),
        positions_RS=positions.to(device),
        mask_RSS=_mask(segments).to(device),
        source_N=torch.tensor(source, device=device),
        target_N=torch.tensor(target, device=device),
        rollout_N=torch.tensor(place, device=device),
        column_N=torch.tensor(column, device=device),
        members=tuple(members),
        width=max(column) + 1,
    )


def _mask(segments_RS: Tensor) -> Tensor:
    """May a query see a key: earlier or itself, and in the prefix or in the same response.

    Padding sees itself alone, so that no softmax runs over nothing.
    """
    size = segments_RS.shape[1]
    earlier = torch.ones(size, size, dtype=torch.bool).tril()
    same = segments_RS[:, :, None] == segments_RS[:, None, :]
    prefix = (segments_RS == 0)[:, None, :] & (segments_RS >= 0)[:, :, None]
    real = (same | prefix) & (segments_RS >= 0)[:, None, :] & earlier
    return real | torch.eye(size, dtype=torch.bool)


def scatter(values_N: Tensor, batch: PackedBatch) -> Tensor:
    """Trained-token values as a (B, T) tensor, zeros elsewhere; differentiable."""
    out = values_N.new_zeros((len(batch.members), batch.width))
    return out.index_put((batch.rollout_N, batch.column_N), values_N)
