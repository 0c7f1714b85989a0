"""Generalised advantage estimation, and the loss of the critic that it needs (PPO).

A token's advantage is `sum_k (gamma lam)^k delta_(t+k)`, `delta_t = r_t + gamma V_(t+1) - V_t`
(arXiv 1506.02438). Tokens outside the mask (padding, what a tool wrote) have no part. A critic's value
of a token is read from the hidden state that predicts it, before the token is known.

    critic = { kind = "shared", coefficient = 0.1, clip = 0.2 }
    critic = { kind = "separate", learning_rate = 1e-5, path = "runs/my_reward_model" }

`shared` is a linear head, 0 at the start, on the hidden states of the policy itself, and its gradient
moves the trunk too. `separate` is a second model with an optimiser of its own (`training/critic.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

from msgspec import Meta

from burnish.boundary import NonNegative, Positive, Share, public
from burnish.policy.aggregate import aggregate_loss
from burnish.policy.base import Component
from burnish.policy.batch import CriticTargets, Estimate, needed
from burnish.policy.groups import per_reward_advantages, weighted_sum
from burnish.tensors import torch

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Float64
    from torch import Tensor

    from burnish.policy.aggregate import Aggregate
    from burnish.policy.batch import LossBatch, Normaliser, RewardBatch

_EPS = 1e-8


class GeneralisedAdvantage(Component, frozen=True, tag="gae"):
    """What came after each token, beyond what the critic expected of it (PPO): one a token."""

    ALIASES = ("ppo",)

    gamma: Share = 1.0
    """Discount a token; 1 pays every token of an answer alike."""
    lam: Share = 0.95
    """0 trusts the critic's next value alone, 1 the reward of the whole answer alone."""
    whiten: bool = True
    """Standardise the advantages over all trained tokens of the step, as TRL and verl do."""
    kl: NonNegative = 0.0
    """Coefficient of the KL to the starting model that every token's reward loses: KL in the reward."""

    def estimate(self, batch: RewardBatch) -> Estimate:
        values_BT = needed(batch.values_BT, "values_BT", "the recipe's advantage is gae")
        total_B = weighted_sum(batch.rewards_BK, batch.weights_K)
        is_present_B = ~total_B.isnan()
        # A rollout without a reward has no return; it leaves the statistics of whitening too.
        mask_BT = batch.has_token(values_BT.shape[1]) & is_present_B[:, None]
        penalties_BT, metrics = None, dict[str, float]()
        if self.kl:
            kl_BT = needed(batch.kl_BT, "kl_BT", "the recipe's gae has a kl")
            penalties_BT = self.kl * kl_BT
            if mask_BT.any():
                metrics["critic/kl"] = kl_BT[mask_BT].mean().item()
        rewards_BT = terminal_rewards.plain(total_B.nan_to_num(nan=0.0), mask_BT, penalties_BT)
        found = gae(rewards_BT, values_BT, mask_BT, self.gamma, self.lam, whiten=self.whiten)
        one_group_B = torch.zeros_like(batch.groups_B)
        return Estimate(
            found.advantages,
            per_reward_advantages.plain(batch.rewards_BK, one_group_B),
            is_present_B,
            CriticTargets(values_BT, found.returns),
            metrics | critic_metrics(values_BT, found.returns, mask_BT),
        )


class Gae(NamedTuple):
    """Float64, (B, T); 0 outside the mask."""

    advantages: Tensor
    returns: Tensor
    """What the critic should have said: advantages, before whitening, plus values."""


@public
def gae(
    rewards: Float64[Tensor, "B T"],
    values: Float64[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    gamma: Share = 1.0,
    lam: Share = 0.95,
    *,
    whiten: bool = False,
) -> Gae:
    """Advantages and returns of each token: three times (B, T) -> two times (B, T).

    `whiten` standardises the advantages over all trained tokens, as TRL and verl do before PPO's
    loss. Values and rewards outside the mask must be finite and do not count.
    """
    advantages_BT = torch.zeros_like(rewards)
    next_B = rewards.new_zeros(len(rewards))
    sum_B = next_B.clone()
    for place in reversed(range(rewards.shape[1])):
        here_B = mask[:, place]
        delta_B = rewards[:, place] + gamma * next_B - values[:, place]
        sum_B = torch.where(here_B, delta_B + gamma * lam * sum_B, sum_B)
        next_B = torch.where(here_B, values[:, place], next_B)
        advantages_BT[:, place] = sum_B
    advantages_BT = advantages_BT.masked_fill(~mask, 0.0)
    returns_BT = (advantages_BT + values).masked_fill(~mask, 0.0)
    if whiten:
        known = advantages_BT[mask]
        if _is_flat(known):
            advantages_BT = torch.zeros_like(advantages_BT)
        else:
            scaled = (advantages_BT - known.mean()) / (known.var() + _EPS).sqrt()
            advantages_BT = scaled.masked_fill(~mask, 0.0)
    return Gae(advantages_BT, returns_BT)


@public
def terminal_rewards(
    rewards: Float64[Tensor, " B"],
    mask: Bool[Tensor, "B T"],
    penalties: Float64[Tensor, "B T"] | None = None,
) -> Tensor:
    """The reward of each answer on its last trained token: (B,), (B, T) -> (B, T) float64.

    `penalties` (B, T), such as a coefficient times the KL to a reference, are subtracted from every
    trained token: KL in the reward. A rollout without a trained token has only zeros.
    """
    left_BT = mask.flip(1).cumsum(1).flip(1)  # trained tokens from here on
    found_BT = torch.where(mask & (left_BT == 1), rewards[:, None], 0.0)
    return found_BT if penalties is None else found_BT - penalties.masked_fill(~mask, 0.0)


@public
def value_loss(
    values: Float[Tensor, "B T"],
    old_values: Float64[Tensor, "B T"],
    returns: Float64[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    clip: NonNegative | None = 0.2,
) -> Tensor:
    """PPO's loss of a critic: `0.5 max((V - R)^2, (clip(V) - R)^2)`, mean over tokens: (B, T) -> ().

    `clip` keeps the new value within that distance of the old one; None leaves it free.
    Differentiable in `values`.
    """
    loss_BT = value_losses(values, old_values.to(values), returns.to(values), clip)
    return (loss_BT * mask).sum() / mask.sum().clamp(min=1)


def value_losses(
    values_BT: Tensor, old_BT: Tensor, returns_BT: Tensor, clip: float | None
) -> Tensor:
    """The critic's loss of each token, (B, T); shapes and values are not looked at."""
    loss_BT = (values_BT - returns_BT).square()
    if clip is not None:
        near_BT = torch.minimum(torch.maximum(values_BT, old_BT - clip), old_BT + clip)
        loss_BT = torch.maximum(loss_BT, (near_BT - returns_BT).square())
    return 0.5 * loss_BT


def critic_metrics(values_BT: Tensor, returns_BT: Tensor, mask_BT: Tensor) -> dict[str, float]:
    """How well values foretold returns; the explained variance is left out where returns are equal."""
    values_N, returns_N = values_BT[mask_BT], returns_BT[mask_BT]
    if not len(values_N):
        return {}
    found = {"critic/value": values_N.mean().item(), "critic/return": returns_N.mean().item()}
    spread = returns_N.var(correction=0).item()
    if not _is_flat(returns_N):
        unexplained = (returns_N - values_N).var(correction=0).item()
        found["critic/explained_variance"] = 1 - unexplained / spread
    return found


def _is_flat(known_N: Tensor) -> bool:
    """Fewer than two values, or equal ones by range."""
    if known_N.numel() < 2:
        return True
    return bool(known_N.max() - known_N.min() <= 1e-6 * max(1.0, float(known_N.abs().max())))


class NoCritic(Component, frozen=True, tag="none"):
    """No critic: rewards are compared with each other."""

    def term(self, batch: LossBatch, aggregate: Aggregate) -> Tensor | None:
        return None


class SharedCritic(Component, frozen=True, tag="shared"):
    """A value head on the policy's own hidden states, trained with it."""

    coefficient: Positive = 0.1
    """Weight of the critic's loss beside the policy's; TRL's default."""
    clip: NonNegative = 0.2
    """How far a value may move in a step before its gradient ends; 0 is off. TRL's default."""

    def term(self, batch: LossBatch, aggregate: Aggregate) -> Tensor | None:
        values_BT, old_BT, returns_BT = (
            needed(getattr(batch, name), name, "the recipe has a critic")
            for name in ("values_BT", "old_values_BT", "returns_BT")
        )
        total = critic_loss(
            values_BT,
            old_BT,
            returns_BT,
            batch.mask_BT,
            self.clip,
            keep_B=batch.keep_B,
            normaliser=batch.normaliser,
            keep_denominator=aggregate.keep_denominator,
        )
        return self.coefficient * total


class SeparateCritic(Component, frozen=True, tag="separate"):
    """A second model with a value head and an optimiser of its own, trained beside the policy."""

    path: str = ""
    """Model that it begins with: a reward model's folder or run, another run's `critic`, any model of
    the policy's vocabulary. Empty: a copy of the policy."""
    learning_rate: Annotated[float, Meta(ge=0.0, le=10.0)] = 1e-5
    """Peak rate of its AdamW; the rest is as `optimiser` says. verl's default."""
    clip: NonNegative = 0.2
    """How far a value may move in a step before its gradient ends; 0 is off. TRL's default."""

    def term(self, batch: LossBatch, aggregate: Aggregate) -> Tensor | None:
        return None


def critic_loss(
    values_BT: Tensor,
    old_BT: Tensor,
    returns_BT: Tensor,
    mask_BT: Tensor,
    clip: float,
    *,
    keep_B: Tensor | None,
    normaliser: Normaliser | None,
    keep_denominator: bool,
) -> Tensor:
    """The loss of a critic over the tokens of a mini-batch, (); its micro-batches add up.

    `clip` 0 is off.
    """
    old_BT, returns_BT = (one.detach().to(values_BT) for one in (old_BT, returns_BT))
    return aggregate_loss(
        value_losses(values_BT, old_BT, returns_BT, clip or None),
        mask_BT,
        "token-mean",
        keep_B=keep_B,
        normaliser=normaliser,
        keep_denominator=keep_denominator,
    )
