"""Surrogate `geometric_mean`: the geometric mean of the tokens' clipped ratios (GMPO).

GRPO averages `r A` over the tokens of an answer, and one large ratio carries the mean. GMPO (arXiv
2507.20673) takes the geometric mean of the ratios, each clipped first in its logarithm: to
`-low .. high` of the trust region, on the side on which clipping lowers the objective. GSPO clips the
mean; here every token is clipped, which bears wider bounds (0.4). The answer has one loss, given to
all of its tokens: aggregate `seq-mean-token-mean` is the paper's. Where tokens have advantages of
their own, the answer has their mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from burnish.policy.base import Component
from burnish.policy.objective import MAX_LOG_RATIO, Surrogate, SurrogateTerms
from burnish.tensors import check_tensor, check_terms, torch

if TYPE_CHECKING:
    from torch import Tensor


class GeometricMean(Component, frozen=True, tag="geometric_mean"):
    """The advantage times the geometric mean of an answer's clipped ratios (GMPO)."""

    ALIASES: ClassVar[tuple[str, ...]] = ("gmpo",)

    def token_losses(self, terms: SurrogateTerms) -> Surrogate:
        """The answer's loss, on each of its tokens."""
        bounds = terms.low_BT, terms.high_BT
        return _gmpo(terms.change_BT, terms.advantages_BT, *bounds, terms.used_BT)


def gmpo_surrogate(
    log_ratio_BT: Tensor, advantages_BT: Tensor, low_BT: Tensor, high_BT: Tensor, mask_BT: Tensor
) -> Surrogate:
    """`-A exp(mean of clip(log r))` of each answer, on all of its tokens; (B, T).

    With `s` the sign of A, `clip(x) = s min(s x, s clamp(x, -low, high))`. All tensors broadcast to
    (B, T); tokens outside the mask leave the mean. A log-ratio counts for 20 at most.
    """
    check_terms(
        log_ratio_BT=log_ratio_BT,
        advantages_BT=advantages_BT,
        low_BT=low_BT,
        high_BT=high_BT,
        mask_BT=mask_BT,
    )
    change_BT = log_ratio_BT.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    given = (change_BT, advantages_BT, low_BT, high_BT, mask_BT.bool())
    terms = torch.broadcast_tensors(*given)  # type: ignore[no-untyped-call]
    check_tensor(terms[0], "log_ratio_BT", "(B, T)", 2)
    return _gmpo(*terms)


def _gmpo(
    change_BT: Tensor, advantages_BT: Tensor, low_BT: Tensor, high_BT: Tensor, used_BT: Tensor
) -> Surrogate:
    sign_BT = advantages_BT.sign()
    free_BT = sign_BT * change_BT
    held_BT = sign_BT * torch.clamp(change_BT, -low_BT, high_BT)
    clipped_BT = sign_BT * torch.minimum(free_BT, held_BT)
    tokens_B1 = used_BT.sum(1, keepdim=True).clamp(min=1)
    change_B1 = clipped_BT.masked_fill(~used_BT, 0.0).sum(1, keepdim=True) / tokens_B1
    spread_BT = advantages_BT.expand_as(clipped_BT).masked_fill(~used_BT, 0.0)
    advantage_B1 = spread_BT.sum(1, keepdim=True) / tokens_B1
    loss_BT = (-advantage_B1 * change_B1.exp()).expand_as(clipped_BT)
    is_clipped_BT = held_BT < free_BT
    return Surrogate(loss_BT, is_clipped_BT, torch.zeros_like(is_clipped_BT))
