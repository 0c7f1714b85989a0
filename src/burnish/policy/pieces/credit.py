"""Pieces that turn rewards into advantages.

advantage   (R, groups, weights) -> (A, a)
select      (A, a, R, groups) -> (keep, w)
post-scale  (A, keep, mask) -> A
"""

from __future__ import annotations

import math
from typing import Literal

from burnish.policy.pieces.base import Function, Piece, require


class SumThenNormalise(Piece, frozen=True, tag="sum_then_normalise"):
    """Weighted sum of the rewards, centred in its group, then scaled (GRPO, Dr.GRPO)."""

    scale: Literal["group_std", "batch_std", "none"] = "group_std"
    eps: float = 1e-6
    ddof: Literal[0, 1] = 1

    def __post_init__(self) -> None:
        require(0 <= self.eps < math.inf, "eps", self.eps, "at least 0")


class NormaliseThenSum(Piece, frozen=True, tag="normalise_then_sum"):
    """Each reward standardised in its group, then the weighted sum (GDPO)."""

    eps: float = 1e-6
    ddof: Literal[0, 1] = 1

    def __post_init__(self) -> None:
        require(0 <= self.eps < math.inf, "eps", self.eps, "at least 0")


class Raw(Piece, frozen=True, tag="raw"):
    """The weighted sum itself is the advantage (outcomes that are already relative)."""


class Stepwise(Piece, frozen=True, tag="stepwise"):
    """Each section of an answer is credited with its own reward (AFRL): advantages by token."""

    rewards: tuple[str, ...]
    """Rewards by section: the first is that of the answer's first token, then one a heading."""
    headings: tuple[str, ...] = ()
    """How sections 1, 2, ... begin, each on a line of its own: `rule:`, `why:`."""
    credit: Literal["local", "to_go"] = "local"
    """`to_go` also pays a section for the rewards of those after it."""
    eps: float = 1e-6
    ddof: Literal[0, 1] = 1

    def __post_init__(self) -> None:
        require(0 <= self.eps < math.inf, "eps", self.eps, "at least 0")
        expected = f"{len(self.rewards) - 1}, one for each reward after the first"
        require(
            len(self.headings) + 1 == len(self.rewards), "headings", len(self.headings), expected
        )


Advantage = SumThenNormalise | NormaliseThenSum | Raw | Stepwise | Function


class KeepAll(Piece, frozen=True, tag="all"):
    """Every rollout is trained on."""


class InformativeGroups(Piece, frozen=True, tag="informative_groups"):
    """Groups whose rewards are all equal are dropped and, with `refill`, sampled anew (DAPO)."""

    refill: bool = True
    max_rounds: int = 4
    """How many times a step may sample more prompts to fill its batch."""

    def __post_init__(self) -> None:
        require(self.max_rounds >= 1, "max_rounds", self.max_rounds, "at least 1")


class SignConflict(Piece, frozen=True, tag="sign_conflict"):
    """Rollouts that one reward wants more of and another less of are dropped (GD2PO, hard)."""

    sign_eps: float = 1e-8
    """Advantages of this size or smaller have no sign: they are rounding."""
    query_weights: bool = True
    """Groups count by the share of their rollouts that is kept."""

    def __post_init__(self) -> None:
        require(0 <= self.sign_eps < math.inf, "sign_eps", self.sign_eps, "at least 0")


class SnrConflict(Piece, frozen=True, tag="snr_conflict"):
    """Of those rollouts, the ones whose rewards nearly cancel are dropped (GD2PO)."""

    tau: float = 0.8
    """`|sum of advantages| / sum of |advantages|` below this is dropped; 0 keeps all, 1 is hard."""
    sign_eps: float = 1e-8
    query_weights: bool = True

    def __post_init__(self) -> None:
        require(0 <= self.tau <= 1, "tau", self.tau, "0 to 1")
        require(0 <= self.sign_eps < math.inf, "sign_eps", self.sign_eps, "at least 0")


class Magnitude(Piece, frozen=True, tag="magnitude"):
    """Control: as many rollouts as a conflict filter keeps, those with the largest |A|."""

    like: SignConflict | SnrConflict = SignConflict()


class RandomDrop(Piece, frozen=True, tag="random"):
    """Control: as many rollouts as a conflict filter keeps, drawn at random."""

    like: SignConflict | SnrConflict = SignConflict()


class Skew(Piece, frozen=True, tag="skew"):
    """Groups that nearly all win, or nearly all lose, against their reference are dropped (BRPO)."""

    threshold: float = 0.6

    def __post_init__(self) -> None:
        require(0 <= self.threshold <= 1, "threshold", self.threshold, "0 to 1")


Select = (
    KeepAll
    | InformativeGroups
    | SignConflict
    | SnrConflict
    | Magnitude
    | RandomDrop
    | Skew
    | Function
)


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
