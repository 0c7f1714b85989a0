"""Piece 1 by name: the shaping pieces of a recipe, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

import torch
from torch import Tensor

from burnish.errors import ArgumentError, UserError, did_you_mean
from burnish.policy import pieces, plugins
from burnish.policy.batch import RewardBatch
from burnish.policy.contrast.compare import ContrastRule
from burnish.policy.contrast.head import HeadState, head_step
from burnish.policy.contrast.reward import contrastive_reward
from burnish.policy.reference import (
    ReferenceStats,
    fit_reference_stats,
    reference_frozen_normalise,
    renew_reference_stats,
    saturated_share,
)
from burnish.policy.shaping.overlong import overlong_penalty
from burnish.policy.state import PolicyState


@dataclass(frozen=True)
class Shaped:
    """Rewards as the advantage piece sees them, what is remembered, and what a person may read."""

    rewards_BK: Tensor
    state: PolicyState
    metrics: dict[str, float] = field(default_factory=dict)
    moves: bool = True
    """False while a head learns before the policy does."""


def shape(named: Sequence[pieces.Shaping], batch: RewardBatch, state: PolicyState) -> Shaped:
    """Apply the pieces in their order to the rewards (B, K) of a step."""
    shaped = Shaped(batch.rewards_BK.to(torch.float64), state)
    for piece in named:
        match piece:
            case pieces.OverlongPenalty():
                shaped = replace(shaped, rewards_BK=_penalise(piece, shaped.rewards_BK, batch))
            case pieces.ReferenceFrozen():
                shaped = _freeze(piece, shaped, batch)
            case pieces.Contrastive():
                shaped = _contrast(piece, shaped, batch)
            case pieces.Function():
                rewards_BK = plugins.call_shaping(piece, shaped.rewards_BK, batch)
                shaped = replace(shaped, rewards_BK=rewards_BK)
            case _:
                assert_never(piece)
    return shaped


def _penalise(piece: pieces.OverlongPenalty, rewards_BK: Tensor, batch: RewardBatch) -> Tensor:
    shaped_BK = rewards_BK.clone()
    penalty_B = overlong_penalty(batch.lengths_B, piece.limit, piece.buffer)
    shaped_BK[:, column_of(piece.reward, batch, "overlong_penalty")] += piece.scale * penalty_B
    return shaped_BK


def _freeze(piece: pieces.ReferenceFrozen, shaped: Shaped, batch: RewardBatch) -> Shaped:
    """Rewards in deviations of the start model; the first batch stands in where none was measured."""
    reference = shaped.state.reference
    if reference is None:
        reference = fit_reference_stats(
            shaped.rewards_BK, sd_floor=piece.sd_floor, robust=piece.robust
        )
    normalised_BK = reference_frozen_normalise(
        shaped.rewards_BK, reference.mean_K, reference.sd_K, clip=piece.clip
    )
    share_K = saturated_share(normalised_BK, piece.clip)
    metrics = {
        f"reference/{name}/saturated": share
        for name, share in zip(batch.titles, share_K.tolist(), strict=True)
    }
    state = replace(shaped.state, reference=reference)
    if piece.refreeze_above < 1:
        renewed, is_new_K = renew_reference_stats(
            reference, shaped.rewards_BK, piece.sd_floor, robust=piece.robust
        )
        is_stale = _is_stale(piece, share_K, is_new_K, batch)
        metrics["reference/refrozen"] = float(is_stale)
        metrics |= {
            f"reference/{name}/refrozen": float(is_stale and is_new)
            for name, is_new in zip(batch.titles, is_new_K.tolist(), strict=True)
        }
        if is_stale:
            state, normalised_BK = _refreeze(piece, shaped, renewed)
    return replace(shaped, rewards_BK=normalised_BK, state=state, metrics=shaped.metrics | metrics)


def _is_stale(
    piece: pieces.ReferenceFrozen, share_K: Tensor, is_new_K: Tensor, batch: RewardBatch
) -> bool:
    """True where a reward that counts stands at the clip too often and this batch gives it a unit.

    Without the second a reward that became constant would move the unit of the others every step. A
    batch in which a reward that counts has no value (its share is NaN) waits.
    """
    counts_K = (batch.weights_K != 0).to(share_K.device)
    is_over_K = (share_K > piece.refreeze_above) & is_new_K & counts_K
    return bool(is_over_K.any()) and not bool((share_K.isnan() & counts_K).any())


def _refreeze(
    piece: pieces.ReferenceFrozen, shaped: Shaped, reference: ReferenceStats
) -> tuple[PolicyState, Tensor]:
    """The memory with the unit that was measured on this batch, and the batch in it.

    Of all rewards, not of the stale one alone: they are compared with each other, so 0 has to mean
    the same policy for each. Progress in the old unit is forgotten, violations and weights stay.
    """
    normalised_BK = reference_frozen_normalise(
        shaped.rewards_BK, reference.mean_K, reference.sd_K, clip=piece.clip
    )
    weights = shaped.state.weights
    if weights is not None:
        weights = replace(weights, progress_K=torch.full_like(weights.progress_K, torch.nan))
    return replace(shaped.state, reference=reference, weights=weights), normalised_BK


def _contrast(piece: pieces.Contrastive, shaped: Shaped, batch: RewardBatch) -> Shaped:
    """The reward of right answers plus what their resemblance to other right ones is worth."""
    if batch.hidden_BD is None:
        raise ArgumentError(
            "hidden_BD: got none, expected (B, D); the recipe has a contrastive reward"
        )
    column = column_of(piece.reward, batch, "contrastive")
    verdict_B = batch.rewards_BK[:, column]
    hidden_BD = batch.hidden_BD.float().masked_fill(verdict_B.isnan()[:, None], torch.nan)
    is_right_B = verdict_B > piece.correct_above
    head = shaped.state.head or HeadState.initial(
        hidden_BD.shape[1], piece.size, piece.head, batch.seed
    )
    rule = ContrastRule(
        loss=piece.loss,
        temperature=piece.temperature,
        scope=piece.scope,
        anchors=piece.anchors,
        dedup=piece.dedup,
    )
    stepped = head_step(
        head,
        hidden_BD,
        is_right_B,
        batch.groups_B,
        rule,
        seed=batch.seed,
        keys=batch.keys_B,
        twins=batch.twins_B,
        lam=piece.lam,
        floor=piece.floor,
        constant=piece.constant,
        learning_rate=piece.learning_rate,
        weight_decay=piece.weight_decay,
        frozen=piece.frozen,
    )
    bonus_B = contrastive_reward(
        stepped.losses.per_sample,
        is_right_B,
        piece.lam,
        piece.floor,
        piece.constant,
        usable=hidden_BD.isfinite().all(1),
    )
    rewards_BK = shaped.rewards_BK.clone()
    rewards_BK[:, column] += bonus_B.to(rewards_BK)
    metrics = {f"contrast/{name}": value for name, value in stepped.metrics.items()}
    return replace(
        shaped,
        rewards_BK=rewards_BK,
        state=replace(shaped.state, head=stepped.state),
        metrics=shaped.metrics | metrics,
        moves=shaped.state.steps >= piece.warmup,
    )


def column_of(reward: str, batch: RewardBatch, piece: str) -> int:
    """The position of the reward that a piece names; the first that counts where it names none."""
    if not reward:
        return int((batch.weights_K != 0).nonzero()[0])
    if reward not in batch.titles:
        raise UserError(
            f"policy.shaping: {piece} names the reward '{reward}', which the run does not "
            f"have; expected {', '.join(batch.titles)}.{did_you_mean(reward, batch.titles)}"
        )
    column = batch.titles.index(reward)
    if batch.weights_K[column] == 0:
        raise UserError(
            f"policy.shaping: {piece} is added to the reward '{reward}', which has weight "
            "0; expected a reward that counts."
        )
    return column
