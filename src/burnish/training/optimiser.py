"""AdamW with float32 master weights under a half-precision model.

`torch.optim` is not used: building its first optimiser imports the compiler stack (over a second),
and its state is saved as pickle. The update itself is torch's own fused kernel. For full-precision
parameters autograd's own `.grad` is the sum over micro-batches, for half-precision ones it is a
float32 tensor beside it. Nothing here waits for a GPU.

Master weights that begin exactly on a half-precision number would all have to walk half the distance
to the next before any weight of the model moves: some ten steps in which nothing is learned. So they
begin anywhere within what rounds to the model's weights, and each step moves the share of its weights
that is right on average.

Of parameters that several processes hold together (`training/sharding.py`) everything here is this
process's slice, which is float32 already; only norms are those of the whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor

from burnish.config.schema import Optimiser as OptimiserConfig
from burnish.lm.head import HALF

_SPREAD_AT_ONCE = 2**24


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


@torch.no_grad()
def spread(weights: Tensor, seed: int) -> Tensor:
    """Float32 numbers that round to these half-precision weights, drawn evenly."""
    masters = weights.detach().float().contiguous()
    draw = torch.Generator(masters.device).manual_seed(seed)
    # In parts: what is computed on the way would be several times a large matrix.
    for part, half in zip(
        torch.split(masters.view(-1), _SPREAD_AT_ONCE),
        torch.split(weights.detach().reshape(-1), _SPREAD_AT_ONCE),
        strict=True,
    ):
        place = torch.rand(part.shape, generator=draw, device=part.device) - 0.5
        _, exponent = torch.frexp(part)
        gap = torch.ldexp(torch.full_like(part, torch.finfo(half.dtype).eps / 2), exponent)
        moved = part + place * gap
        # Below a power of two the numbers lie half as far: what was drawn beyond is drawn out over
        # all that rounds to it, from a quarter of the gap below to half of it above.
        again = part + (3 * place + 1.25 * part.sign()) * gap
        moved = torch.where(moved.to(half.dtype) == half, moved, again)
        # Beside 0 and the largest number there is no such gap.
        part.copy_(torch.where(moved.to(half.dtype) == half, moved, part))
    return masters


def _own(tensor: Tensor) -> Tensor:
    """What this process holds of it."""
    # Asked by name: the class of sliced tensors takes half a second to import.
    own: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return own


def _slice(parameter: Any) -> tuple[int, int] | None:
    if not hasattr(parameter, "to_local"):
        return None
    mesh, rows = parameter.device_mesh, parameter.shape[0]
    each = -(-rows // mesh.size())
    return min(mesh.get_local_rank() * each, rows), _own(parameter.detach()).shape[0]


class MasterAdamW:
    """Owns the master weights, the two moments and the gradient sums of the trained parameters."""

    def __init__(self, parameters: Iterable[tuple[str, Tensor]], config: OptimiserConfig) -> None:
        named = [(name, p) for name, p in parameters if p.requires_grad]
        self.config = config
        self.names = [name for name, _ in named]
        self.parameters = [p for _, p in named]
        self.masters = [
            spread(p, seed) if p.dtype in HALF else _own(p.detach())
            for seed, p in enumerate(self.parameters)
        ]
        self.slices = [_slice(p) for p in self.parameters]
        """First row and number of rows of what this process holds; None where it holds all."""
        self.first = [torch.zeros_like(m) for m in self.masters]
        self.second = [torch.zeros_like(m) for m in self.masters]
        self.counts = [torch.zeros((), dtype=torch.float32, device=m.device) for m in self.masters]

        def decays(name: str, parameter: Tensor) -> bool:
            is_embedding = name.rpartition(".")[0].endswith("embed_tokens")
            if config.decay == "all" or not config.weight_decay:
                return True
            return not is_embedding and (config.decay == "no_embeddings" or parameter.dim() > 1)

        chosen = [decays(name, parameter) for name, parameter in named]
        self._groups = [
            (decay, members)
            for decay, does in ((config.weight_decay, True), (0.0, False))
            if (members := [i for i, one in enumerate(chosen) if one is does])
        ]
        self._half = [i for i, p in enumerate(self.parameters) if p.dtype in HALF]
        self._half_sums: list[Tensor] = []
        """Float32 sums of the half-precision parameters; made at the first gradient, then kept."""
        self._is_empty = True
        device = self.masters[0].device if self.masters else None
        self._are_cut = torch.tensor([cut is not None for cut in self.slices], device=device)
        self.weight_norm = torch.zeros((), dtype=torch.float64, device=device)
        """Norm of the master weights after the newest step, still on the device; 0 before it."""

    @property
    def sums(self) -> list[Tensor]:
        """The gradient sums, in the order of `names`; zeros where nothing was collected."""
        if self._is_empty:
            self.collect()
        for p in self.parameters:
            if p.grad is None and p.dtype not in HALF:
                p.grad = torch.zeros_like(p)
        half = iter(self._half_sums)
        return [
            next(half) if p.dtype in HALF else _own(cast("Tensor", p.grad)) for p in self.parameters
        ]

    @property
    def own_sums(self) -> list[Tensor]:
        """Those of whole parameters, which are this process's alone until they are added up."""
        return [total for total, cut in zip(self.sums, self.slices, strict=True) if cut is None]

    @torch.no_grad()
    def copy_sums(self) -> list[Tensor]:
        """Copies of the sums as they stand; unlike `sums`, this leaves no trace."""
        if self._is_empty:
            return [torch.zeros_like(m) for m in self.masters]
        half = iter(self._half_sums)
        sums = [next(half) if p.dtype in HALF else p.grad for p in self.parameters]
        return [
            torch.zeros_like(m) if total is None else _own(total).clone()
            for m, total in zip(self.masters, sums, strict=True)
        ]

    @torch.no_grad()
    def collect(self) -> None:
        if self._half and not self._half_sums:
            self._half_sums = [torch.empty_like(self.masters[i]) for i in self._half]
        taken: list[tuple[Tensor, Tensor]] = []
        for total, i in zip(self._half_sums, self._half, strict=True):
            gradient, self.parameters[i].grad = self.parameters[i].grad, None
            if gradient is not None:
                taken.append((total, gradient))
            elif self._is_empty:
                total.zero_()
        if taken:
            join = torch._foreach_copy_ if self._is_empty else torch._foreach_add_
            join([total for total, _ in taken], [gradient for _, gradient in taken])
        self._is_empty = False

    def clear(self) -> None:
        for p in self.parameters:
            p.grad = None
        self._is_empty = True

    def gradient_norm(self) -> Tensor:
        return self._norm(self.sums)

    def _norm(self, tensors: list[Tensor]) -> Tensor:
        """Of all weights or gradients together; the slices of the other processes count too."""
        norms = torch.stack(torch._foreach_norm(tensors)).double()
        if not any(self.slices):
            total: Tensor = torch.linalg.vector_norm(norms)
            return total
        squares = norms.square()
        of_slices = (squares * self._are_cut).sum()
        torch.distributed.all_reduce(of_slices)
        return (of_slices + (squares * ~self._are_cut).sum()).sqrt()

    @torch.no_grad()
    def step(self, rate: float, norm: Tensor) -> None:
        """Clip to the configured norm, update master weights, copy them into the model."""
        c = self.config
        torch._foreach_add_(self.counts, 1)
        lists = (self.masters, self.sums, self.first, self.second, self.counts)
        divisor = self._divisor(norm)
        for decay, members in self._groups:
            masters, sums, first, second, counts = ([all_[i] for i in members] for all_ in lists)
            torch._fused_adamw_(
                masters,
                sums,
                first,
                second,
                [],
                counts,
                lr=rate,
                beta1=c.beta1,
                beta2=c.beta2,
                weight_decay=decay,
                eps=c.eps,
                amsgrad=False,
                maximize=False,
                grad_scale=divisor,
            )
        self.weight_norm = self._norm(self.masters)
        self.publish()
        self.clear()

    def _divisor(self, norm: Tensor) -> Tensor | None:
        """What the kernel divides gradients by so that their norm is within the limit."""
        if self.config.clip_norm <= 0:
            return None
        # Looking at the number would make a GPU's queue run dry; there dividing by 1 costs nothing.
        if norm.device.type == "cpu" and float(norm) <= self.config.clip_norm:
            return None
        return (norm / self.config.clip_norm).clamp(min=1.0).float()

    @torch.no_grad()
    def publish(self) -> None:
        if self._half:
            torch._foreach_copy_(
                [self.parameters[i] for i in self._half], [self.masters[i] for i in self._half]
            )

    def state(self) -> dict[str, Tensor]:
        """Everything a resume needs, by name.

        Master weights of full-precision parameters too, though they are the parameters: a resumed
        run starts from the model that its config names and takes its weights from here.
        """
        tensors: dict[str, Tensor] = {}
        for i, name in enumerate(self.names):
            tensors[f"first/{name}"] = self.first[i]
            tensors[f"second/{name}"] = self.second[i]
            tensors[f"count/{name}"] = self.counts[i]
            tensors[f"master/{name}"] = self.masters[i]
        return tensors

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor]) -> None:
        for i, name in enumerate(self.names):
            self.first[i].copy_(tensors[f"first/{name}"])
            self.second[i].copy_(tensors[f"second/{name}"])
            self.counts[i].copy_(tensors[f"count/{name}"])
            self.masters[i].copy_(tensors[f"master/{name}"])
        self.publish()
