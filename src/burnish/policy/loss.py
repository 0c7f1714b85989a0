"""The loss of one micro-batch under a recipe.

loss(recipe, batch).total.backward()
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from burnish.arguments import refused
from burnish.policy.aggregate import aggregate_loss
from burnish.policy.batch import Loss, LossBatch
from burnish.policy.objective import clipped_policy_loss
from burnish.policy.recipe import Recipe
from burnish.policy.tokens import batch_marks

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.policy.correction import CorrectionWeights


def loss(recipe: Recipe, batch: LossBatch) -> Loss:
    """Ratio, clip, correction, aggregate, critic and auxiliary terms of a recipe on one micro-batch.

    Micro-batches that share a normaliser add up. No value is read: that would wait for the device.
    """
    if not isinstance(recipe, Recipe):
        raise refused("recipe", recipe, "a Recipe")
    if not isinstance(batch, LossBatch):
        raise refused("batch", batch, "a LossBatch")
    aggregate = recipe.aggregate
    correction = recipe.correction.token_weights(batch)
    marks = batch_marks(recipe.token_markers, batch) if batch.marks is None else batch.marks
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
        token_weights=_token_weights(correction, marks),
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
        correction={} if correction is None else _describe(correction, batch),
        marked={
            slot: _share(marked_BT.to(batch.logp_BT), batch) for slot, marked_BT in marks.items()
        },
    )


def _token_weights(
    correction: CorrectionWeights | None, marks: Mapping[str, Tensor]
) -> Tensor | None:
    """Factor of each token's loss, (B, T): the correction's weight, 0 for tokens left out."""
    if correction is None:
        return marks.get("tokens")
    weights_BT = correction.weights_BT
    return weights_BT * marks["tokens"] if "tokens" in marks else weights_BT


def _describe(correction: CorrectionWeights, batch: LossBatch) -> dict[str, Tensor]:
    weights_BT, is_cut_BT = correction
    return {
        "weight": _share(weights_BT, batch),
        "cut_share": _share(is_cut_BT.to(weights_BT), batch),
    }


def _share(values_BT: Tensor, batch: LossBatch) -> Tensor:
    """The mean over the trained tokens."""
    used_BT = batch.mask_BT.bool() & batch.keep_B.bool()[:, None]
    return aggregate_loss(values_BT.detach(), used_BT, "token-mean")
