"""How much of a masked diffusion loss is noise of the mask, of the rate, and of the data.

    parts = decompose_variance(losses_XTK)          # A mask, B rate, C data; A + B + C = total

`Var(l) = E Var(l | x0, t) + E Var(g | x0) + Var E(g | x0)`, `g(x0, t)` being the mean over masks
(arXiv 2511.18159): the law of total variance, twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from burnish.arguments import as_flag
from burnish.errors import ArgumentError
from burnish.tensors import as_finite

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.tensors import Numbers


class VarianceParts(NamedTuple):
    """A + B + C = total."""

    A: Tensor
    """Mask pattern: what masks of one row at one rate differ by."""
    B: Tensor
    """Mask rate: what the rates of one row differ by."""
    C: Tensor
    """Data: what rows differ by."""
    total: Tensor


def decompose_variance(losses: Numbers, *, corrected: bool = False) -> VarianceParts:
    """Variance of a table of losses by mask, rate and data: [x0, t, pattern] -> four numbers.

    Population variances, whose sum is the variance of the whole table exactly. A mean over K masks
    is noisy, so B is too large by `A/K (1 - 1/T)` and C by `A/(K T)`, while A is too small by A/K.
    `corrected` takes these out, and n - 1 in the place of n over rows: unbiased for one fixed grid of
    rates with independent masks. A corrected part may be below 0 by chance.

    >>> from burnish.models.masked_diffusion import decompose_variance
    >>> [part.item() for part in decompose_variance([[[0.0, 2.0], [4.0, 6.0]]])]
    [1.0, 4.0, 0.0, 5.0]
    """
    corrected = as_flag("corrected", corrected)
    losses_XTK = as_finite(losses, "losses")
    if losses_XTK.ndim != 3 or not losses_XTK.numel():
        raise ArgumentError(
            f"losses: got shape {tuple(losses_XTK.shape)}, expected (x0, t, pattern)"
        )
    if corrected:
        return _corrected(losses_XTK)
    mean_XT = losses_XTK.mean(2)
    A = losses_XTK.var(2, correction=0).mean()
    B = mean_XT.var(1, correction=0).mean()
    C = mean_XT.mean(1).var(correction=0)
    return VarianceParts(A, B, C, losses_XTK.var(correction=0))


def _corrected(losses_XTK: Tensor) -> VarianceParts:
    rows, rates, masks = losses_XTK.shape
    if rows < 2 or masks < 2:
        raise ArgumentError(
            f"losses: got shape {tuple(losses_XTK.shape)}, expected at least 2 rows and 2 patterns "
            "for corrected=True"
        )
    mean_XT = losses_XTK.mean(2)
    A = losses_XTK.var(2).mean()
    B = mean_XT.var(1, correction=0).mean() - A / masks * (1 - 1 / rates)
    C = mean_XT.mean(1).var() - A / (masks * rates)
    return VarianceParts(A, B, C, A + B + C)
