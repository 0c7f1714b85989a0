"""A recipe at work: the advantages of a whole step, and the loss of one micro-batch.

    step = advantages(recipe, reward_batch, state)   # once a step, over all of its rollouts
    loss(recipe, loss_batch).total.backward()        # once a micro-batch

The rewards are shaped, weighted, turned into advantages, filtered, rescaled and given clip bounds,
each by the component that the recipe names. A group without reward differences gets exactly 0, a
missing reward is never a number, and a rollout without any is not kept. The state of the components
goes in as `state` and comes out as `step.state`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

from burnish.arguments import same_length
from burnish.boundary import check_fields, public
from burnish.errors import UserError
from burnish.policy.aggregate import aggregate_loss
from burnish.policy.base import Shaped
from burnish.policy.batch import Advantages, Loss, LossBatch, RewardBatch
from burnish.policy.dapo import InformativeGroups, informative_groups
from burnish.policy.elastic import Elastic
from burnish.policy.groups import (
    CONSTANT_RANGE,
    as_groups,
    columns,
    group_sum,
    is_constant,
    per_reward_advantages,
)
from burnish.policy.objective import clipped_policy_loss
from burnish.policy.recipe import Recipe, token_credit_conflict
from burnish.policy.state import PolicyState
from burnish.policy.stepwise import credited_tokens
from burnish.policy.tokens import batch_marks
from burnish.policy.trust_region import describe_bounds, group_buckets
from burnish.tensors import torch

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.policy.batch import Estimate
    from burnish.policy.groups import GroupLabels, Groups, Rewards


@public
def advantages(recipe: Recipe, batch: RewardBatch, state: PolicyState | None = None) -> Advantages:
    """Advantages, selection and clip bounds of a whole step."""
    batch = given = check_fields(replace(batch))
    same_length("names", batch.titles, batch.rewards_BK.shape[1], "rewards")
    if not (batch.weights_K != 0).any():
        raise UserError(
            f"every reward ({', '.join(batch.titles)}) has weight 0; expected at least one other "
            "weight, or nothing can be learnt."
        )
    shaped = Shaped(given.rewards_BK, state or PolicyState())
    for component in recipe.shaping:
        shaped = component.shape(shaped, given)
    weighted = recipe.weights.reward_weights(shaped.rewards_BK, given, shaped.state)
    rewards_BK = shaped.rewards_BK
    if recipe.calibration is not None:
        # In deviations of a reference a missing reward is 0, its mean; all missing stay so.
        has_any_B1 = (~rewards_BK.isnan() & (given.weights_K != 0)).any(1, keepdim=True)
        rewards_BK = torch.where(rewards_BK.isnan() & has_any_B1, 0.0, rewards_BK)
    seen = replace(given, rewards_BK=rewards_BK, weights_K=weighted.weights_K)
    estimate = _estimate(recipe, seen)
    if estimate.values_B.ndim == 2 and (why := token_credit_conflict(recipe, "this function")):
        raise UserError(f"policy.{why}.")
    signal_B = _signal(estimate.values_B, batch)
    if recipe.shaping and isinstance(recipe.select, InformativeGroups):
        signal_B = signal_B & informative.plain(recipe, given)
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
    # Tokens that enter the loss, where there is an advantage for each.
    counted_BT = given.has_token(values_B.shape[1]) if values_B.ndim == 2 else None
    if recipe.stepwise and given.segments_BT is not None:
        counted_BT = credited_tokens.plain(given.segments_BT, given.has_token_BT)
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
        counted_BT=counted_BT,
        moves=shaped.moves,
        buckets_B=buckets_B,
        critic=estimate.critic,
    )


@public
def informative(recipe: Recipe, batch: RewardBatch) -> Tensor:
    """True for rollouts of groups with a signal in their rewards as given, (B,).

    A group whose answers are all wrong has none, however their lengths differ. Reads rewards and
    groups alone, so that a step can be filled up before anything else is known of it.
    """
    if recipe.stepwise:
        counts_K = batch.weights_K != 0
        per_reward_BK = per_reward_advantages.plain(batch.rewards_BK[:, counts_K], batch.groups_B)
        return informative_groups.plain(per_reward_BK.abs().amax(1), batch.groups_B)
    return _signal(_estimate(recipe, batch).values_B, batch)


def _estimate(recipe: Recipe, batch: RewardBatch) -> Estimate:
    weights_K = batch.weights_K.to(batch.rewards_BK)
    # A reward of weight 0 is ignored by every advantage rule, its missing values included.
    rewards_BK = batch.rewards_BK.masked_fill(weights_K == 0, 0.0)
    return recipe.advantage.estimate(replace(batch, rewards_BK=rewards_BK, weights_K=weights_K))


def _signal(values_B: Tensor, batch: RewardBatch) -> Tensor:
    """True for rollouts of groups in which some advantage is not 0, (B,)."""
    largest_B = values_B.abs().amax(1) if values_B.ndim == 2 else values_B
    return informative_groups.plain(largest_B, batch.groups_B)


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
    groups = as_groups(batch.groups_B)
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


class Agreement(NamedTuple):
    correlation: Tensor
    """(K, K), NaN where one of the two does not vary inside the groups."""
    conflict: Tensor
    """(K, K), NaN where no pair of answers is told apart by both."""


@public
def reward_agreement(rewards: Rewards, groups: GroupLabels) -> Agreement:
    """Correlation and conflict of every two rewards within groups: (B, K) -> (K, K) each.

    Both are about answers to the same prompt, because only those are compared in training.
    Correlation is Pearson's, of the deviations from the group's mean. Conflict is the share of pairs
    of answers that two rewards put in opposite order, among the pairs that both of them tell apart: 0
    where they always agree, 0.5 where one knows nothing of the other. A rollout counts for two
    rewards where it has both; a missing reward is NaN.
    """
    rewards_BK, numbered = columns(rewards), as_groups(groups)
    size = rewards_BK.shape[1]
    correlation_KK = rewards_BK.new_full((size, size), torch.nan)
    for first, second in combinations(range(size), 2):
        value = _correlation(rewards_BK[:, [first, second]], numbered)
        correlation_KK[first, second] = correlation_KK[second, first] = value
    return Agreement(correlation_KK, _conflict(rewards_BK, numbered))


def agreement_metrics(rewards: Tensor, groups: Tensor, names: Sequence[str]) -> dict[str, float]:
    """`reward/corr/a~b` and `reward/conflict/a~b` of every two rewards; unknown ones are left out."""
    found = reward_agreement.plain(rewards, groups)
    metrics: dict[str, float] = {}
    for first, second in combinations(range(len(names)), 2):
        pair = f"{names[first]}~{names[second]}"
        for kind, table in (("corr", found.correlation), ("conflict", found.conflict)):
            value = table[first, second].item()
            if value == value:
                metrics[f"reward/{kind}/{pair}"] = value
    return metrics


def _correlation(values_B2: Tensor, groups: Groups) -> float:
    """Of the deviations of two rewards from their group's mean; NaN where one has none."""
    present_B1 = (~values_B2.isnan().any(1, keepdim=True)).to(values_B2)
    values_B2 = torch.where(present_B1.bool(), values_B2, torch.nan)
    flat_B2 = is_constant(values_B2, groups)
    filled_B2 = values_B2.nan_to_num(nan=0.0)
    counts_B1 = group_sum(present_B1, groups).clamp(min=1.0)
    means_B2 = group_sum(filled_B2, groups) / counts_B1
    # A group without differences is found by range, so that rounding is no deviation.
    centred_B2 = ((filled_B2 - means_B2) * present_B1).masked_fill(flat_B2, 0.0)
    # Scaled before they are squared: a reward of size 1e200 has a correlation too.
    scale_2 = centred_B2.abs().amax(0) if len(centred_B2) else centred_B2.new_zeros(2)
    if not (scale_2 > 0).all():
        return float("nan")
    unit_B2 = centred_B2 / scale_2
    spread = (unit_B2**2).sum(0).prod().sqrt()
    return (unit_B2.prod(1).sum() / spread).clamp(-1.0, 1.0).item()


def _conflict(rewards_BK: Tensor, groups: Groups) -> Tensor:
    size = rewards_BK.shape[1]
    opposite_KK, both_KK = rewards_BK.new_zeros(size, size), rewards_BK.new_zeros(size, size)
    for number in range(groups.total):
        own_GK = rewards_BK[groups.index_B == number]
        # 1, 0 or -1 for each ordered pair of answers; a missing value tells nothing.
        apart_GGK = (own_GK[:, None] - own_GK[None, :]).nan_to_num(nan=0.0)
        rounding_K = CONSTANT_RANGE * own_GK.nan_to_num(nan=0.0).abs().amax(0).clamp(min=1.0)
        signs_GGK = apart_GGK.sign() * (apart_GGK.abs() > rounding_K)
        flat_PK = signs_GGK.reshape(-1, size)
        together_KK = flat_PK.T @ flat_PK
        told_KK = flat_PK.abs().T @ flat_PK.abs()
        both_KK += told_KK
        opposite_KK += (told_KK - together_KK) / 2
    return torch.where(both_KK > 0, opposite_KK / both_KK.clamp(min=1.0), torch.nan)


@public
def loss(recipe: Recipe, batch: LossBatch) -> Loss:
    """Ratio, clip, correction, aggregate, critic and auxiliary terms of a recipe on one micro-batch.

    Micro-batches that share a normaliser add up. No value is read: that would wait for the device.
    """
    aggregate = recipe.aggregate
    correction = recipe.correction.token_weights(batch)
    marks = batch_marks(recipe.token_markers, batch) if batch.marks is None else batch.marks
    # Factor of each token's loss: the correction's weight, 0 for tokens left out.
    token_weights = marks.get("tokens")
    shares: dict[str, Tensor] = {}
    if correction is not None:
        weights_BT, is_cut_BT = correction
        token_weights = weights_BT * token_weights if token_weights is not None else weights_BT
        shares["weight"] = _share(weights_BT, batch)
        shares["cut_share"] = _share(is_cut_BT.to(weights_BT), batch)
    core = clipped_policy_loss(
        batch.logp_BT,
        batch.old_logp_BT,
        batch.advantages_B,
        batch.mask_BT,
        recipe.ratio,
        batch.low_B,
        batch.high_B,
        recipe.dual_clip or None,
        aggregate.mode,
        keep=batch.keep_B,
        normaliser=batch.normaliser,
        max_tokens=aggregate.length(batch),
        keep_denominator=aggregate.keep_denominator,
        buckets=batch.buckets_B,
        token_weights=token_weights,
        surrogate=recipe.surrogate.token_losses,
        marked=marks.get("surrogate"),
    )
    total = core["loss"]
    parts = {"surrogate": total.detach()}
    critic = recipe.critic.term(batch, aggregate)
    if critic is not None:
        total, parts["value"] = total + critic, critic.detach()
    for component in recipe.auxiliary:
        name, term = component.name, component.term(batch, recipe.aggregate, recipe.ratio)
        total = total + term
        parts[name] = parts[name] + term.detach() if name in parts else term.detach()
    return Loss(
        total=total,
        parts=parts,
        clipped_share=core["clip_fraction"],
        ratio_max=core["ratio_max"],
        clipped_by_bucket_2P=core.get("clipped_by_bucket"),
        correction=shares,
        marked={
            slot: _share(marked_BT.to(batch.logp_BT), batch) for slot, marked_BT in marks.items()
        },
    )


def _share(values_BT: Tensor, batch: LossBatch) -> Tensor:
    used_BT = batch.mask_BT.bool() & batch.keep_B.bool()[:, None]
    return aggregate_loss.plain(values_BT.detach(), used_BT, "token-mean")
