"""Always-on numbers of an update: clipped share, entropy, drift and sampler-trainer mismatch.

Means are over the tokens that were computed. The mismatch compares the log-probs the sampler gave
with the trainer's own, before the first update of the step touches the weights; on one device in
float32 it is zero up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from burnish.policy.batch import Loss
from burnish.training.devices import World
from burnish.training.packing import PackedBatch


class Monitors:
    """Sums over micro-batches, read once at the end of the update."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._largest: dict[str, float] = {}
        self._tokens = 0.0

    def note(
        self,
        out: Loss,
        before_BT: Tensor,
        sampled_BT: Tensor,
        entropy_BT: Tensor,
        packed: PackedBatch,
    ) -> None:
        """Take in one micro-batch; `before_BT` are the trainer's log-probs before the step."""
        mask = packed.trained_BT
        tokens = float(mask.sum())
        self._tokens += tokens
        gap = (before_BT - sampled_BT)[mask].double()
        self._add("policy/clipped_share", float(out.clipped_share) * tokens)
        self._add("policy/entropy", float(entropy_BT[mask].double().sum()))
        self._add("mismatch/mean_abs", float(gap.abs().sum()))
        self._add("mismatch/kl", float((torch.exp(gap) - 1 - gap).sum()))
        self._top("mismatch/max_ratio", float(torch.exp(gap.abs().max())))
        self._top("policy/ratio_max", float(out.ratio_max))
        self._add("loss/total", float(out.total.detach()), share=False)
        for name, value in out.parts.items():
            self._add(f"loss/{name}", float(value.detach()), share=False)

    def add(self, other: Monitors) -> None:
        """Take in another's sums."""
        self._tokens += other._tokens
        for key, value in other._sums.items():
            self._sums[key] = self._sums.get(key, 0.0) + value
        for name, value in other._largest.items():
            self._top(name, value)

    def _add(self, name: str, value: float, *, share: bool = True) -> None:
        key = name if share else f"={name}"
        self._sums[key] = self._sums.get(key, 0.0) + value

    def _top(self, name: str, value: float) -> None:
        self._largest[name] = max(self._largest.get(name, 0.0), value)

    def read(self, norms: Sequence[float], world: World) -> dict[str, float]:
        """Means and maxima over all processes; losses are sums over the step's updates / updates."""
        parts = world.gather([(self._sums, self._largest, self._tokens)], world.size)
        tokens = sum(part[2] for part in parts) or 1.0
        updates = max(len(norms), 1)
        metrics: dict[str, float] = {}
        for sums, largest, _ in parts:
            for key, value in sums.items():
                name, weight = (key[1:], updates) if key[0] == "=" else (key, tokens)
                metrics[name] = metrics.get(name, 0.0) + value / weight
            for name, value in largest.items():
                metrics[name] = max(metrics.get(name, 0.0), value)
        metrics["optimiser/gradient_norm"] = sum(norms) / updates
        return metrics
