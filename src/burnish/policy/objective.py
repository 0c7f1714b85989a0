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
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from msgspec import Meta

from burnish.boundary import INFINITE, UNREAD, PositiveInt, public
from burnish.errors import ArgumentError
from burnish.policy.aggregate import Aggregation, aggregate_loss
from burnish.policy.base import Component
from burnish.policy.trust_region import bucket_sums
from burnish.tensors import LARGEST, check_finite, torch

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from burnish.policy.batch import Normaliser

    # Values count where they are trained alone, which the functions look at themselves.
    Logp = Annotated[Float[Tensor, "B T"], UNREAD]
    Advantages = Annotated[Float[Tensor, " B"] | Float[Tensor, "B T"], UNREAD]
    TokenMask = Bool[Tensor, "B T"]
    Bound = Annotated[Float[Tensor, " B"] | Float[Tensor, "B T"], Meta(ge=0, le=LARGEST)]
    Terms = Float[Tensor, "#B #T"]

RatioLevel = Literal["token", "sequence", "sequence_token"]
Width = Annotated[float, Meta(ge=0.0), INFINITE]
DualClip = Annotated[float, Meta(ge=0.0, le=LARGEST)]
"""0 is off, else above 1."""

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped here: exp of more overflows float32 and turns clipped tokens into NaN."""


@public
def policy_loss(
    logp: Logp,
    old_logp: Logp,
    advantages: Advantages,
    mask: TokenMask,
    ratio_level: RatioLevel = "token",
    clip_low: Width | Bound = 0.2,
    clip_high: Width | Bound = 0.2,
    dual_clip: DualClip | None = None,
    aggregation: Aggregation = "token-mean",
    *,
    keep: Bool[Tensor, " B"] | None = None,
    normaliser: Normaliser | None = None,
    max_tokens: PositiveInt | None = None,
    keep_denominator: bool = False,
    buckets: Int[Tensor, " B"] | None = None,
) -> dict[str, Tensor]:
    """The clipped policy loss and what a person wants to see beside it, all 0-d tensors.

    `logp`, `old_logp`, `mask`: (B, T); `advantages`: (B,) or (B, T); clip bounds: a number, (B,) or (B, T);
    `keep`: (B,), rollouts to train on. Only `loss` carries a gradient, and only to `logp`. The
    others are taken over the trained tokens: `clip_fraction`, `clip_low_fraction`,
    `clip_high_fraction`, `dual_clip_fraction`, `ratio_mean`, `ratio_max` and `approx_kl`, the k3
    estimate of how far the policy has moved since it sampled. With `buckets`, (B,), the pass-rate
    bucket of each rollout's group, there is `clipped_by_bucket` too: (2, P), clipped tokens and all.
    Trained tokens with a NaN are refused; what stands on tokens that are not trained never matters.
    """
    if dual_clip and dual_clip <= 1:
        raise ArgumentError(f"dual_clip: got {dual_clip}, expected above 1, or 0 for none")
    used_BT = mask if keep is None else mask & keep[:, None]
    by_token = advantages if advantages.ndim == 2 else advantages[:, None]
    check_finite(logp, "logp", used_BT)
    check_finite(old_logp, "old_logp", used_BT)
    check_finite(by_token.expand_as(used_BT), "advantages", used_BT)
    return clipped_policy_loss(
        *(logp, old_logp, advantages, mask, ratio_level, clip_low, clip_high),
        dual_clip,
        aggregation,
        keep=keep,
        normaliser=normaliser,
        max_tokens=max_tokens,
        keep_denominator=keep_denominator,
        buckets=buckets,
    )


def clipped_policy_loss(
    logp_BT: Tensor,
    old_logp: Tensor,
    advantages: Tensor,
    mask_BT: Tensor,
    ratio_level: RatioLevel,
    clip_low: Tensor | float,
    clip_high: Tensor | float,
    dual_clip: float | None,
    aggregation: Aggregation,
    *,
    keep: Tensor | None = None,
    normaliser: Normaliser | None = None,
    max_tokens: int | None = None,
    keep_denominator: bool = False,
    buckets: Tensor | None = None,
    token_weights: Tensor | None = None,
    surrogate: Callable[[SurrogateTerms], Surrogate] | None = None,
    marked: Tensor | None = None,
) -> dict[str, Tensor]:
    """`policy_loss` inside a training step.

    No value is read, which would wait for the device; the guards of training look once, at the end.
    `surrogate` computes the token losses, the clipped ones where there is none; it is given the
    tokens that it `marked` in the whole mini-batch, (B, T) bool.
    """
    # Half precision would lose the ratio.
    logp_BT = logp_BT if logp_BT.dtype in (torch.float32, torch.float64) else logp_BT.float()
    mask_BT = mask_BT.bool()
    keep_B = torch.ones_like(mask_BT[:, 0]) if keep is None else keep.bool()
    used_BT = mask_BT & keep_B[:, None]

    def column(values: Tensor | float) -> Tensor:
        """What broadcasts to (B, T), in the type of the log-probs: a bound of (B,) equal numbers so
        clips bit for bit like one."""
        read = torch.as_tensor(values, dtype=torch.float64) if isinstance(values, float) else values
        read = read.detach().to(logp_BT)
        return read if read.ndim == 2 else read.reshape(-1, 1)

    advantages_BT, low_BT, high_BT = column(advantages), column(clip_low), column(clip_high)
    change_BT = log_ratio.plain(logp_BT, old_logp.detach().to(logp_BT), used_BT, ratio_level)
    given = (change_BT, logp_BT, advantages_BT, low_BT, high_BT)
    terms = SurrogateTerms(*given, used_BT, marked, dual_clip)
    cut = (surrogate or Clipped().token_losses)(terms)
    loss_BT = cut.loss_BT
    if token_weights is not None:
        loss_BT = loss_BT * token_weights.detach().to(loss_BT)
    total = aggregate_loss.plain(
        loss_BT,
        mask_BT,
        aggregation,
        keep_B=keep_B,
        normaliser=normaliser,
        max_tokens=max_tokens,
        keep_denominator=keep_denominator,
    )
    change_BT = change_BT.detach()
    ratio_BT = change_BT.exp()
    is_low_BT = cut.is_clipped_BT & (ratio_BT < 1)

    def share(values_BT: Tensor) -> Tensor:
        return aggregate_loss.plain(values_BT.to(ratio_BT), used_BT, "token-mean")

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
        buckets_B = buckets.detach().to(logp_BT.device)
        found["clipped_by_bucket"] = bucket_sums.plain(cut.is_clipped_BT, used_BT, buckets_B)
    return found


@public
def policy_loss_gradient(
    logp: Logp,
    old_logp: Logp,
    advantages: Advantages,
    mask: TokenMask,
    ratio_level: RatioLevel = "token",
    clip_low: Width | Bound = 0.2,
    clip_high: Width | Bound = 0.2,
    dual_clip: DualClip | None = None,
    aggregation: Aggregation = "token-mean",
    **more: object,
) -> Tensor:
    """`d loss / d logp`, (B, T); takes what `policy_loss` takes."""
    with torch.enable_grad():
        leaf_BT = logp.detach().clone().requires_grad_(True)
        given = (ratio_level, clip_low, clip_high, dual_clip, aggregation)
        result = policy_loss(leaf_BT, old_logp, advantages, mask, *given, **more)  # type: ignore[arg-type]
        (gradient_BT,) = torch.autograd.grad(result["loss"], leaf_BT)
    return gradient_BT


@public
def log_ratio(logp_BT: Logp, old_logp_BT: Logp, mask_BT: TokenMask, level: RatioLevel) -> Tensor:
    """The log-ratio of each token, (B, T); 0 with no gradient where the mask is 0."""
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
        bounds = terms.low_BT, terms.high_BT
        return clipped_surrogate.plain(
            terms.change_BT.exp(), terms.advantages_BT, *bounds, terms.dual_clip
        )


@public
def clipped_surrogate(
    ratio_BT: Terms,
    advantages_BT: Terms,
    low_BT: Terms,
    high_BT: Terms,
    dual_clip: DualClip | None = None,
) -> Surrogate:
    """`-min(r A, clip(r, 1 - low, 1 + high) A)`; with `dual_clip` c also at most `-c A` for A < 0.

    A `dual_clip` of 0 or None is off. All tensors broadcast to (B, T).
    """
    if dual_clip and dual_clip <= 1:
        raise ArgumentError(f"dual_clip: got {dual_clip}, expected above 1, or 0 for none")
    free_BT = ratio_BT * advantages_BT
    held_BT = torch.clamp(ratio_BT, 1 - low_BT, 1 + high_BT) * advantages_BT
    loss_BT = -torch.minimum(free_BT, held_BT)
    is_clipped_BT = held_BT < free_BT
    is_dual_BT = torch.zeros_like(is_clipped_BT)
    if dual_clip:
        ceiling_BT = (-dual_clip * advantages_BT).expand_as(loss_BT)
        is_dual_BT = (advantages_BT < 0) & (loss_BT > ceiling_BT)
        loss_BT = torch.where(is_dual_BT, ceiling_BT, loss_BT)
    return Surrogate(loss_BT, is_clipped_BT, is_dual_BT)
