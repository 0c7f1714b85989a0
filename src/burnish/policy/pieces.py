"""The pieces a recipe may name, slot by slot: names and numbers only, checked when they are read.

A piece says what is to be computed; the pure function that computes it stands in a module of its
own, and `doors.py` brings the two together.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec
from msgspec import Struct


def require(is_met: bool, key: str, got: float, expected: str) -> None:
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
        require(1 <= self.buffer <= self.limit, "buffer", self.buffer, f"1 to {self.limit}")
        require(math.isfinite(self.scale), "scale", self.scale, "a finite number")


class Function(Piece, frozen=True, tag="function"):
    """Your own piece, by path: `my_file.py:name` or `package.module:name`.

    `burnish.policy.plugins` lists what a function of each slot takes and gives.
    """

    path: str
    options: dict[str, Any] = msgspec.field(default_factory=dict)


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

    def __post_init__(self) -> None:
        require(0 < self.clip < math.inf, "clip", self.clip, "above 0")
        require(0 < self.sd_floor < math.inf, "sd_floor", self.sd_floor, "above 0")
        require(self.prompts >= 1, "prompts", self.prompts, "at least 1")
        require(self.samples >= 1, "samples", self.samples, "at least 1")


class Contrastive(Piece, frozen=True, tag="contrastive"):
    """A small extra reward for right answers that resemble other right ones (CLIPO)."""

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
        require(self.temperature > 0, "temperature", self.temperature, "above 0")
        require(0 <= self.lam < math.inf, "lam", self.lam, "at least 0")
        require(-1 < self.floor <= 0, "floor", self.floor, "above -1, up to 0")
        require(self.size >= 1, "size", self.size, "at least 1")
        require(self.warmup >= 0, "warmup", self.warmup, "at least 0")
        require(self.learning_rate >= 0, "learning_rate", self.learning_rate, "at least 0")


Shaping = OverlongPenalty | ReferenceFrozen | Contrastive | Function


# --- weights of the rewards, for piece 2


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
            require(getattr(self, key) >= 0, key, getattr(self, key), "at least 0")
        lost = sorted(set(self.severity) - set(self.threshold))
        if lost:
            raise ValueError(
                f"severity: '{lost[0]}' has no threshold; expected one, or no rule is ever broken"
            )


Weights = GivenWeights | TriFactor


# --- 2 advantage: (R, groups, weights) -> (A, a)


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


# --- 3 select: (A, a, R, groups) -> (keep, w)


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


class SnrConflict(Piece, frozen=True, tag="snr_conflict"):
    """Of those rollouts, the ones whose rewards nearly cancel are dropped (GD2PO)."""

    tau: float = 0.8
    """`|sum of advantages| / sum of |advantages|` below this is dropped; 0 keeps all, 1 is hard."""
    sign_eps: float = 1e-8
    query_weights: bool = True

    def __post_init__(self) -> None:
        require(0 <= self.tau <= 1, "tau", self.tau, "0 to 1")


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
    """Least and greatest reward; `macro` needs it."""
    least: float = 0.05
    most: float = 0.8

    def __post_init__(self) -> None:
        require(0 <= self.low < 1, "low", self.low, "0 to below 1")
        require(0 <= self.high < math.inf, "high", self.high, "at least 0")
        require(0 <= self.strength < math.inf, "strength", self.strength, "at least 0")
        require(self.cap > 0, "cap", self.cap, "above 0")
        require(self.center >= 0, "center", self.center, "at least 0")
        require(0 <= self.macro <= 1, "macro", self.macro, "0 to 1")
        require(0 <= self.least <= self.most < 1, "least", self.least, "0 to `most`, which is < 1")
        for key in ("low", "high"):
            is_inside = self.least <= getattr(self, key) <= self.most
            is_still = self.strength == 0 and self.macro == 0
            inside = f"`least` ({self.least}) to `most` ({self.most}); bounds never leave these"
            require(is_still or is_inside, key, getattr(self, key), inside)
        if self.macro and (self.range is None or not self.range[0] < self.range[1]):
            raise ValueError(
                "macro: needs `range`, the least and the greatest reward, such as [0.0, 1.0]; a "
                "spread without a range says nothing"
            )


TrustRegion = StaticRegion | Elastic | Function


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
        require(self.max_tokens >= 0, "max_tokens", self.max_tokens, "at least 0")


# --- 9 auxiliary: () -> scalar, added with a coefficient


class KL(Piece, frozen=True, tag="kl"):
    """Penalty for leaving the reference model."""

    coefficient: float
    estimator: Literal["k1", "k2", "k3"] = "k3"

    def __post_init__(self) -> None:
        require(0 <= self.coefficient < math.inf, "coefficient", self.coefficient, "at least 0")


class Entropy(Piece, frozen=True, tag="entropy"):
    """Bonus for keeping the policy's entropy; below 0 it is a penalty."""

    coefficient: float

    def __post_init__(self) -> None:
        require(math.isfinite(self.coefficient), "coefficient", self.coefficient, "finite")


class SFT(Piece, frozen=True, tag="sft"):
    """Imitation of experts beside the policy loss, so that rare rules are not forgotten (AFRL)."""

    coefficient: float
    batch: int = 16
    """Demonstrations of each update; `[experts]` says where they come from."""
    by: str = ""
    """Task field whose values appear equally often, so that rare ones are not forgotten."""
    schedule: Literal["constant", "linear"] = "constant"
    """`linear` falls to `final_ratio` of the coefficient over the run."""
    final_ratio: float = 0.0

    def __post_init__(self) -> None:
        require(0 <= self.coefficient < math.inf, "coefficient", self.coefficient, "at least 0")
        require(self.batch >= 1, "batch", self.batch, "at least 1")
        require(0 <= self.final_ratio <= 1, "final_ratio", self.final_ratio, "0 to 1")


Auxiliary = KL | Entropy | SFT | Function
