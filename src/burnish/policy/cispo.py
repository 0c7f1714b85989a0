"""Surrogate `cispo`: clip the importance weight and keep the gradient of every token.

PPO's clip takes the gradient away from tokens whose ratio has left the interval, often the rare ones
that turn an argument around. CISPO (MiniMax-M1, arXiv 2506.13585) is REINFORCE with a clipped weight
that has no gradient: `-clip(r) A log p`. Only the weight's upper bound is cut unless `floor` is set:
TRL cuts above alone, verl on both sides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from burnish.policy.base import Component
from burnish.policy.objective import Surrogate, SurrogateTerms
from burnish.tensors import check_terms, torch

if TYPE_CHECKING:
    from torch import Tensor


class Cispo(Component, frozen=True, tag="cispo"):
    """Log-prob times the advantage times a clipped ratio without gradient (CISPO)."""

    floor: bool = False
    """Also raise ratios below `1 - low` of the trust region, as verl does."""

    def token_losses(self, terms: SurrogateTerms) -> Surrogate:
        """Weighted REINFORCE loss of each token."""
        # Padding may hold anything: cut here, it cannot reach the gradient.
        logp_BT = terms.logp_BT.masked_fill(~terms.used_BT, 0.0)
        low_BT = terms.low_BT if self.floor else torch.ones_like(terms.low_BT)
        weights = terms.change_BT.exp(), terms.advantages_BT, low_BT, terms.high_BT
        return _cispo(logp_BT, *weights)


def cispo_surrogate(
    logp_BT: Tensor, ratio_BT: Tensor, advantages_BT: Tensor, low_BT: Tensor, high_BT: Tensor
) -> Surrogate:
    """`-sg[clip(r, 1 - low, 1 + high)] A log p`; a `low` of 1 cuts nothing below.

    All tensors broadcast to (B, T). Only `logp_BT` has a gradient.
    """
    check_terms(
        logp_BT=logp_BT,
        ratio_BT=ratio_BT,
        advantages_BT=advantages_BT,
        low_BT=low_BT,
        high_BT=high_BT,
    )
    return _cispo(logp_BT, ratio_BT, advantages_BT, low_BT, high_BT)


def _cispo(
    logp_BT: Tensor, ratio_BT: Tensor, advantages_BT: Tensor, low_BT: Tensor, high_BT: Tensor
) -> Surrogate:
    ratio_BT = ratio_BT.detach()
    weight_BT = torch.clamp(ratio_BT, 1 - low_BT, 1 + high_BT)
    loss_BT = -weight_BT * advantages_BT * logp_BT
    is_clipped_BT = (weight_BT != ratio_BT).expand_as(loss_BT)
    return Surrogate(loss_BT, is_clipped_BT, torch.zeros_like(is_clipped_BT))
