"""The parts of a decode step as Triton kernels: one launch each, nothing rounded twice.

Every kernel reads half or single precision and computes in float32. The names of blocks: B rows,
D model width, V vocabulary, E half a head (rotary positions pair a head's first half with its
second, so halves are what is loaded), N tokens of the cache.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def read_streams(
    x,
    new_x,
    y,
    update,
    x_weight,
    y_weight,
    in_weight,
    x_scale,
    out,
    size,
    share,
    eps,
    HAS_X: tl.constexpr,
    HAS_Y: tl.constexpr,
    HAS_UPDATE: tl.constexpr,
    MOVES_X: tl.constexpr,
    X_NORM: tl.constexpr,
    IN_NORM: tl.constexpr,
    X_SCALE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row of `burnish.models.blocks.topology.read_streams`, every number read and written once.

    Adds `update` to the float32 Y in place and its share to X, which is written elsewhere. With Y
    alone this is the sum and norm of a pre-norm layer.
    """
    row = tl.program_id(0).to(tl.int64) * size
    d = tl.arange(0, BLOCK)
    inside = d < size
    kind = out.dtype.element_ty
    z = tl.zeros((BLOCK,), tl.float32)
    added = z
    if HAS_UPDATE:
        added = tl.load(update + row + d, mask=inside, other=0.0).to(tl.float32)
    if HAS_X:
        a = tl.load(x + row + d, mask=inside, other=0.0).to(tl.float32) + added * share
        if X_NORM:
            a = normed(a, x_weight, d, inside, size, eps)
        a = a.to(new_x.dtype.element_ty)
        if MOVES_X:
            tl.store(new_x + row + d, a, mask=inside)
        z = a.to(tl.float32)
        if X_SCALE:
            z *= tl.load(x_scale + d, mask=inside, other=0.0).to(tl.float32)
    if HAS_Y:
        b = tl.load(y + row + d, mask=inside, other=0.0).to(tl.float32) + added
        if HAS_UPDATE:
            tl.store(y + row + d, b, mask=inside)
        z += normed(b, y_weight, d, inside, size, eps)
    if IN_NORM:
        z = normed(z, in_weight, d, inside, size, eps)
    tl.store(out + row + d, z.to(kind), mask=inside)


@triton.jit
def normed(x, weight, d, inside, size, eps):
    """The root-mean-square norm of a row; what is outside it is 0."""
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / size + eps)
    return x * scale * tl.load(weight + d, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def gated(gate_up, out, size, BLOCK: tl.constexpr):
    """silu(gate) * up for one block of one row."""
    row = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = d < size
    gate = tl.load(gate_up + row * 2 * size + d, mask=inside, other=0.0)
    up = tl.load(gate_up + row * 2 * size + size + d, mask=inside, other=0.0)
    wide = gate.to(tl.float32)
    silu = (wide * tl.sigmoid(wide)).to(gate.dtype).to(tl.float32)
    tl.store(out + row * size + d, (silu * up.to(tl.float32)).to(gate.dtype), mask=inside)


@triton.jit
def turned(first, second, weight, cos, sin, eps, e, inside, HALF: tl.constexpr, NORM: tl.constexpr):
    """Two halves of heads (H, E), normed where the family does so, and rotated.

    Values are not rotated: their angle is 0.
    """
    kind = first.dtype
    first, second = first.to(tl.float32), second.to(tl.float32)
    if NORM:
        square = tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)
        scale = tl.rsqrt(square / (2 * HALF) + eps)[:, None]
        first_weight = tl.load(weight + e, mask=inside, other=0.0).to(tl.float32)[None, :]
        second_weight = tl.load(weight + HALF + e, mask=inside, other=0.0).to(tl.float32)[None, :]
        first = (first * scale * first_weight).to(kind).to(tl.float32)
        second = (second * scale * second_weight).to(kind).to(tl.float32)
    return (first * cos - second * sin).to(kind), (second * cos + first * sin).to(kind)


@triton.jit
def over_cache(
    q1,
    q2,
    keys,
    values,
    table,
    kv,
    start,
    end,
    scale,
    KV: tl.constexpr,
    HALF: tl.constexpr,
    PAGE: tl.constexpr,
    G: tl.constexpr,
    E: tl.constexpr,
    N: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Attention of G query heads over the cached tokens from `start` to `end`, not yet divided.

    Softmax in one pass (Milakov and Gimelshein 2018): sums are kept relative to the largest score
    so far, and shrink by `fade` when a block brings a larger one. So no score is stored, and no
    exponential overflows. Returns the largest score, the sum of weights, and both weighted halves.
    """
    e = tl.arange(0, E)
    inside = e < HALF
    peak = tl.full((G,), float("-inf"), tl.float32)
    total = tl.zeros((G,), tl.float32)
    a1 = tl.zeros((G, E), tl.float32)
    a2 = tl.zeros((G, E), tl.float32)
    for at in range(start, end, N):
        n = at + tl.arange(0, N)
        known = n < end
        # A row's pages lie anywhere; 64 bits, since a large cache has more than 2**31 numbers.
        page = tl.load(table + n // PAGE, mask=known, other=0).to(tl.int64)
        line = ((page * KV + kv) * PAGE + n % PAGE) * (2 * HALF)
        # Keys are loaded transposed, (E, N), as the product reads them.
        across = keys + line[None, :] + e[:, None]
        seen = inside[:, None] & known[None, :]
        k1 = tl.load(across, mask=seen, other=0.0)
        k2 = tl.load(across + HALF, mask=seen, other=0.0)
        score = tl.dot(q1, k1, input_precision=PRECISION)
        score = (score + tl.dot(q2, k2, input_precision=PRECISION)) * scale
        score = tl.where(known[None, :], score, float("-inf"))
        higher = tl.maximum(peak, tl.max(score, axis=1))
        weight = tl.exp(score - higher[:, None])
        fade = tl.exp(peak - higher)
        down = values + line[:, None] + e[None, :]
        seen = known[:, None] & inside[None, :]
        v1 = tl.load(down, mask=seen, other=0.0)
        v2 = tl.load(down + HALF, mask=seen, other=0.0)
        # The sum uses the weights before they are rounded to the values' type.
        total = total * fade + tl.sum(weight, axis=1)
        weight = weight.to(v1.dtype)
        a1 = a1 * fade[:, None] + tl.dot(weight, v1, input_precision=PRECISION)
        a2 = a2 * fade[:, None] + tl.dot(weight, v2, input_precision=PRECISION)
        peak = higher
    return peak, total, a1, a2


@triton.jit
def key_range(length, share, WINDOW: tl.constexpr, SHARES: tl.constexpr):
    """The cached tokens that one share reads; keys before the window are not even loaded."""
    oldest = 0
    if WINDOW > 0:
        oldest = tl.maximum(length + 1 - WINDOW, 0)
    each = tl.cdiv(length - oldest, SHARES)
    start = oldest + share * each
    return start, tl.minimum(start + each, length)


@triton.jit
def attend(
    qkv,
    keys,
    values,
    table,
    lengths,
    left,
    cos,
    sin,
    q_weight,
    k_weight,
    v_weight,
    out,
    part_out,
    part_peak,
    part_total,
    width,
    scale,
    eps,
    HEADS: tl.constexpr,
    KV: tl.constexpr,
    GROUP: tl.constexpr,
    HALF: tl.constexpr,
    PAGE: tl.constexpr,
    NORMS: tl.constexpr,  # 0: no heads are normed; 1: queries and keys; 2: values too
    WINDOW: tl.constexpr,
    SHARES: tl.constexpr,
    G: tl.constexpr,
    E: tl.constexpr,
    N: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The GROUP query heads that share one key head of one row, over one share of its keys.

    Rotates the query, writes the new token's key and value to the cache, and attends. With a WINDOW
    only the newest so many tokens are read, the new one included; 0 reads all.
    """
    row = tl.program_id(0).to(tl.int64)
    kv, share = tl.program_id(1), tl.program_id(2)
    DIM: tl.constexpr = 2 * HALF
    e = tl.arange(0, E)
    inside = e < HALF
    g = tl.arange(0, G)
    length = tl.load(lengths + row)
    c = tl.load(cos + length * HALF + e, mask=inside, other=0.0)[None, :]
    s = tl.load(sin + length * HALF + e, mask=inside, other=0.0)[None, :]
    base = qkv + row * (HEADS + 2 * KV) * DIM
    head = kv * GROUP + g
    real = (g < GROUP)[:, None] & inside[None, :]
    q1, q2 = load_halves(base + head[:, None] * DIM + e[None, :], real, HALF)
    q1, q2 = turned(q1, q2, q_weight, c, s, eps, e, inside, HALF, NORMS > 0)
    table += row * width
    start, end = key_range(length, share, WINDOW, SHARES)
    peak, total, a1, a2 = over_cache(
        q1, q2, keys, values, table, kv, start, end, scale, KV, HALF, PAGE, G, E, N, PRECISION
    )
    if share == SHARES - 1:
        # The new token is read from registers: another program could not see the cache write yet.
        new = base + (HEADS + kv) * DIM + e[None, :]
        k1, k2 = load_halves(new, inside[None, :], HALF)
        k1, k2 = turned(k1, k2, k_weight, c, s, eps, e, inside, HALF, NORMS > 0)
        v1, v2 = load_halves(new + KV * DIM, inside[None, :], HALF)
        if NORMS > 1:
            v1, v2 = turned(v1, v2, v_weight, 1.0, 0.0, eps, e, inside, HALF, True)
        score = score_of(q1, q2, k1, k2) * scale
        peak, total, a1, a2 = add_token(peak, total, a1, a2, score, v1, v2)
        # A slot whose row is done still computes; what it writes goes to page 0, which none reads.
        page = tl.where(tl.load(left + row) > 0, tl.load(table + length // PAGE), 0)
        line = ((page.to(tl.int64) * KV + kv) * PAGE + length % PAGE) * DIM + e[None, :]
        store_halves(keys + line, k1, k2, inside[None, :], HALF)
        store_halves(values + line, v1, v2, inside[None, :], HALF)
    if SHARES == 1:
        there = out + row * HEADS * DIM + head[:, None] * DIM + e[None, :]
        a1, a2 = a1 / total[:, None], a2 / total[:, None]
        store_halves(there, a1.to(q1.dtype), a2.to(q1.dtype), real, HALF)
    else:
        # `merge` weighs the shares against each other, in float32, and divides.
        place = (row * SHARES + share) * HEADS + head
        store_halves(part_out + place[:, None] * DIM + e[None, :], a1, a2, real, HALF)
        tl.store(part_peak + place, peak, mask=g < GROUP)
        tl.store(part_total + place, total, mask=g < GROUP)


@triton.jit
def score_of(q1, q2, k1, k2):
    """Products of queries (G, E) with one key, both in halves: (G,)."""
    first = tl.sum(q1.to(tl.float32) * k1.to(tl.float32), axis=1)
    return first + tl.sum(q2.to(tl.float32) * k2.to(tl.float32), axis=1)


@triton.jit
def add_token(peak, total, a1, a2, score, v1, v2):
    """The sums of `over_cache` with one more token."""
    higher = tl.maximum(peak, score)
    weight = tl.exp(score - higher)
    fade = tl.exp(peak - higher)
    total = total * fade + weight
    a1 = a1 * fade[:, None] + weight[:, None] * v1.to(tl.float32)
    a2 = a2 * fade[:, None] + weight[:, None] * v2.to(tl.float32)
    return higher, total, a1, a2


@triton.jit
def load_halves(place, mask, HALF: tl.constexpr):
    """Both halves of heads; 0 outside the mask."""
    return tl.load(place, mask=mask, other=0.0), tl.load(place + HALF, mask=mask, other=0.0)


@triton.jit
def store_halves(place, first, second, mask, HALF: tl.constexpr):
    """The counterpart of `load_halves`."""
    tl.store(place, first, mask=mask)
    tl.store(place + HALF, second, mask=mask)


@triton.jit
def merge(
    part_out,
    part_peak,
    part_total,
    out,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    SHARES: tl.constexpr,
    S: tl.constexpr,
    E: tl.constexpr,
):
    """One head of one row: the shares of its keys weighed against each other."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    s = tl.arange(0, S)
    e = tl.arange(0, E)
    place = (row * SHARES + s) * HEADS + head
    peak = tl.load(part_peak + place, mask=s < SHARES, other=float("-inf"))
    total = tl.load(part_total + place, mask=s < SHARES, other=0.0)
    weight = tl.exp(peak - tl.max(peak, axis=0))
    both = (s < SHARES)[:, None] & (e < DIM)[None, :]
    parts = tl.load(part_out + place[:, None] * DIM + e[None, :], mask=both, other=0.0)
    mixed = tl.sum(parts * weight[:, None], axis=0) / tl.sum(total * weight, axis=0)
    there = out + (row * HEADS + head) * DIM + e
    tl.store(there, mixed.to(out.dtype.element_ty), mask=e < DIM)


@triton.jit
def block_sums(
    logits,
    places,
    temperature,
    peaks,
    best,
    totals,
    raw_totals,
    size,
    blocks,
    HAS_PLACES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One block of one row's logits: its peak, where that is, and the sums of both softmaxes."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    slot = tl.load(places + row) if HAS_PLACES else row
    v = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + row * size + v, mask=v < size, other=float("-inf")).to(tl.float32)
    peak = tl.max(x, axis=0)
    # A block of -inf alone: 0 - 0 would be no number.
    shift = tl.where(peak == float("-inf"), 0.0, peak)
    at = row * blocks + block
    tl.store(peaks + at, peak)
    tl.store(best + at, block * BLOCK + tl.argmax(x, axis=0))
    tl.store(totals + at, tl.sum(tl.exp((x - shift) / tl.load(temperature + slot)), axis=0))
    tl.store(raw_totals + at, tl.sum(tl.exp(x - shift), axis=0))


@triton.jit
def pick(
    logits,
    places,
    temperature,
    greedy,
    uniforms,
    drawn,
    peaks,
    best,
    totals,
    raw_totals,
    tokens,
    logprobs,
    raw_logprobs,
    size,
    blocks,
    steps,
    HAS_PLACES: tl.constexpr,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row: invert the cumulative distribution, first over blocks and then inside one."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(places + row) if HAS_PLACES else row
    n = tl.arange(0, N)
    real = n < blocks
    peak_n = tl.load(peaks + row * blocks + n, mask=real, other=float("-inf"))
    peak = tl.max(peak_n, axis=0)
    warmth = tl.load(temperature + slot)
    sums = tl.load(totals + row * blocks + n, mask=real, other=0.0)
    sums = sums * tl.exp((peak_n - peak) / warmth)
    raw = tl.load(raw_totals + row * blocks + n, mask=real, other=0.0) * tl.exp(peak_n - peak)
    total = tl.sum(sums, axis=0)
    column = tl.minimum(tl.load(drawn + slot), steps - 1)
    u = tl.load(uniforms + slot * steps + column)
    # One rounding step below the total, so that some block always lies above.
    goal = tl.minimum(u * total, total * (1 - 1.1920929e-07))
    running = tl.cumsum(sums, axis=0)
    # Scan and sum round differently: never past the last block that has any weight.
    block = tl.sum(tl.where(real & (running <= goal), 1, 0), axis=0)
    block = tl.minimum(block, tl.max(tl.where(sums > 0, n, 0), axis=0))
    rest = goal - tl.sum(tl.where(n < block, sums, 0.0), axis=0)
    v = tl.arange(0, BLOCK)
    w = block * BLOCK + v
    x = tl.load(logits + row * size + w, mask=w < size, other=float("-inf")).to(tl.float32)
    weights = tl.exp((x - peak) / warmth)
    within = tl.sum(tl.where(tl.cumsum(weights, axis=0) <= rest, 1, 0), axis=0)
    # Sums in another order may end just short of `rest`, and `rest` may lie just below 0: only
    # tokens that can be drawn are.
    first = tl.min(tl.where(weights > 0, v, BLOCK), axis=0)
    last = tl.max(tl.where(weights > 0, v, 0), axis=0)
    token = block * BLOCK + tl.minimum(tl.maximum(within, first), last)
    top = tl.argmax(peak_n, axis=0)
    likeliest = tl.load(best + row * blocks + top)
    token = tl.where(tl.load(greedy + slot) != 0, likeliest, token)
    token = tl.maximum(0, tl.minimum(token, size - 1)).to(tl.int64)
    own = tl.load(logits + row * size + token).to(tl.float32) - peak
    tl.store(tokens + row, token)
    tl.store(logprobs + row, own / warmth - tl.log(total))
    tl.store(raw_logprobs + row, own - tl.log(tl.sum(raw, axis=0)))


@triton.jit
def advance(
    places,
    step,
    new_tokens,
    new_logprobs,
    new_raw,
    ends,
    tokens,
    lengths,
    left,
    drawn,
    out_tokens,
    out_logprobs,
    out_raw,
    rows,
    slots,
    end_count,
    HAS_PLACES: tl.constexpr,
    IS_FED: tl.constexpr,
    ENDS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Note what was drawn; rows that are not done go one token on."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = row < rows
    slot = tl.load(places + row, mask=real, other=0) if HAS_PLACES else row.to(tl.int64)
    token = tl.load(new_tokens + row, mask=real, other=0)
    line = tl.load(step) * slots + slot
    tl.store(out_tokens + line, token, mask=real)
    tl.store(out_logprobs + line, tl.load(new_logprobs + row, mask=real), mask=real)
    tl.store(out_raw + line, tl.load(new_raw + row, mask=real), mask=real)
    k = tl.arange(0, ENDS)
    end = tl.load(ends + k, mask=k < end_count, other=-1)
    ended = tl.max(tl.where(token[:, None] == end[None, :], 1, 0), axis=1)
    before = tl.load(left + slot, mask=real, other=0)
    alive = before > 0
    tl.store(tokens + slot, token, mask=real & alive)
    tl.store(left + slot, tl.where(ended > 0, 0, before - 1), mask=real & alive)
    tl.store(drawn + slot, tl.load(drawn + slot, mask=real) + 1, mask=real & alive)
    if IS_FED:
        tl.store(lengths + slot, tl.load(lengths + slot, mask=real) + 1, mask=real & alive)
