"""Trust region `elastic`: a clip interval that is wider where the signal is stronger (ETR).

A rare right answer may move the policy far, the tenth right answer to an easy prompt hardly at all: the
bounds of a rollout grow with |A| (micro) and, if asked, with the spread of its group's rewards (macro).
From arXiv 2601.03723, whose equations were not at hand: the forms below follow its description, and
`strength` 0 is the static interval bit for bit.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from burnish.arguments import ordered
from burnish.boundary import MISSING, Cap, Fraction, NonNegative, Number, Positive, Share, public
from burnish.errors import ArgumentError
from burnish.policy.base import ClipBounds, Component
from burnish.policy.groups import as_groups, centre, group_sum, one_group, standardise, weighted_sum
from burnish.policy.trust_region import check_range, static_bounds
from burnish.tensors import torch

if TYPE_CHECKING:
    from jaxtyping import Float64
    from torch import Tensor

    from burnish.policy.batch import RewardBatch
    from burnish.policy.groups import Ddof, GroupLabels, OneReward

    Advantages = Annotated[Float64[Tensor, " B"] | Float64[Tensor, "B T"], MISSING]
    Spreads = Annotated[Float64[Tensor, " B"] | Float64[Tensor, "B T"], Meta(ge=0, le=1), MISSING]


class Elastic(Component, frozen=True, tag="elastic"):
    """Bounds that widen with a rollout's advantage and, with `macro`, its group's spread (ETR)."""

    low: Fraction = 0.2
    """How far the ratio may fall below 1 at an |advantage| of `center`."""
    high: NonNegative = 0.2
    """How far the ratio may rise above 1 at an |advantage| of `center`."""
    strength: NonNegative = 0.5
    """0 is the static region."""
    center: NonNegative = 1.0
    """The |advantage| whose bounds are `low` and `high`."""
    cap: Positive = 3.0
    """Larger |advantages| count as this."""
    macro: Share = 0.0
    """How strongly the spread of the group widens its bounds; 0: not at all."""
    range: tuple[float, float] | None = None
    """Least and greatest weighted sum of the rewards as scored; `macro` needs it."""
    least: Fraction = 0.05
    """Least bound."""
    most: Fraction = 0.8
    """Greatest bound."""

    def check(self) -> None:
        ordered("least", self.least, "most", self.most)
        if self.strength or self.macro:  # bounds never leave these
            for key, value in (("low", self.low), ("high", self.high)):
                ordered("least", self.least, key, value)
                ordered(key, value, "most", self.most)
        if self.range is not None:
            check_range(*self.range)
        elif self.macro:
            raise ArgumentError(
                "macro: needs `range`, the least and the greatest reward: [0.0, 1.0]"
            )

    def bounds(self, values_B: Tensor, batch: RewardBatch, given: RewardBatch) -> ClipBounds:
        variance_B = None
        if self.macro and self.range is not None:
            total_B = weighted_sum(given.rewards_BK, given.weights_K)
            variance_B = group_variance.plain(total_B, given.groups_B, *self.range)
        own = (self.low, self.high, self.strength, self.center, self.cap, self.macro)
        return elastic_bounds.plain(values_B, *own, variance_B, self.least, self.most, self.most)


@public
def elastic_bounds(
    advantages: Advantages,
    eps_low: Fraction = 0.2,
    eps_high: NonNegative = 0.2,
    strength: NonNegative = 0.5,
    center: NonNegative = 1.0,
    adv_cap: Cap | None = 3.0,
    macro_strength: Share = 0.0,
    group_variance: Spreads | None = None,
    min_eps: NonNegative = 0.05,
    max_eps_low: Fraction = 0.8,
    max_eps_high: NonNegative = 0.8,
) -> ClipBounds:
    """`eps * k` with `k = (1 + strength (|A| - center)) (1 + macro_strength (2 v - 1))`.

    |A| counts up to `adv_cap`, a missing one as `center`. v is `group_variance`, a missing one 1/2. The
    bounds stay within `min_eps` and `max_eps_...`, which are absolute: give others for a base such as
    the 3e-4 of sequence ratios. With both strengths 0 they are `eps_low` and `eps_high` exactly.
    """
    ordered("min_eps", min_eps, "max_eps_low", max_eps_low)
    ordered("min_eps", min_eps, "max_eps_high", max_eps_high)
    if strength == 0 and macro_strength == 0:
        return static_bounds.plain(advantages, eps_low, eps_high)
    factor = _micro(advantages, strength, center, adv_cap)
    if macro_strength:
        if group_variance is None:
            raise ArgumentError("group_variance: got none, and macro_strength needs one a rollout")
        v = group_variance.nan_to_num(nan=0.5)
        v = v if v.ndim == advantages.ndim else v[:, None]
        factor = factor * (1 + macro_strength * (2 * v - 1))
    return ClipBounds(
        (eps_low * factor).clamp(min_eps, max_eps_low),
        (eps_high * factor).clamp(min_eps, max_eps_high),
    )


@public
def group_variance(rewards: OneReward, groups: GroupLabels, r_min: Number, r_max: Number) -> Tensor:
    """How mixed each rollout's group is: (B,) -> (B,), `4 Var(r) / (r_max - r_min)^2`, at most 1.

    For 0/1 rewards `4 p (1 - p)`. The limits are those of the reward, never of a batch.
    """
    check_range(r_min, r_max)
    rewards_B1 = rewards[:, None]
    numbered = as_groups(groups)
    count_B1 = group_sum((~rewards_B1.isnan()).to(rewards_B1), numbered).clamp(min=1.0)
    variance_B1 = group_sum(centre(rewards_B1, numbered).square(), numbered) / count_B1
    return (4 * variance_B1 / (r_max - r_min) ** 2).clamp(max=1.0)[:, 0]


@public
def mean_elastic_budget(
    rewards: OneReward,
    eps: Fraction = 0.2,
    strength: NonNegative = 0.5,
    center: NonNegative = 1.0,
    ddof: Ddof = 0,
) -> Tensor:
    """The mean bound of one group without cap and limits: (G,) -> ().

    For 0/1 rewards with pass rate p it is `eps (1 + strength (2 sqrt(p (1 - p)) - center))`.
    """
    if rewards.isnan().all():
        raise ArgumentError("rewards: got no value, expected those of one group's rollouts")
    values_G = standardise(rewards[:, None], one_group(rewards), eps=0.0, ddof=ddof)[:, 0]
    return eps * _micro(values_G[~rewards.isnan()], strength, center, None).mean()


def _micro(values: Tensor, strength: float, center: float, cap: float | None) -> Tensor:
    size = values.abs().clamp(max=math.inf if cap is None else cap)
    return 1 + strength * (torch.where(values.isnan(), center, size) - center)
