"""The policy loss on plain tensors: probability ratio, clip and aggregate in one call.

    policy_loss(logp, old_logp, advantages, mask)["loss"].backward()

The ratio says how much more likely the new policy makes what the old one wrote. `token` compares
token by token (PPO, arXiv 1707.06347). `sequence` takes the geometric mean of a response's ratios
(GSPO, arXiv 2507.18071). `sequence_token` has the same value, and each token keeps its own gradient,
for advantages that differ between tokens (GSPO-token). For a negative advantage the plain clip
leaves the loss unbounded as the ratio grows; the dual clip (arXiv 1912.09729) stops it at `-c A`.
`loss(recipe, batch)` does the same with the settings of a recipe and adds its auxiliary terms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from burnish.arguments import as_number, as_word, plain_number, refused
from burnish.errors import ArgumentError
from burnish.policy.aggregate import AGGREGATIONS, aggregate_loss
from burnish.policy.base import Component
from burnish.policy.trust_region import bucket_sums
from burnish.tensors import (
    as_finite,
    as_float64,
    as_logp,
    check_broadcast,
    check_finite,
    check_shape,
    check_tensor,
    torch,
)

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.policy.batch import Normaliser
    from burnish.tensors import Numbers

RATIO_LEVELS = ("token", "sequence", "sequence_token")

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped here: exp of more overflows float32 and turns clipped tokens into NaN."""


def policy_loss(
    logp: Numbers,
    old_logp: Numbers,
    advantages: Numbers,
    mask: Numbers,
    ratio_level: str = "token",
    clip_low: Numbers = 0.2,
    clip_high: Numbers = 0.2,
    dual_clip: float | None = None,
    aggregation: str = "token-mean",
    *,
    keep: Numbers | None = None,
    normaliser: Normaliser | None = None,
    max_tokens: int | None = None,
    keep_denominator: bool = False,
    buckets: Numbers | None = None,
) -> dict[str, Tensor]:
    """The clipped policy loss and what a person wants to see beside it, all 0-d tensors.

    `logp`, `old_logp`, `mask`: (B, T); `advantages`: (B,) or (B, T); clip bounds: a number, (B,) or (B, T);
    `keep`: (B,), rollouts to train on. Only `loss` carries a gradient, and only to `logp`. The
    others are taken over the trained tokens: `clip_fraction`, `clip_low_fraction`,
    `clip_high_fraction`, `dual_clip_fraction`, `ratio_mean`, `ratio_max` and `approx_kl`, the k3
    estimate of how far the policy has moved since it sampled. With `buckets`, (B,), the pass-rate
    bucket of each rollout's group, there is `clipped_by_bucket` too: (2, P), clipped tokens and all.
    Trained tokens with a NaN, a NaN in a mask and bounds below 0 are refused; what
    stands on tokens that are not trained never matters.
    """
    inputs = _read(logp, old_logp, advantages, mask, keep)
    _check_values(inputs, mask, keep)
    for bound, what in ((clip_low, "clip_low"), (clip_high, "clip_high")):
        is_fine = _bound(bound, inputs, what) >= 0
        if not is_fine.all():
            raise refused(what, bound, "at least 0")
    return clipped_policy_loss(
        logp,
        old_logp,
        advantages,
        mask,
        ratio_level,
        clip_low,
        clip_high,
        dual_clip,
        aggregation,
        keep=keep,
        normaliser=normaliser,
        max_tokens=max_tokens,
        keep_denominator=keep_denominator,
        buckets=buckets,
    )


def clipped_policy_loss(
    logp: Numbers,
    old_logp: Numbers,
    advantages: Numbers,
    mask: Numbers,
    ratio_level: str,
    clip_low: Numbers,
    clip_high: Numbers,
    dual_clip: float | None,
    aggregation: str,
    *,
    keep: Numbers | None = None,
    normaliser: Normaliser | None = None,
    max_tokens: int | None = None,
    keep_denominator: bool = False,
    buckets: Numbers | None = None,
    token_weights: Tensor | None = None,
    surrogate: Callable[[SurrogateTerms], Surrogate] | None = None,
    marked: Tensor | None = None,
) -> dict[str, Tensor]:
    """`policy_loss` inside a training step: shapes and words are checked, values are not.

    Looking at a value would wait for the device; the guards of training look once, at the end.
    `surrogate` computes the token losses, the clipped ones where there is none; it is given the
    tokens that it `marked` in the whole mini-batch, (B, T) bool.
    """
    as_word("ratio_level", ratio_level, RATIO_LEVELS)
    as_word("aggregation", aggregation, AGGREGATIONS)
    inputs = _read(logp, old_logp, advantages, mask, keep)
    low_B1 = _bound(clip_low, inputs, "clip_low")
    high_B1 = _bound(clip_high, inputs, "clip_high")
    used_BT = inputs.mask_BT & inputs.keep_B[:, None]
    change_BT = log_ratio(inputs.logp_BT, inputs.old_logp_BT, used_BT, ratio_level)
    given = (change_BT, inputs.logp_BT, inputs.advantages_BT, low_B1, high_B1)
    terms = SurrogateTerms(*given, used_BT, marked, dual_clip)
    cut = (surrogate or Clipped().token_losses)(terms)
    loss_BT = cut.loss_BT
    if token_weights is not None:
        loss_BT = loss_BT * token_weights.detach().to(loss_BT)
    total = aggregate_loss(
        loss_BT,
        inputs.mask_BT,
        aggregation,
        keep_B=inputs.keep_B,
        normaliser=normaliser,
        max_tokens=max_tokens,
        keep_denominator=keep_denominator,
    )
    change_BT = change_BT.detach()
    ratio_BT = change_BT.exp()
    is_low_BT = cut.is_clipped_BT & (ratio_BT < 1)

    def share(values_BT: Tensor) -> Tensor:
        return aggregate_loss(values_BT.to(ratio_BT), used_BT, "token-mean")

    found = {
        "loss": total,
        "clip_fraction": share(cut.is_clipped_BT),
        "clip_low_fraction": share(is_low_BT),
        "clip_high_fraction": share(cut.is_clipped_BT & ~is_low_BT),
        "dual_clip_fraction": share(cut.is_dual_clipped_BT),
        "ratio_mean": share(ratio_BT),
        "ratio_max": ratio_BT.masked_fill(~used_BT, 0.0).amax()
        if ratio_BT.numel()
        else ratio_BT.new_zeros(()),
        "approx_kl": share(torch.expm1(change_BT) - change_BT),
    }
    if buckets is not None:
        buckets_B = _buckets(buckets, inputs)
        found["clipped_by_bucket"] = bucket_sums(cut.is_clipped_BT, used_BT, buckets_B)
    return found


def policy_loss_gradient(
    logp: Numbers,
    old_logp: Numbers,
    advantages: Numbers,
    mask: Numbers,
    ratio_level: str = "token",
    clip_low: Numbers = 0.2,
    clip_high: Numbers = 0.2,
    dual_clip: float | None = None,
    aggregation: str = "token-mean",
    **more: Any,
) -> Tensor:
    """`d loss / d logp`, (B, T); takes what `policy_loss` takes."""
    with torch.enable_grad():
        leaf_BT = as_logp(logp, "logp").detach().clone().requires_grad_(True)
        result = policy_loss(
            leaf_BT,
            old_logp,
            advantages,
            mask,
            ratio_level,
            clip_low,
            clip_high,
            dual_clip,
            aggregation,
            **more,
        )
        (gradient_BT,) = torch.autograd.grad(result["loss"], leaf_BT)
    return gradient_BT


def log_ratio(logp_BT: Tensor, old_logp_BT: Tensor, mask_BT: Tensor, level: str) -> Tensor:
    """The log-ratio of each token, (B, T); 0 with no gradient where the mask is 0."""
    as_word("ratio_level", level, RATIO_LEVELS)
    check_tensor(logp_BT, "logp_BT", "(B, T)", 2)
    for values, what in ((old_logp_BT, "old_logp_BT"), (mask_BT, "mask_BT")):
        check_tensor(values, what, "(B, T)")
        check_shape(values, what, tuple(logp_BT.shape))
    is_out_BT = ~mask_BT.bool()
    change_BT = (logp_BT - old_logp_BT).masked_fill(is_out_BT, 0.0)
    if level == "token":
        return change_BT.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    tokens_B1 = (~is_out_BT).sum(1, keepdim=True).clamp(min=1)
    mean_B1 = change_BT.sum(1, keepdim=True) / tokens_B1
    if level == "sequence":
        spread_BT = mean_B1.expand_as(change_BT)
    else:
        spread_BT = mean_B1.detach() + (change_BT - change_BT.detach())
    return spread_BT.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).masked_fill(is_out_BT, 0.0)


class SurrogateTerms(NamedTuple):
    """What a surrogate computes token losses from; each is (B, T) or broadcasts to it."""

    change_BT: Tensor
    """Log-ratio to the policy that sampled, with its gradient; 0 on tokens that are not trained."""
    logp_BT: Tensor
    """May hold anything on tokens that are not trained."""
    advantages_BT: Tensor
    low_BT: Tensor
    """Clip bounds of the trust region, below 1 and above."""
    high_BT: Tensor
    used_BT: Tensor
    """True for the trained tokens of kept rollouts."""
    marked_BT: Tensor | None
    """Tokens that the surrogate itself marked in the whole mini-batch; None where it marks none."""
    dual_clip: float | None


class Surrogate(NamedTuple):
    """Token losses and where they were cut off, each (B, T)."""

    loss_BT: Tensor
    is_clipped_BT: Tensor
    """The ratio left its interval on the side that would lower the loss: no gradient."""
    is_dual_clipped_BT: Tensor
    """The advantage is negative and the ratio is above c: no gradient."""


class Clipped(Component, frozen=True, tag="clipped"):
    """The ratio times the advantage, clipped to the trust region (PPO)."""

    def token_losses(self, terms: SurrogateTerms) -> Surrogate:
        """Clipped loss of each token."""
        bounds = terms.low_BT, terms.high_BT
        return clipped_surrogate(
            terms.change_BT.exp(), terms.advantages_BT, *bounds, terms.dual_clip
        )


def clipped_surrogate(
    ratio_BT: Tensor,
    advantages_BT: Tensor,
    low_BT: Tensor,
    high_BT: Tensor,
    dual_clip: float | None = None,
) -> Surrogate:
    """`-min(r A, clip(r, 1 - low, 1 + high) A)`; with `dual_clip` c also at most `-c A` for A < 0.

    A `dual_clip` of 0 or None is off. All tensors broadcast to (B, T).
    """
    check_broadcast(ratio_BT=ratio_BT, advantages_BT=advantages_BT, low_BT=low_BT, high_BT=high_BT)
    is_dual = dual_clip is not None and plain_number(dual_clip) != 0
    if is_dual:
        dual_clip = as_number("dual_clip", dual_clip, above=1)
    free_BT = ratio_BT * advantages_BT
    held_BT = torch.clamp(ratio_BT, 1 - low_BT, 1 + high_BT) * advantages_BT
    loss_BT = -torch.minimum(free_BT, held_BT)
    is_clipped_BT = held_BT < free_BT
    is_dual_BT = torch.zeros_like(is_clipped_BT)
    if is_dual and dual_clip is not None:
        ceiling_BT = (-dual_clip * advantages_BT).expand_as(loss_BT)
        is_dual_BT = (advantages_BT < 0) & (loss_BT > ceiling_BT)
        loss_BT = torch.where(is_dual_BT, ceiling_BT, loss_BT)
    return Surrogate(loss_BT, is_clipped_BT, is_dual_BT)


class _Inputs(NamedTuple):
    logp_BT: Tensor
    old_logp_BT: Tensor
    advantages_BT: Tensor
    mask_BT: Tensor
    keep_B: Tensor


def _read(
    logp: Numbers, old_logp: Numbers, advantages: Numbers, mask: Numbers, keep: Numbers | None
) -> _Inputs:
    logp_BT = as_logp(logp, "logp")
    check_tensor(logp_BT, "logp", "(B, T)", 2)

    def like(values: Numbers, what: str, *shapes: tuple[int, ...]) -> Tensor:
        read = values.detach() if isinstance(values, torch.Tensor) else as_float64(values, what)
        check_shape(read, what, *shapes)
        return read.to(logp_BT)

    full, rows = tuple(logp_BT.shape), (len(logp_BT),)
    advantages_BT = like(advantages, "advantages", rows, full)
    return _Inputs(
        logp_BT=logp_BT,
        old_logp_BT=like(old_logp, "old_logp", full),
        advantages_BT=advantages_BT if advantages_BT.ndim == 2 else advantages_BT[:, None],
        mask_BT=like(mask, "mask", full).bool(),
        keep_B=logp_BT.new_ones(rows).bool() if keep is None else like(keep, "keep", rows).bool(),
    )


def _check_values(inputs: _Inputs, mask: Numbers, keep: Numbers | None) -> None:
    """Refuse numbers that would make the loss wrong or NaN; those of untrained tokens are let be."""
    as_finite(mask, "mask")
    if keep is not None:
        as_finite(keep, "keep")
    used_BT = inputs.mask_BT & inputs.keep_B[:, None]
    check_finite(inputs.logp_BT, "logp", used_BT)
    check_finite(inputs.old_logp_BT, "old_logp", used_BT)
    check_finite(inputs.advantages_BT.expand_as(used_BT), "advantages", used_BT)


def _buckets(buckets: Numbers, inputs: _Inputs) -> Tensor:
    read = buckets.detach() if isinstance(buckets, torch.Tensor) else as_float64(buckets, "buckets")
    check_shape(read, "buckets", tuple(inputs.keep_B.shape))
    return read.to(inputs.keep_B.device)


def _bound(bound: Numbers, inputs: _Inputs, what: str) -> Tensor:
    """A clip bound as a column (B, 1), (1, 1) for a number, or (B, T); never a source of gradient."""
    # Numbers become tensors of the log-probs' type first, so that a bound of (B,) equal numbers
    # clips bit for bit like the number.
    read = bound.detach() if isinstance(bound, torch.Tensor) else as_float64(bound, what)
    is_by_token = read.shape == inputs.logp_BT.shape
    if not is_by_token and (read.ndim > 1 or read.numel() not in (1, len(inputs.logp_BT))):
        raise ArgumentError(
            f"{what}: got shape {tuple(read.shape)}, expected a number, "
            f"({len(inputs.logp_BT)},) or {tuple(inputs.logp_BT.shape)}"
        )
    read = read.to(inputs.logp_BT)
    return read if is_by_token else read.reshape(-1, 1)
