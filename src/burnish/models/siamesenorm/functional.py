"""SiameseNorm as functions of tensors: a block, a trunk, a DiT block, and the paper's own algorithm.

Two residual streams start equal. X is normalised at every update, Y never is; one shared sublayer
reads the sum of both and its update goes into both (arXiv 2602.08064). A sublayer is a function, or a
matrix (D, D) that is applied as `z @ W.T`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor

from burnish.arguments import as_list, as_word
from burnish.boundary import Count, Number, Positive, public
from burnish.errors import ArgumentError
from burnish.models.blocks.layers import NORMS
from burnish.models.blocks.residual import add_norm
from burnish.models.blocks.topology import (
    DepthScale,
    NormKind,
    Norms,
    Streams,
    Topology,
    read_streams,
    settled,
)
from burnish.tensors import as_logp, check_finite, check_shape

if TYPE_CHECKING:
    from jaxtyping import Float

    Stream = Annotated[Float[Tensor, "*B D"], Meta(ge=-1e18, le=1e18)]
    """Norms square the numbers of streams, and float32 has to hold the squares."""

NORM_KEYS = ("first_y", "first_x", "first_in", "second_y", "second_x", "second_in")
X_SCALE = "first_x_scale"
Sublayer = Callable[[Tensor], Tensor]


class StreamPair(NamedTuple):
    """Both residual streams behind a block."""

    X: Tensor
    Y: Tensor


class TrunkOutput(NamedTuple):
    """What leaves a trunk, and both streams behind every block or sublayer of it."""

    output: Tensor
    streams: list[StreamPair]


@public
def siamese_block(
    X: Stream,
    Y: Stream,
    first: object,
    second: object,
    norms: Mapping[str, object] | None = None,
    block_index: Count = 0,
    layout: Literal["post_pre", "hybrid_pre"] = "post_pre",
    norm: NormKind = "rms",
    eps: Positive = 1e-5,
) -> StreamPair:
    """Both streams behind one block: (..., D), (..., D) -> X, Y.

    `norms` maps first_x, first_y, first_in, second_x, second_y, second_in to
    `{"weight": (D,), "bias": (D,)}`, and first_x_scale to one vector; what is missing or None has gain
    1 and bias 0, and norms that a layout has not are not read. X gets `1 / sqrt(2 (block_index + 1))`
    of every update. In post_pre its norm opens the next sublayer, so the X that comes back is not
    normalised.

    >>> h = torch.tensor([[3.0, 4.0]])
    >>> X, Y = siamese_block(h, h, torch.eye(2), torch.zeros(2, 2), layout="post_pre", norm="rms")
    >>> [round(value, 4) for value in Y[0].tolist()]     # 3 and 4 with their unit-norm direction
    [3.8485, 5.1314]
    """
    kind = torch.promote_types(X.dtype, Y.dtype)
    x, y, size = X.to(kind), Y.to(kind), X.shape[-1]
    topology = Topology(f"siamese_{layout}", norm=norm, eps=eps)
    table = norms or {}
    for key in table:
        as_word("norms", key, (*NORM_KEYS, X_SCALE))
    sublayers = [_sublayer("first", first, size), _sublayer("second", second, size)]
    streams = StreamPair(x, y)
    for place, (part, sublayer) in enumerate(zip(("first", "second"), sublayers, strict=True)):
        number = 2 * block_index + place
        own = _norms(topology.norms_of(number), part, table, topology, size, x)
        streams = _through(streams, sublayer, own, topology.x_share(number))
    return streams


@public
def siamese_trunk(
    H: Stream,
    sublayers: object,
    layout: Literal["post_pre", "hybrid_pre"] = "post_pre",
    norm: NormKind = "rms",
    eps: Positive = 1e-5,
) -> TrunkOutput:
    """A trunk of unit norms over embeddings H: (..., D) -> output (..., D), streams behind each block.

    `sublayers` are two a block, in one list or in pairs. Behind the last one stand three norms:
    `LN(LN(X) + LN(Y))`.

    >>> output, streams = siamese_trunk([[3.0, 4.0]], [torch.zeros(2, 2)] * 4)
    >>> len(streams), [round(value, 4) for value in output[0].tolist()]
    (2, [0.8485, 1.1314])
    """
    h, topology = H, Topology(f"siamese_{layout}", norm=norm, eps=eps)
    functions = _sublayers(sublayers, h.shape[-1])
    if len(functions) % 2:
        raise ArgumentError(f"sublayers: got {len(functions)}, expected two for each block")
    streams, seen = StreamPair(h, h), []
    for index, function in enumerate(functions):
        own = _norms(topology.norms_of(index), "", {}, topology, h.shape[-1], h)
        streams = _through(streams, function, own, topology.x_share(index))
        if index % 2:
            seen.append(streams)
    last = _norms(topology.final_norms, "", {}, topology, h.shape[-1], h)
    _, output = read_streams(Streams(*streams), last, add_norm)
    return TrunkOutput(output, seen)


@public
def siamese_dit_block(
    X: Annotated[Float[Tensor, "*B T D"] | Float[Tensor, " D"], Meta(ge=-1e18, le=1e18)],
    Y: Annotated[Float[Tensor, "*B T D"] | Float[Tensor, " D"], Meta(ge=-1e18, le=1e18)],
    cond: Float[Tensor, "*B C"],
    first: object,
    second: object,
    W_mod: Float[Tensor, "E C"],
    b_mod: Float[Tensor, " E"] | None = None,
    block_index: Count = 0,
    eps: Positive = 1e-6,
) -> StreamPair:
    """Both streams behind one DiT block: post_pre with layer norms and adaLN-Zero.

    X, Y (B, T, D), cond (B, C), W_mod (6 D, C), b_mod (6 D,). `W_mod @ silu(cond) + b_mod` is shift,
    scale and gate of the first sublayer, then of the second:
    `O = gate * F((1 + scale) * LN(X + LN(Y)) + shift)`. With zeros Y is untouched.

    >>> h = torch.randn(1, 3, 4)
    >>> X, Y = siamese_dit_block(h, h, torch.ones(1, 2), torch.eye(4), torch.eye(4), torch.zeros(24, 2))
    >>> bool((Y == h).all())
    True
    """
    size = X.shape[-1]
    check_shape(W_mod, "W_mod", (6 * size, cond.shape[-1]))
    kind = functools.reduce(torch.promote_types, (one.dtype for one in (X, Y, cond, W_mod)))
    bias = None if b_mod is None else b_mod.to(kind)
    modulation = F.linear(F.silu(cond.to(kind)), W_mod.to(kind), bias)
    parts = (modulation.unsqueeze(-2) if X.dim() > 1 else modulation).chunk(6, dim=-1)
    topology = Topology("siamese_post_pre", norm="layer", eps=eps)
    streams = StreamPair(X.to(kind), Y.to(kind))

    def modulated(z: Tensor, function: Sublayer, place: int) -> Tensor:
        shift, scale, gate = parts[3 * place : 3 * place + 3]
        return gate * function((1 + scale) * z + shift)

    for place, (name, sublayer) in enumerate((("first", first), ("second", second))):
        function = _sublayer(name, sublayer, size)
        step = functools.partial(modulated, function=function, place=place)
        number = 2 * block_index + place
        own = _norms(topology.norms_of(number), "", {}, topology, size, X)
        streams = _through(streams, step, own, topology.x_share(number))
    return streams


@public
def siamese_paper(
    H: Stream,
    sublayers: object,
    normalized_input: bool = True,
    depth_scaling: bool | DepthScale = True,
    eps: Positive = 1e-5,
    x_gain: Number = 1.0,
    y_gain: Number = 1.0,
    x_start: Literal["embedding", "zero"] = "embedding",
    norm: NormKind = "rms",
) -> TrunkOutput:
    """Algorithm 1 of the paper: (..., D) -> output (..., D), streams behind each sublayer.

    `Z = X + LN_y(Y)`, `O = F(Z)` or, with `normalized_input`, `F(LN(Z))`; `X = LN_x(X + s O)`,
    `Y = Y + O`; out = `X + LN_y(Y)`. `depth_scaling` makes s `1 / sqrt(l + 1)` in sublayer l; the word
    sqrt_2i takes the released code's `1 / sqrt(2 (l // 2 + 1))`. `x_gain` and `y_gain` are the gains of
    LN_x and of every LN_y: without normalised input, `y_gain=0` is Post-Norm, and `x_gain=0` with
    `x_start="zero"` is Pre-Norm.

    >>> output, streams = siamese_paper([[3.0, 4.0]], [torch.eye(2)], False, False)
    >>> [round(value, 4) for value in streams[0].Y[0].tolist()]        # Y + (X + LN(Y))
    [6.8485, 9.1314]
    """
    scale = depth_scaling
    if not isinstance(scale, str):
        scale = "sqrt_l" if scale else "none"
    topology = Topology("siamese_post_pre", normalized_input, scale, norm, eps)
    x_norm, y_norm = (_unit(topology, gain) for gain in (x_gain, y_gain))
    inside = _unit(topology, 1.0) if normalized_input else None
    x, y, seen = H if x_start == "embedding" else torch.zeros_like(H), H, []
    for index, function in enumerate(_sublayers(sublayers, H.shape[-1])):
        _, fused = read_streams(Streams(x, y), Norms(None, y_norm, inside), add_norm)
        update = function(fused)
        x, y = x_norm(x + topology.x_share(index) * update), y + update
        seen.append(StreamPair(x, y))
    return TrunkOutput(x + y_norm(y), seen)


def _through(streams: StreamPair, sublayer: Sublayer, norms: Norms, share: float) -> StreamPair:
    read, fused = read_streams(Streams(*streams), norms, add_norm)
    x, y, *_ = settled(Streams(read.x, read.y, sublayer(fused), share))
    assert x is not None
    assert y is not None
    return StreamPair(x, y)


def _sublayers(values: Any, size: int) -> list[Sublayer]:
    """Functions of a list, of a list of pairs, or of matrices stacked in one tensor."""
    found: list[Sublayer] = []
    for one in as_list("sublayers", values, least=1):
        # Two lists of lists are a pair of matrices; two lists of numbers are one.
        is_pair = isinstance(one, list | tuple) and len(one) == 2
        if is_pair and isinstance(one[0], list | tuple):
            is_pair = isinstance(one[0][0], list | tuple)
        is_block = getattr(one, "ndim", 0) == 3
        for part in one if is_pair or is_block else (one,):
            found.append(_sublayer(f"sublayers[{len(found)}]", part, size))
    return found


def _sublayer(what: str, value: Any, size: int) -> Sublayer:
    """A function, or one that applies a matrix."""
    if callable(value) and not isinstance(value, Tensor):
        function: Sublayer = value
    else:
        matrix = as_logp(value, what)
        check_shape(matrix, what, (size, size))
        check_finite(matrix, what)

        def function(z: Tensor) -> Tensor:
            kind = torch.promote_types(z.dtype, matrix.dtype)
            return F.linear(z.to(kind), matrix.to(z.device, kind))

    def checked(z: Tensor) -> Tensor:
        update = function(z)
        check_shape(update, f"{what}: what it gave", tuple(z.shape))
        return update

    return checked


def _norms(
    names: tuple[str, ...],
    part: str,
    table: Mapping[str, object],
    topology: Topology,
    size: int,
    like: Tensor,
) -> Norms:
    """The norms of a sublayer as functions, from the caller's table."""

    def vector(key: str, value: Any) -> Tensor | None:
        if value is None:
            return None
        found = as_logp(value, f"norms['{key}']")
        check_shape(found, f"norms['{key}']", (size,))
        check_finite(found, f"norms['{key}']")
        return found.to(like.device, like.dtype)

    made: dict[str, Any] = {}
    for name in names:
        key = f"{part}_{name.removesuffix('_norm')}"
        given = table.get(key)
        values = given if isinstance(given, Mapping) else {"weight": given}
        weight, bias = (vector(key, values.get(word)) for word in ("weight", "bias"))
        norm = functools.partial(NORMS[topology.norm], weight=weight, bias=bias, eps=topology.eps)
        made[name] = weight if name == "x_scale" else norm
    return Norms(**made)


def _unit(topology: Topology, gain: float) -> Sublayer:
    return lambda x: gain * NORMS[topology.norm](x, None, None, topology.eps)
