"""Auxiliary `adaptive_entropy`: an entropy bonus that is there only while entropy is low.

The coefficient rises by `step` after each training step whose mean entropy is at or below the target
and falls by `step` otherwise; the bonus is added only where the last entropy was at or below the
target (Skywork-OR1, arXiv 2505.22312). TRL moves its coefficient after each update, this one moves
after each step, however many updates that has: their mean is the entropy that counts.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from burnish.arguments import as_number
from burnish.errors import ArgumentError
from burnish.policy.base import Component, require
from burnish.policy.state import EntropyState

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.policy.aggregate import Aggregate
    from burnish.policy.batch import LossBatch


class AdaptiveEntropy(Component, frozen=True, tag="adaptive_entropy"):
    """Bonus for entropy with a coefficient that rises while entropy is below a target."""

    target: float
    """Mean entropy of a token in nats. The metric `policy/entropy` shows where a run begins."""
    coefficient: float = 0.0
    """At the start; no step has been measured then, so the first has no bonus."""
    step: float = 0.005
    """How far the coefficient moves after each step."""
    low: float = 0.0
    """Least coefficient."""
    high: float = 1.0
    """Greatest coefficient."""

    def check(self) -> None:
        require(0 <= self.target < math.inf, "target", self.target, "at least 0, finite")
        require(0 <= self.step < math.inf, "step", self.step, "at least 0, finite")
        require(0 <= self.low <= self.high, "low", self.low, "0 to `high`")
        require(self.high < math.inf, "high", self.high, "finite")
        is_within = self.low <= self.coefficient <= self.high
        require(is_within, "coefficient", self.coefficient, "`low` to `high`")

    @property
    def name(self) -> str:
        return "entropy"

    def term(self, batch: LossBatch, aggregate: Aggregate, ratio: str) -> Tensor:
        """Minus the bonus, ()."""
        coefficient = batch.entropy_coefficient
        coefficient = self.coefficient if coefficient is None else coefficient
        if batch.entropy_BT is None:
            raise ArgumentError(
                "entropy_BT: got none, expected (B, T); the recipe has an entropy term"
            )
        return -coefficient * aggregate.total(batch.entropy_BT, batch)

    def current(self, state: EntropyState | None) -> float:
        """The coefficient of the step after `state`; 0 while the last entropy was above the target."""
        is_low = state is not None and state.entropy <= self.target
        return state.coefficient if state is not None and is_low else 0.0

    def after(self, state: EntropyState | None, entropy: float) -> EntropyState:
        """The state after a step with this mean entropy."""
        before = self.coefficient if state is None else state.coefficient
        limits = self.target, self.step, self.low, self.high
        return EntropyState(adapted_entropy_coefficient(before, entropy, *limits), entropy)


def adapted_entropy_coefficient(
    coefficient: float,
    entropy: float,
    target: float,
    step: float = 0.005,
    low: float = 0.0,
    high: float = 1.0,
) -> float:
    """The coefficient after a step: up by `step` where `entropy <= target`, else down; in `low..high`."""
    coefficient = as_number("coefficient", coefficient)
    entropy = as_number("entropy", entropy)
    step = as_number("step", step, low=0)
    high = as_number("high", high, low=0)
    low = as_number("low", low, low=0, high=high)
    moved = coefficient + (step if entropy <= as_number("target", target, low=0) else -step)
    return min(max(moved, low), high)
