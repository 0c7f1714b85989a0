"""Bradley-Terry with ties: clear pairs are driven apart, pairs without a difference together.

The reward model of MedAlign (arXiv 2602.11661) learns from both kinds of pair. A second-hand account
prints the term for ties as `-log sigma(+|m|)`, which falls as the margin grows and would drive ties
apart; here it is `-log sigma(-|m|)`, least at a margin of 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor
from torch.nn import functional

from burnish.boundary import NonNegative, public

if TYPE_CHECKING:
    from jaxtyping import Float


@public
def tie_preference_loss(
    diff_margins: Float[Tensor, "*D"], same_margins: Float[Tensor, "*S"], lam: NonNegative = 1.0
) -> Tensor:
    """`mean(-log sigma(m_diff)) + lam * mean(-log sigma(-|m_same|))`, with its gradient: ().

    A margin is the score of the preferred response minus that of the other; for a tie the order does
    not matter. Any shapes; a kind of pair that the batch lacks adds 0.
    """
    clear, ties = functional.softplus(-diff_margins), functional.softplus(same_margins.abs())
    # The sum of nothing keeps the graph that backward() asks for; its mean would be NaN.
    means = [values.sum() / max(values.numel(), 1) for values in (clear, ties)]
    return means[0] + lam * means[1]
