"""A `Recipe` names one of each of the nine pieces of policy optimisation; names and numbers only.

    1 shaping  2 advantage  3 select  4 post_scale  5 ratio  6 trust_region  7 dual_clip
    8 aggregate  9 auxiliary

A method is a choice of pieces, written out in `recipes/<method>.toml`. A new piece is a struct
here, a pure function in its own module and one line in `doors.py`; or, from outside the package,
`{ kind = "function", path = "my_file.py:my_piece" }` in slots 1, 2, 3, 6 and 9.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec
from msgspec import Struct


def _require(is_met: bool, key: str, got: float, expected: str) -> None:
    if not is_met:
        raise ValueError(f"{key}: got {got}, expected {expected}")


class Piece(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """Base of every piece: its kind names it in a recipe file."""


# --- 1 shaping: (R, groups) -> R


class OverlongPenalty(Piece, frozen=True, tag="overlong_penalty"):
    """Soft penalty for long responses (DAPO): 0 up to `limit - buffer`, then down to -1 at `limit`."""

    limit: int
    buffer: int
    scale: float = 1.0
    reward: str = ""
    """Name of the reward it is added to; empty takes the first whose weight is not 0."""

    def __post_init__(self) -> None:
        _require(1 <= self.buffer <= self.limit, "buffer", self.buffer, f"1 to {self.limit}")
        _require(math.isfinite(self.scale), "scale", self.scale, "a finite number")


class Function(Piece, frozen=True, tag="function"):
    """Your own piece, by path: `my_file.py:name` or `package.module:name`.

    `burnish.policy.plugins` lists what a function of each slot takes and gives.
    """

    path: str
    options: dict[str, Any] = msgspec.field(default_factory=dict)


Shaping = OverlongPenalty | Function


# --- 2 advantage: (R, groups, weights) -> (A, a)


class SumThenNormalise(Piece, frozen=True, tag="sum_then_normalise"):
    """Weighted sum of the rewards, centred in its group, then scaled (GRPO, Dr.GRPO)."""

    scale: Literal["group_std", "batch_std", "none"] = "group_std"
    eps: float = 1e-6
    ddof: Literal[0, 1] = 1

    def __post_init__(self) -> None:
        _require(0 <= self.eps < math.inf, "eps", self.eps, "at least 0")


class NormaliseThenSum(Piece, frozen=True, tag="normalise_then_sum"):
    """Each reward standardised in its group, then the weighted sum (GDPO)."""

    eps: float = 1e-6
    ddof: Literal[0, 1] = 1

    def __post_init__(self) -> None:
        _require(0 <= self.eps < math.inf, "eps", self.eps, "at least 0")


class Raw(Piece, frozen=True, tag="raw"):
    """The weighted sum itself is the advantage (outcomes that are already relative)."""


Advantage = SumThenNormalise | NormaliseThenSum | Raw | Function


# --- 3 select: (A, a, R, groups) -> (keep, w)


class KeepAll(Piece, frozen=True, tag="all"):
    """Every rollout is trained on."""


class InformativeGroups(Piece, frozen=True, tag="informative_groups"):
    """Groups whose rewards are all equal are dropped and, with `refill`, sampled anew (DAPO)."""

    refill: bool = True
    max_rounds: int = 4
    """How many times a step may sample more prompts to fill its batch."""

    def __post_init__(self) -> None:
        _require(self.max_rounds >= 1, "max_rounds", self.max_rounds, "at least 1")


Select = KeepAll | InformativeGroups | Function


# --- 4 post-scale: (A, keep, mask) -> A


class NoPostScale(Piece, frozen=True, tag="none"):
    """Advantages as they are."""


class BatchWhiten(Piece, frozen=True, tag="batch_whiten"):
    """Standardise the advantages over the kept part of the batch (GDPO)."""

    scope: Literal["token", "rollout"] = "token"
    shift: bool = True
    """Subtract the mean; False only divides by the standard deviation."""
    ignore_zero_signal: bool = True
    """Rollouts without signal keep advantage 0 and leave the statistics."""


PostScale = NoPostScale | BatchWhiten


# --- 6 trust region: (A, group variance) -> (low, high)


class StaticRegion(Piece, frozen=True, tag="static"):
    """The same clip interval 1 - low .. 1 + high for every rollout."""

    low: float = 0.2
    high: float = 0.2

    def __post_init__(self) -> None:
        _require(0 <= self.low < 1, "low", self.low, "0 to below 1")
        _require(0 <= self.high < math.inf, "high", self.high, "at least 0")


TrustRegion = StaticRegion | Function


# --- 8 aggregate: (loss, mask) -> scalar


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
        _require(self.max_tokens >= 0, "max_tokens", self.max_tokens, "at least 0")


# --- 9 auxiliary: () -> scalar, added with a coefficient


class KL(Piece, frozen=True, tag="kl"):
    """Penalty for leaving the reference model."""

    coefficient: float
    estimator: Literal["k1", "k2", "k3"] = "k3"

    def __post_init__(self) -> None:
        _require(0 <= self.coefficient < math.inf, "coefficient", self.coefficient, "at least 0")


class Entropy(Piece, frozen=True, tag="entropy"):
    """Bonus for keeping the policy's entropy; below 0 it is a penalty."""

    coefficient: float

    def __post_init__(self) -> None:
        _require(math.isfinite(self.coefficient), "coefficient", self.coefficient, "finite")


Auxiliary = KL | Entropy | Function


class Recipe(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The nine pieces of one method."""

    shaping: tuple[Shaping, ...] = ()
    advantage: Advantage = SumThenNormalise()
    select: Select = KeepAll()
    post_scale: PostScale = NoPostScale()
    ratio: Literal["token", "sequence", "sequence_token"] = "token"
    trust_region: TrustRegion = StaticRegion()
    dual_clip: float = 0.0
    """Bound c of the dual clip for negative advantages; 0 is off."""
    aggregate: Aggregate = Aggregate()
    auxiliary: tuple[Auxiliary, ...] = ()

    def __post_init__(self) -> None:
        is_off_or_bound = self.dual_clip == 0 or 1 < self.dual_clip < math.inf
        _require(is_off_or_bound, "dual_clip", self.dual_clip, "0 (off) or above 1")

    @property
    def needs_reference(self) -> bool:
        """True where a reference model must be held for a KL term."""
        return any(isinstance(piece, KL) and piece.coefficient != 0 for piece in self.auxiliary)

    @property
    def needs_entropy(self) -> bool:
        """True where the trainer must bring the entropy of every token."""
        return any(
            isinstance(piece, Entropy) and piece.coefficient != 0 for piece in self.auxiliary
        )
