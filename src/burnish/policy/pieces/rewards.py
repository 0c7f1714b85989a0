"""Pieces on rewards: shaping `(R, groups) -> R`, and weights that make many one."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from burnish.errors import ArgumentError
from burnish.policy.pieces.base import Function, Piece, require


class OverlongPenalty(Piece, frozen=True, tag="overlong_penalty"):
    """Soft penalty for long responses (DAPO): 0 up to `limit - buffer`, then down to -1 at `limit`."""

    limit: int
    buffer: int
    scale: float = 1.0
    reward: str = ""
    """Name of the reward it is added to; empty takes the first whose weight is not 0."""

    def __post_init__(self) -> None:
        require(1 <= self.buffer <= self.limit, "buffer", self.buffer, f"1 to {self.limit}")
        require(math.isfinite(self.scale), "scale", self.scale, "a finite number")


class ReferenceFrozen(Piece, frozen=True, tag="reference_frozen"):
    """Rewards in units of the start model: `(R - mean) / sd`, measured once, never moved (MedAlign)."""

    clip: float = 5.0
    sd_floor: float = 1e-3
    robust: bool = False
    """Median and median absolute deviation instead of mean and deviation."""
    prompts: int = 64
    """Training prompts that the start model answers before the first step..."""
    samples: int = 4
    """... and how many answers it gives to each."""
    refreeze_above: float = 1.0
    """Measure the unit anew on a step's own answers where more than this share of one reward's
    values stand at the clip; 1 never does. Rewards that are constant there keep theirs."""

    def __post_init__(self) -> None:
        above = self.refreeze_above
        require(0 < above <= 1, "refreeze_above", above, "above 0, up to 1 (never)")
        require(0 < self.clip < math.inf, "clip", self.clip, "above 0")
        require(0 < self.sd_floor < math.inf, "sd_floor", self.sd_floor, "above 0")
        require(self.prompts >= 1, "prompts", self.prompts, "at least 1")
        require(self.samples >= 1, "samples", self.samples, "at least 1")


class Contrastive(Piece, frozen=True, tag="contrastive"):
    """A little less reward for right answers that resemble no other right one (CLIPO)."""

    reward: str = ""
    """Name of the reward that says what is right; empty takes the first whose weight is not 0."""
    correct_above: float = 0.0
    """An answer is right where that reward is above this."""
    loss: Literal["infonce", "supcon_out", "soft_nn", "supcon_in"] = "infonce"
    temperature: float = 0.05
    scope: Literal["group", "cross", "batch"] = "group"
    anchors: Literal["correct_only", "all"] = "correct_only"
    dedup: bool = False
    """Leave pairs of (nearly) identical answers out: they are each other's best friends."""
    lam: float = 0.2
    floor: float = -0.5
    constant: float = 0.0
    head: Literal["linear", "mlp"] = "linear"
    size: int = 512
    """Width of the embedding."""
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    warmup: int = 0
    """Steps in which only the head learns: answers are sampled, the policy stays."""
    frozen: bool = False
    """Never train the head (a control)."""

    def __post_init__(self) -> None:
        require(0 < self.temperature < math.inf, "temperature", self.temperature, "above 0")
        require(0 <= self.lam < math.inf, "lam", self.lam, "at least 0")
        require(-1 < self.floor <= 0, "floor", self.floor, "above -1, up to 0")
        require(self.size >= 1, "size", self.size, "at least 1")
        require(self.warmup >= 0, "warmup", self.warmup, "at least 0")
        for key in ("learning_rate", "weight_decay"):
            require(0 <= getattr(self, key) <= 100, key, getattr(self, key), "0 to 100")
        for key in ("correct_above", "constant"):
            require(math.isfinite(getattr(self, key)), key, getattr(self, key), "a finite number")


Shaping = OverlongPenalty | ReferenceFrozen | Contrastive | Function


class GivenWeights(Piece, frozen=True, tag="given"):
    """The weights of the `[[rewards]]` tables, all along."""


class TriFactor(Piece, frozen=True, tag="tri_factor"):
    """Those weights times three factors, renewed every step (MedAlign): more for rewards that lag
    and for rules that are broken, less for rewards that say the same."""

    severity: dict[str, float] = msgspec.field(default_factory=dict)
    """By reward: how much a broken rule raises its weight; rewards left out have 0."""
    threshold: dict[str, float] = msgspec.field(default_factory=dict)
    """By reward: a rollout whose reward is below this breaks the rule."""
    eta_weak: float = 0.5
    eta_red: float = 1.0
    w_min: float = 0.2
    w_max: float = 4.0
    beta: float = 0.8
    """Smoothing of the weights; `beta_progress` and `beta_violation` of what they follow."""
    beta_progress: float = 0.8
    beta_violation: float = 0.8

    def __post_init__(self) -> None:
        for key in ("beta", "beta_progress", "beta_violation"):
            require(0 <= getattr(self, key) < 1, key, getattr(self, key), "0 to below 1")
        require(0 < self.w_min <= 1 <= self.w_max, "w_min", self.w_min, "above 0, up to 1")
        for key in ("eta_weak", "eta_red"):
            require(0 <= getattr(self, key) < math.inf, key, getattr(self, key), "at least 0")
        lost = sorted(set(self.severity) - set(self.threshold))
        if lost:
            raise ArgumentError(
                f"severity: '{lost[0]}' has no threshold; expected one, or no rule is ever broken"
            )


Weights = GivenWeights | TriFactor
