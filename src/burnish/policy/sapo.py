"""Surrogate `sapo`: a soft gate in place of the clip.

Each token's ratio goes through `4 / tau sigmoid(tau (r - 1))`, whose slope is 1 at `r = 1` and falls
smoothly on either side, so that a token fades out instead of being cut off (SAPO, arXiv 2511.20347).
`tau` is larger for negative advantages, whose gradients spread over the whole vocabulary. There are no
clip bounds: the trust region is left at its default.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from burnish.arguments import as_number
from burnish.policy.base import Component, require
from burnish.policy.objective import Surrogate, SurrogateTerms
from burnish.tensors import check_terms, torch

if TYPE_CHECKING:
    from torch import Tensor


class Sapo(Component, frozen=True, tag="sapo"):
    """The advantage times a sigmoid gate of the ratio (SAPO)."""

    tau_positive: float = 1.0
    """Steepness of the gate where the advantage is above 0."""
    tau_negative: float = 1.05
    """Steepness of the gate where the advantage is below 0."""

    def check(self) -> None:
        for key in ("tau_positive", "tau_negative"):
            require(0 < getattr(self, key) < math.inf, key, getattr(self, key), "above 0, finite")

    def token_losses(self, terms: SurrogateTerms) -> Surrogate:
        """Gated loss of each token."""
        ratio_BT = terms.change_BT.exp()
        return _sapo(ratio_BT, terms.advantages_BT, self.tau_positive, self.tau_negative)


def sapo_surrogate(
    ratio_BT: Tensor, advantages_BT: Tensor, tau_positive: float = 1.0, tau_negative: float = 1.05
) -> Surrogate:
    """`-4 / tau sigmoid(tau (r - 1)) A`, tau by the sign of A; both tensors broadcast to (B, T)."""
    check_terms(ratio_BT=ratio_BT, advantages_BT=advantages_BT)
    tau_positive = as_number("tau_positive", tau_positive, above=0)
    tau_negative = as_number("tau_negative", tau_negative, above=0)
    return _sapo(ratio_BT, advantages_BT, tau_positive, tau_negative)


def _sapo(
    ratio_BT: Tensor, advantages_BT: Tensor, tau_positive: float, tau_negative: float
) -> Surrogate:
    positive = torch.full_like(advantages_BT, tau_positive)
    tau_BT = torch.where(advantages_BT > 0, positive, tau_negative)
    loss_BT = -torch.sigmoid(tau_BT * (ratio_BT - 1)) * (4 / tau_BT) * advantages_BT
    nothing_BT = torch.zeros_like(loss_BT, dtype=torch.bool)
    return Surrogate(loss_BT, nothing_BT, nothing_BT)
