"""Losses of rows under drawn masks: training units, held-out losses, and the table of a probe.

What a row gets follows from its own field of uniform numbers; all rows are masked at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from burnish.lm.decoder import Decoder
from burnish.lm.diffusion.masked_rows import TokenRow, Unit, mask_row, passes, unit_losses
from burnish.models.masked_diffusion.masks import IndependentMasks
from burnish.models.masked_diffusion.samplers import (
    Noise,
    Noised,
    UniformRates,
    build_noise,
    evaluation_uniforms,
)
from burnish.seeds import derive
from burnish.training.microbatch import MicroBatcher

HELD_OUT_SEED = 20251118
"""Of the masks of every held-out loss, whatever the run's seed is."""


class MaskedRows(NamedTuple):
    """Rows under their masks."""

    noised: Noised
    units: list[list[Unit]]
    """Of each row, one for each pass; `number` is that of the row."""


def mask_rows(
    noise: Noise, rows: Sequence[TokenRow], u_B: Tensor, fields: Sequence[Tensor], mask_id: int
) -> MaskedRows:
    """Rows under the masks of their rates' uniform numbers (B,) and their own fields, (F, L) each."""
    shape = (len(rows), max(len(row.ids) for row in rows))
    ids_BL = torch.full(shape, mask_id)
    eligible_BL = torch.zeros(shape, dtype=torch.bool)
    u_FBL = torch.ones((noise.masks.fields, *shape), dtype=torch.float64)
    for i, (row, field_FL) in enumerate(zip(rows, fields, strict=True)):
        size = len(row.ids)
        ids_BL[i, :size] = torch.tensor(row.ids)
        eligible_BL[i, :size] = torch.from_numpy(row.eligible)
        u_FBL[:, i, :size] = field_FL
    noised = noise.corrupt(ids_BL, eligible_BL, u_B, u_FBL, mask_id)
    plain = [(one.mask_BL.numpy(), _by_token(one.chance_BX, shape)) for one in noised.passes]
    units = [
        [
            mask_row(row, mask_BL[i, : len(row.ids)], chance_BL[i, : len(row.ids)], number=i)
            for mask_BL, chance_BL in plain
        ]
        for i, row in enumerate(rows)
    ]
    return MaskedRows(noised, units)


def _by_token(
    chance_BX: Tensor, shape: tuple[int, int]
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    chance_BL = chance_BX[:, None] if chance_BX.ndim == 1 else chance_BX
    return np.broadcast_to(chance_BL.numpy(), shape)


@torch.no_grad()
def held_out_losses(
    module: Decoder, rows: Sequence[TokenRow], masks: int, batches: MicroBatcher
) -> list[float]:
    """Mean loss of each row over `masks` uniform rates in strata, with masks of a fixed seed."""
    longest = max(len(row.ids) for row in rows)
    u_N, u_1NL = evaluation_uniforms(len(rows) * masks, longest, HELD_OUT_SEED)
    repeated = [row for row in rows for _ in range(masks)]
    fields = [u_1NL[:, n, : len(row.ids)] for n, row in enumerate(repeated)]
    found = mask_rows(build_noise(), repeated, u_N, fields, _mask_id(module))
    loss_N = losses_of(module, [own[0] for own in found.units], batches)
    return loss_N.view(len(rows), masks).mean(1).tolist()


def loss_table(
    module: Decoder,
    rows: Sequence[TokenRow],
    grid: Sequence[float],
    masks: int,
    seed: int,
    batches: MicroBatcher,
    noise: Noise,
) -> Tensor:
    """Losses [row, rate, mask] on a grid of rates with independent masks; delimiters as in training."""
    plain = replace(noise, rates=UniformRates(), masks=IndependentMasks(), baseline=None)
    repeated, fields = [], []
    for x, row in enumerate(rows):
        for t in range(len(grid)):
            generator = torch.Generator().manual_seed(derive(seed, x, t))
            u_KL = torch.rand(masks, len(row.ids), generator=generator, dtype=torch.float64)
            fields += list(u_KL[:, None])
            repeated += [row] * masks
    u_N = torch.tensor(grid, dtype=torch.float64).repeat_interleave(masks).repeat(len(rows))
    found = mask_rows(plain, repeated, u_N, fields, _mask_id(module))
    loss_N = losses_of(module, [own[0] for own in found.units], batches)
    return loss_N.view(len(rows), len(grid), masks)


@torch.no_grad()
def losses_of(module: Decoder, units: Sequence[Unit], batches: MicroBatcher) -> Tensor:
    """The loss of each unit by its number, (N,), over all processes; without gradients."""
    found: dict[int, Tensor] = {}
    for some in passes(batches.world.share(units), batches.tokens):
        loss_U = unit_losses(module, some, batches.device).double().cpu()
        found |= {unit.number: value for unit, value in zip(some, loss_U, strict=True)}
    merged = batches.world.merge(found)
    return torch.stack([merged[n] for n in range(len(units))])


def _mask_id(module: Decoder) -> int:
    found = module.architecture.mask_id
    assert found is not None
    return found
