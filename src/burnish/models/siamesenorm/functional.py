"""SiameseNorm as functions of tensors: a block, a trunk, a DiT block, and the paper's own algorithm.

Two residual streams start equal. X is normalised at every update, Y never is; one shared sublayer
reads the sum of both and its update goes into both. Paper: arXiv 2602.08064.

    siamese_block, siamese_trunk    the two released layouts, post_pre and hybrid_pre
    siamese_dit_block               post_pre with adaLN-Zero
    siamese_paper                   Algorithm 1 with its two auxiliary mechanisms as switches

A sublayer is a function, or a matrix (D, D) that is applied as `z @ W.T`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from burnish.arguments import (
    LARGEST_COUNT,
    as_flag,
    as_number,
    as_table,
    as_whole,
    as_word,
    refused,
)
from burnish.errors import ArgumentError
from burnish.models.blocks.norms import NORMS
from burnish.models.blocks.residual import add_norm
from burnish.models.blocks.topology import (
    DEPTH_SCALES,
    Norms,
    Streams,
    Topology,
    read_streams,
    settled,
)
from burnish.tensors import as_logp, check_finite, check_shape

if TYPE_CHECKING:
    from burnish.tensors import Numbers

LAYOUTS = ("post_pre", "hybrid_pre")
NORM_KEYS = ("first_y", "first_x", "first_in", "second_y", "second_x", "second_in")
X_SCALE = "first_x_scale"
LARGEST = {torch.float32: 1e18, torch.float64: 1e100}
"""Of numbers in the streams: norms square them and add the squares up."""

Sublayer = Callable[[Tensor], Tensor]


class StreamPair(NamedTuple):
    """Both residual streams behind a block."""

    X: Tensor
    Y: Tensor


class TrunkOutput(NamedTuple):
    """What leaves a trunk, and both streams behind every block or sublayer of it."""

    output: Tensor
    streams: list[StreamPair]


def siamese_block(
    X: Numbers,
    Y: Numbers,
    first: Any,
    second: Any,
    norms: Mapping[str, Any] | None = None,
    block_index: int = 0,
    layout: str = "post_pre",
    norm: str = "rms",
    eps: float = 1e-5,
) -> StreamPair:
    """Both streams behind one block: (..., D), (..., D) -> X, Y.

    `norms` maps first_x, first_y, first_in, second_x, second_y, second_in to
    `{"weight": (D,), "bias": (D,)}`, and first_x_scale to one vector; what is missing or None has gain
    1 and bias 0, and norms that a layout has not are not read. X gets `1 / sqrt(2 (block_index + 1))`
    of every update. In post_pre its norm opens the next sublayer, so the X that comes back is not
    normalised.

    >>> import torch
    >>> from burnish.models.siamesenorm import siamese_block
    >>> h = torch.tensor([[3.0, 4.0]])
    >>> X, Y = siamese_block(h, h, torch.eye(2), torch.zeros(2, 2), layout="post_pre", norm="rms")
    >>> [round(value, 4) for value in Y[0].tolist()]     # 3 and 4 with their unit-norm direction
    [3.8485, 5.1314]
    """
    x, y = _tensors(X, Y)
    size = x.shape[-1]
    topology = _released(layout, norm, eps)
    index = as_whole("block_index", block_index, low=0, high=LARGEST_COUNT)
    table = {} if norms is None else as_table("norms", norms, "a dict of norms by name")
    for key in table:
        as_word("norms", key, (*NORM_KEYS, X_SCALE))
    sublayers = [_sublayer("first", first, size), _sublayer("second", second, size)]
    streams = Streams(x, y)
    for place, (part, sublayer) in enumerate(zip(("first", "second"), sublayers, strict=True)):
        own = _norms(topology.norms_of(2 * index + place), part, table, topology, size, x)
        streams = _through(streams, sublayer, own, topology.x_share(2 * index + place))
    return _pair(streams)


def siamese_trunk(
    H: Numbers, sublayers: Any, layout: str = "post_pre", norm: str = "rms", eps: float = 1e-5
) -> TrunkOutput:
    """A trunk of unit norms over embeddings H: (..., D) -> output (..., D), streams behind each block.

    `sublayers` are two a block, in one list or in pairs. Behind the last one stand three norms:
    `LN(LN(X) + LN(Y))`.

    >>> import torch
    >>> from burnish.models.siamesenorm import siamese_trunk
    >>> output, streams = siamese_trunk([[3.0, 4.0]], [torch.zeros(2, 2)] * 4)
    >>> len(streams), [round(value, 4) for value in output[0].tolist()]
    (2, [0.8485, 1.1314])
    """
    (h,) = _tensors(H)
    topology = _released(layout, norm, eps)
    functions = _sublayers(sublayers, h.shape[-1])
    if len(functions) % 2:
        raise ArgumentError(f"sublayers: got {len(functions)}, expected two for each block")
    streams, seen = Streams(h, h), []
    for index, function in enumerate(functions):
        own = _norms(topology.norms_of(index), "", {}, topology, h.shape[-1], h)
        streams = _through(streams, function, own, topology.x_share(index))
        if index % 2:
            seen.append(_pair(streams))
    last = _norms(topology.final_norms, "", {}, topology, h.shape[-1], h)
    _, output = read_streams(streams, last, add_norm)
    return TrunkOutput(output, seen)


def siamese_dit_block(
    X: Numbers,
    Y: Numbers,
    cond: Numbers,
    first: Any,
    second: Any,
    W_mod: Numbers,
    b_mod: Numbers | None = None,
    block_index: int = 0,
    eps: float = 1e-6,
) -> StreamPair:
    """Both streams behind one DiT block: post_pre with layer norms and adaLN-Zero.

    X, Y (B, T, D), cond (B, C), W_mod (6 D, C), b_mod (6 D,). `W_mod @ silu(cond) + b_mod` is shift,
    scale and gate of the first sublayer, then of the second:
    `O = gate * F((1 + scale) * LN(X + LN(Y)) + shift)`. With zeros Y is untouched.

    >>> import torch
    >>> from burnish.models.siamesenorm import siamese_dit_block
    >>> h = torch.randn(1, 3, 4)
    >>> X, Y = siamese_dit_block(h, h, torch.ones(1, 2), torch.eye(4), torch.eye(4), torch.zeros(24, 2))
    >>> bool((Y == h).all())
    True
    """
    x, y = _tensors(X, Y)
    size = x.shape[-1]
    condition = as_logp(cond, "cond")
    weight = as_logp(W_mod, "W_mod")
    check_finite(condition, "cond")
    check_finite(weight, "W_mod")
    check_shape(condition, "cond", (*x.shape[:-2], condition.shape[-1] if condition.dim() else 0))
    check_shape(weight, "W_mod", (6 * size, condition.shape[-1]))
    bias = torch.zeros(6 * size) if b_mod is None else as_logp(b_mod, "b_mod")
    check_finite(bias, "b_mod")
    check_shape(bias, "b_mod", (6 * size,))
    index = as_whole("block_index", block_index, low=0, high=LARGEST_COUNT)
    kind = torch.promote_types(x.dtype, torch.promote_types(condition.dtype, weight.dtype))
    modulation = F.linear(F.silu(condition.to(kind)), weight.to(kind), bias.to(weight.device, kind))
    parts = (modulation.unsqueeze(-2) if x.dim() > 1 else modulation).chunk(6, dim=-1)
    topology = _released("post_pre", "layer", eps)
    streams = Streams(x.to(kind), y.to(kind))
    for place, sublayer in enumerate((first, second)):
        shift, scale, gate = parts[3 * place : 3 * place + 3]
        function = _sublayer(("first", "second")[place], sublayer, size)

        def modulated(
            z: Tensor,
            function: Sublayer = function,
            shift: Tensor = shift,
            scale: Tensor = scale,
            gate: Tensor = gate,
        ) -> Tensor:
            return gate * function((1 + scale) * z + shift)

        own = _norms(topology.norms_of(2 * index + place), "", {}, topology, size, x)
        streams = _through(streams, modulated, own, topology.x_share(2 * index + place))
    return _pair(streams)


def siamese_paper(
    H: Numbers,
    sublayers: Any,
    normalized_input: bool = True,
    depth_scaling: bool | str = True,
    eps: float = 1e-5,
    x_gain: float = 1.0,
    y_gain: float = 1.0,
    x_start: str = "embedding",
    norm: str = "rms",
) -> TrunkOutput:
    """Algorithm 1 of the paper: (..., D) -> output (..., D), streams behind each sublayer.

    `Z = X + LN_y(Y)`, `O = F(Z)` or, with `normalized_input`, `F(LN(Z))`; `X = LN_x(X + s O)`,
    `Y = Y + O`; out = `X + LN_y(Y)`. `depth_scaling` makes s `1 / sqrt(l + 1)` in sublayer l; the word
    sqrt_2i takes the released code's `1 / sqrt(2 (l // 2 + 1))`. `x_gain` and `y_gain` are the gains of
    LN_x and of every LN_y: without normalised input, `y_gain=0` is Post-Norm, and `x_gain=0` with
    `x_start="zero"` is Pre-Norm.

    >>> import torch
    >>> from burnish.models.siamesenorm import siamese_paper
    >>> output, streams = siamese_paper([[3.0, 4.0]], [torch.eye(2)], False, False)
    >>> [round(value, 4) for value in streams[0].Y[0].tolist()]        # Y + (X + LN(Y))
    [6.8485, 9.1314]
    """
    (h,) = _tensors(H)
    size = h.shape[-1]
    functions = _sublayers(sublayers, size)
    is_inside = as_flag("normalized_input", normalized_input)
    if isinstance(depth_scaling, str):
        scale = as_word("depth_scaling", depth_scaling, DEPTH_SCALES)
    else:
        scale = "sqrt_l" if as_flag("depth_scaling", depth_scaling) else "none"
    topology = Topology("siamese_post_pre", is_inside, scale, _kind(norm), as_number("eps", eps))
    gains = (as_number("x_gain", x_gain), as_number("y_gain", y_gain))
    start = as_word("x_start", x_start, ("embedding", "zero", "zeros"))
    x_norm, y_norm = (_unit(topology, gain) for gain in gains)
    inside = _unit(topology, 1.0) if is_inside else None
    x, y, seen = h if start == "embedding" else torch.zeros_like(h), h, []
    for index, function in enumerate(functions):
        _, fused = read_streams(Streams(x, y), Norms(None, y_norm, inside), add_norm)
        update = function(fused)
        x, y = x_norm(x + topology.x_share(index) * update), y + update
        seen.append(StreamPair(x, y))
    return TrunkOutput(x + y_norm(y), seen)


def _through(streams: Streams, sublayer: Sublayer, norms: Norms, share: float) -> Streams:
    streams, fused = read_streams(streams, norms, add_norm)
    return settled(Streams(streams.x, streams.y, sublayer(fused), share))


def _pair(streams: Streams) -> StreamPair:
    assert streams.x is not None
    assert streams.y is not None
    return StreamPair(streams.x, streams.y)


def _released(layout: str, norm: str, eps: float) -> Topology:
    kind = f"siamese_{as_word('layout', layout, LAYOUTS)}"
    return Topology(kind, norm=_kind(norm), eps=as_number("eps", eps, above=0))


def _kind(norm: str) -> str:
    return as_word("norm", norm, tuple(NORMS))


def _tensors(*values: Numbers) -> list[Tensor]:
    """Streams of one shape and type; their graph is kept."""
    names = ("H",) if len(values) == 1 else ("X", "Y")
    found = [as_logp(value, name) for value, name in zip(values, names, strict=True)]
    for tensor, name in zip(found, names, strict=True):
        if tensor.dim() == 0 or tensor.shape[-1] == 0:
            raise refused(name, tensor, "numbers of shape (..., D)")
        if not tensor.is_floating_point():
            raise refused(name, tensor, "floating-point numbers")
        check_finite(tensor, name)
        largest = LARGEST[tensor.dtype]
        if tensor.numel() and tensor.detach().abs().max() > largest:
            raise ArgumentError(
                f"{name}: has numbers beyond {largest:g}, whose squares {tensor.dtype} does not hold; "
                "expected smaller ones"
            )
        check_shape(tensor, name, tuple(found[0].shape))
    kind = torch.promote_types(found[0].dtype, found[-1].dtype)
    return [tensor.to(kind) for tensor in found]


def _sublayers(values: Any, size: int) -> list[Sublayer]:
    """Functions of a list, of a list of pairs, or of matrices stacked in one tensor."""
    is_single = callable(values) or getattr(values, "ndim", 1) == 0
    if isinstance(values, str | Mapping) or is_single or not isinstance(values, Iterable):
        raise refused("sublayers", values, "a list of functions or of (D, D) matrices")
    found: list[Sublayer] = []
    for one in values:
        is_pair = isinstance(one, list | tuple) and len(one) == 2 and not _is_matrix(one)
        is_block = getattr(one, "ndim", 0) == 3
        for part in one if is_pair or is_block else (one,):
            found.append(_sublayer(f"sublayers[{len(found)}]", part, size))
    if not found:
        raise refused("sublayers", values, "at least one function or (D, D) matrix")
    return found


def _is_matrix(value: Any) -> bool:
    """Whether nested lists hold numbers two deep."""
    first = value[0]
    return isinstance(first, list | tuple) and not isinstance(first[0], list | tuple)


def _sublayer(what: str, value: Any, size: int) -> Sublayer:
    """A function, or one that applies a matrix; what it gives back is checked."""
    if isinstance(value, torch.nn.Module) or (callable(value) and not isinstance(value, Tensor)):
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
        if not isinstance(update, Tensor) or update.shape != z.shape:
            raise refused(what, update, f"a tensor of shape {tuple(z.shape)} from it")
        check_finite(update, f"{what} gave")
        return update

    return checked


def _norms(
    names: tuple[str, ...],
    part: str,
    table: Mapping[str, Any],
    topology: Topology,
    size: int,
    like: Tensor,
) -> Norms:
    """The norms of a sublayer as functions, from the caller's table."""
    made: dict[str, Any] = {}
    for name in names:
        key = f"{part}_{name.removesuffix('_norm')}"
        given = table.get(key)
        if name == "x_scale":
            weight = given.get("weight") if isinstance(given, Mapping) else given
            scale = _vector(key, weight, size, like)
            made[name] = torch.ones_like(like[..., :1]) if scale is None else scale
            continue
        values = {} if given is None else as_table(f"norms['{key}']", given, "weight and bias")
        for word in values:
            as_word(f"norms['{key}']", word, ("weight", "bias"))
        weight, bias = (_vector(key, values.get(word), size, like) for word in ("weight", "bias"))
        made[name] = _function(topology, weight, bias)
    return Norms(**made)


def _vector(key: str, value: Any, size: int, like: Tensor) -> Tensor | None:
    if value is None:
        return None
    vector = as_logp(value, f"norms['{key}']")
    check_shape(vector, f"norms['{key}']", (size,))
    check_finite(vector, f"norms['{key}']")
    return vector.to(like.device, like.dtype)


def _function(topology: Topology, weight: Tensor | None, bias: Tensor | None) -> Sublayer:
    return lambda x: NORMS[topology.norm](x, weight, bias, topology.eps)


def _unit(topology: Topology, gain: float) -> Sublayer:
    return lambda x: gain * NORMS[topology.norm](x, None, None, topology.eps)
