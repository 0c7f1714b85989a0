"""The two doors of the policy room: what a step learns from, and what an update minimises.

    step = advantages(recipe, reward_batch, state)   # once a step, over all of its rollouts
    loss(recipe, loss_batch).total.backward()        # once a micro-batch

Here the names of a recipe become calls of pure functions; a new piece is one more `case`, here or
in the `apply` module of its slot. A group without reward differences gets exactly 0, a missing
reward is never a number, and a rollout without any is not kept. What a recipe remembers goes in as
`state` and comes out as `step.state`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

import torch
from torch import Tensor

from burnish.arguments import refused
from burnish.errors import ArgumentError, UserError, did_you_mean
from burnish.policy import pieces, plugins
from burnish.policy.advantage import (
    grpo_advantage,
    normalise_then_sum,
    per_reward_advantages,
    raw_advantage,
    weighted_sum,
)
from burnish.policy.aggregate import aggregate_loss
from burnish.policy.auxiliary import kl_estimate, masked_nll
from burnish.policy.batch import Advantages, Estimate, Loss, LossBatch, RewardBatch
from burnish.policy.diagnostics import describe
from burnish.policy.groups import as_groups, is_constant
from burnish.policy.objective import clipped_policy_loss
from burnish.policy.post_scale import batch_whiten
from burnish.policy.ratio import log_ratio
from burnish.policy.recipe import Recipe
from burnish.policy.select.apply import select
from burnish.policy.select.informative import informative_groups
from burnish.policy.shaping.apply import Shaped, shape
from burnish.policy.state import PolicyState
from burnish.policy.stepwise import credited_tokens, stepwise_advantages
from burnish.policy.tensors import as_lengths, check_finite, check_shape, check_tensor
from burnish.policy.trust_region.apply import bounds, buckets_of, describe_bounds
from burnish.policy.weighting import weigh_rewards


def advantages(recipe: Recipe, batch: RewardBatch, state: PolicyState | None = None) -> Advantages:
    """Pieces 1 to 4 and 6: advantages, selection and clip bounds of a whole step."""
    _check_kind("recipe", recipe, Recipe)
    _check_kind("batch", batch, RewardBatch)
    _check(batch)
    given = replace(batch, rewards_BK=batch.rewards_BK.to(torch.float64))
    shaped = shape(recipe.shaping, given, state or PolicyState())
    weighed = weigh_rewards(recipe.weights, shaped.rewards_BK, given, shaped.state)
    rewards_BK = _as_seen(recipe, shaped, given.weights_K)
    seen = replace(given, rewards_BK=rewards_BK, weights_K=weighed.weights_K)
    estimate = _estimate(recipe.advantage, seen)
    signal_B = _signal(estimate, batch)
    if recipe.shaping and isinstance(recipe.select, pieces.InformativeGroups):
        signal_B = signal_B & informative(recipe, given)
    keep_B, weights_B = select(recipe.select, estimate, signal_B, seen)
    keep_B = keep_B & estimate.is_present_B
    values_B = torch.where(
        _beside(keep_B, estimate.values_B),
        estimate.values_B * _beside(weights_B, estimate.values_B),
        0.0,
    )
    left_B = _signal(replace(estimate, values_B=values_B), batch)
    values_B = _post_scale(recipe.post_scale, values_B, keep_B, left_B, batch)
    low_B, high_B = bounds(recipe.trust_region, values_B, seen, given)
    found = describe(batch, values_B, keep_B, signal_B) | shaped.metrics | weighed.metrics
    buckets_B = buckets_of(recipe.trust_region, given)
    if isinstance(recipe.trust_region, pieces.Elastic):
        found |= describe_bounds(values_B, low_B, high_B, buckets_B)
    return Advantages(
        values_B=values_B,
        per_reward_BK=estimate.per_reward_BK,
        keep_B=keep_B,
        weights_B=weights_B,
        low_B=low_B,
        high_B=high_B,
        signal_B=signal_B,
        diagnostics=found,
        state=replace(weighed.state, steps=weighed.state.steps + 1),
        counted_BT=_counted(seen, recipe),
        moves=shaped.moves,
        buckets_B=buckets_B,
    )


def informative(recipe: Recipe, batch: RewardBatch) -> Tensor:
    """True for rollouts of groups that can teach something by their rewards as given, (B,).

    A group whose answers are all wrong teaches nothing, however their lengths differ. Reads rewards
    and groups alone, so that a step can be filled up before anything else is known of it.
    """
    _check_kind("recipe", recipe, Recipe)
    _check_kind("batch", batch, RewardBatch)
    if recipe.stepwise:
        counts_K = batch.weights_K != 0
        per_reward_BK = per_reward_advantages(batch.rewards_BK[:, counts_K], batch.groups_B)
        return informative_groups(per_reward_BK.abs().amax(1), batch.groups_B)
    return _signal(_estimate(recipe.advantage, batch), batch)


def loss(recipe: Recipe, batch: LossBatch) -> Loss:
    """Pieces 5 and 7 to 9 on one micro-batch; micro-batches that share a normaliser add up."""
    _check_kind("recipe", recipe, Recipe)
    _check_kind("batch", batch, LossBatch)
    max_tokens = _constant_length(recipe, batch)
    core = clipped_policy_loss(
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
        buckets=batch.buckets_B,
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
        clipped_by_bucket_2P=core.get("clipped_by_bucket"),
    )


def _as_seen(recipe: Recipe, shaped: Shaped, weights_K: Tensor) -> Tensor:
    """Shaped rewards for the advantage piece: in deviations of a reference, missing is average.

    Rollouts without any reward that counts stay missing.
    """
    rewards_BK = shaped.rewards_BK
    if recipe.calibration is None:
        return rewards_BK
    has_any_B1 = (~rewards_BK.isnan() & (weights_K != 0)).any(1, keepdim=True)
    return torch.where(rewards_BK.isnan() & has_any_B1, 0.0, rewards_BK)


def _signal(estimate: Estimate, batch: RewardBatch) -> Tensor:
    """True for rollouts of groups in which some advantage is not 0, (B,)."""
    values_B = estimate.values_B
    largest_B = values_B.abs().amax(1) if values_B.ndim == 2 else values_B
    return informative_groups(largest_B, batch.groups_B)


def _beside(values_B: Tensor, like: Tensor) -> Tensor:
    """One value a rollout, to stand beside (B,) or (B, T)."""
    return values_B if like.ndim == 1 else values_B[:, None]


def _estimate(piece: pieces.Advantage, batch: RewardBatch) -> Estimate:
    weights_K = batch.weights_K.to(batch.rewards_BK)
    counts_K = weights_K != 0
    # A reward of weight 0 is ignored by every piece, its missing values included.
    rewards_BK = batch.rewards_BK.masked_fill(~counts_K, 0.0)
    total_B = weighted_sum(rewards_BK, weights_K)
    has_all_B = ~total_B.isnan()
    has_any_B = (~rewards_BK.isnan() & counts_K).any(1)
    groups_B = batch.groups_B
    match piece:
        case pieces.SumThenNormalise():
            values_B = grpo_advantage(total_B, groups_B, piece.scale, piece.eps, piece.ddof)
            per_reward_BK = per_reward_advantages(rewards_BK, groups_B, piece.eps, piece.ddof)
            return Estimate(values_B, per_reward_BK, has_all_B)
        case pieces.NormaliseThenSum():
            values_B = normalise_then_sum(
                rewards_BK, groups_B, piece.eps, piece.ddof, weights=weights_K
            )
            per_reward_BK = per_reward_advantages(rewards_BK, groups_B, piece.eps, piece.ddof)
            return Estimate(values_B, per_reward_BK, has_any_B)
        case pieces.Raw():
            # Who has no outcome was what the others were compared with: even with itself.
            values_B = raw_advantage(total_B.nan_to_num(nan=0.0), groups_B)
            return Estimate(values_B, rewards_BK.nan_to_num(nan=0.0), has_all_B)
        case pieces.Stepwise():
            return _by_section(piece, replace(batch, rewards_BK=rewards_BK, weights_K=weights_K))
        case pieces.Function():
            values_B, per_reward_BK = plugins.call_advantage(
                piece, rewards_BK, groups_B, weights_K, has_any_B
            )
            flat_B = is_constant(rewards_BK, as_groups(groups_B, rewards_BK)).all(1)
            return Estimate(values_B.masked_fill(flat_B, 0.0), per_reward_BK, has_any_B)
        case _:
            assert_never(piece)


def _by_section(piece: pieces.Stepwise, batch: RewardBatch) -> Estimate:
    """Advantages by token, (B, T): each section has the reward that bears its number."""
    if batch.segments_BT is None:
        raise ArgumentError(
            "segments_BT: got none, expected (B, T); the recipe's advantage is stepwise"
        )
    for name in piece.rewards:
        if name not in batch.titles:
            raise UserError(
                f"policy.advantage: stepwise names the reward '{name}', which the run does not "
                f"have; expected {', '.join(batch.titles)}.{did_you_mean(name, batch.titles)}"
            )
    columns = [batch.titles.index(name) for name in piece.rewards]
    rewards_BK = batch.rewards_BK[:, columns]
    values_BT = stepwise_advantages(
        rewards_BK,
        batch.groups_B,
        batch.segments_BT,
        _trained(batch.segments_BT, batch.lengths_B),
        batch.weights_K[columns],
        piece.credit,
        piece.eps,
        piece.ddof,
    )
    per_reward_BK = per_reward_advantages(batch.rewards_BK, batch.groups_B, piece.eps, piece.ddof)
    is_present_B = (~rewards_BK.isnan() & (batch.weights_K[columns] != 0)).any(1)
    return Estimate(values_BT, per_reward_BK, is_present_B)


def _counted(batch: RewardBatch, recipe: Recipe) -> Tensor | None:
    """Trained tokens that belong to a section, (B, T), where credit goes by section."""
    if recipe.stepwise is None or batch.segments_BT is None:
        return None
    return credited_tokens(batch.segments_BT, _trained(batch.segments_BT, batch.lengths_B))


def _trained(like_BT: Tensor, lengths_B: Tensor) -> Tensor:
    """True where a rollout has a token, (B, T)."""
    return torch.arange(like_BT.shape[1], device=like_BT.device) < lengths_B[:, None]


def _post_scale(
    piece: pieces.PostScale, values_B: Tensor, keep_B: Tensor, signal_B: Tensor, batch: RewardBatch
) -> Tensor:
    match piece:
        case pieces.NoPostScale():
            return values_B
        case pieces.BatchWhiten():
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


def _auxiliary(
    piece: pieces.Auxiliary, recipe: Recipe, batch: LossBatch, max_tokens: int | None
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
        case pieces.KL():
            if piece.coefficient == 0:
                return "kl", batch.logp_BT.new_zeros(())
            if batch.ref_logp_BT is None:
                raise ArgumentError(
                    "ref_logp_BT: got none, expected (B, T); the recipe has a KL term"
                )
            # Padding may hold anything: cut here, it cannot reach the gradient.
            is_out_BT = ~(batch.mask_BT.bool() & batch.keep_B.bool()[:, None])
            logp_BT = batch.logp_BT.masked_fill(is_out_BT, 0.0)
            ratio_BT = None
            if piece.correction:
                old_logp_BT = batch.old_logp_BT.detach()
                ratio_BT = log_ratio(batch.logp_BT, old_logp_BT, ~is_out_BT, recipe.ratio).exp()
            ref_logp_BT = batch.ref_logp_BT.detach()
            kl_BT = kl_estimate(logp_BT, ref_logp_BT, piece.estimator, ratio_BT)
            return "kl", piece.coefficient * aggregated(kl_BT)
        case pieces.Entropy():
            if piece.coefficient == 0:
                return "entropy", batch.logp_BT.new_zeros(())
            if batch.entropy_BT is None:
                raise ArgumentError(
                    "entropy_BT: got none, expected (B, T); the recipe has an entropy term"
                )
            return "entropy", -piece.coefficient * aggregated(batch.entropy_BT)
        case pieces.SFT():
            if batch.expert_logp_BT is None or batch.expert_mask_BT is None:
                return "sft", batch.logp_BT.new_zeros(())
            nll = masked_nll(batch.expert_logp_BT, batch.expert_mask_BT)
            return "sft", piece.coefficient * nll
        case pieces.Function():
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


def _check_kind(what: str, given: object, kind: type) -> None:
    if not isinstance(given, kind):
        raise refused(what, given, f"a {kind.__name__}")


def _check(batch: RewardBatch) -> None:
    """Refuse tensors that do not describe the same rollouts and rewards."""
    check_tensor(batch.rewards_BK, "rewards_BK", "(B, K)", 2)
    rollouts, rewards = batch.rewards_BK.shape
    for key in ("groups_B", "lengths_B", "truncated_B"):
        check_tensor(getattr(batch, key), key, "(B,)")
        check_shape(getattr(batch, key), key, (rollouts,))
    check_tensor(batch.weights_K, "weights_K", "(K,)")
    if batch.weights_K.shape != (rewards,) or (batch.names and len(batch.names) != rewards):
        raise ArgumentError(
            f"weights_K and names: got {tuple(batch.weights_K.shape)} weights and "
            f"{len(batch.names)} names, expected one each for {rewards} rewards"
        )
    check_finite(batch.weights_K, "weights_K")
    as_lengths(batch.lengths_B, "lengths_B", batch.rewards_BK)
    if not (batch.weights_K != 0).any():
        raise UserError(
            f"every reward ({', '.join(batch.titles)}) has weight 0; expected at least one other "
            "weight, or nothing can be learnt."
        )
