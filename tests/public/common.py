"""A call that works, and values that the calls of several rooms share."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch


class Case(NamedTuple):
    """A call that works."""

    function: Callable[..., Any]
    given: Mapping[str, Any]
    lets: Mapping[str, str] = {}
    """Kinds of spoilt value by argument that give a result."""
    keeps_nan: bool = False
    """Missing stays missing: a NaN that goes in may come out."""
    signed: str = ""
    """Arguments with numbers that may be below 0; all others are refused there."""
    shares: str = ""
    """Arguments with numbers that are refused above 1; all others may be."""


def f64(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


LOGP = f64([[-1.0, -2.0], [-0.5, -0.7]])
MASK = f64([[1.0, 1.0], [1.0, 0.0]])
PARSED = "none empty word item_none"  # what cannot be read is a value, not an exception
OPTIONAL = "none"
