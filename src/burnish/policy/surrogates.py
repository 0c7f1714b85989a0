"""Surrogates beside PPO's clip: CISPO, SAPO and GMPO.

| component        | loss of a token                                                           | from             |
|------------------|---------------------------------------------------------------------------|------------------|
| `cispo`          | `-sg[clip(r, 1 - low, 1 + high)] A log p`: every token keeps its gradient | arXiv 2506.13585 |
| `sapo`           | `-4 / tau sigmoid(tau (r - 1)) A`: a soft gate in place of the clip       | arXiv 2511.20347 |
| `geometric_mean` | `-A exp(mean of clip(log r))`, one loss for the whole answer              | arXiv 2507.20673 |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from burnish.boundary import Positive, public
from burnish.policy.base import Component
from burnish.policy.objective import MAX_LOG_RATIO, Surrogate, SurrogateTerms
from burnish.tensors import torch

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    Terms = Float[Tensor, "#B #T"]


class Cispo(Component, frozen=True, tag="cispo"):
    """Log-prob times the advantage times a clipped ratio without gradient (CISPO).

    PPO's clip takes the gradient away from tokens whose ratio has left the interval, often the rare
    ones that turn an argument around. Only the weight's upper bound is cut unless `floor` is set:
    TRL cuts above alone, verl on both sides.
    """

    floor: bool = False
    """Also raise ratios below `1 - low` of the trust region, as verl does."""

    def token_losses(self, terms: SurrogateTerms) -> Surrogate:
        # Padding may hold anything: cut here, it cannot reach the gradient.
        logp_BT = terms.logp_BT.masked_fill(~terms.used_BT, 0.0)
        low_BT = terms.low_BT if self.floor else torch.ones_like(terms.low_BT)
        weights = terms.change_BT.exp(), terms.advantages_BT, low_BT, terms.high_BT
        return cispo_surrogate.plain(logp_BT, *weights)


@public
def cispo_surrogate(
    logp_BT: Terms, ratio_BT: Terms, advantages_BT: Terms, low_BT: Terms, high_BT: Terms
) -> Surrogate:
    """`-sg[clip(r, 1 - low, 1 + high)] A log p`; a `low` of 1 cuts nothing below.

    All tensors broadcast to (B, T). Only `logp_BT` has a gradient.
    """
    ratio_BT = ratio_BT.detach()
    weight_BT = torch.clamp(ratio_BT, 1 - low_BT, 1 + high_BT)
    loss_BT = -weight_BT * advantages_BT * logp_BT
    is_clipped_BT = (weight_BT != ratio_BT).expand_as(loss_BT)
    return Surrogate(loss_BT, is_clipped_BT, torch.zeros_like(is_clipped_BT))


class Sapo(Component, frozen=True, tag="sapo"):
    """The advantage times a sigmoid gate of the ratio (SAPO).

    The gate's slope is 1 at `r = 1` and falls smoothly on either side, so that a token fades out
    instead of being cut off. `tau` is larger for negative advantages, whose gradients spread over
    the whole vocabulary. There are no clip bounds: the trust region is left at its default.
    """

    tau_positive: Positive = 1.0
    """Steepness of the gate where the advantage is above 0."""
    tau_negative: Positive = 1.05
    """Steepness of the gate where the advantage is below 0."""

    def token_losses(self, terms: SurrogateTerms) -> Surrogate:
        ratio_BT = terms.change_BT.exp()
        taus = self.tau_positive, self.tau_negative
        return sapo_surrogate.plain(ratio_BT, terms.advantages_BT, *taus)


@public
def sapo_surrogate(
    ratio_BT: Terms,
    advantages_BT: Terms,
    tau_positive: Positive = 1.0,
    tau_negative: Positive = 1.05,
) -> Surrogate:
    """`-4 / tau sigmoid(tau (r - 1)) A`, tau by the sign of A; both tensors broadcast to (B, T)."""
    positive = torch.full_like(advantages_BT, tau_positive)
    tau_BT = torch.where(advantages_BT > 0, positive, tau_negative)
    loss_BT = -torch.sigmoid(tau_BT * (ratio_BT - 1)) * (4 / tau_BT) * advantages_BT
    nothing_BT = torch.zeros_like(loss_BT, dtype=torch.bool)
    return Surrogate(loss_BT, nothing_BT, nothing_BT)


class GeometricMean(Component, frozen=True, tag="geometric_mean"):
    """The advantage times the geometric mean of an answer's clipped ratios (GMPO).

    GRPO averages `r A` over the tokens of an answer, and one large ratio carries the mean. Here each
    ratio is clipped first in its logarithm, to `-low .. high` of the trust region, on the side on
    which clipping lowers the objective. GSPO clips the mean; every token clipped bears wider bounds
    (0.4). Aggregate `seq-mean-token-mean` is the paper's. Where tokens have advantages of their own,
    the answer has their mean.
    """

    ALIASES = ("gmpo",)

    def token_losses(self, terms: SurrogateTerms) -> Surrogate:
        bounds = terms.low_BT, terms.high_BT
        return _gmpo(terms.change_BT, terms.advantages_BT, *bounds, terms.used_BT)


@public
def gmpo_surrogate(
    log_ratio_BT: Float[Tensor, "B T"],
    advantages_BT: Terms,
    low_BT: Terms,
    high_BT: Terms,
    mask_BT: Terms,
) -> Surrogate:
    """`-A exp(mean of clip(log r))` of each answer, on all of its tokens; (B, T).

    With `s` the sign of A, `clip(x) = s min(s x, s clamp(x, -low, high))`. All tensors broadcast to
    (B, T); tokens outside the mask leave the mean. A log-ratio counts for 20 at most.
    """
    change_BT = log_ratio_BT.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    given = (advantages_BT, low_BT, high_BT, mask_BT.bool())
    return _gmpo(change_BT, *(one.expand_as(change_BT) for one in given))


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
