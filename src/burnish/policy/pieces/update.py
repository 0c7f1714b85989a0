"""Pieces of the loss.

trust region  (A, group variance) -> (low, high)
aggregate     (loss, mask) -> scalar
auxiliary     () -> scalar, added with a coefficient
"""

from __future__ import annotations

import math
from typing import Literal

from msgspec import Struct
from msgspec.structs import fields

from burnish.errors import ArgumentError
from burnish.policy.pieces.base import Function, Piece, require


class StaticRegion(Piece, frozen=True, tag="static"):
    """The same clip interval 1 - low .. 1 + high for every rollout."""

    low: float = 0.2
    high: float = 0.2

    def __post_init__(self) -> None:
        require(0 <= self.low < 1, "low", self.low, "0 to below 1")
        require(0 <= self.high < math.inf, "high", self.high, "at least 0")


class Elastic(Piece, frozen=True, tag="elastic"):
    """Bounds that widen with a rollout's advantage and, with `macro`, its group's spread (ETR)."""

    low: float = 0.2
    high: float = 0.2
    strength: float = 0.5
    """0 is the static region, bit for bit."""
    center: float = 1.0
    """The |advantage| whose bounds are `low` and `high`."""
    cap: float = 3.0
    macro: float = 0.0
    range: tuple[float, float] | None = None
    """Least and greatest weighted sum of the rewards as scored; `macro` needs it, and figures by
    pass rate where the reward is not a single one of 0 or 1."""
    least: float = 0.05
    most: float = 0.8

    def __post_init__(self) -> None:
        require(0 <= self.low < 1, "low", self.low, "0 to below 1")
        require(0 <= self.high < math.inf, "high", self.high, "at least 0")
        require(0 <= self.strength < math.inf, "strength", self.strength, "at least 0")
        require(0 < self.cap < math.inf, "cap", self.cap, "above 0")
        require(0 <= self.center < math.inf, "center", self.center, "at least 0")
        require(0 <= self.macro <= 1, "macro", self.macro, "0 to 1")
        require(0 <= self.least <= self.most < 1, "least", self.least, "0 to `most`, which is < 1")
        for key in ("low", "high"):
            is_inside = self.least <= getattr(self, key) <= self.most
            is_still = self.strength == 0 and self.macro == 0
            inside = f"`least` ({self.least}) to `most` ({self.most}); bounds never leave these"
            require(is_still or is_inside, key, getattr(self, key), inside)
        if self.macro and (self.range is None or not self.range[0] < self.range[1]):
            raise ArgumentError(
                "macro: needs `range`, the least and the greatest reward, such as [0.0, 1.0]; a "
                "spread without a range says nothing"
            )
        if self.range is not None and not -math.inf < self.range[0] < self.range[1] < math.inf:
            raise ArgumentError(
                f"range: got {list(self.range)}, expected the least and the greatest reward, such "
                "as [0.0, 1.0]"
            )


TrustRegion = StaticRegion | Elastic | Function


class Aggregate(Struct, frozen=True, forbid_unknown_fields=True):
    """How token losses become one number."""

    mode: Literal[
        "token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"
    ] = "seq-mean-token-mean"
    max_tokens: int = 0
    """The constant length of `seq-mean-token-sum-norm`; 0 takes the rollout's token budget."""
    keep_denominator: bool = False
    """Count masked rollouts in the denominator."""

    def __post_init__(self) -> None:
        require(self.max_tokens >= 0, "max_tokens", self.max_tokens, "at least 0")


class KL(Piece, frozen=True, tag="kl"):
    """Penalty for leaving the reference model."""

    coefficient: float
    estimator: Literal["k1", "k2", "k3", "k1+", "k3+"] = "k3"
    """`k3+` has the value of k3 and the gradient of k2, which is that of the divergence (verl)."""
    correction: bool = False
    """Multiply by the probability ratio to the policy that sampled (TRL's default)."""

    def __post_init__(self) -> None:
        require(0 <= self.coefficient < math.inf, "coefficient", self.coefficient, "at least 0")
        if self.correction and self.estimator.endswith("+"):
            raise ValueError(
                f"correction: expected false with estimator '{self.estimator}', whose gradient is "
                "that of the divergence already; the ratio would add it once more"
            )


class Entropy(Piece, frozen=True, tag="entropy"):
    """Bonus for keeping the policy's entropy; below 0 it is a penalty."""

    coefficient: float

    def __post_init__(self) -> None:
        require(math.isfinite(self.coefficient), "coefficient", self.coefficient, "finite")


_READ_BY = {
    "linear": ("final_ratio",),
    "adaptive": ("target", "rate", "low", "high", "every", "held_out"),
}
"""Schedule of imitation -> the settings that it alone reads."""


class SFT(Piece, frozen=True, tag="sft"):
    """Imitation of experts beside the policy loss, so that rare rules are not forgotten (AFRL)."""

    coefficient: float
    batch: int = 16
    """Demonstrations of each update; `[experts]` says where they come from."""
    by: str = ""
    """Task field whose values appear equally often, so that rare ones are not forgotten."""
    schedule: Literal["constant", "linear", "adaptive"] = "constant"
    """`linear` falls to `final_ratio` of the coefficient over the run. `adaptive` moves it so that
    demonstrations which are never imitated stay as likely as `target` says."""
    final_ratio: float = 0.0
    target: float = 0.0
    """Negative log-prob a token (nats) that `adaptive` holds; 0 takes what the start model has."""
    rate: float = 0.5
    """How far one measurement moves the coefficient: its logarithm, for an NLL of twice the target."""
    low: float | None = None
    """Bounds of an adaptive coefficient; a quarter of `coefficient` to ten times it unless given."""
    high: float | None = None
    every: int = 5
    """Steps from one measurement to the next."""
    held_out: int = 16
    """Demonstrations that are measured."""
    gradients_every: int = 0
    """Steps from one comparison of the two losses' gradients to the next; 0 never compares them."""

    def __post_init__(self) -> None:
        require(0 <= self.coefficient < math.inf, "coefficient", self.coefficient, "at least 0")
        require(self.batch >= 1, "batch", self.batch, "at least 1")
        require(0 <= self.final_ratio <= 1, "final_ratio", self.final_ratio, "0 to 1")
        require(0 <= self.target < math.inf, "target", self.target, "at least 0, finite")
        require(0 <= self.rate < math.inf, "rate", self.rate, "at least 0, finite")
        for key in ("every", "held_out"):
            require(getattr(self, key) >= 1, key, getattr(self, key), "at least 1")
        require(self.gradients_every >= 0, "gradients_every", self.gradients_every, "at least 0")
        if self.schedule == "adaptive":
            self._check_adaptive()
        plain = {field.name: field.default for field in fields(self)}
        for other, keys in _READ_BY.items():
            unread = [key for key in keys if getattr(self, key) != plain[key]]
            if unread and other != self.schedule:
                raise ArgumentError(
                    f"schedule: '{self.schedule}' does not read {', '.join(unread)}; set it to "
                    f"'{other}' or leave that out"
                )

    def _check_adaptive(self) -> None:
        moves = "above 0 with schedule 'adaptive', which multiplies it"
        require(self.coefficient > 0, "coefficient", self.coefficient, moves)
        low, high = self.bounds
        start = f"`coefficient` ({self.coefficient})"
        require(0 <= low <= self.coefficient, "low", low, f"0 to {start}")
        require(self.coefficient <= high < math.inf, "high", high, f"at least {start}, finite")

    @property
    def bounds(self) -> tuple[float, float]:
        """Where an adaptive coefficient stays."""
        low = self.coefficient / 4 if self.low is None else self.low
        high = self.coefficient * 10 if self.high is None else self.high
        return low, high


Auxiliary = KL | Entropy | SFT | Function
