"""Losses of a few rows at a grid of rates, several masks each: what P-POTS is fitted to.

    t_grid, losses = probe_losses(nll_of, ids_XL, eligible_XL, mask_id, generator)
    noise.rates.refit(t_grid, losses, step)

`nll_of(noisy_ids_BL, ids_BL, rows_B)` gives the negative log-prob of each true token; `rows_B` are the
places of these rows in `ids_XL`, for a model that also takes an attention mask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from burnish.arguments import as_whole
from burnish.errors import ArgumentError
from burnish.models.masked_diffusion.objective import EPS, mask_chance, row_losses
from burnish.tensors import torch

if TYPE_CHECKING:
    from torch import Generator, Tensor

    NllOf = Callable[[Tensor, Tensor, Tensor], Tensor]

RATES = 29
MASKS = 10


class Probe(NamedTuple):
    """Losses by row, rate and mask."""

    t_grid: Tensor
    """Rates j/T, (T,)."""
    losses: Tensor
    """[x0, t, pattern], NaN where the model gave no finite number."""


def inner_grid(rates: int = RATES) -> Tensor:
    """Rates j/T between 0 and 1, without both."""
    count = as_whole("rates", rates, low=2, high=100_000) + 1
    return torch.arange(1, count, dtype=torch.float64) / count


def probe_losses(
    nll_of: NllOf,
    ids_XL: Tensor,
    eligible_XL: Tensor,
    mask_id: int,
    generator: Generator,
    *,
    rates: int = RATES,
    masks: int = MASKS,
    batch: int = 64,
    eps: float = EPS,
) -> Probe:
    """Losses of rows at a grid of rates, `masks` masks each; rows without an answer are left out."""
    kept_X = eligible_XL.any(1).nonzero()[:, 0]
    if not len(kept_X):
        raise ArgumentError("eligible: no row has an answer; expected at least one to probe with")
    grid_T = inner_grid(rates)
    found = []
    row_N = kept_X.repeat_interleave(masks)
    for t in grid_T:
        losses_N = []
        for part_B in torch.split(row_N, batch):
            ids_BL, eligible_BL = ids_XL[part_B], eligible_XL[part_B]
            drawn = torch.rand(ids_BL.shape, generator=generator, dtype=torch.float64)
            p_B = mask_chance(t, eps).expand(len(part_B)).to(ids_BL.device)
            mask_BL = (drawn.to(ids_BL.device) < p_B[:, None]) & eligible_BL
            with torch.no_grad():
                nll_BL = nll_of(ids_BL.masked_fill(mask_BL, mask_id), ids_BL, part_B)
            losses_N.append(row_losses(nll_BL, mask_BL, p_B.to(nll_BL), eligible_BL.sum(1)))
        found.append(torch.cat(losses_N).double().cpu().view(len(kept_X), masks))
    losses_XTK = torch.stack(found, 1)
    return Probe(grid_T, losses_XTK.masked_fill(~losses_XTK.isfinite(), torch.nan))
