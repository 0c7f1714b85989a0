"""Coefficient of imitation: adapt it to hold a likelihood, and compare the two gradients.

The coefficient of the `sft` term rises while held-out demonstrations become less likely than the
target, and falls while they are more likely (AFRL, arXiv 2602.10006, names no schedule; this one is
ours). The cosine of the two gradients shows whether the losses pull together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from burnish.arguments import ordered
from burnish.boundary import NonNegative, Number, Positive, public
from burnish.errors import ArgumentError
from burnish.tensors import torch

if TYPE_CHECKING:
    from torch import Tensor

MOST_GROWTH = 700.0
"""Largest exponent of one change; more than this overflows, and the upper bound cuts it anyway."""


@dataclass(frozen=True)
class BalanceState:
    """The current coefficient of imitation under an adaptive schedule."""

    coefficient: float
    target: float
    step: int


SMALLEST_NORM = 1e-140
"""Below it squares leave the normal range of float64, and a cosine could exceed 1."""


class GradientOverlap(NamedTuple):
    """Two gradients compared."""

    first_norm: float
    second_norm: float
    cosine: float | None
    """None where one of them is 0, or too small to have a direction."""


@public
def adapted_coefficient(
    coefficient: Number,
    nll: float | None,
    target: Positive,
    rate: NonNegative,
    low: NonNegative,
    high: NonNegative,
) -> float:
    """The coefficient of imitation after a measurement: `coefficient exp(rate (nll - target) / target)`.

    Kept within `low` and `high`. `nll` is that of held-out demonstrations, in nats a token; where
    it is missing or not finite, the coefficient stays as it is.
    """
    ordered("low", low, "high", high)
    if nll is None or not math.isfinite(nll):
        return coefficient
    growth = min(rate * (nll - target) / target, MOST_GROWTH)
    return min(max(coefficient * math.exp(growth), low), high)


def gradient_overlap(first: Iterable[Tensor], second: Iterable[Tensor]) -> GradientOverlap:
    """Norms and cosine of two gradients, each one tensor a parameter, in the same order.

    Sums are in float64. Reads one pair of tensors at a time, so that either may be made on the way.
    """
    sums: list[Tensor] = []
    with torch.no_grad():
        for one, other in zip_longest(first, second):
            if one is None or other is None:
                raise ArgumentError(
                    "first, second: got one with fewer tensors, expected one tensor a parameter in each"
                )
            if one.shape != other.shape:
                raise ArgumentError(
                    f"first, second: got shapes {tuple(one.shape)} and {tuple(other.shape)} for one "
                    "parameter, expected the same"
                )
            a, b = one.double().flatten(), other.double().flatten()
            sums.append(torch.stack([a @ a, b @ b, a @ b]).cpu())
    found = torch.stack(sums).sum(0).tolist() if sums else [0.0] * 3
    first_norm, second_norm = math.sqrt(found[0]), math.sqrt(found[1])
    for what, norm in (("first", first_norm), ("second", second_norm)):
        if not math.isfinite(norm):
            raise ArgumentError(f"{what}: got a gradient of norm {norm}, expected finite numbers")
    has_direction = min(first_norm, second_norm) > SMALLEST_NORM
    cosine = found[2] / (first_norm * second_norm) if has_direction else None
    return GradientOverlap(first_norm, second_norm, cosine)
