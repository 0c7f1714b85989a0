"""Advantages of a whole step under a recipe, from the rewards of its rollouts.

    step = advantages(recipe, reward_batch, state)   # once a step, over all of its rollouts
    loss(recipe, loss_batch).total.backward()        # once a micro-batch

The rewards are shaped, weighted, turned into advantages, filtered, rescaled and given clip bounds,
each by the component that the recipe names. A group without reward differences gets exactly 0, a
missing reward is never a number, and a rollout without any is not kept. The state of the components
goes in as `state` and comes out as `step.state`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from burnish.arguments import refused
from burnish.errors import ArgumentError, UserError
from burnish.policy.agreement import agreement_metrics
from burnish.policy.base import Shaped
from burnish.policy.batch import Advantages, RewardBatch
from burnish.policy.elastic import Elastic
from burnish.policy.groups import as_groups, is_constant, per_reward_advantages
from burnish.policy.informative import InformativeGroups, informative_groups
from burnish.policy.recipe import Recipe, token_credit_conflict
from burnish.policy.state import PolicyState
from burnish.policy.stepwise import credited_tokens
from burnish.policy.trust_region import describe_bounds, group_buckets
from burnish.tensors import as_lengths, check_finite, check_shape, check_tensor, torch

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.policy.batch import Estimate


def advantages(recipe: Recipe, batch: RewardBatch, state: PolicyState | None = None) -> Advantages:
    """Advantages, selection and clip bounds of a whole step."""
    _check_type("recipe", recipe, Recipe)
    _check_type("batch", batch, RewardBatch)
    _check(batch)
    given = replace(batch, rewards_BK=batch.rewards_BK.to(torch.float64))
    shaped = Shaped(given.rewards_BK, state or PolicyState())
    for component in recipe.shaping:
        shaped = component.shape(shaped, given)
    weighted = recipe.weights.reward_weights(shaped.rewards_BK, given, shaped.state)
    rewards_BK = _fill_missing(recipe, shaped, given.weights_K)
    seen = replace(given, rewards_BK=rewards_BK, weights_K=weighted.weights_K)
    estimate = _estimate(recipe, seen)
    if estimate.values_B.ndim == 2 and (why := token_credit_conflict(recipe, "this function")):
        raise UserError(f"policy.{why}.")
    signal_B = _signal(estimate.values_B, batch)
    if recipe.shaping and isinstance(recipe.select, InformativeGroups):
        signal_B = signal_B & informative(recipe, given)
    keep_B, weights_B = recipe.select.select(estimate, signal_B, seen)
    keep_B = keep_B & estimate.is_present_B
    values_B = estimate.values_B
    by_row = values_B.shape[:1] + (1,) * (values_B.ndim - 1)
    values_B = torch.where(keep_B.view(by_row), values_B * weights_B.view(by_row), 0.0)
    left_B = _signal(values_B, batch)
    values_B = recipe.post_scale.rescale(values_B, keep_B, left_B, batch)
    low_B, high_B = recipe.trust_region.bounds(values_B, seen, given)
    elastic = recipe.trust_region if isinstance(recipe.trust_region, Elastic) else None
    buckets_B = group_buckets(given, elastic.range if elastic else None)
    diagnostics = _describe(batch, values_B, keep_B, signal_B) | shaped.metrics | weighted.metrics
    diagnostics |= estimate.metrics
    if elastic:
        diagnostics |= describe_bounds(values_B, low_B, high_B, buckets_B)
    return Advantages(
        values_B=values_B,
        per_reward_BK=estimate.per_reward_BK,
        keep_B=keep_B,
        weights_B=weights_B,
        low_B=low_B,
        high_B=high_B,
        signal_B=signal_B,
        diagnostics=diagnostics,
        state=replace(weighted.state, steps=weighted.state.steps + 1),
        counted_BT=_counted(recipe, seen, values_B),
        moves=shaped.moves,
        buckets_B=buckets_B,
        critic=estimate.critic,
    )


def informative(recipe: Recipe, batch: RewardBatch) -> Tensor:
    """True for rollouts of groups with a signal in their rewards as given, (B,).

    A group whose answers are all wrong has none, however their lengths differ. Reads rewards and
    groups alone, so that a step can be filled up before anything else is known of it.
    """
    _check_type("recipe", recipe, Recipe)
    _check_type("batch", batch, RewardBatch)
    if recipe.stepwise:
        counts_K = batch.weights_K != 0
        per_reward_BK = per_reward_advantages(batch.rewards_BK[:, counts_K], batch.groups_B)
        return informative_groups(per_reward_BK.abs().amax(1), batch.groups_B)
    return _signal(_estimate(recipe, batch).values_B, batch)


def _fill_missing(recipe: Recipe, shaped: Shaped, weights_K: Tensor) -> Tensor:
    """Shaped rewards; in deviations of a reference a missing one is 0, the reference's mean.

    Rollouts without any reward that counts stay missing.
    """
    rewards_BK = shaped.rewards_BK
    if recipe.calibration is None:
        return rewards_BK
    has_any_B1 = (~rewards_BK.isnan() & (weights_K != 0)).any(1, keepdim=True)
    return torch.where(rewards_BK.isnan() & has_any_B1, 0.0, rewards_BK)


def _estimate(recipe: Recipe, batch: RewardBatch) -> Estimate:
    weights_K = batch.weights_K.to(batch.rewards_BK)
    # A reward of weight 0 is ignored by every advantage rule, its missing values included.
    rewards_BK = batch.rewards_BK.masked_fill(weights_K == 0, 0.0)
    return recipe.advantage.estimate(replace(batch, rewards_BK=rewards_BK, weights_K=weights_K))


def _signal(values_B: Tensor, batch: RewardBatch) -> Tensor:
    """True for rollouts of groups in which some advantage is not 0, (B,)."""
    largest_B = values_B.abs().amax(1) if values_B.ndim == 2 else values_B
    return informative_groups(largest_B, batch.groups_B)


def _counted(recipe: Recipe, batch: RewardBatch, values_B: Tensor) -> Tensor | None:
    """Tokens that enter the loss, (B, T), where there is an advantage for each."""
    if recipe.stepwise is None or batch.segments_BT is None:
        return batch.has_token(values_B.shape[1]) if values_B.ndim == 2 else None
    return credited_tokens(batch.segments_BT, batch.has_token_BT)


def _describe(
    batch: RewardBatch, values_B: Tensor, keep_B: Tensor, signal_B: Tensor
) -> dict[str, float]:
    """Shares, counts and reward statistics of a step, before its update.

    `groups` and `constant_groups` are counts (constant: every reward of non-zero weight is the same
    for the whole group), `useful_groups` the share of groups with signal, `kept` the share of
    rollouts kept, `advantage_abs` the mean |A| of the kept. `reward/<name>/mean`, `/std` (ddof 1)
    and `/missing` (share) describe each reward before shaping, `reward/corr/<a>~<b>` and
    `reward/conflict/<a>~<b>` every two of them; a statistic of too few values is left out.
    """
    groups = as_groups(batch.groups_B, batch.rewards_BK)
    counted_BK = batch.rewards_BK[:, batch.weights_K != 0]
    is_flat_B = is_constant(counted_BK, groups).all(1)
    found = {
        "groups": float(groups.total),
        "constant_groups": float(len(torch.unique(groups.index_B[is_flat_B]))),
    }
    if len(values_B):
        found["useful_groups"] = len(torch.unique(groups.index_B[signal_B])) / groups.total
        found["kept"] = keep_B.double().mean().item()
    if keep_B.any():
        found["advantage_abs"] = values_B[keep_B].abs().mean().item()
    for position, name in enumerate(batch.titles):
        values = batch.rewards_BK[:, position]
        present = values[~values.isnan()]
        if len(values):
            found[f"reward/{name}/missing"] = 1 - len(present) / len(values)
        if len(present):
            found[f"reward/{name}/mean"] = present.mean().item()
        if len(present) > 1:
            found[f"reward/{name}/std"] = present.std().item()
    if len(batch.titles) > 1 and len(values_B):
        found |= agreement_metrics(batch.rewards_BK, batch.groups_B, batch.titles)
    return found


def _check_type(what: str, given: object, expected: type) -> None:
    if not isinstance(given, expected):
        raise refused(what, given, f"a {expected.__name__}")


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
