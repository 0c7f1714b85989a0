"""The two doors of the policy room: what a step learns from, and what an update minimises.

    step = advantages(recipe, reward_batch)     # once a step, over all of its rollouts
    loss(recipe, loss_batch).total.backward()   # once a micro-batch

Here the names of a recipe become calls of pure functions; a new piece is one more `case`. A group
without reward differences gets exactly 0, a missing reward is never a number, and a rollout
without any is not kept.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

import torch
from torch import Tensor

from burnish.errors import UserError, did_you_mean
from burnish.policy import plugins
from burnish.policy import recipe as names
from burnish.policy.advantage import (
    grpo_advantage,
    normalise_then_sum,
    per_reward_advantages,
    raw_advantage,
    weighted_sum,
)
from burnish.policy.aggregate import aggregate_loss
from burnish.policy.auxiliary import kl_penalty
from burnish.policy.batch import Advantages, Estimate, Loss, LossBatch, RewardBatch
from burnish.policy.diagnostics import describe
from burnish.policy.groups import as_groups, is_constant
from burnish.policy.objective import policy_loss
from burnish.policy.post_scale import batch_whiten
from burnish.policy.recipe import Recipe
from burnish.policy.select.informative import informative_groups
from burnish.policy.shaping.overlong import overlong_penalty
from burnish.policy.trust_region.static import static_bounds


def advantages(recipe: Recipe, batch: RewardBatch) -> Advantages:
    """Pieces 1 to 4 and 6: advantages, selection and clip bounds of a whole step."""
    _check(batch)
    rewards_BK = batch.rewards_BK.to(torch.float64)
    for shaping in recipe.shaping:
        rewards_BK = _shape(shaping, rewards_BK, batch)
    shaped = replace(batch, rewards_BK=rewards_BK)
    estimate = _estimate(recipe.advantage, shaped)
    signal_B = informative_groups(estimate.values_B, batch.groups_B)
    if recipe.shaping and isinstance(recipe.select, names.InformativeGroups):
        # A group whose answers are all wrong teaches nothing, however their lengths differ.
        plain = _estimate(recipe.advantage, batch)
        signal_B = signal_B & informative_groups(plain.values_B, batch.groups_B)
    keep_B, weights_B = _select(recipe.select, estimate, signal_B, shaped)
    keep_B = keep_B & estimate.is_present_B
    values_B = torch.where(keep_B, estimate.values_B * weights_B, 0.0)
    values_B = _post_scale(recipe.post_scale, values_B, keep_B, signal_B, batch)
    low_B, high_B = _bounds(recipe.trust_region, values_B, shaped)
    return Advantages(
        values_B=values_B,
        per_reward_BK=estimate.per_reward_BK,
        keep_B=keep_B,
        weights_B=weights_B,
        low_B=low_B,
        high_B=high_B,
        signal_B=signal_B,
        diagnostics=describe(batch, values_B, keep_B, signal_B),
    )


def loss(recipe: Recipe, batch: LossBatch) -> Loss:
    """Pieces 5 and 7 to 9 on one micro-batch; micro-batches that share a normaliser add up."""
    max_tokens = _constant_length(recipe, batch)
    core = policy_loss(
        batch.logp_BT,
        batch.old_logp_BT,
        batch.advantages_B,
        batch.mask_BT,
        recipe.ratio,
        batch.low_B,
        batch.high_B,
        recipe.dual_clip or None,
        recipe.aggregate.mode,
        keep=batch.keep_B,
        normaliser=batch.normaliser,
        max_tokens=max_tokens,
        keep_denominator=recipe.aggregate.keep_denominator,
    )
    total = core["loss"]
    parts = {"surrogate": total.detach()}
    for piece in recipe.auxiliary:
        name, term = _auxiliary(piece, recipe, batch, max_tokens)
        total = total + term
        parts[name] = parts[name] + term.detach() if name in parts else term.detach()
    return Loss(
        total=total,
        parts=parts,
        clipped_share=core["clip_fraction"],
        ratio_max=core["ratio_max"],
    )


def _shape(piece: names.Shaping, rewards_BK: Tensor, batch: RewardBatch) -> Tensor:
    match piece:
        case names.OverlongPenalty():
            penalty_B = overlong_penalty(batch.lengths_B, piece.limit, piece.buffer)
            shaped_BK = rewards_BK.clone()
            shaped_BK[:, _column(piece.reward, batch)] += piece.scale * penalty_B
            return shaped_BK
        case names.Function():
            return plugins.call_shaping(piece, rewards_BK, batch)
        case _:
            assert_never(piece)


def _estimate(piece: names.Advantage, batch: RewardBatch) -> Estimate:
    weights_K = batch.weights_K.to(batch.rewards_BK)
    counts_K = weights_K != 0
    # A reward of weight 0 is ignored by every piece, its missing values included.
    rewards_BK = batch.rewards_BK.masked_fill(~counts_K, 0.0)
    total_B = weighted_sum(rewards_BK, weights_K)
    has_all_B = ~total_B.isnan()
    has_any_B = (~rewards_BK.isnan() & counts_K).any(1)
    groups_B = batch.groups_B
    match piece:
        case names.SumThenNormalise():
            values_B = grpo_advantage(total_B, groups_B, piece.scale, piece.eps, piece.ddof)
            per_reward_BK = per_reward_advantages(rewards_BK, groups_B, piece.eps, piece.ddof)
            return Estimate(values_B, per_reward_BK, has_all_B)
        case names.NormaliseThenSum():
            values_B = normalise_then_sum(
                rewards_BK, groups_B, piece.eps, piece.ddof, weights=weights_K
            )
            per_reward_BK = per_reward_advantages(rewards_BK, groups_B, piece.eps, piece.ddof)
            return Estimate(values_B, per_reward_BK, has_any_B)
        case names.Raw():
            values_B = raw_advantage(total_B, groups_B)
            return Estimate(values_B, rewards_BK.nan_to_num(nan=0.0), has_all_B)
        case names.Function():
            values_B, per_reward_BK = plugins.call_advantage(
                piece, rewards_BK, groups_B, weights_K, has_any_B
            )
            flat_B = is_constant(rewards_BK, as_groups(groups_B, rewards_BK)).all(1)
            return Estimate(values_B.masked_fill(flat_B, 0.0), per_reward_BK, has_any_B)
        case _:
            assert_never(piece)


def _select(
    piece: names.Select, estimate: Estimate, signal_B: Tensor, batch: RewardBatch
) -> tuple[Tensor, Tensor]:
    match piece:
        case names.KeepAll():
            return torch.ones_like(signal_B), torch.ones_like(estimate.values_B)
        case names.InformativeGroups():
            return signal_B, torch.ones_like(estimate.values_B)
        case names.Function():
            return plugins.call_select(piece, estimate, batch)
        case _:
            assert_never(piece)


def _post_scale(
    piece: names.PostScale, values_B: Tensor, keep_B: Tensor, signal_B: Tensor, batch: RewardBatch
) -> Tensor:
    match piece:
        case names.NoPostScale():
            return values_B
        case names.BatchWhiten():
            return batch_whiten(
                values_B,
                batch.lengths_B,
                keep=keep_B,
                signal=signal_B,
                scope=piece.scope,
                shift=piece.shift,
                ignore_zero_signal=piece.ignore_zero_signal,
            )
        case _:
            assert_never(piece)


def _bounds(
    piece: names.TrustRegion, values_B: Tensor, batch: RewardBatch
) -> tuple[Tensor, Tensor]:
    match piece:
        case names.StaticRegion():
            return static_bounds(values_B, piece.low, piece.high)
        case names.Function():
            return plugins.call_trust_region(piece, values_B, batch)
        case _:
            assert_never(piece)


def _auxiliary(
    piece: names.Auxiliary, recipe: Recipe, batch: LossBatch, max_tokens: int | None
) -> tuple[str, Tensor]:
    """The name of a term and the term as it enters the loss."""

    def aggregated(values_BT: Tensor) -> Tensor:
        return aggregate_loss(
            values_BT,
            batch.mask_BT,
            recipe.aggregate.mode,
            keep_B=batch.keep_B,
            normaliser=batch.normaliser,
            max_tokens=max_tokens,
            keep_denominator=recipe.aggregate.keep_denominator,
        )

    match piece:
        case names.KL():
            if piece.coefficient == 0:
                return "kl", batch.logp_BT.new_zeros(())
            if batch.ref_logp_BT is None:
                raise ValueError("ref_logp_BT: got none, expected (B, T); the recipe has a KL term")
            # Padding may hold anything: cut here, it cannot reach the gradient.
            is_out_BT = ~(batch.mask_BT.bool() & batch.keep_B.bool()[:, None])
            logp_BT = batch.logp_BT.masked_fill(is_out_BT, 0.0)
            kl_BT = kl_penalty(logp_BT, batch.ref_logp_BT.detach(), piece.estimator)
            return "kl", piece.coefficient * aggregated(kl_BT)
        case names.Entropy():
            if piece.coefficient == 0:
                return "entropy", batch.logp_BT.new_zeros(())
            if batch.entropy_BT is None:
                raise ValueError(
                    "entropy_BT: got none, expected (B, T); the recipe has an entropy term"
                )
            return "entropy", -piece.coefficient * aggregated(batch.entropy_BT)
        case names.Function():
            name = piece.path.rpartition(":")[2]
            return name, aggregated(plugins.call_auxiliary(piece, batch))
        case _:
            assert_never(piece)


def _constant_length(recipe: Recipe, batch: LossBatch) -> int | None:
    if recipe.aggregate.mode != "seq-mean-token-sum-norm":
        return None
    length = recipe.aggregate.max_tokens or batch.max_tokens
    if length < 1:
        # The width of a micro-batch will not do: it differs from one to the next.
        raise UserError(
            "policy.aggregate.max_tokens is 0; expected a length of at least 1, because mode "
            "'seq-mean-token-sum-norm' divides by it and the batch names no token budget."
        )
    return length


def _column(reward: str, batch: RewardBatch) -> int:
    """The position of the reward that a penalty is added to."""
    if not reward:
        return int((batch.weights_K != 0).nonzero()[0])
    if reward not in batch.names:
        raise UserError(
            f"policy.shaping: overlong_penalty names the reward '{reward}', which the run does not "
            f"have; expected {', '.join(batch.names)}.{did_you_mean(reward, batch.names)}"
        )
    column = batch.names.index(reward)
    if batch.weights_K[column] == 0:
        raise UserError(
            f"policy.shaping: overlong_penalty is added to the reward '{reward}', which has weight "
            "0; expected a reward that counts."
        )
    return column


def _check(batch: RewardBatch) -> None:
    """Refuse tensors that do not describe the same rollouts and rewards."""
    if batch.rewards_BK.ndim != 2:
        raise ValueError(f"rewards_BK: got shape {tuple(batch.rewards_BK.shape)}, expected (B, K)")
    rollouts, rewards = batch.rewards_BK.shape
    for key in ("groups_B", "lengths_B", "truncated_B"):
        shape = tuple(getattr(batch, key).shape)
        if shape != (rollouts,):
            raise ValueError(f"{key}: got shape {shape}, expected ({rollouts},)")
    if batch.weights_K.shape != (rewards,) or (batch.names and len(batch.names) != rewards):
        raise ValueError(
            f"weights_K and names: got {tuple(batch.weights_K.shape)} weights and "
            f"{len(batch.names)} names, expected one each for {rewards} rewards"
        )
    if not (batch.weights_K != 0).any():
        raise UserError(
            f"every reward ({', '.join(batch.names)}) has weight 0; expected at least one other "
            "weight, or nothing can be learnt."
        )
