"""Generalised advantage estimation, and the loss of the critic that it needs (PPO).

    found = gae(rewards_BT, values_BT, mask_BT, gamma=1.0, lam=0.95)
    found.advantages, found.returns
    value_loss(new_values_BT, values_BT, found.returns, mask_BT, clip=0.2)

A token's advantage is `sum_k (gamma lam)^k delta_(t+k)`, `delta_t = r_t + gamma V_(t+1) - V_t`
(arXiv 1506.02438). Tokens outside the mask (padding, what a tool wrote) have no part: the next value of a
token is that of the next trained one. The reward of a whole answer belongs on its last trained token,
which is where `terminal_rewards` puts it: on a token outside the mask it would be lost.

Advantage `gae` is the same in a recipe: it reads the values of the recipe's `critic`
(`policy/critic.py`), so that a prompt needs only one answer, and no group is compared.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from burnish.arguments import as_number
from burnish.errors import ArgumentError
from burnish.policy.base import Component, require
from burnish.policy.batch import CriticTargets, Estimate
from burnish.policy.groups import per_reward_advantages, weighted_sum
from burnish.tensors import as_finite, as_logp, as_mask, check_finite, check_shape, torch

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.policy.batch import RewardBatch
    from burnish.tensors import Numbers

_EPS = 1e-8


class GeneralisedAdvantage(Component, frozen=True, tag="gae"):
    """What came after each token, beyond what the critic expected of it (PPO): one a token."""

    ALIASES: ClassVar[tuple[str, ...]] = ("ppo",)

    gamma: float = 1.0
    """Discount a token; 1 pays every token of an answer alike."""
    lam: float = 0.95
    """0 trusts the critic's next value alone, 1 the reward of the whole answer alone."""
    whiten: bool = True
    """Standardise the advantages over all trained tokens of the step, as TRL and verl do."""
    kl: float = 0.0
    """Coefficient of the KL to the starting model that every token's reward loses: KL in the reward."""

    def check(self) -> None:
        require(0 <= self.gamma <= 1, "gamma", self.gamma, "0 to 1")
        require(0 <= self.lam <= 1, "lam", self.lam, "0 to 1")
        require(0 <= self.kl < math.inf, "kl", self.kl, "at least 0")

    def estimate(self, batch: RewardBatch) -> Estimate:
        """Advantages by token, (B, T), and what the critic should have said."""
        if batch.values_BT is None:
            raise ArgumentError(
                "values_BT: got none, expected (B, T); the recipe's advantage is gae"
            )
        values_BT = batch.values_BT
        total_B = weighted_sum(batch.rewards_BK, batch.weights_K)
        is_present_B = ~total_B.isnan()
        # A rollout without a reward has no return; it leaves the statistics of whitening too.
        mask_BT = batch.has_token(values_BT.shape[1]) & is_present_B[:, None]
        penalties_BT, metrics = None, dict[str, float]()
        if self.kl:
            if batch.kl_BT is None:
                raise ArgumentError("kl_BT: got none, expected (B, T); the recipe's gae has a kl")
            penalties_BT = self.kl * batch.kl_BT
            if mask_BT.any():
                metrics["critic/kl"] = batch.kl_BT[mask_BT].mean().item()
        rewards_BT = terminal_rewards(total_B.nan_to_num(nan=0.0), mask_BT, penalties_BT)
        found = gae(rewards_BT, values_BT, mask_BT, self.gamma, self.lam, whiten=self.whiten)
        one_group_B = torch.zeros_like(batch.groups_B)
        return Estimate(
            found.advantages,
            per_reward_advantages(batch.rewards_BK, one_group_B),
            is_present_B,
            CriticTargets(values_BT, found.returns),
            metrics | critic_metrics(values_BT, found.returns, mask_BT),
        )


class Gae(NamedTuple):
    """Float64, (B, T); 0 outside the mask."""

    advantages: Tensor
    returns: Tensor
    """What the critic should have said: advantages, before whitening, plus values."""


def gae(
    rewards: Numbers,
    values: Numbers,
    mask: Numbers,
    gamma: float = 1.0,
    lam: float = 0.95,
    *,
    whiten: bool = False,
) -> Gae:
    """Advantages and returns of each token: three times (B, T) -> two times (B, T).

    `whiten` standardises the advantages over all trained tokens, as TRL and verl do before PPO's
    loss. Values and rewards outside the mask must be finite and do not count.
    """
    gamma = as_number("gamma", gamma, low=0, high=1)
    lam = as_number("lam", lam, low=0, high=1)
    rewards_BT = as_finite(rewards, "rewards")
    if rewards_BT.ndim != 2:
        raise _shape("rewards", rewards_BT)
    values_BT = as_finite(values, "values").to(rewards_BT.device)
    check_shape(values_BT, "values", tuple(rewards_BT.shape))
    mask_BT = as_mask(mask, "mask", tuple(rewards_BT.shape)).to(rewards_BT.device)
    advantages_BT = torch.zeros_like(rewards_BT)
    next_B = rewards_BT.new_zeros(len(rewards_BT))
    sum_B = next_B.clone()
    for place in reversed(range(rewards_BT.shape[1])):
        here_B = mask_BT[:, place]
        delta_B = rewards_BT[:, place] + gamma * next_B - values_BT[:, place]
        sum_B = torch.where(here_B, delta_B + gamma * lam * sum_B, sum_B)
        next_B = torch.where(here_B, values_BT[:, place], next_B)
        advantages_BT[:, place] = sum_B
    advantages_BT = advantages_BT.masked_fill(~mask_BT, 0.0)
    returns_BT = (advantages_BT + values_BT).masked_fill(~mask_BT, 0.0)
    if whiten:
        advantages_BT = _whitened(advantages_BT, mask_BT)
    return Gae(advantages_BT, returns_BT)


def terminal_rewards(rewards: Numbers, mask: Numbers, penalties: Numbers | None = None) -> Tensor:
    """The reward of each answer on its last trained token: (B,), (B, T) -> (B, T) float64.

    `penalties` (B, T), such as a coefficient times the KL to a reference, are subtracted from every
    trained token: KL in the reward. A rollout without a trained token has only zeros.
    """
    rewards_B = as_finite(rewards, "rewards")
    if rewards_B.ndim != 1:
        raise _shape("rewards", rewards_B, "(B,)")
    mask_BT = as_finite(mask, "mask").to(rewards_B.device)
    if mask_BT.ndim != 2 or len(mask_BT) != len(rewards_B):
        raise _shape("mask", mask_BT, f"({len(rewards_B)}, T)")
    mask_BT = mask_BT != 0
    left_BT = mask_BT.flip(1).cumsum(1).flip(1)  # trained tokens from here on
    found_BT = torch.where(mask_BT & (left_BT == 1), rewards_B[:, None], 0.0)
    if penalties is None:
        return found_BT
    penalties_BT = as_finite(penalties, "penalties").to(rewards_B.device)
    check_shape(penalties_BT, "penalties", tuple(found_BT.shape))
    return found_BT - penalties_BT.masked_fill(~mask_BT, 0.0)


def value_loss(
    values: Numbers,
    old_values: Numbers,
    returns: Numbers,
    mask: Numbers,
    clip: float | None = 0.2,
) -> Tensor:
    """PPO's loss of a critic: `0.5 max((V - R)^2, (clip(V) - R)^2)`, mean over tokens: (B, T) -> ().

    `clip` keeps the new value within that distance of the old one; None leaves it free.
    Differentiable in `values`.
    """
    values_BT = as_logp(values, "values")
    if values_BT.ndim != 2:
        raise _shape("values", values_BT)
    shape = tuple(values_BT.shape)
    mask_BT = as_mask(mask, "mask", shape).to(values_BT.device)
    check_finite(values_BT, "values")
    old_BT, returns_BT = (
        as_finite(given, name).to(values_BT)
        for name, given in (("old_values", old_values), ("returns", returns))
    )
    check_shape(old_BT, "old_values", shape)
    check_shape(returns_BT, "returns", shape)
    clip = None if clip is None else as_number("clip", clip, low=0)
    loss_BT = value_losses(values_BT, old_BT, returns_BT, clip)
    return (loss_BT * mask_BT).sum() / mask_BT.sum().clamp(min=1)


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


def _whitened(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Mean 0 and variance 1 over the trained tokens; 0 where they do not differ."""
    known = values_BT[mask_BT]
    if _is_flat(known):
        return torch.zeros_like(values_BT)
    scaled = (values_BT - known.mean()) / (known.var() + _EPS).sqrt()
    return scaled.masked_fill(~mask_BT, 0.0)


def _is_flat(known_N: Tensor) -> bool:
    """Fewer than two values, or equal ones by range."""
    if known_N.numel() < 2:
        return True
    return bool(known_N.max() - known_N.min() <= 1e-6 * max(1.0, float(known_N.abs().max())))


def _shape(what: str, values: Tensor, expected: str = "(B, T)") -> ArgumentError:
    return ArgumentError(f"{what}: got shape {tuple(values.shape)}, expected {expected}")
