"""AdamW with float32 master weights under a half-precision model.

`torch.optim` is not used: building its first optimiser imports the compiler stack (over a second),
and its state is saved as pickle. The update itself is torch's own fused kernel. Gradients of
micro-batches are added up in float32, so half precision loses nothing between them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from burnish.config.schema import Optimiser as OptimiserConfig

HALF = (torch.bfloat16, torch.float16)


def learning_rate(config: OptimiserConfig, step: int, steps: int) -> float:
    """The rate of one step (0-based): linear warm-up, then the schedule down to the final ratio."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return config.learning_rate
    span = max(steps - 1 - config.warmup_steps, 1)
    progress = min((step - config.warmup_steps) / span, 1.0)
    fall = progress if config.schedule == "linear" else (1 - math.cos(math.pi * progress)) / 2
    return config.learning_rate * (1 - (1 - config.final_ratio) * fall)


class MasterAdamW:
    """Owns the master weights, the two moments and the gradient sums of the trained parameters."""

    def __init__(self, parameters: Iterable[tuple[str, Tensor]], config: OptimiserConfig) -> None:
        named = [(name, p) for name, p in parameters if p.requires_grad]
        self.config = config
        self.names = [name for name, _ in named]
        self.parameters = [p for _, p in named]
        self.masters = [
            p.detach().float().clone() if p.dtype in HALF else p.detach() for p in self.parameters
        ]
        self.sums = [torch.zeros_like(m) for m in self.masters]
        self.first = [torch.zeros_like(m) for m in self.masters]
        self.second = [torch.zeros_like(m) for m in self.masters]
        self.counts = [torch.zeros((), dtype=torch.float32, device=m.device) for m in self.masters]

    def collect(self) -> None:
        """Add the parameters' gradients to the float32 sums and clear them."""
        for total, p in zip(self.sums, self.parameters, strict=True):
            if p.grad is not None:
                total += p.grad
                p.grad = None

    def clear(self) -> None:
        """Forget gradients and their sums."""
        for p in self.parameters:
            p.grad = None
        torch._foreach_zero_(self.sums)

    def gradient_norm(self) -> Tensor:
        """The norm over all gradient sums."""
        norms = torch._foreach_norm(self.sums)
        total: Tensor = torch.linalg.vector_norm(torch.stack([n.double() for n in norms]))
        return total

    def step(self, rate: float, norm: Tensor) -> None:
        """Clip to the configured norm, update master weights, copy them into the model."""
        c = self.config
        if c.clip_norm > 0 and norm > c.clip_norm:
            torch._foreach_mul_(self.sums, float(c.clip_norm / norm))
        torch._foreach_add_(self.counts, 1)
        torch._fused_adamw_(
            self.masters,
            self.sums,
            self.first,
            self.second,
            [],
            self.counts,
            lr=rate,
            beta1=c.beta1,
            beta2=c.beta2,
            weight_decay=c.weight_decay,
            eps=c.eps,
            amsgrad=False,
            maximize=False,
        )
        self.publish()
        torch._foreach_zero_(self.sums)

    @torch.no_grad()
    def publish(self) -> None:
        """Round the master weights into a half-precision model."""
        for p, master in zip(self.parameters, self.masters, strict=True):
            if p.data_ptr() != master.data_ptr():
                p.copy_(master)

    def state(self) -> dict[str, Tensor]:
        """Everything a resume needs, by name; master weights only where they differ."""
        tensors: dict[str, Tensor] = {}
        for i, name in enumerate(self.names):
            tensors[f"first/{name}"] = self.first[i]
            tensors[f"second/{name}"] = self.second[i]
            tensors[f"count/{name}"] = self.counts[i]
            tensors[f"master/{name}"] = self.masters[i]
        return tensors

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor]) -> None:
        """Restore `state()` bit for bit and publish the weights."""
        for i, name in enumerate(self.names):
            self.first[i].copy_(tensors[f"first/{name}"])
            self.second[i].copy_(tensors[f"second/{name}"])
            self.counts[i].copy_(tensors[f"count/{name}"])
            self.masters[i].copy_(tensors[f"master/{name}"])
        self.publish()
