"""A call that works, and values that the calls of several rooms share."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Case:
    """A call that works."""

    function: Callable[..., Any]
    given: Mapping[str, Any]
    """What has another value than by default."""
    lets: Mapping[str, str] | None = None
    """Kinds of spoilt value by argument that give a result; none where that is the default."""
    keeps_nan: bool = False
    """Missing stays missing: a NaN that goes in may come out."""
    signed: str = ""
    """Arguments with numbers that may be below 0; all others are refused there."""
    shares: str = ""
    """Arguments with numbers that are refused above 1; all others may be."""

    def __post_init__(self) -> None:
        usual = {
            name: one.default
            for name, one in inspect.signature(self.function).parameters.items()
            if one.default is not inspect.Parameter.empty and one.annotation != "bool"
        }
        given = {name: one for name, one in usual.items() if one is not None} | dict(self.given)
        lets = {name: OPTIONAL for name, one in usual.items() if one is None}
        object.__setattr__(self, "given", given)
        object.__setattr__(self, "lets", lets | dict(self.lets or {}))


def f64(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


LOGP = f64([[-1.0, -2.0], [-0.5, -0.7]])
MASK = f64([[1.0, 1.0], [1.0, 0.0]])
PARSED = "none empty word item_none"  # what cannot be read is a value, not an exception
OPTIONAL, NEEDED = "none", ""
