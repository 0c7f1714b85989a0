"""Reading and checking tensor arguments; also `torch` itself, loaded at first use.

The tensor counterpart of `burnish.arguments`. Reading a value waits for the GPU, so the components
of the loss check values only in the functions that a person calls (`policy_loss`, `kl_penalty`,
...); `loss(recipe, batch)` leaves them to the guards of training.
"""

from __future__ import annotations

import importlib
import math
from types import ModuleType
from typing import TYPE_CHECKING, Any

from burnish.arguments import refused
from burnish.errors import ArgumentError, first_line

LARGEST = 1e100
"""Of the numbers that functions take: float64 holds their squares, and sums of these."""


class _LazyModule(ModuleType):
    """A module that is imported when one of its names is first used.

    Recipes are read by commands that never compute, and importing torch takes seconds.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        module = importlib.import_module(self.__name__)
        # Copied once, so that later uses cost no more than those of the module itself.
        vars(self).update({key: value for key, value in vars(module).items() if key[:2] != "__"})
        return getattr(module, name)


if TYPE_CHECKING:
    import numpy as np
    import torch as torch
    from numpy.typing import ArrayLike
    from torch import Tensor

    Numbers = Tensor | ArrayLike
else:
    np, torch = _LazyModule("numpy"), _LazyModule("torch")


def check_dense(values: Tensor, what: str) -> None:
    """Refuse a tensor whose numbers cannot be read one by one: sparse or quantised."""
    if values.layout is not torch.strided or values.is_quantized:
        kind = "quantised" if values.is_quantized else "sparse"
        raise ArgumentError(f"{what}: got a {kind} tensor, expected a dense one that holds numbers")


def as_float64(values: Numbers, what: str) -> Tensor:
    """Plain numbers as a detached float64 tensor; None inside becomes NaN, which means missing."""
    if isinstance(values, torch.Tensor):
        check_dense(values, what)
        if values.is_complex():
            raise refused(what, values, "real numbers")
        return values.detach().to(torch.float64)
    if values is None:
        raise refused(what, values, "numbers")
    try:
        read = np.array(values)
        # In an array of objects numpy reads the digits of a text, and a missing date as -9e18.
        no_numbers = (str, bytes, np.datetime64, np.timedelta64)
        objects = read.flat if read.dtype.kind == "O" else ()
        if read.dtype.kind in "biufO" and not any(isinstance(one, no_numbers) for one in objects):
            return torch.from_numpy(read.astype(np.float64))
    # RuntimeError: a list of tensors that carry a gradient.
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise ArgumentError(
            f"{what}: expected numbers in a regular table; {first_line(error)}"
        ) from None
    raise refused(what, values, "numbers")


def as_logp(values: Numbers, what: str = "logp") -> Tensor:
    """Log-probs as a tensor that keeps its graph; half precision is raised to float32."""
    if not isinstance(values, torch.Tensor):
        return as_float64(values, what)
    check_dense(values, what)
    if values.is_complex():
        raise refused(what, values, "real numbers")
    if values.dtype in (torch.float32, torch.float64):
        return values
    return values.to(torch.float32)


def as_finite(values: Numbers, what: str) -> Tensor:
    """As `as_float64`, where nothing may be missing or infinite."""
    read = as_float64(values, what)
    check_finite(read, what)
    return read


def as_mask(values: Numbers, what: str, shape: tuple[int, ...]) -> Tensor:
    """What is not 0 as True, of one shape; a NaN, which says neither, is refused."""
    read = as_finite(values, what)
    check_shape(read, what, shape)
    return read != 0


def check_shape(values: Tensor, what: str, *shapes: tuple[int, ...]) -> None:
    """Refuse a tensor that has none of these shapes."""
    if tuple(values.shape) not in shapes:
        expected = " or ".join(str(shape) for shape in shapes)
        raise ArgumentError(f"{what}: got shape {tuple(values.shape)}, expected {expected}")


def check_finite(values: Tensor, what: str, among: Tensor | None = None) -> None:
    """Refuse NaN, infinity and what is near it, where `among` (bool, of the same shape) is True if it is given."""
    if values.is_meta:
        raise ArgumentError(f"{what}: got a meta tensor, expected a dense one that holds numbers")
    # In float64: in float32 the bound itself would be infinite.
    is_odd = ~(values.detach().double().abs() <= LARGEST)
    if among is not None:
        is_odd = is_odd & among
    if is_odd.any():
        place = is_odd.nonzero()[0].tolist()
        got = values.detach()[tuple(place)].item()
        where = f"[{', '.join(map(str, place))}] is" if place else "got"
        size = f" of at most {LARGEST:g} in size" if math.isfinite(got) else ""
        raise ArgumentError(f"{what}: {where} {got}, expected a finite number{size}")
