"""Always-on numbers of an update: clipped share, entropy, drift and sampler-trainer mismatch.

Means are over the tokens that were computed. The mismatch compares the log-probs the sampler gave
with the trainer's own, before the first update of the step touches the weights; on one device in
float32 it is zero up to rounding. Numbers stay on the device until they are all read at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from burnish.policy.batch import Loss
from burnish.policy.trust_region.by_pass_rate import bucket_shares
from burnish.training.devices import World
from burnish.training.packing import PackedBatch, scatter


class Monitors:
    """Sums over micro-batches, read once at the end of the update."""

    def __init__(self) -> None:
        self._shares: dict[str, Tensor] = {}
        """Sums over tokens, to be divided by the tokens."""
        self._losses: dict[str, Tensor] = {}
        """Sums over micro-batches, to be divided by the updates."""
        self._largest: dict[str, Tensor] = {}
        self._buckets_2P: Tensor | None = None
        """Clipped tokens and all tokens of each pass-rate bucket, where pass rates are known."""
        self._tokens = 0
        self._weight_norm: Tensor | None = None
        self.weight_norm = 0.0
        """Of the weights that the last update left; known once everything is read."""

    def note(self, out: Loss, before_BT: Tensor, entropy_BT: Tensor, packed: PackedBatch) -> None:
        """Take in one micro-batch; `before_BT` are the trainer's log-probs before the step."""
        tokens = packed.trained
        self._tokens += tokens
        # Both are 0 where there is no trained token, and so is what follows from them.
        gap_BT = (before_BT - scatter(packed.sampled_N, packed)).double()
        distance_BT = gap_BT.abs()
        _add(
            self._shares,
            {
                "policy/clipped_share": out.clipped_share.double() * tokens,
                "policy/entropy": entropy_BT.double().sum(),
                "mismatch/mean_abs": distance_BT.sum(),
                "mismatch/kl": (torch.expm1(gap_BT) - gap_BT).sum(),
            },
        )
        if out.clipped_by_bucket_2P is not None:
            self._add_buckets(out.clipped_by_bucket_2P)
        losses = {"total": out.total.detach(), **out.parts}
        _add(self._losses, {f"loss/{name}": value.double() for name, value in losses.items()})
        _top(
            self._largest,
            {
                "mismatch/max_ratio": distance_BT.amax().exp(),
                "policy/ratio_max": out.ratio_max.double(),
            },
        )

    def add_term(self, name: str, value: Tensor) -> None:
        """Take in a term of the loss that has passes of its own; the total counts it too."""
        _add(self._losses, {f"loss/{name}": value.double(), "loss/total": value.double()})

    def watch_weights(self, norm: Tensor) -> None:
        """Leave the norm of the weights that the last update left."""
        self._weight_norm = norm

    def add(self, other: Monitors) -> None:
        """Take in another's sums."""
        self._tokens += other._tokens
        _add(self._shares, other._shares)
        _add(self._losses, other._losses)
        _top(self._largest, other._largest)
        if other._buckets_2P is not None:
            self._add_buckets(other._buckets_2P)

    def _add_buckets(self, more_2P: Tensor) -> None:
        self._buckets_2P = more_2P if self._buckets_2P is None else self._buckets_2P + more_2P

    def read(self, norms: Sequence[float], world: World) -> dict[str, float]:
        """Means and maxima over all processes; losses are sums over the step's updates / updates."""
        tables = (self._shares, self._losses, self._largest)
        first, second, third, bucketed, self.weight_norm = _read(
            tables, self._buckets_2P, self._weight_norm
        )
        everyone = world.gather([(first, second, third, bucketed, self._tokens)], world.size)
        tokens = sum(part[4] for part in everyone) or 1
        updates = max(len(norms), 1)
        metrics: dict[str, float] = {}
        for shares, losses, largest, _, _ in everyone:
            for name, value in shares.items():
                metrics[name] = metrics.get(name, 0.0) + value / tokens
            for name, value in losses.items():
                metrics[name] = metrics.get(name, 0.0) + value / updates
            for name, value in largest.items():
                metrics[name] = max(metrics.get(name, 0.0), value)
        metrics["optimiser/gradient_norm"] = sum(norms) / updates
        return metrics | _by_bucket([part[3] for part in everyone])


def _add(sums: dict[str, Tensor], more: Mapping[str, Tensor]) -> None:
    for name, value in more.items():
        sums[name] = sums[name] + value if name in sums else value


def _top(largest: dict[str, Tensor], more: Mapping[str, Tensor]) -> None:
    for name, value in more.items():
        largest[name] = torch.maximum(largest[name], value) if name in largest else value


def _read(
    tables: Sequence[Mapping[str, Tensor]],
    buckets_2P: Tensor | None,
    weight_norm: Tensor | None,
) -> tuple[dict[str, float], dict[str, float], dict[str, float], list[float], float]:
    """The three tables, the buckets' sums (none: empty) and the norm as numbers, in one transfer."""
    values = [value.reshape(1) for table in tables for value in table.values()]
    if weight_norm is not None:
        values.append(weight_norm.reshape(1))
    if buckets_2P is not None:
        values.append(buckets_2P.flatten())
    numbers = iter(torch.cat(values).tolist() if values else [])
    first, second, third = ({name: next(numbers) for name in table} for table in tables)
    norm = 0.0 if weight_norm is None else next(numbers)
    return first, second, third, list(numbers), norm


def _by_bucket(sums: Sequence[Sequence[float]]) -> dict[str, float]:
    """The clipped share of each pass-rate bucket over all processes."""
    known = [one for one in sums if one]
    if not known:
        return {}
    sums_2P = torch.tensor(known, dtype=torch.float64).sum(0).reshape(2, -1)
    return {f"policy/clipped_share/{name}": share for name, share in bucket_shares(sums_2P).items()}
