"""What one step's update reads, and the part of it that a pass takes to its device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from burnish.policy.batch import Advantages, Normaliser
from burnish.records import Trajectory
from burnish.training.packing import PackedBatch, to_device


@dataclass(frozen=True)
class StepBatch:
    """What every part of one step's update reads."""

    step: int
    trajectories: Sequence[Trajectory]
    values: Advantages
    old: Mapping[int, Tensor] = field(default_factory=dict)
    """Log-probs before the first update, by rollout; empty when there is only one update."""

    def ids(self, members: Sequence[int]) -> list[str]:
        return [self.trajectories[i].id for i in members]


class Values(NamedTuple):
    """What the loss needs to know of the rollouts of one pass, on its device.

    Bounds and advantages are (B,) or (B, T).
    """

    low_B: Tensor
    high_B: Tensor
    keep_B: Tensor
    advantages_B: Tensor
    counted_BT: Tensor
    """Trained tokens that enter the loss."""
    buckets_B: Tensor | None
    """Pass-rate bucket of each rollout's group; None where there is nothing to tell apart."""


def normaliser_of(batch: StepBatch, members: Sequence[int], *, everyone: bool) -> Normaliser:
    """What the loss of these rollouts is divided by; with `everyone`, dropped ones count too."""
    keep = batch.values.keep_B.tolist()
    counted = [i for i in members if everyone or keep[i]]
    if batch.values.counted_BT is not None:
        by_rollout = batch.values.counted_BT.sum(1).tolist()
        total = sum(by_rollout[i] for i in counted)
        return Normaliser(tokens=float(total), rollouts=float(len(counted)))
    spans = (span for i in counted for span in batch.trajectories[i].spans)
    tokens = sum(len(span.logprobs) for span in spans if span.trainable)
    return Normaliser(tokens=float(tokens), rollouts=float(len(counted)))


def values_of(
    batch: StepBatch, packed: PackedBatch, dtype: torch.dtype, device: torch.device
) -> Values:
    """The members' part of the advantages, on the device in one transfer."""
    values = batch.values
    rows = torch.tensor(packed.members)
    by_token = values.values_B.dim() == 2
    parts = {
        "keep": values.keep_B,
        "advantages": values.values_B,
        "low": values.low_B,
        "high": values.high_B,
    }
    if values.counted_BT is not None:
        parts["counted"] = values.counted_BT
    # With one update a step every ratio is 1: nothing is clipped in any bucket.
    if values.buckets_B is not None and batch.old:
        parts["buckets"] = values.buckets_B
    columns = [
        part[rows].double().reshape(len(rows), -1)[:, : packed.width] for part in parts.values()
    ]
    table = to_device(torch.cat(columns, 1).to(dtype), device)
    split = torch.split(table, [c.shape[1] for c in columns], 1)
    found = dict(zip(parts, split, strict=True))
    low, high, advantages = found["low"], found["high"], found["advantages"]
    counted_BT = packed.trained_BT
    if "counted" in found:
        counted_BT = counted_BT & found["counted"].bool()
    return Values(
        low_B=low if by_token else low[:, 0],
        high_B=high if by_token else high[:, 0],
        keep_B=found["keep"][:, 0].bool(),
        advantages_B=advantages if by_token else advantages[:, 0],
        counted_BT=counted_BT,
        buckets_B=found["buckets"][:, 0] if "buckets" in found else None,
    )
