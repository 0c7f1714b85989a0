"""The loss of one micro-batch under a recipe.

loss(recipe, batch).total.backward()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from burnish.arguments import refused
from burnish.policy.aggregate import aggregate_loss
from burnish.policy.batch import Loss, LossBatch
from burnish.policy.objective import clipped_policy_loss
from burnish.policy.recipe import Recipe

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.policy.correction import CorrectionWeights


def loss(recipe: Recipe, batch: LossBatch) -> Loss:
    """Ratio, clip, correction, aggregate and auxiliary terms of a recipe on one micro-batch.

    Micro-batches that share a normaliser add up. No value is read: that would wait for the device.
    """
    if not isinstance(recipe, Recipe):
        raise refused("recipe", recipe, "a Recipe")
    if not isinstance(batch, LossBatch):
        raise refused("batch", batch, "a LossBatch")
    aggregate = recipe.aggregate
    correction = recipe.correction.token_weights(batch)
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
        token_weights=None if correction is None else correction.weights_BT,
    )
    total = core["loss"]
    parts = {"surrogate": total.detach()}
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
    )


def _describe(correction: CorrectionWeights, batch: LossBatch) -> dict[str, Tensor]:
    used_BT = batch.mask_BT.bool() & batch.keep_B.bool()[:, None]
    return {
        "weight": aggregate_loss(correction.weights_BT, used_BT, "token-mean"),
        "cut_share": aggregate_loss(
            correction.is_cut_BT.to(correction.weights_BT), used_BT, "token-mean"
        ),
    }
