"""Bradley-Terry with ties: clear pairs are driven apart, pairs without a difference together.

The reward model of MedAlign (arXiv 2602.11661) learns from both kinds of pair. A second-hand account
prints the term for ties as `-log sigma(+|m|)`, which falls as the margin grows and would drive ties
apart; here it is `-log sigma(-|m|)`, least at a margin of 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor
from torch.nn import functional

from burnish.arguments import as_number
from burnish.tensors import as_logp, check_finite

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


def tie_preference_loss(
    diff_margins: Tensor | ArrayLike, same_margins: Tensor | ArrayLike, lam: float = 1.0
) -> Tensor:
    """`mean(-log sigma(m_diff)) + lam * mean(-log sigma(-|m_same|))`, with its gradient: ().

    A margin is the score of the preferred response minus that of the other; for a tie the order does
    not matter. Any shapes; a kind of pair that the batch lacks adds 0.
    """
    lam = as_number("lam", lam, low=0)
    diff = _margins(diff_margins, "diff_margins")
    same = _margins(same_margins, "same_margins")
    return _mean(functional.softplus(-diff)) + lam * _mean(functional.softplus(same.abs()))


def _margins(margins: Tensor | ArrayLike, what: str) -> Tensor:
    """Margins with their graph; half precision is raised to float32."""
    read = as_logp(margins, what)
    check_finite(read, what)
    return read


def _mean(values: Tensor) -> Tensor:
    # The sum of nothing keeps the graph that backward() asks for; its mean would be NaN.
    return values.sum() / max(values.numel(), 1)
