"""Correction: importance weights for rollouts that another policy sampled.

The sampler may be stale, remote or quantised: then the tokens come from `q`, not from the policy `p`
whose log-probs the trainer computes before its first update. Each token's loss is multiplied by a
detached estimate of `p / q`: `truncated` is `min(r, cap)` (TIS, as in verl and TRL), `masked` is `r`
where `low <= r <= high`, else 0 (IcePop, arXiv 2510.18855).

`level = "token"` takes `r` token by token: low variance, but the bias of the states that the tokens
before them led to stays. `level = "sequence"` takes the product over the trained tokens of a
response: unbiased before the cut, with a variance that grows with length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from msgspec import Meta

from burnish.boundary import UNREAD, Positive, Share, public
from burnish.policy.base import Component
from burnish.policy.batch import needed
from burnish.policy.objective import MAX_LOG_RATIO
from burnish.tensors import LARGEST, check_finite

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

    from burnish.policy.batch import LossBatch

    Logp = Annotated[Float[Tensor, "B T"], UNREAD]

Level = Literal["token", "sequence"]
AtLeastOne = Annotated[float, Meta(ge=1.0, le=LARGEST)]


class CorrectionWeights(NamedTuple):
    """Factor of each token's loss, and where it is not the ratio itself; each (B, T)."""

    weights_BT: Tensor
    """0 where a token is not trained; no gradient."""
    is_cut_BT: Tensor
    """True where the ratio was truncated or masked."""


class NoCorrection(Component, frozen=True, tag="none"):
    """Rollouts count as sampled by the policy itself."""

    def token_weights(self, batch: LossBatch) -> CorrectionWeights | None:
        return None


class TruncatedImportance(Component, frozen=True, tag="truncated"):
    """Importance weights `p / q`, at most `cap` (truncated importance sampling)."""

    level: Level = "token"
    """One weight a token, or one an answer."""
    cap: Positive = 2.0
    """Greatest weight."""

    def token_weights(self, batch: LossBatch) -> CorrectionWeights | None:
        ratio_BT, used_BT = _batch_ratio(batch, self.level)
        return _truncate(ratio_BT, used_BT, self.cap)


class MaskedImportance(Component, frozen=True, tag="masked"):
    """Importance weights `p / q`; tokens outside `low .. high` teach nothing (IcePop)."""

    level: Level = "token"
    """One weight a token, or one an answer."""
    low: Share = 0.5
    """Least weight that still teaches."""
    high: AtLeastOne = 5.0
    """Greatest weight that still teaches."""

    def token_weights(self, batch: LossBatch) -> CorrectionWeights | None:
        ratio_BT, used_BT = _batch_ratio(batch, self.level)
        return _mask(ratio_BT, used_BT, self.low, self.high)


@public
def truncated_importance(
    logp: Logp,
    sampler_logp: Logp,
    mask: Bool[Tensor, "B T"],
    level: Level = "token",
    cap: Positive = 2.0,
) -> CorrectionWeights:
    """`min(exp(logp - sampler_logp), cap)` of each trained token: (B, T) three times -> (B, T).

    `logp` are the trainer's log-probs before its first update. With level `sequence` the ratio is
    that of the whole response, the same for all of its tokens.
    """
    return _truncate(_checked_ratio(logp, sampler_logp, mask, level), mask, cap)


@public
def masked_importance(
    logp: Logp,
    sampler_logp: Logp,
    mask: Bool[Tensor, "B T"],
    level: Level = "token",
    low: Share = 0.5,
    high: AtLeastOne = 5.0,
) -> CorrectionWeights:
    """`r = exp(logp - sampler_logp)` where `low <= r <= high`, else 0: (B, T) three times -> (B, T)."""
    return _mask(_checked_ratio(logp, sampler_logp, mask, level), mask, low, high)


def _truncate(ratio_BT: Tensor, used_BT: Tensor, cap: float) -> CorrectionWeights:
    is_cut_BT = (ratio_BT > cap) & used_BT
    return CorrectionWeights(ratio_BT.clamp(max=cap).masked_fill(~used_BT, 0.0), is_cut_BT)


def _mask(ratio_BT: Tensor, used_BT: Tensor, low: float, high: float) -> CorrectionWeights:
    is_cut_BT = ((ratio_BT < low) | (ratio_BT > high)) & used_BT
    return CorrectionWeights(ratio_BT.masked_fill(is_cut_BT | ~used_BT, 0.0), is_cut_BT)


def _batch_ratio(batch: LossBatch, level: str) -> tuple[Tensor, Tensor]:
    """Ratios of a micro-batch; no value is read, because that would wait for the device."""
    sampler_logp_BT = needed(
        batch.sampler_logp_BT, "sampler_logp_BT", "the recipe has a correction"
    )
    used_BT = batch.mask_BT.bool() & batch.keep_B.bool()[:, None]
    old_logp_BT = batch.old_logp_BT.detach()
    sampler_logp_BT = sampler_logp_BT.detach().to(old_logp_BT)
    return _ratio(old_logp_BT, sampler_logp_BT, used_BT, level), used_BT


def _checked_ratio(logp_BT: Tensor, sampler_BT: Tensor, used_BT: Tensor, level: str) -> Tensor:
    check_finite(logp_BT, "logp", used_BT)
    check_finite(sampler_BT, "sampler_logp", used_BT)
    logp_BT = logp_BT.detach()
    return _ratio(logp_BT, sampler_BT.detach().to(logp_BT), used_BT, level)


def _ratio(logp_BT: Tensor, sampler_logp_BT: Tensor, used_BT: Tensor, level: str) -> Tensor:
    change_BT = (logp_BT - sampler_logp_BT).masked_fill(~used_BT, 0.0)
    if level == "sequence":
        change_BT = change_BT.sum(1, keepdim=True).expand_as(change_BT)
    return change_BT.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
