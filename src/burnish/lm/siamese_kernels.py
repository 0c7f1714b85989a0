"""Both residual streams of SiameseNorm in one kernel forward and one backward.

What `burnish.models.blocks.topology.read_streams` computes for X and Y, with u the update, s what X
gets of it, and three root-mean-square norms:

    X' = x_norm(X + s u)      Y' = Y + u      Z = in_norm(X' + y_norm(Y'))

Every number is read once and written once; the sums are computed again backward instead of kept.
Arithmetic is in float32, X' is rounded to its own type before it is read, as the sampler does.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from burnish.lm.fused_kernels import PROGRAMS, SIZES_OF_A_PASS, tile_of, warps_of


def read_both(
    x_ND: Tensor,
    y_ND: Tensor,
    update_ND: Tensor,
    share: float,
    weights_3D: tuple[Tensor, Tensor, Tensor],
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """X', Y' and Z, and the scales of the three norms in each row, (3, N)."""
    rows, size = y_ND.shape
    new_x_ND = torch.empty_like(x_ND, dtype=weights_3D[0].dtype)
    new_y_ND = torch.empty_like(y_ND)
    out_ND = torch.empty_like(y_ND, dtype=weights_3D[2].dtype)
    scales_3N = torch.empty(3, rows, dtype=torch.float32, device=y_ND.device)
    tile, block = tile_of(size)
    if rows:
        _forward[(triton.cdiv(rows, tile),)](
            x_ND,
            y_ND,
            update_ND,
            *weights_3D,
            new_x_ND,
            new_y_ND,
            out_ND,
            scales_3N,
            rows,
            size,
            share,
            eps,
            ROWS=tile,
            BLOCK=block,
            num_warps=warps_of(tile * block),
        )
    return new_x_ND, new_y_ND, out_ND, scales_3N


def read_both_backward(
    of_x_ND: Tensor,
    of_y_ND: Tensor,
    of_out_ND: Tensor,
    x_ND: Tensor,
    new_y_ND: Tensor,
    update_ND: Tensor,
    share: float,
    weights_3D: tuple[Tensor, Tensor, Tensor],
    scales_3N: Tensor,
    *,
    needs_weights: bool,
) -> tuple[Tensor, Tensor, Tensor, list[Tensor | None]]:
    """Gradients of X, Y, the update, and the three weights (None if unneeded)."""
    rows, size = new_y_ND.shape
    gradients = [torch.empty_like(one) for one in (x_ND, new_y_ND, update_ND)]
    tile, block = tile_of(size)
    tiles = triton.cdiv(rows, tile)
    programs = min(tiles, PROGRAMS)
    sums_3PD = torch.empty(
        3, programs if needs_weights else 0, size, dtype=torch.float32, device=new_y_ND.device
    )
    if rows:
        _backward[(programs,)](
            of_x_ND.contiguous(),
            of_y_ND.contiguous(),
            of_out_ND.contiguous(),
            x_ND,
            new_y_ND,
            update_ND,
            *weights_3D,
            scales_3N,
            *gradients,
            *sums_3PD,
            rows,
            size,
            share,
            triton.cdiv(tiles, programs) * tile,
            NEEDS_WEIGHTS=needs_weights,
            ROWS=tile,
            BLOCK=block,
            num_warps=warps_of(tile * block),
        )
    of_weights: list[Tensor | None] = [None, None, None]
    if needs_weights:
        of_weights = [sums.sum(0).to(w.dtype) for sums, w in zip(sums_3PD, weights_3D, strict=True)]
    return (*gradients, of_weights)  # type: ignore[return-value]  # three of them


@triton.jit(do_not_specialize=SIZES_OF_A_PASS)
def _forward(
    x,
    y,
    update,
    x_weight,
    y_weight,
    in_weight,
    new_x,
    new_y,
    out,
    scales,
    rows,
    size,
    share,
    eps,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, BLOCK)
    real = (row < rows)[:, None] & (d < size)[None, :]
    at = row[:, None] * size + d[None, :]
    added = tl.load(update + at, mask=real, other=0.0).to(tl.float32)
    a = tl.load(x + at, mask=real, other=0.0).to(tl.float32) + added * share
    b = tl.load(y + at, mask=real, other=0.0).to(tl.float32) + added
    tl.store(new_y + at, b.to(new_y.dtype.element_ty), mask=real)
    x_scale = tl.rsqrt(tl.sum(a * a, axis=1) / size + eps)
    y_scale = tl.rsqrt(tl.sum(b * b, axis=1) / size + eps)
    a = a * x_scale[:, None] * _row_of(x_weight, d, size)
    a = a.to(new_x.dtype.element_ty)
    tl.store(new_x + at, a, mask=real)
    z = a.to(tl.float32) + b * y_scale[:, None] * _row_of(y_weight, d, size)
    in_scale = tl.rsqrt(tl.sum(z * z, axis=1) / size + eps)
    z = z * in_scale[:, None] * _row_of(in_weight, d, size)
    tl.store(out + at, z.to(out.dtype.element_ty), mask=real)
    tl.store(scales + row, x_scale, mask=row < rows)
    tl.store(scales + rows + row, y_scale, mask=row < rows)
    tl.store(scales + 2 * rows + row, in_scale, mask=row < rows)


@triton.jit(do_not_specialize=SIZES_OF_A_PASS)
def _backward(
    of_x,
    of_y,
    of_out,
    x,
    new_y,
    update,
    x_weight,
    y_weight,
    in_weight,
    scales,
    of_old_x,
    of_old_y,
    of_update,
    x_sums,
    y_sums,
    in_sums,
    rows,
    size,
    share,
    each,
    NEEDS_WEIGHTS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Through in_norm first, then through x_norm and y_norm; see `_through` for one norm."""
    program = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, BLOCK)
    wx = _row_of(x_weight, d, size)
    wy = _row_of(y_weight, d, size)
    wi = _row_of(in_weight, d, size)
    of_wx = tl.zeros((BLOCK,), tl.float32)
    of_wy = tl.zeros((BLOCK,), tl.float32)
    of_wi = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, each, ROWS):
        row = program * each + start + tl.arange(0, ROWS)
        is_row = row < rows
        real = is_row[:, None] & (d < size)[None, :]
        at = row[:, None] * size + d[None, :]
        added = tl.load(update + at, mask=real, other=0.0).to(tl.float32)
        a = tl.load(x + at, mask=real, other=0.0).to(tl.float32) + added * share
        b = tl.load(new_y + at, mask=real, other=0.0).to(tl.float32)
        x_scale = tl.load(scales + row, mask=is_row, other=0.0)[:, None]
        y_scale = tl.load(scales + rows + row, mask=is_row, other=0.0)[:, None]
        in_scale = tl.load(scales + 2 * rows + row, mask=is_row, other=0.0)[:, None]
        a *= x_scale
        b *= y_scale
        z = ((a * wx).to(of_x.dtype.element_ty).to(tl.float32) + b * wy) * in_scale
        g = tl.load(of_out + at, mask=real, other=0.0).to(tl.float32)
        if NEEDS_WEIGHTS:
            of_wi += tl.sum(g * z, axis=0)
        g = _through(g * wi, z, in_scale, size)
        gx = g + tl.load(of_x + at, mask=real, other=0.0).to(tl.float32)
        if NEEDS_WEIGHTS:
            of_wx += tl.sum(gx * a, axis=0)
            of_wy += tl.sum(g * b, axis=0)
        gx = _through(gx * wx, a, x_scale, size)
        gy = _through(g * wy, b, y_scale, size)
        gy += tl.load(of_y + at, mask=real, other=0.0).to(tl.float32)
        tl.store(of_old_x + at, gx.to(of_old_x.dtype.element_ty), mask=real)
        tl.store(of_old_y + at, gy.to(of_old_y.dtype.element_ty), mask=real)
        tl.store(of_update + at, (gx * share + gy).to(of_update.dtype.element_ty), mask=real)
    if NEEDS_WEIGHTS:
        tl.store(x_sums + program * size + d, of_wx, mask=d < size)
        tl.store(y_sums + program * size + d, of_wy, mask=d < size)
        tl.store(in_sums + program * size + d, of_wi, mask=d < size)


@triton.jit
def _row_of(weight, d, size):
    return tl.load(weight + d, mask=d < size, other=0.0).to(tl.float32)[None, :]


@triton.jit
def _through(g, unit, scale, size):
    """The gradient before a norm whose scaled row is `unit`: r (g - unit mean(g unit))."""
    return scale * (g - unit * (tl.sum(g * unit, axis=1) / size)[:, None])
