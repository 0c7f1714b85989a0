"""Losses of rows under drawn masks: training units, held-out losses, and the table of a probe.

What a row gets follows from its own field of uniform numbers; all rows are masked at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from burnish.lm.decoder import Decoder
from burnish.lm.diffusion.masked_rows import TokenRow, Unit, passes, unit_losses, unit_of
from burnish.models.masked_diffusion.probe import Probe, probe_table
from burnish.models.masked_diffusion.samplers import (
    Noise,
    Noised,
    build_noise,
    evaluation_uniforms,
)
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
    ids_BL, eligible_BL = _padded(rows, mask_id)
    u_FBL = torch.ones((noise.masks.fields, *ids_BL.shape), dtype=torch.float64)
    for i, (row, field_FL) in enumerate(zip(rows, fields, strict=True)):
        u_FBL[:, i, : len(row.ids)] = field_FL
    noised = noise.corrupt(ids_BL, eligible_BL, u_B, u_FBL, mask_id)
    return MaskedRows(noised, _units(noised, rows))


def _padded(rows: Sequence[TokenRow], mask_id: int) -> tuple[Tensor, Tensor]:
    """Ids and what may be masked, (B, L)."""
    shape = (len(rows), max(len(row.ids) for row in rows))
    ids_BL = torch.full(shape, mask_id)
    eligible_BL = torch.zeros(shape, dtype=torch.bool)
    for i, row in enumerate(rows):
        ids_BL[i, : len(row.ids)] = torch.tensor(row.ids)
        eligible_BL[i, : len(row.ids)] = torch.from_numpy(row.eligible)
    return ids_BL, eligible_BL


def _units(noised: Noised, rows: Sequence[TokenRow]) -> list[list[Unit]]:
    """The passes of each row."""
    plain = [
        (one.mask_BL.numpy(), _by_token(one.chance_BX, one.mask_BL.shape)) for one in noised.passes
    ]
    return [
        [
            unit_of(row, mask_BL[i, : len(row.ids)], chance_BL[i, : len(row.ids)], number=i)
            for mask_BL, chance_BL in plain
        ]
        for i, row in enumerate(rows)
    ]


def _by_token(
    chance_BX: Tensor, shape: torch.Size
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


def probed_losses(
    module: Decoder,
    rows: Sequence[TokenRow],
    rates: int,
    masks: int,
    seed: int,
    batches: MicroBatcher,
    noise: Noise,
) -> Probe:
    """Losses [row, rate, mask] on a grid of rates; delimiters as in training."""
    mask_id = _mask_id(module)
    ids_XL, eligible_XL = _padded(rows, mask_id)

    def losses(noised: Noised, row_N: Tensor) -> Tensor:
        units = _units(noised, [rows[x] for x in row_N.tolist()])
        return losses_of(module, [own[0] for own in units], batches)

    generator = torch.Generator().manual_seed(seed)
    return probe_table(
        losses, ids_XL, eligible_XL, mask_id, generator, rates=rates, masks=masks, noise=noise
    )


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
