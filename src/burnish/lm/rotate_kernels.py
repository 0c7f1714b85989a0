"""Rotary embedding of queries and keys, alone or with shared keys repeated, in one pass.

As in `fused_kernels`, arithmetic is in float32 and the same input gives the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

SIZES_OF_A_PASS = ("rows", "each", "length")
"""Arguments that change from pass to pass: Triton would compile again for multiples of 16."""


def rotate(
    query_BSHE: Tensor, key_BSHE: Tensor, cos: Tensor, sin: Tensor, *, is_backward: bool
) -> tuple[Tensor, Tensor]:
    """Heads turned by their token's angles, (B, S, H, Dh) each, or by the opposite angles."""
    query_BSHE, key_BSHE = _rows_of_heads(query_BSHE), _rows_of_heads(key_BSHE)
    rows, length, heads, size = query_BSHE.shape
    kv_heads = key_BSHE.shape[2]
    out_query = query_BSHE.new_empty(query_BSHE.shape)
    out_key = key_BSHE.new_empty(key_BSHE.shape)
    block = triton.next_power_of_2(size // 2)
    block_heads = triton.next_power_of_2(heads)
    if rows * length:
        _turn[(rows * length,)](
            query_BSHE,
            key_BSHE,
            _of_each_row(cos, rows),
            _of_each_row(sin, rows),
            out_query,
            out_key,
            length,
            *query_BSHE.stride()[:3],
            *key_BSHE.stride()[:3],
            HEADS=heads,
            KV=kv_heads,
            HALF=size // 2,
            BACKWARD=is_backward,
            H=block_heads,
            K=triton.next_power_of_2(kv_heads),
            E=block,
            num_warps=_warps(block_heads * block),
        )
    return out_query, out_key


def rotate_and_repeat(
    query_BSHE: Tensor, key_BSHE: Tensor, value_BSHE: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys turned; keys and values once for each query head, (B, S, H, Dh) each."""
    narrow = [_rows_of_heads(t) for t in (query_BSHE, key_BSHE, value_BSHE)]
    wide = [query_BSHE.new_empty(query_BSHE.shape) for _ in narrow]
    _repeat_heads(narrow, wide, cos, sin, is_backward=False)
    return wide[0], wide[1], wide[2]


def rotate_and_repeat_backward(
    of_query: Tensor, of_key: Tensor, of_value: Tensor, cos: Tensor, sin: Tensor, kv_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query (B, S, H, Dh), key and value (B, S, Hkv, Dh)."""
    wide = [_rows_of_heads(t) for t in (of_query, of_key, of_value)]
    rows, length, heads, size = of_query.shape
    narrow = [of_query.new_empty(rows, length, n, size) for n in (heads, kv_heads, kv_heads)]
    _repeat_heads(wide, narrow, cos, sin, is_backward=True)
    return narrow[0], narrow[1], narrow[2]


def _repeat_heads(
    sources: Sequence[Tensor],
    outs: Sequence[Tensor],
    cos: Tensor,
    sin: Tensor,
    *,
    is_backward: bool,
) -> None:
    """Query, key and value from sources that may lie anywhere to outs that lie tokens first."""
    rows, length, heads, size = sources[0].shape
    kv_heads = (outs if is_backward else sources)[1].shape[2]
    block = triton.next_power_of_2(size // 2)
    block_heads = triton.next_power_of_2(heads)
    if rows * length:
        _turn_and_repeat[(rows * length,)](
            *sources,
            _of_each_row(cos, rows),
            _of_each_row(sin, rows),
            *outs,
            length,
            *(stride for source in sources for stride in source.stride()[:3]),
            HEADS=heads,
            KV=kv_heads,
            HALF=size // 2,
            BACKWARD=is_backward,
            H=block_heads,
            K=triton.next_power_of_2(kv_heads),
            E=block,
            num_warps=_warps(block_heads * block),
        )


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
    cos,
    sin,
    out_query,
    out_key,
    length,
    query_row,
    query_token,
    query_head,
    key_row,
    key_token,
    key_head,
    HEADS: tl.constexpr,
    KV: tl.constexpr,
    HALF: tl.constexpr,
    BACKWARD: tl.constexpr,
    H: tl.constexpr,
    K: tl.constexpr,
    E: tl.constexpr,
):
    """All heads of one token."""
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
    _turn_heads(query, query_head, out_query + token * HEADS * DIM, c, s, HEADS, HALF, H, E)
    _turn_heads(key, key_head, out_key + token * KV * DIM, c, s, KV, HALF, K, E)


@triton.jit
def _turn_heads(
    source,
    stride,
    out,
    c,
    s,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    H: tl.constexpr,
    E: tl.constexpr,
):
    h = tl.arange(0, H)
    e = tl.arange(0, E)
    real = (h < HEADS)[:, None] & (e < HALF)[None, :]
    at = source + h.to(tl.int64)[:, None] * stride + e[None, :]
    first = tl.load(at, mask=real, other=0.0).to(tl.float32)
    second = tl.load(at + HALF, mask=real, other=0.0).to(tl.float32)
    there = out + h[:, None] * (2 * HALF) + e[None, :]
    kind = out.dtype.element_ty
    tl.store(there, (first * c[None, :] - second * s[None, :]).to(kind), mask=real)
    tl.store(there + HALF, (second * c[None, :] + first * s[None, :]).to(kind), mask=real)


@triton.jit(do_not_specialize=SIZES_OF_A_PASS)
def _turn_and_repeat(
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
    HALF: tl.constexpr,
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
    s = tl.load(sin + token * DIM + HALF + e, mask=inside, other=0.0).to(tl.float32)
    if BACKWARD:
        s = -s
    query += row * query_row + place * query_token
    key += row * key_row + place * key_token
    value += row * value_row + place * value_token
    _turn_heads(query, query_head, out_query + token * HEADS * DIM, c, s, HEADS, HALF, H, E)
    OUT: tl.constexpr = KV if BACKWARD else HEADS
    out_key += token * OUT * DIM
    out_value += token * OUT * DIM
    TIMES: tl.constexpr = HEADS // KV
    _carry_heads(key, key_head, out_key, c, s, KV, TIMES, HALF, BACKWARD, True, K, E)
    _carry_heads(value, value_head, out_value, c, s, KV, TIMES, HALF, BACKWARD, False, K, E)


@triton.jit
def _carry_heads(
    source,
    stride,
    out,
    c,
    s,
    KV: tl.constexpr,
    TIMES: tl.constexpr,
    HALF: tl.constexpr,
    BACKWARD: tl.constexpr,
    TURNS: tl.constexpr,
    K: tl.constexpr,
    E: tl.constexpr,
):
    """Forward each of KV heads to TIMES neighbours, backward the sum of TIMES heads to one."""
    k = tl.arange(0, K)
    e = tl.arange(0, E)
    real = (k < KV)[:, None] & (e < HALF)[None, :]
    READS: tl.constexpr = TIMES if BACKWARD else 1
    WRITES: tl.constexpr = 1 if BACKWARD else TIMES
    first = tl.zeros((K, E), tl.float32)
    second = tl.zeros((K, E), tl.float32)
    for i in tl.static_range(READS):
        at = source + (k * READS + i).to(tl.int64)[:, None] * stride + e[None, :]
        first += tl.load(at, mask=real, other=0.0).to(tl.float32)
        second += tl.load(at + HALF, mask=real, other=0.0).to(tl.float32)
    one = first
    two = second
    if TURNS:
        one = first * c[None, :] - second * s[None, :]
        two = second * c[None, :] + first * s[None, :]
    kind = out.dtype.element_ty
    for i in tl.static_range(WRITES):
        there = out + (k * WRITES + i)[:, None] * (2 * HALF) + e[None, :]
        tl.store(there, one.to(kind), mask=real)
        tl.store(there + HALF, two.to(kind), mask=real)


def _warps(numbers: int) -> int:
    return max(1, min(16, numbers // 256))
