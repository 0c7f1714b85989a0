"""Trust region `elastic`: a clip interval that is wider where the signal is stronger (ETR).

The bounds of a rollout grow with the size of its advantage (micro): a rare right answer may move the
policy far, the tenth right answer to an easy prompt hardly at all. Groups with a pass rate near one
half have the largest mean |A| and so the widest region (macro) by themselves; an explicit macro
factor from the spread of their rewards can be added. From arXiv 2601.03723, whose equations were not
at hand: the forms below follow its description, and `strength` 0 is the static interval bit for bit.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from burnish.arguments import as_number, plain_number, refused
from burnish.errors import ArgumentError
from burnish.policy.base import ClipBounds, Component, require
from burnish.policy.groups import as_groups, centre, group_sum, standardise, weighted_sum
from burnish.policy.trust_region import as_range, one_reward, static_bounds
from burnish.tensors import as_float64, torch

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.policy.batch import RewardBatch
    from burnish.policy.groups import GroupLabels
    from burnish.tensors import Numbers


class Elastic(Component, frozen=True, tag="elastic"):
    """Bounds that widen with a rollout's advantage and, with `macro`, its group's spread (ETR)."""

    low: float = 0.2
    """How far the ratio may fall below 1 at an |advantage| of `center`."""
    high: float = 0.2
    """How far the ratio may rise above 1 at an |advantage| of `center`."""
    strength: float = 0.5
    """0 is the static region, bit for bit."""
    center: float = 1.0
    """The |advantage| whose bounds are `low` and `high`."""
    cap: float = 3.0
    """Larger |advantages| count as this."""
    macro: float = 0.0
    """How strongly the spread of the group widens its bounds; 0: not at all."""
    range: tuple[float, float] | None = None
    """Least and greatest weighted sum of the rewards as scored; `macro` needs it, and figures by
    pass rate where the reward is not a single one of 0 or 1."""
    least: float = 0.05
    """Least bound."""
    most: float = 0.8
    """Greatest bound."""

    def check(self) -> None:
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

    def bounds(self, values_B: Tensor, batch: RewardBatch, given: RewardBatch) -> ClipBounds:
        """Bounds of each rollout; `given` holds the rewards before shaping."""
        variance_B = None
        if self.macro and self.range is not None:
            total_B = weighted_sum(given.rewards_BK, given.weights_K)
            variance_B = group_variance(total_B, given.groups_B, *self.range)
            if values_B.ndim == 2:
                variance_B = variance_B[:, None].expand_as(values_B)
        return elastic_bounds(
            values_B,
            self.low,
            self.high,
            self.strength,
            self.center,
            self.cap,
            self.macro,
            variance_B,
            self.least,
            self.most,
            self.most,
        )


def elastic_bounds(
    advantages: Numbers,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
    strength: float = 0.5,
    center: float = 1.0,
    adv_cap: float | None = 3.0,
    macro_strength: float = 0.0,
    group_variance: Numbers | None = None,
    min_eps: float = 0.05,
    max_eps_low: float = 0.8,
    max_eps_high: float = 0.8,
) -> ClipBounds:
    """`eps * k` with `k = (1 + strength (|A| - center)) (1 + macro_strength (2 v - 1))`.

    `advantages`: (B,) or (B, T), and so are both bounds. |A| counts up to `adv_cap`; a missing
    advantage counts as `center`. `group_variance` v, (B,) in 0 .. 1, is needed where
    `macro_strength` is not 0; a missing one counts as 1/2. The bounds are held within `min_eps` and
    `max_eps_low` or `max_eps_high`, which are absolute: for a base of another size than 0.2, such as
    the 3e-4 of sequence ratios, give limits of that size. With both strengths 0 they are
    `eps_low` and `eps_high` exactly, whatever the limits.
    """
    values = as_float64(advantages, "advantages")
    if values.ndim not in (1, 2):
        raise ArgumentError(f"advantages: got shape {tuple(values.shape)}, expected (B,) or (B, T)")
    if values.isinf().any():
        raise refused("advantages", math.inf, "finite numbers, or NaN where one is missing")
    _check_scale(eps_low, eps_high, strength, center, adv_cap, macro_strength)
    _check_limits(min_eps, max_eps_low, max_eps_high)
    eps_low, eps_high, macro_strength = map(float, (eps_low, eps_high, macro_strength))
    min_eps, max_eps_low, max_eps_high = map(float, (min_eps, max_eps_low, max_eps_high))
    if strength == 0 and macro_strength == 0:
        return static_bounds(values, eps_low, eps_high)
    factor = _micro(values, strength, center, adv_cap)
    if macro_strength != 0:
        factor = factor * (1 + macro_strength * (2 * _variance(group_variance, values) - 1))
    return ClipBounds(
        (eps_low * factor).clamp(min_eps, max_eps_low),
        (eps_high * factor).clamp(min_eps, max_eps_high),
    )


def group_variance(
    rewards: Numbers, groups: GroupLabels, r_min: float | None, r_max: float | None
) -> Tensor:
    """How mixed each rollout's group is, from 0 (all the same) to 1: (B,) -> (B,).

    `4 Var(r) / (r_max - r_min)^2` with the population variance, at most 1; for 0/1 rewards
    `4 p (1 - p)`. `r_min` and `r_max` are the limits of what the reward can be: the least and the
    greatest value of a batch are not, so that a range of None is refused and never guessed.
    """
    low, high = as_range(r_min, r_max)
    rewards_B1 = one_reward(rewards)
    numbered = as_groups(groups, rewards_B1)
    count_B1 = group_sum((~rewards_B1.isnan()).to(rewards_B1), numbered).clamp(min=1.0)
    variance_B1 = group_sum(centre(rewards_B1, numbered).square(), numbered) / count_B1
    return (4 * variance_B1 / (high - low) ** 2).clamp(max=1.0)[:, 0]


def mean_elastic_budget(
    rewards: Numbers,
    eps: float = 0.2,
    strength: float = 0.5,
    center: float = 1.0,
    ddof: int = 0,
) -> Tensor:
    """The mean bound of one group's rollouts, without cap and limits: (G,) -> ().

    For 0/1 rewards with pass rate p and `ddof` 0 it is
    `eps (1 + strength (2 sqrt(p (1 - p)) - center))`, widest at one half.
    """
    eps = as_number("eps", eps, low=0, below=1)
    _check_scale(eps, eps, strength, center, None, 0.0)
    rewards_G1 = one_reward(rewards)
    is_present_G = ~rewards_G1.isnan()[:, 0]
    if not is_present_G.any():
        raise ArgumentError("rewards: got no value, expected those of one group's rollouts")
    one_group = as_groups([0] * len(rewards_G1), rewards_G1)
    values_G = standardise(rewards_G1, one_group, eps=0.0, ddof=ddof)[:, 0]
    return eps * _micro(values_G[is_present_G], strength, center, None).mean()


def _micro(values: Tensor, strength: float, center: float, cap: float | None) -> Tensor:
    strength, center, cap = float(strength), float(center), plain_number(cap)
    size = values.abs().clamp(max=math.inf if cap is None else cap)
    return 1 + strength * (torch.where(values.isnan(), center, size) - center)


def _variance(variance: Numbers | None, values: Tensor) -> Tensor:
    """v in a shape that broadcasts to the advantages."""
    if variance is None:
        raise ArgumentError(
            "group_variance: got none, expected a number from 0 to 1 for each rollout; "
            "macro_strength needs it, and it is known only where the range of the reward is"
        )
    read = as_float64(variance, "group_variance").to(values.device)
    if read.shape not in (values.shape, values.shape[:1]):
        raise ArgumentError(
            f"group_variance: got shape {tuple(read.shape)}, expected one number for each of the "
            f"{len(values)} rollouts"
        )
    if ((read < 0) | (read > 1)).any():
        raise ArgumentError("group_variance: got a number outside 0 to 1, expected 4 Var / range^2")
    spread = read.nan_to_num(nan=0.5)
    return spread if spread.shape == values.shape else spread[:, None]


def _check_scale(
    eps_low: float,
    eps_high: float,
    strength: float,
    center: float,
    adv_cap: float | None,
    macro_strength: float,
) -> None:
    as_number("eps_low", eps_low, low=0, below=1)
    as_number("eps_high", eps_high, low=0)
    as_number("strength", strength, low=0)
    as_number("center", center, low=0)
    if adv_cap is not None and plain_number(adv_cap) != math.inf:
        as_number("adv_cap", adv_cap, above=0)
    # Above 1 the factor turns negative, and two negative factors would make a wide region.
    as_number("macro_strength", macro_strength, low=0, high=1)


def _check_limits(min_eps: float, max_eps_low: float, max_eps_high: float) -> None:
    as_number("min_eps", min_eps, low=0)
    as_number("max_eps_low", max_eps_low, low=min_eps, below=1)
    as_number("max_eps_high", max_eps_high, low=min_eps)
