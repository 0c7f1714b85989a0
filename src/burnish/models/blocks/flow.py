"""Rectified flow: pairs to learn from, Euler's method, guidance, and a small network that learns it.

`tau` runs from 0, noise, to 1, data. The path is a straight line, so its velocity is constant.

`FlowHead` turns a condition into a vector: residual blocks of SwiGLU whose shift, scale and gate come
from time and condition (adaLN). Gates and the last map are zero at first, so a new head has velocity 0.
Rows whose condition is dropped in training see a learned vector in its place, which is what guidance
compares with.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor, nn

from burnish.arguments import refused
from burnish.boundary import Number, PositiveInt, public
from burnish.models.blocks.layers import SwiGLU, rms_norm
from burnish.tensors import check_finite, check_shape

if TYPE_CHECKING:
    from jaxtyping import Float


class FlowPair(NamedTuple):
    """A point between noise and data, and where it moves; both keep the gradient."""

    x_tau: Tensor
    """`(1 - tau) noise + tau data`."""
    velocity: Tensor
    """`data - noise`."""


@public
def flow_pair(
    noise: Float[Tensor, "*S"],
    data: Float[Tensor, "*S"],
    tau: Annotated[Float[Tensor, "*T"], Meta(ge=0, le=1)],
) -> FlowPair:
    """Point and velocity on the straight line from noise to data, which have one shape.

    `tau` is one number or one for each item of the first axes: (B,) or (B, T) for data
    (B, T, D).

    >>> pair = flow_pair(noise=[[1.0, 0.0]], data=[[3.0, 4.0]], tau=[0.25])
    >>> pair.x_tau.tolist(), pair.velocity.tolist()
    ([[1.5, 1.0]], [[2.0, 4.0]])
    """
    return on_line(noise.to(data), data, tau.to(data))


def on_line(noise: Tensor, data: Tensor, tau: Tensor) -> FlowPair:
    """`flow_pair` without reading its numbers, so that a CUDA graph can record it."""
    tau_X = over_last_axes(tau, "tau", data)
    return FlowPair((1 - tau_X) * noise + tau_X * data, data - noise)


@public
def guided_velocity(
    v_cond: Float[Tensor, "*S"], v_uncond: Float[Tensor, "*S"], scale: Number
) -> Tensor:
    """Classifier-free guidance, `v_uncond + scale (v_cond - v_uncond)`: 1 is the condition alone.

    >>> guided_velocity(v_cond=[1.0, 2.0], v_uncond=[0.0, 1.0], scale=2.0).tolist()
    [2.0, 3.0]
    """
    return v_uncond + scale * (v_cond - v_uncond)


@public
def euler_sample(
    velocity: Callable[[Tensor, float], Tensor], noise: Float[Tensor, "*S"], steps: PositiveInt = 20
) -> Tensor:
    """From noise to data in equal steps; `velocity(x, tau)` is called at tau = 0, 1/steps, ...

    Gradients are kept: sample under `torch.no_grad()`.

    >>> euler_sample(lambda x, tau: 3.0 - x, noise=[1.0], steps=2).tolist()
    [2.5]
    """
    x = noise.clone()
    for step in range(steps):
        moved = velocity(x, step / steps)
        check_shape(moved, "velocity: what it gave", tuple(x.shape))
        x = x + moved.to(x.dtype) / steps
    check_finite(x, "velocity: the sample")
    return x


def over_last_axes(values: Tensor, what: str, of: Tensor) -> Tensor:
    """One number, or one for each item of the first axes of `of`, as what broadcasts to its shape."""
    missing = of.ndim - values.ndim
    pairs = zip(values.shape, of.shape, strict=False)
    allowed = all(mine == whole or (mine == 1 and not missing) for mine, whole in pairs)
    if missing < 0 or not allowed:
        raise refused(what, values, f"shape () or the first axes of {tuple(of.shape)}")
    return values.reshape(*values.shape, *[1] * missing)


class FlowBlock(nn.Module):
    """x + gate * SwiGLU((1 + scale) * norm(x) + shift)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.mlp = SwiGLU(hidden, 3 * hidden)
        self.modulation = nn.Linear(hidden, 3 * hidden)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift, scale, gate = self.modulation(F.silu(condition)).chunk(3, dim=-1)
        moved: Tensor = x + gate * self.mlp((1 + scale) * rms_norm(x, None, None, 1e-6) + shift)
        return moved


class FlowHead(nn.Module):
    """Velocity of a vector (..., size) at time tau, given a condition (..., condition_size).

    >>> head = FlowHead(size=3, condition_size=5, hidden=8, layers=1)
    >>> head.sample(torch.zeros(2, 5), noise=torch.ones(2, 3), steps=2).tolist()
    [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    """

    def __init__(self, size: int, condition_size: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.size, self.hidden = size, hidden
        self.input = nn.Linear(size, hidden)
        self.time = nn.Sequential(nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, hidden))
        self.condition = nn.Linear(condition_size, hidden)
        self.nothing = nn.Parameter(torch.zeros(condition_size))
        """What stands for a condition that was dropped."""
        blocks = [FlowBlock(hidden) for _ in range(layers)]
        self.blocks = nn.ModuleList(blocks)
        self.modulation = nn.Linear(hidden, 2 * hidden)
        self.output = nn.Linear(hidden, size)
        # The velocity is 0 at first.
        for last in (self.modulation, self.output, *(one.modulation for one in blocks)):
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)

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
        pair = on_line(noise.to(data), data, tau.to(data))
        error: Tensor = self(pair.x_tau, tau, condition) - pair.velocity
        return error.square().mean(-1)

    @torch.no_grad()
    def sample(
        self, condition: Tensor, noise: Tensor, steps: int = 16, guidance: float = 1.0
    ) -> Tensor:
        """Vectors from noise (..., size) by Euler's method; guidance 1 is the condition alone."""
        check_shape(noise, "noise", (*condition.shape[:-1], self.size))
        both = torch.stack((condition, self.nothing.to(condition).expand_as(condition)))

        def velocity(x: Tensor, tau: float) -> Tensor:
            if guidance == 1:
                found: Tensor = self(x, tau, condition)
                return found
            # In one pass: of a few vectors, reading the weights is what takes the time.
            with_it, without = self(x.expand(2, *x.shape), tau, both)
            return guided_velocity.plain(with_it, without, guidance)

        wide = noise.to(torch.promote_types(noise.dtype, torch.float32))
        return euler_sample.plain(velocity, wide, steps)


class RegressionHead(nn.Module):
    """The same place filled by regression: the mean of what may follow, drawn from nothing."""

    def __init__(self, size: int, condition_size: int, hidden: int, layers: int) -> None:
        super().__init__()
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
