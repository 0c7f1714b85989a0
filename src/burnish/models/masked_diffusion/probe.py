"""Losses of a few rows at a grid of rates, several masks each: what P-POTS is fitted to.

    probe = probe_losses(nll_of, ids_XL, eligible_XL, mask_id, generator)
    noise.rates.refit(*probe, step=step)

Rates are those of `burnish variance` (`rate_cells`), and only masks that hide something are drawn: at small
rates nearly all others are empty, and a few draws would miss the large losses.

`nll_of(noisy_ids_BL, ids_BL, rows_B)` gives the negative log-prob of each true token; `rows_B` are the
places of these rows in `ids_XL`, for a model that also takes an attention mask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, NamedTuple

from msgspec import Meta
from msgspec.structs import replace

from burnish.boundary import Count, Fraction, PositiveInt, public
from burnish.errors import ArgumentError
from burnish.models.masked_diffusion.objective import (
    EPS,
    IndependentMasks,
    mask_chance,
    nonempty_mask_fields,
    row_losses,
)
from burnish.models.masked_diffusion.rates import rate_cells
from burnish.models.masked_diffusion.samplers import Noise, Noised, UniformRates
from burnish.tensors import check_shape, torch

if TYPE_CHECKING:
    from jaxtyping import Bool, Int
    from torch import Generator, Tensor

    NllOf = Callable[[Tensor, Tensor, Tensor], Tensor]
    LossesOf = Callable[[Noised, Tensor], Tensor]

RATES = 29
MASKS = 10


class Probe(NamedTuple):
    """Losses by row, rate and mask."""

    t_grid: Tensor
    """Rates, closer together where they are small, (T,)."""
    losses: Tensor
    """[x0, t, pattern], NaN where the model gave no finite number. No mask is empty."""
    chances: Tensor
    """[x0, t]: of a mask not to be empty."""


@public
def probe_losses(
    nll_of: NllOf,
    ids_XL: Int[Tensor, "X L"],
    eligible_XL: Bool[Tensor, "X L"],
    mask_id: Count,
    generator: Generator,
    *,
    rates: Annotated[int, Meta(ge=2, le=100_000)] = RATES,
    masks: Annotated[int, Meta(ge=1, le=100_000)] = MASKS,
    batch: PositiveInt = 64,
    eps: Fraction = EPS,
) -> Probe:
    """Losses of rows at a grid of rates, `masks` masks each; rows without an answer are left out.

    Masks hide at least one token each; how likely that is stands beside the losses.
    """

    @torch.no_grad()
    def losses_of(noised: Noised, row_N: Tensor) -> Tensor:
        found = []
        (one,) = noised.passes
        for part_B in torch.split(torch.arange(len(row_N), device=row_N.device), batch):
            ids_BL = ids_XL[row_N[part_B]]
            nll_BL = nll_of(noised.ids_PBL[0][part_B], ids_BL, row_N[part_B])
            check_shape(nll_BL, "what nll_of gives", tuple(ids_BL.shape))
            chance_B, count_B = one.chance_BX[part_B].to(nll_BL), noised.count_B[part_B]
            found.append(row_losses(nll_BL, one.mask_BL[part_B], chance_B, count_B))
        return torch.cat(found)

    noise = Noise(eps=eps)
    return probe_table(
        losses_of, ids_XL, eligible_XL, mask_id, generator, rates=rates, masks=masks, noise=noise
    )


def probe_table(
    losses_of: LossesOf,
    ids_XL: Tensor,
    eligible_XL: Tensor,
    mask_id: int,
    generator: Generator,
    *,
    noise: Noise,
    rates: int = RATES,
    masks: int = MASKS,
) -> Probe:
    """The same where losses are computed elsewhere, over processes or within memory.

    `losses_of(noised, row_N)` has all masked copies at once, with the places of their rows in `ids_XL`.
    Of `noise` the delimiters and `eps` count; rates are those of the grid, one mask a pass. MIRROR's pairs
    cost nearly the same at each rate, and half as many of them would be measured.
    """
    kept_X = eligible_XL.any(1).nonzero()[:, 0]
    if not len(kept_X):
        raise ArgumentError("eligible: no row has an answer; expected at least one to probe with")
    grid_T = rate_cells(rates).t_T
    shape = (len(kept_X), len(grid_T), masks)
    row_N = kept_X.repeat_interleave(shape[1] * shape[2])
    t_N = grid_T.repeat_interleave(shape[2]).repeat(shape[0]).to(ids_XL.device)
    plain = replace(noise, rates=UniformRates(), masks=IndependentMasks(), baseline=None)
    ids_NL, eligible_NL = ids_XL[row_N], eligible_XL[row_N]
    chance_NX = plain.chances(ids_NL, mask_chance(t_N, plain.eps))
    fields = nonempty_mask_fields(IndependentMasks(), chance_NX, eligible_NL, generator)
    noised = plain.corrupt(ids_NL, eligible_NL, t_N, fields.u_FBL, mask_id)
    loss_N = losses_of(noised, row_N)
    check_shape(loss_N, "what losses_of gives", (len(row_N),))
    losses_XTK = loss_N.double().cpu().view(shape)
    chance_XT = fields.chance_B.cpu().view(shape)[:, :, 0]
    return Probe(grid_T, losses_XTK.masked_fill(~losses_XTK.isfinite(), torch.nan), chance_XT)
