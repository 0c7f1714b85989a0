"""Weights `given` and `tri_factor`: how much each reward counts (MedAlign).

With `tri_factor` the weights follow the run: once a step each reward gets more weight where the
policy lags behind its other rewards (weakness), more where a reward with a safety prior is violated
(risk), and less where it repeats what another already says (redundancy). From arXiv 2602.11661; its
formulas were not at hand, these follow its description. Negative correlation is conflict, not
redundancy, and is left to the conflict filter. The weights come from the whole batch, have mean 1
and carry no gradient.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from burnish.arguments import same_length
from burnish.boundary import MISSING, Cap, Fraction, NonNegative, PositiveShare, Share, public
from burnish.errors import ArgumentError, UserError, did_you_mean
from burnish.policy.base import Component, RewardWeights
from burnish.policy.groups import Ddof, as_weights, centre, columns, one_group
from burnish.policy.grpo import grpo_advantage
from burnish.policy.reference import reference_frozen_normalise
from burnish.policy.state import WeightState
from burnish.tensors import LARGEST, torch

if TYPE_CHECKING:
    from jaxtyping import Float64
    from torch import Tensor

    from burnish.policy.batch import RewardBatch
    from burnish.policy.groups import GroupLabels, Rewards, RewardWeights as GivenRewardWeights
    from burnish.policy.reference import Deviation, PerReward
    from burnish.policy.state import PolicyState

    Known = Annotated[Float64[Tensor, " K"], MISSING]
    Severity = Annotated[Float64[Tensor, " K"], Meta(ge=0.0, le=LARGEST)]
    Rate = Annotated[Float64[Tensor, " K"], Meta(ge=0.0, le=1), MISSING]
    Normalised = Annotated[Float64[Tensor, "B K"], MISSING]

FEWEST_ROLLOUTS = 3
"""Two points always lie on a line: their correlation says nothing."""
MOST_EXPONENT = 700.0


class GivenWeights(Component, frozen=True, tag="given"):
    """The weights of the `[[rewards]]` tables, all along."""

    def reward_weights(
        self, normalised_BK: Tensor, batch: RewardBatch, state: PolicyState
    ) -> RewardWeights:
        return RewardWeights(batch.weights_K.to(torch.float64), state, {})


class TriFactor(Component, frozen=True, tag="tri_factor"):
    """Those weights times three factors, renewed every step (MedAlign): more for rewards that lag
    and for rules that are broken, less for rewards that say the same."""

    severity: dict[str, float] = msgspec.field(default_factory=dict)
    """By reward: how much a broken rule raises its weight; rewards left out have 0."""
    threshold: dict[str, float] = msgspec.field(default_factory=dict)
    """By reward: a rollout whose reward is below this breaks the rule."""
    eta_weak: NonNegative = 0.5
    """How strongly rewards that lag are raised; 0: not at all."""
    eta_red: NonNegative = 1.0
    """How strongly rewards that say the same are lowered; 0: not at all."""
    w_min: PositiveShare = 0.2
    """Least weight, as a multiple of the mean."""
    w_max: Annotated[float, Meta(ge=1.0, le=LARGEST)] = 4.0
    """Greatest weight, as a multiple of the mean."""
    beta: Fraction = 0.8
    """Smoothing of the weights; `beta_progress` and `beta_violation` of what they follow."""
    beta_progress: Fraction = 0.8
    """Smoothing of the mean reward that lag is measured by."""
    beta_violation: Fraction = 0.8
    """Smoothing of the share of broken rules."""

    def check(self) -> None:
        lost = sorted(set(self.severity) - set(self.threshold))
        if lost:
            raise ArgumentError(
                f"severity: '{lost[0]}' has no threshold; expected one, or no rule is ever broken"
            )

    def reward_weights(
        self, normalised_BK: Tensor, batch: RewardBatch, state: PolicyState
    ) -> RewardWeights:
        given_K = batch.weights_K.to(torch.float64)
        counts_K = given_K != 0
        names = [name for name, counts in zip(batch.titles, counts_K, strict=True) if counts]
        before = state.weights or WeightState.initial(len(names))
        after, factors = self.renew(
            before, normalised_BK[:, counts_K], batch.rewards_BK[:, counts_K], names
        )
        weights_K = given_K.clone()
        weights_K[counts_K] *= after.weights_K
        table = {"weight": after.weights_K, **factors}
        metrics = {
            f"weights/{name}/{what}": value
            for what, values in table.items()
            for name, value in zip(names, values.tolist(), strict=True)
        }
        return RewardWeights(weights_K, dataclasses.replace(state, weights=after), metrics)

    def renew(
        self, before: WeightState, normalised_BK: Tensor, rewards_BK: Tensor, names: Sequence[str]
    ) -> tuple[WeightState, dict[str, Tensor]]:
        """`next_weights` with these settings; `names` are those of the rewards that count."""
        return next_weights.plain(
            before,
            normalised_BK,
            rewards_BK,
            by_name("threshold", self.threshold, names, torch.nan),
            by_name("severity", self.severity, names, 0.0),
            eta_weak=self.eta_weak,
            eta_red=self.eta_red,
            w_min=self.w_min,
            w_max=self.w_max,
            beta=self.beta,
            beta_progress=self.beta_progress,
            beta_violation=self.beta_violation,
        )


def by_name(key: str, table: dict[str, float], names: Sequence[str], default: float) -> Tensor:
    """A setting of the weights as a number for each reward, (K,)."""
    for name in table:
        if name not in names:
            raise UserError(
                f"policy.weights.{key}: '{name}' is no reward that counts; expected "
                f"{', '.join(names)}.{did_you_mean(name, names)}"
            )
    return torch.tensor([table.get(name, default) for name in names], dtype=torch.float64)


@public
def next_weights(
    state: WeightState,
    normalised_BK: Normalised,
    rewards_BK: Normalised,
    thresholds_K: Known,
    severity_K: Severity,
    *,
    eta_weak: NonNegative = 0.5,
    eta_red: NonNegative = 1.0,
    w_min: PositiveShare = 0.2,
    w_max: Cap = 4.0,
    beta: Share = 0.8,
    beta_progress: Share = 0.8,
    beta_violation: Share = 0.8,
) -> tuple[WeightState, dict[str, Tensor]]:
    """The state after one step, and its `weakness`, `risk` and `redundancy`, each (K,), for a log.

    `normalised_BK` gives progress and redundancy; a raw reward below its threshold is a violation,
    and a threshold of NaN means that there is none. Missing values are left out of all three. The
    moving averages start at the first batch's own value, not at 0, which would take many steps to
    forget. Fewer than three rollouts move the averages but not the weights.
    """
    progress_K = _follow(state.progress_K, normalised_BK.nanmean(0), beta_progress)
    below_K = (rewards_BK < thresholds_K).sum(0).double()
    share_K = below_K / (~rewards_BK.isnan()).sum(0)  # NaN without values
    violation_K = _follow(state.violation_K, share_K, beta_violation)
    factors = {
        "weakness": weakness_factor.plain(progress_K, eta_weak),
        "risk": risk_factor.plain(severity_K, violation_K),
        "redundancy": redundancy_factor.plain(normalised_BK, eta_red),
    }
    log_weak_K = _log_weakness(progress_K, eta_weak)
    raw_K = _product(log_weak_K, factors["risk"], factors["redundancy"])
    weights_K = _mix(raw_K, normalised_BK, state.weights_K.to(raw_K), w_min, w_max, beta)
    return WeightState(progress_K, violation_K, weights_K), factors


@public
def tri_factor_weights(
    progress: Known,
    severity: Severity,
    violation_rate: Rate,
    normalised: Normalised,
    previous: Severity,
    eta_weak: NonNegative = 0.5,
    eta_red: NonNegative = 1.0,
    w_min: PositiveShare = 0.2,
    w_max: Cap = 4.0,
    beta: Share = 0.8,
) -> Tensor:
    """Weakness times risk times redundancy as smoothed weights of mean 1: (K,).

    The product is scaled to mean 1, held within `w_min` and `w_max`, scaled again, mixed with
    `previous` (share `beta`) and scaled again, so that a weight may end a little outside the two.
    `normalised`: (B, K); with fewer than three rollouts the previous weights stay as they are.
    """
    log_weak_K = _log_weakness(progress, eta_weak)
    redundancy_K = redundancy_factor.plain(normalised, eta_red)
    raw_K = _product(log_weak_K, risk_factor.plain(severity, violation_rate), redundancy_K)
    return _mix(raw_K, normalised, previous, w_min, w_max, beta)


@public
def weakness_factor(progress: Known, eta: NonNegative = 0.5) -> Tensor:
    """`exp(-eta (m_k - mean_j m_j))`: above 1 for rewards that lag behind, (K,) -> (K,).

    A reward without progress yet (NaN) leaves the mean and gets 1. No exponent is above 700, where
    a float64 ends.
    """
    return torch.exp(_log_weakness(progress, eta).clamp(max=MOST_EXPONENT))


def _log_weakness(progress_K: Tensor, eta: float) -> Tensor:
    return -eta * (progress_K - progress_K.nanmean()).nan_to_num(nan=0.0)


def _product(log_weak_K: Tensor, risk_K: Tensor, redundancy_K: Tensor) -> Tensor:
    """Weakness times risk times redundancy, up to a factor that all share where it is too large.

    Only the ratios of the weights count, and they exist where the product itself does not.
    """
    raw_K = torch.exp(log_weak_K) * risk_K * redundancy_K
    if raw_K.sum().isfinite():
        return raw_K
    log_raw_K = log_weak_K + risk_K.log() + redundancy_K.log()
    return torch.exp(log_raw_K - log_raw_K.max())


@public
def risk_factor(severity: Severity, violation_rate: Rate) -> Tensor:
    """`1 + severity_k v_k`, (K,) -> (K,); 1 where no violation rate is known (NaN).

    `severity` is a prior of at least 0, and 0 where a reward has nothing to do with safety.
    """
    return 1 + severity * violation_rate.nan_to_num(nan=0.0)


@public
def redundancy_factor(normalised: Normalised, eta: NonNegative = 1.0) -> Tensor:
    """`1 / (1 + eta sum_{j != k} max(0, corr(z_k, z_j)))`: (B, K) -> (K,).

    Correlations run over the rollouts that have both rewards; constant rewards and pairs seen
    together fewer than three times count 0.
    """
    rows, count = normalised.shape
    is_present_BK = ~normalised.isnan()
    # Entry (b, j, k) is column j's value in the rows that column k has too.
    pairs_BKK = normalised[:, :, None].expand(rows, count, count)
    pairs_BKK = pairs_BKK.masked_fill(~is_present_BK[:, None, :], torch.nan)
    centred_BKK = centre(pairs_BKK.flatten(1), one_group(normalised)).reshape(rows, count, count)
    mirrored_BKK = centred_BKK.transpose(1, 2)
    spread_KK = (centred_BKK.square().sum(0) * mirrored_BKK.square().sum(0)).sqrt()
    products_KK = (centred_BKK * mirrored_BKK).sum(0)
    together_KK = is_present_BK.double().T @ is_present_BK.double()
    is_known_KK = (spread_KK > 0) & (together_KK >= FEWEST_ROLLOUTS)
    shared_KK = torch.where(is_known_KK, products_KK / spread_KK, 0.0).clamp(0.0, 1.0)
    return 1 / (1 + eta * shared_KK.fill_diagonal_(0.0).sum(1))


def _follow(average_K: Tensor, value_K: Tensor, beta: float) -> Tensor:
    """One step of a moving average; it starts at the first value and waits where there is none."""
    same_length("state", average_K, len(value_K), "rewards")
    average_K = average_K.to(value_K)
    mixed_K = beta * average_K + (1 - beta) * value_K
    started_K = torch.where(average_K.isnan(), value_K, mixed_K)
    return torch.where(value_K.isnan(), average_K, started_K)


def _mix(
    raw_K: Tensor,
    normalised_BK: Tensor,
    previous_K: Tensor,
    w_min: float,
    w_max: float,
    beta: float,
) -> Tensor:
    """The product of the three factors as the step's weights."""
    if w_max < 1:
        raise ArgumentError(f"w_max: got {w_max}, expected a number of at least 1")
    if not previous_K.any():
        raise ArgumentError("previous: got only 0, expected a weight above 0")
    if (~normalised_BK.isnan()).any(1).sum() < FEWEST_ROLLOUTS:
        return previous_K.clone()
    held_K = _mean_one(_mean_one(raw_K).clamp(w_min, w_max))
    return _mean_one(beta * previous_K + (1 - beta) * held_K)


def _mean_one(weights_K: Tensor) -> Tensor:
    return weights_K / weights_K.mean()


@public
def medalign_advantage(
    rewards: Rewards,
    mean: PerReward,
    sd: Deviation,
    clip: Cap,
    weights: GivenRewardWeights | None,
    groups: GroupLabels,
    ddof: Ddof = 1,
    eps: NonNegative = 1e-6,
) -> Tensor:
    """MedAlign in one call: `S_i = sum_k w_k z_ik` standardised in its group: (B, K) -> (B,).

    `mean`, `sd`: a number or (K,), from `fit_reference_stats`; `weights`: (K,), all 1 where None.
    A reward that a rollout lacks counts as 0, "as the start model"; a rollout without any reward of
    non-zero weight leaves the statistics and gets 0.
    """
    normalised_BK = reference_frozen_normalise.plain(columns(rewards), mean, sd, clip)
    weights_K = as_weights(weights, normalised_BK)
    has_any_B = (~normalised_BK.isnan() & (weights_K != 0)).any(1)
    sum_B = normalised_BK.nan_to_num(nan=0.0) @ weights_K
    sum_B = torch.where(has_any_B, sum_B, torch.nan)
    return grpo_advantage.plain(sum_B, groups, "group_std", eps, ddof)
