"""Rectified flow: pairs to learn from, Euler's method, guidance.

    pair = flow_pair(noise, data, tau)                       # random numbers are arguments
    loss = (velocity(pair.x_tau, tau) - pair.velocity).square().mean()
    sample = euler_sample(velocity, noise, steps=20)

`tau` runs from 0, noise, to 1, data. The path is a straight line, so its velocity is constant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from burnish.arguments import as_function, as_number, as_whole, refused, shown
from burnish.errors import ArgumentError
from burnish.tensors import as_logp, check_finite, check_shape, torch

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.tensors import Numbers

MOST_STEPS = 10_000


class FlowPair(NamedTuple):
    """A point between noise and data, and where it moves; both keep the gradient."""

    x_tau: Tensor
    """`(1 - tau) noise + tau data`."""
    velocity: Tensor
    """`data - noise`."""


def flow_pair(noise: Numbers, data: Numbers, tau: Numbers) -> FlowPair:
    """Point and velocity on the straight line from noise to data, which have one shape.

    `tau`, from 0 to 1, is one number or one for each item of the first axes: (B,) or (B, T) for data
    (B, T, D).

    >>> from burnish.models.audio_tokenizer import flow_pair
    >>> pair = flow_pair(noise=[[1.0, 0.0]], data=[[3.0, 4.0]], tau=[0.25])
    >>> pair.x_tau.tolist(), pair.velocity.tolist()
    ([[1.5, 1.0]], [[2.0, 4.0]])
    """
    data_X = finite(data, "data")
    noise_X = finite(noise, "noise", data_X)
    check_shape(noise_X, "noise", tuple(data_X.shape))
    tau_X = finite(tau, "tau", data_X)
    if not ((tau_X >= 0) & (tau_X <= 1)).all():
        raise refused("tau", tau, "times from 0 to 1")
    return on_line(noise_X, data_X, tau_X)


def on_line(noise: Tensor, data: Tensor, tau: Tensor) -> FlowPair:
    """`flow_pair` without reading its numbers, so that a CUDA graph can record it."""
    tau_X = over_last_axes(tau, "tau", data)
    return FlowPair((1 - tau_X) * noise + tau_X * data, data - noise)


def guided_velocity(v_cond: Numbers, v_uncond: Numbers, scale: float) -> Tensor:
    """Classifier-free guidance, `v_uncond + scale (v_cond - v_uncond)`: 1 is the condition alone.

    >>> from burnish.models.audio_tokenizer import guided_velocity
    >>> guided_velocity(v_cond=[1.0, 2.0], v_uncond=[0.0, 1.0], scale=2.0).tolist()
    [2.0, 3.0]
    """
    cond_X = finite(v_cond, "v_cond")
    uncond_X = finite(v_uncond, "v_uncond", cond_X)
    check_shape(uncond_X, "v_uncond", tuple(cond_X.shape))
    return uncond_X + as_number("scale", scale) * (cond_X - uncond_X)


def euler_sample(
    velocity: Callable[[Tensor, float], Tensor], noise: Numbers, steps: int = 20
) -> Tensor:
    """From noise to data in equal steps; `velocity(x, tau)` is called at tau = 0, 1/steps, ...

    Gradients are kept: sample under `torch.no_grad()`.

    >>> from burnish.models.audio_tokenizer import euler_sample
    >>> euler_sample(lambda x, tau: 3.0 - x, noise=[1.0], steps=2).tolist()
    [2.5]
    """
    as_function("velocity", velocity)
    x = finite(noise, "noise").clone()
    steps = as_whole("steps", steps, low=1, high=MOST_STEPS)
    for step in range(steps):
        moved = velocity(x, step / steps)
        is_like = isinstance(moved, torch.Tensor) and moved.shape == x.shape
        if not is_like or moved.is_complex():
            raise ArgumentError(
                f"velocity: gave {shown(moved)}, expected a real tensor of shape {tuple(x.shape)}"
            )
        x = x + moved.to(x.dtype) / steps
    check_finite(x, "velocity: the sample")
    return x


def finite(values: Numbers, what: str, like: Tensor | None = None) -> Tensor:
    """Finite numbers, at least one, that keep their graph; half precision is raised to float32.

    With `like` they get its type and device, and have to be finite there too.
    """
    read = as_logp(values, what)
    if isinstance(values, torch.Tensor) and values.is_complex():
        raise refused(what, values, "real numbers")
    if not read.numel():
        raise refused(what, values, "at least one number")
    check_finite(read, what)
    if like is not None:
        read = read.to(like)
        check_finite(read, what)
    return read


def over_last_axes(values: Tensor, what: str, of: Tensor) -> Tensor:
    """One number, or one for each item of the first axes of `of`, as what broadcasts to its shape."""
    shape = tuple(of.shape)
    if values.ndim > len(shape) or tuple(values.shape) != shape[: values.ndim]:
        is_kept = values.ndim == len(shape) and all(
            mine in (1, whole) for mine, whole in zip(values.shape, shape, strict=True)
        )
        if not is_kept:
            raise ArgumentError(
                f"{what}: got shape {tuple(values.shape)}, expected () or the first axes of {shape}"
            )
        return values
    return values.reshape(*values.shape, *[1] * (len(shape) - values.ndim))
