"""The kernels of `burnish.lm.fused`: every number is read once and written once.

All arithmetic is in float32 whatever the tensors' types. Nothing depends on the order in which
programs run, so the same input gives the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 1024
"""Numbers that one program works on at a time, where a row is no longer than that."""
PROGRAMS = 1024
"""Programs among which a norm's backward pass shares the rows; each sums a weight gradient."""

SIZES_OF_A_PASS = ("rows", "each", "length")
"""Arguments that change from pass to pass: Triton would compile again for multiples of 16."""


def add_norm(
    residual_ND: Tensor, delta_ND: Tensor | None, weight_D: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The sum (without `delta` the residual itself), its norm, and each row's scale (N,)."""
    residual_ND = residual_ND.contiguous()
    rows, size = residual_ND.shape
    total_ND = residual_ND if delta_ND is None else torch.empty_like(residual_ND)
    normed_ND = torch.empty_like(residual_ND, dtype=weight_D.dtype)
    scale_N = torch.empty(rows, dtype=torch.float32, device=residual_ND.device)
    tile, block = tile_of(size)
    if rows:
        _add_norm_forward[(triton.cdiv(rows, tile),)](
            residual_ND,
            residual_ND if delta_ND is None else delta_ND.contiguous(),
            weight_D.contiguous(),
            total_ND,
            normed_ND,
            scale_N,
            rows,
            size,
            eps,
            HAS_DELTA=delta_ND is not None,
            ROWS=tile,
            BLOCK=block,
            num_warps=warps_of(tile * block),
        )
    return total_ND, normed_ND, scale_N


def add_norm_backward(
    of_total_ND: Tensor | None,
    of_normed_ND: Tensor,
    total_ND: Tensor,
    weight_D: Tensor,
    scale_N: Tensor,
    *,
    delta_dtype: torch.dtype | None,
    needs_weight: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients of residual, delta (None where `delta_dtype` is) and weight (None if unneeded)."""
    rows, size = total_ND.shape
    of_residual_ND = torch.empty_like(total_ND)
    of_delta_ND = None
    if delta_dtype is not None:
        is_same = delta_dtype == total_ND.dtype
        of_delta_ND = of_residual_ND if is_same else torch.empty_like(total_ND, dtype=delta_dtype)
    tile, block = tile_of(size)
    tiles = triton.cdiv(rows, tile)
    programs = min(tiles, PROGRAMS)
    sums_PD = torch.empty(
        programs if needs_weight else 0, size, dtype=torch.float32, device=total_ND.device
    )
    if rows:
        _add_norm_backward[(programs,)](
            total_ND if of_total_ND is None else of_total_ND.contiguous(),
            of_normed_ND.contiguous(),
            total_ND,
            weight_D.contiguous(),
            scale_N,
            of_residual_ND,
            of_residual_ND if of_delta_ND is None else of_delta_ND,
            sums_PD,
            rows,
            size,
            triton.cdiv(tiles, programs) * tile,
            HAS_TOTAL=of_total_ND is not None,
            HAS_DELTA=of_delta_ND is not None and of_delta_ND is not of_residual_ND,
            NEEDS_WEIGHT=needs_weight,
            ROWS=tile,
            BLOCK=block,
            num_warps=warps_of(tile * block),
        )
    of_weight_D = sums_PD.sum(0).to(weight_D.dtype) if needs_weight else None
    return of_residual_ND, of_delta_ND, of_weight_D


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up."""
    gate, up = gate.contiguous(), up.contiguous()
    out = torch.empty_like(gate)
    if count := gate.numel():
        _gated_forward[(triton.cdiv(count, TILE),)](gate, up, out, count, BLOCK=TILE)
    return out


def gated_backward(of_out: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of gate and up."""
    of_out, gate, up = of_out.contiguous(), gate.contiguous(), up.contiguous()
    of_gate, of_up = torch.empty_like(gate), torch.empty_like(up)
    if count := gate.numel():
        _gated_backward[(triton.cdiv(count, TILE),)](
            of_out, gate, up, of_gate, of_up, count, BLOCK=TILE
        )
    return of_gate, of_up


def tile_of(size: int) -> tuple[int, int]:
    """Rows at a time, and the power of two that holds one."""
    block = int(triton.next_power_of_2(size))
    return max(1, TILE // block), block


def warps_of(numbers: int) -> int:
    return max(1, min(16, numbers // 256))


@triton.jit(do_not_specialize=SIZES_OF_A_PASS)
def _add_norm_forward(
    residual,
    delta,
    weight,
    total,
    normed,
    scales,
    rows,
    size,
    eps,
    HAS_DELTA: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, BLOCK)
    real = (row < rows)[:, None] & (d < size)[None, :]
    at = row[:, None] * size + d[None, :]
    x = tl.load(residual + at, mask=real, other=0.0).to(tl.float32)
    if HAS_DELTA:
        x += tl.load(delta + at, mask=real, other=0.0).to(tl.float32)
        x = x.to(total.dtype.element_ty)
        tl.store(total + at, x, mask=real)
        x = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=1) / size + eps)
    tl.store(scales + row, scale, mask=row < rows)
    w = tl.load(weight + d, mask=d < size, other=0.0).to(tl.float32)
    y = x * scale[:, None] * w[None, :]
    tl.store(normed + at, y.to(normed.dtype.element_ty), mask=real)


@triton.jit(do_not_specialize=SIZES_OF_A_PASS)
def _add_norm_backward(
    of_total,
    of_normed,
    total,
    weight,
    scales,
    of_residual,
    of_delta,
    sums,
    rows,
    size,
    each,
    HAS_TOTAL: tl.constexpr,
    HAS_DELTA: tl.constexpr,
    NEEDS_WEIGHT: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """With y = x r w and r the row's scale: dx = r (w g - x r² mean(w g x)), dw = sum of g x r."""
    program = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, BLOCK)
    w = tl.load(weight + d, mask=d < size, other=0.0).to(tl.float32)
    of_weight = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, each, ROWS):
        row = program * each + start + tl.arange(0, ROWS)
        real = (row < rows)[:, None] & (d < size)[None, :]
        at = row[:, None] * size + d[None, :]
        g = tl.load(of_normed + at, mask=real, other=0.0).to(tl.float32)
        r = tl.load(scales + row, mask=row < rows, other=0.0)[:, None]
        unit = tl.load(total + at, mask=real, other=0.0).to(tl.float32) * r
        if NEEDS_WEIGHT:
            of_weight += tl.sum(g * unit, axis=0)
        g *= w[None, :]
        dx = r * (g - unit * (tl.sum(g * unit, axis=1) / size)[:, None])
        if HAS_TOTAL:
            dx += tl.load(of_total + at, mask=real, other=0.0).to(tl.float32)
        tl.store(of_residual + at, dx.to(of_residual.dtype.element_ty), mask=real)
        if HAS_DELTA:
            tl.store(of_delta + at, dx.to(of_delta.dtype.element_ty), mask=real)
    if NEEDS_WEIGHT:
        tl.store(sums + program * size + d, of_weight, mask=d < size)


@triton.jit
def _gated_forward(gate, up, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    g = tl.load(gate + at, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + at, mask=inside, other=0.0).to(tl.float32)
    # Rounded between the two steps, as the sampler and plain torch do.
    kind = out.dtype.element_ty
    silu = (g * tl.sigmoid(g)).to(kind).to(tl.float32)
    tl.store(out + at, (silu * u).to(kind), mask=inside)


@triton.jit
def _gated_backward(of_out, gate, up, of_gate, of_up, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    o = tl.load(of_out + at, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(gate + at, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + at, mask=inside, other=0.0).to(tl.float32)
    sigmoid = tl.sigmoid(g)
    of_silu = o * u * sigmoid * (1.0 + g * (1.0 - sigmoid))
    tl.store(of_gate + at, of_silu.to(of_gate.dtype.element_ty), mask=inside)
    tl.store(of_up + at, (o * g * sigmoid).to(of_up.dtype.element_ty), mask=inside)


# --- rotary positions


def rotate(
    heads: Sequence[Tensor], cos: Tensor, sin: Tensor, *, key_heads: int, is_backward: bool
) -> list[Tensor]:
    """Query, key and (where given) value heads, (B, S, H, Dh) each, with `key_heads` keys and values.

    Query and key are turned by their token's angles. Forward a key or value is written once for
    each query head that reads it; backward turns by the opposite angles and adds the copies up.
    """
    sources = [_rows_of_heads(t) for t in heads]
    rows, length, query_heads, size = sources[0].shape
    counts = (query_heads, key_heads, key_heads)
    outs = [
        t.new_empty(rows, length, n, size)
        for t, n in zip(sources, counts[: len(sources)], strict=True)
    ]
    kv_heads, wide = sorted((sources[1].shape[2], key_heads))
    block = triton.next_power_of_2(size // 2)
    block_heads = triton.next_power_of_2(query_heads)
    if rows * length:
        _turn[(rows * length,)](
            *(sources[i] for i in (0, 1, -1)),  # without a value its place is taken, never read
            _of_each_row(cos, rows),
            _of_each_row(sin, rows),
            *(outs[i] for i in (0, 1, -1)),
            length,
            *(stride for i in (0, 1, -1) for stride in sources[i].stride()[:3]),
            HEADS=query_heads,
            KV=kv_heads,
            TIMES=wide // kv_heads,
            HALF=size // 2,
            HAS_VALUE=len(sources) == 3,
            BACKWARD=is_backward,
            H=block_heads,
            K=triton.next_power_of_2(kv_heads),
            E=block,
            num_warps=warps_of(block_heads * block),
        )
    return outs


def _rows_of_heads(heads_BSHE: Tensor) -> Tensor:
    """A head's numbers must lie side by side; heads and tokens may lie anywhere."""
    return heads_BSHE if heads_BSHE.stride(-1) == 1 else heads_BSHE.contiguous()


def _of_each_row(angles: Tensor, rows: int) -> Tensor:
    """Angles (B or 1, 1, S, Dh) for every row, one after the other."""
    if angles.shape[0] != rows:
        angles = angles.expand(rows, -1, -1, -1)
    return angles.contiguous()


@triton.jit(do_not_specialize=SIZES_OF_A_PASS)
def _turn(
    query,
    key,
    value,
    cos,
    sin,
    out_query,
    out_key,
    out_value,
    length,
    query_row,
    query_token,
    query_head,
    key_row,
    key_token,
    key_head,
    value_row,
    value_token,
    value_head,
    HEADS: tl.constexpr,
    KV: tl.constexpr,
    TIMES: tl.constexpr,
    HALF: tl.constexpr,
    HAS_VALUE: tl.constexpr,
    BACKWARD: tl.constexpr,
    H: tl.constexpr,
    K: tl.constexpr,
    E: tl.constexpr,
):
    """All heads of one token; backward reads what forward wrote many times, and adds it up."""
    token = tl.program_id(0).to(tl.int64)
    row = token // length
    place = token % length
    DIM: tl.constexpr = 2 * HALF
    e = tl.arange(0, E)
    inside = e < HALF
    c = tl.load(cos + token * DIM + e, mask=inside, other=0.0).to(tl.float32)
    # The second half's sine has its own sign.
    s = tl.load(sin + token * DIM + HALF + e, mask=inside, other=0.0).to(tl.float32)
    if BACKWARD:
        s = -s
    query += row * query_row + place * query_token
    key += row * key_row + place * key_token
    out_query += token * HEADS * DIM
    OUT: tl.constexpr = KV if BACKWARD else KV * TIMES
    out_key += token * OUT * DIM
    _carry_heads(query, query_head, out_query, c, s, HEADS, 1, HALF, BACKWARD, True, H, E)
    _carry_heads(key, key_head, out_key, c, s, KV, TIMES, HALF, BACKWARD, True, K, E)
    if HAS_VALUE:
        value += row * value_row + place * value_token
        out_value += token * OUT * DIM
        _carry_heads(value, value_head, out_value, c, s, KV, TIMES, HALF, BACKWARD, False, K, E)


@triton.jit
def _carry_heads(
    source,
    stride,
    out,
    c,
    s,
    HEADS: tl.constexpr,
    TIMES: tl.constexpr,
    HALF: tl.constexpr,
    BACKWARD: tl.constexpr,
    TURNS: tl.constexpr,
    H: tl.constexpr,
    E: tl.constexpr,
):
    """Forward each of HEADS heads to TIMES neighbours, backward the sum of TIMES heads to one."""
    h = tl.arange(0, H)
    e = tl.arange(0, E)
    real = (h < HEADS)[:, None] & (e < HALF)[None, :]
    READS: tl.constexpr = TIMES if BACKWARD else 1
    WRITES: tl.constexpr = 1 if BACKWARD else TIMES
    at = source + (h * READS).to(tl.int64)[:, None] * stride + e[None, :]
    first = tl.load(at, mask=real, other=0.0).to(tl.float32)
    second = tl.load(at + HALF, mask=real, other=0.0).to(tl.float32)
    for i in tl.static_range(1, READS):
        at = source + (h * READS + i).to(tl.int64)[:, None] * stride + e[None, :]
        first += tl.load(at, mask=real, other=0.0).to(tl.float32)
        second += tl.load(at + HALF, mask=real, other=0.0).to(tl.float32)
    one = first
    two = second
    if TURNS:
        one = first * c[None, :] - second * s[None, :]
        two = second * c[None, :] + first * s[None, :]
    kind = out.dtype.element_ty
    for i in tl.static_range(WRITES):
        there = out + (h * WRITES + i)[:, None] * (2 * HALF) + e[None, :]
        tl.store(there, one.to(kind), mask=real)
        tl.store(there + HALF, two.to(kind), mask=real)


LOGITS_BLOCK = 8192
LOGITS_WARPS = 8


def score_rows(
    logits_CV: Tensor, target_C: Tensor, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-prob of the target, entropy and log-normaliser of each row, (C,) float32 each."""
    rows, vocabulary = logits_CV.shape
    out_3C = torch.empty(3, rows, dtype=torch.float32, device=logits_CV.device)
    if rows:
        with torch.cuda.device_of(logits_CV):
            _score_row[(rows,)](
                logits_CV,
                target_C,
                out_3C[0],
                out_3C[1],
                out_3C[2],
                logits_CV.stride(0),
                1.0 / temperature,
                VOCABULARY=vocabulary,
                BLOCK=_logits_block(vocabulary),
                num_warps=LOGITS_WARPS,
            )
    return out_3C[0], out_3C[1], out_3C[2]


def to_gradient(
    logits_CV: Tensor,
    target_C: Tensor,
    norm_C: Tensor,
    entropy_C: Tensor,
    of_logp_C: Tensor,
    of_entropy_C: Tensor | None,
    temperature: float,
) -> None:
    """Turn logits into the loss's gradient by them, in place."""
    rows, vocabulary = logits_CV.shape
    if rows:
        _row_to_gradient[(rows,)](
            logits_CV,
            target_C,
            norm_C.contiguous(),
            entropy_C.contiguous(),
            of_logp_C.contiguous(),
            of_logp_C if of_entropy_C is None else of_entropy_C.contiguous(),
            logits_CV.stride(0),
            1.0 / temperature,
            VOCABULARY=vocabulary,
            HAS_ENTROPY=of_entropy_C is not None,
            BLOCK=_logits_block(vocabulary),
            num_warps=LOGITS_WARPS,
        )


def _logits_block(vocabulary: int) -> int:
    return int(min(LOGITS_BLOCK, triton.next_power_of_2(vocabulary)))


@triton.jit
def _score_row(
    logits: tl.tensor,
    target: tl.tensor,
    logp: tl.tensor,
    entropy: tl.tensor,
    norm: tl.tensor,
    stride: tl.tensor,
    inverse_temperature: tl.tensor,
    VOCABULARY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    found = tl.load(logits + tl.load(target + row)).to(tl.float32) * inverse_temperature
    # Shifted by the largest logit so far; the target's stands in for it at first, so that no
    # difference of infinities arises.
    top = found
    total = 0.0
    weighted = 0.0
    for start in range(0, VOCABULARY, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        z = tl.load(logits + columns, mask=columns < VOCABULARY, other=float("-inf"))
        z = z.to(tl.float32) * inverse_temperature
        higher = tl.maximum(top, tl.max(z, axis=0))
        fall = top - higher
        shrink = tl.exp(fall)
        shifted = z - higher
        power = tl.exp(shifted)
        weighted = (weighted + total * fall) * shrink
        weighted += tl.sum(tl.where(power > 0.0, power * shifted, 0.0), axis=0)
        total = total * shrink + tl.sum(power, axis=0)
        top = higher
    log_total = tl.log(total)
    tl.store(logp + row, found - top - log_total)
    tl.store(entropy + row, log_total - weighted / total)
    tl.store(norm + row, top + log_total)


@triton.jit
def _row_to_gradient(
    logits: tl.tensor,
    target: tl.tensor,
    norm: tl.tensor,
    entropy: tl.tensor,
    of_logp: tl.tensor,
    of_entropy: tl.tensor,
    stride: tl.tensor,
    inverse_temperature: tl.tensor,
    VOCABULARY: tl.constexpr,
    HAS_ENTROPY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    wanted = tl.load(target + row)
    row_norm = tl.load(norm + row)
    from_logp = tl.load(of_logp + row) * inverse_temperature
    for start in range(0, VOCABULARY, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        inside = columns < VOCABULARY
        z = tl.load(logits + columns, mask=inside, other=float("-inf"))
        log_p = z.to(tl.float32) * inverse_temperature - row_norm
        p = tl.exp(log_p)
        gradient = tl.where(columns == wanted, from_logp, 0.0) - from_logp * p
        if HAS_ENTROPY:
            from_entropy = tl.load(of_entropy + row) * inverse_temperature
            surprise = tl.where(p > 0.0, p * (log_p + tl.load(entropy + row)), 0.0)
            gradient -= from_entropy * surprise
        tl.store(logits + columns, gradient.to(logits.dtype.element_ty), mask=inside)
