"""A small network that turns a condition into a vector by rectified flow, or by regression.

    head = FlowHead(size=128, condition_size=256)
    loss = head.loss(data, condition, noise, tau)               # random numbers are arguments
    made = head.sample(condition, noise, steps=16, guidance=2.0)

Residual blocks of SwiGLU whose shift, scale and gate come from time and condition (adaLN); gates and the
last map are zero at first, so a new head has velocity 0. Rows whose condition is dropped in training see
a learned vector in its place, which is what guidance compares with.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from burnish.arguments import as_number, as_whole
from burnish.models.blocks.attention import SwiGLU
from burnish.models.blocks.flow import euler_sample, flow_pair, guided_velocity
from burnish.models.blocks.norms import rms_norm
from burnish.tensors import check_shape


class FlowBlock(nn.Module):
    """x + gate * SwiGLU((1 + scale) * norm(x) + shift)."""

    def __init__(self, hidden: int, ratio: int) -> None:
        super().__init__()
        self.mlp = SwiGLU(hidden, ratio * hidden)
        self.modulation = nn.Linear(hidden, 3 * hidden)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift, scale, gate = self.modulation(F.silu(condition)).chunk(3, dim=-1)
        moved: Tensor = x + gate * self.mlp((1 + scale) * rms_norm(x, None, None, 1e-6) + shift)
        return moved


class FlowHead(nn.Module):
    """Velocity of a vector (..., size) at time tau, given a condition (..., condition_size).

    >>> import torch
    >>> from burnish.models.blocks.flow_head import FlowHead
    >>> head = FlowHead(size=3, condition_size=5, hidden=8, layers=1)
    >>> head.sample(torch.zeros(2, 5), noise=torch.ones(2, 3), steps=2).tolist()
    [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    """

    def __init__(
        self, size: int, condition_size: int, hidden: int = 256, layers: int = 4, ratio: int = 3
    ) -> None:
        super().__init__()
        self.size = as_whole("size", size, low=1)
        self.hidden = as_whole("hidden", hidden, low=2)
        self.input = nn.Linear(size, hidden)
        self.time = nn.Sequential(nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, hidden))
        self.condition = nn.Linear(condition_size, hidden)
        self.nothing = nn.Parameter(torch.zeros(condition_size))
        """What stands for a condition that was dropped."""
        self.blocks = nn.ModuleList(FlowBlock(hidden, ratio) for _ in range(layers))
        self.modulation = nn.Linear(hidden, 2 * hidden)
        self.output = nn.Linear(hidden, size)
        self.reset()

    @torch.no_grad()
    def reset(self) -> None:
        """First weights: those that make the velocity 0."""
        for module in self.modules():
            if isinstance(module, FlowBlock):
                module.modulation.weight.zero_()
                module.modulation.bias.zero_()
        for last in (self.modulation, self.output):
            last.weight.zero_()
            last.bias.zero_()

    def forward(self, x: Tensor, tau: Tensor | float, condition: Tensor) -> Tensor:
        """(..., size), (...) or one number, (..., condition_size) -> (..., size)."""
        times = torch.as_tensor(tau, dtype=x.dtype, device=x.device)
        angles = self.time(time_waves(times.expand(x.shape[:-1]), self.hidden))
        c = angles + self.condition(condition)
        h = self.input(x)
        for block in self.blocks:
            h = block(h, c)
        shift, scale = self.modulation(F.silu(c)).chunk(2, dim=-1)
        out: Tensor = self.output((1 + scale) * rms_norm(h, None, None, 1e-6) + shift)
        return out

    def loss(
        self,
        data: Tensor,
        condition: Tensor,
        noise: Tensor,
        tau: Tensor,
        is_dropped: Tensor | None = None,
    ) -> Tensor:
        """Squared error of the velocity, a number for each vector: (..., size) -> (...).

        `is_dropped` (...) says whose condition is left out.
        """
        if is_dropped is not None:
            condition = torch.where(is_dropped[..., None], self.nothing.to(condition), condition)
        pair = flow_pair(noise, data, tau)
        error: Tensor = self(pair.x_tau, tau, condition) - pair.velocity
        return error.square().mean(-1)

    @torch.no_grad()
    def sample(
        self, condition: Tensor, noise: Tensor, steps: int = 16, guidance: float = 1.0
    ) -> Tensor:
        """Vectors from noise (..., size) by Euler's method; guidance 1 is the condition alone."""
        check_shape(noise, "noise", (*condition.shape[:-1], self.size))
        scale = as_number("guidance", guidance, low=0)
        both = torch.stack((condition, self.nothing.to(condition).expand_as(condition)))

        def velocity(x: Tensor, tau: float) -> Tensor:
            if scale == 1:
                found: Tensor = self(x, tau, condition)
                return found
            # In one pass: of a few vectors, reading the weights is what takes the time.
            with_it, without = self(x.expand(2, *x.shape), tau, both)
            return guided_velocity(with_it, without, scale)

        return euler_sample(velocity, noise, steps)


class RegressionHead(nn.Module):
    """The same place filled by regression: the mean of what may follow, drawn from nothing."""

    def __init__(self, size: int, condition_size: int, hidden: int = 256, layers: int = 4) -> None:
        super().__init__()
        self.size = size
        inner = [part for _ in range(layers) for part in (nn.Linear(hidden, hidden), nn.SiLU())]
        self.network = nn.Sequential(
            nn.Linear(condition_size, hidden), nn.SiLU(), *inner, nn.Linear(hidden, size)
        )

    def loss(self, data: Tensor, condition: Tensor, *_: Any) -> Tensor:
        """Squared error, a number for each vector: (..., size) -> (...)."""
        error: Tensor = self.network(condition) - data
        return error.square().mean(-1)

    @torch.no_grad()
    def sample(self, condition: Tensor, *_: Any, **__: Any) -> Tensor:
        """(..., condition_size) -> (..., size)."""
        found: Tensor = self.network(condition)
        return found


def time_waves(tau: Tensor, size: int) -> Tensor:
    """Sines and cosines of a time from 0 to 1: (...) -> (..., size)."""
    half = size // 2
    rates = torch.exp(
        torch.arange(half, dtype=tau.dtype, device=tau.device) * (-math.log(1e4) / max(half, 1))
    )
    angles = 1000 * tau[..., None] * rates
    return F.pad(torch.cat((angles.sin(), angles.cos()), dim=-1), (0, size - 2 * half))
