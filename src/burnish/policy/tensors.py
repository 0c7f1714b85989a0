"""What the public functions of this room accept as numbers, and what they make of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    Numbers = Tensor | ArrayLike


def as_float64(values: Numbers, what: str) -> Tensor:
    """Plain numbers as a detached float64 tensor; None becomes NaN, which means missing."""
    if isinstance(values, Tensor):
        return values.detach().to(torch.float64)
    try:
        return torch.from_numpy(np.array(values, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{what}: expected numbers in a regular table; {error}") from None


def as_logp(values: Numbers) -> Tensor:
    """Log-probs as a tensor that keeps its graph; half precision is raised to float32."""
    if not isinstance(values, Tensor):
        return as_float64(values, "log-probs")
    if values.dtype in (torch.float32, torch.float64):
        return values
    return values.to(torch.float32)
