"""Where the norms of a residual network stand: pre, post, peri, hybrid, and the two of SiameseNorm.

A network has one or two residual streams. X is normalised again and again (as Post-Norm does), Y
never is (as in Pre-Norm). One rule covers all six topologies; they differ in which streams there
are and which norms a sublayer has:

    X = x_norm(X)                       # where the sublayer has an x_norm
    Z = in_norm(x_scale * X + y_norm(Y))
    O = out_norm(F(Z))
    X, Y = X + s * O, Y + O             # s: the depth scale, which only X has

    topology             streams  norms of a sublayer
    pre                  Y        y_norm
    post                 X        x_norm, but for the first sublayer of all
    peri                 Y        y_norm, out_norm (Peri-LN; the embedding is not normalised)
    hybrid               X        x_norm before the MLP; attention normalises q, k and v (HybridNorm)
    siamese_post_pre     X, Y     x_norm, y_norm, in_norm
    siamese_hybrid_pre   X, Y     attention: x_scale, y_norm, and norms of q, k and v; MLP: all three

What leaves the network is read by the same rule. The X norm of Post-Norm is computed at the start of
the next sublayer instead of the end of its own, which is the same thing.
Paper: SiameseNorm, arXiv 2602.08064; the layouts are those of its released code.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from burnish.arguments import as_word, refused
from burnish.boundary import Positive, check_fields
from burnish.tensors import torch

if TYPE_CHECKING:  # a config is read without torch
    from torch import Tensor

TOPOLOGIES = ("pre", "post", "peri", "hybrid", "siamese_post_pre", "siamese_hybrid_pre")
ALIASES = {"siamese": "siamese_post_pre"}
DepthScale = Literal["sqrt_2i", "sqrt_l", "none"]
NormKind = Literal["rms", "layer"]


class Norms(NamedTuple):
    """The norms that a sublayer, or the end of the network, has; None for those it has not."""

    x_norm: Any = None
    y_norm: Any = None
    in_norm: Any = None
    out_norm: Any = None
    x_scale: Tensor | None = None
    """Of siamese_hybrid_pre: one number a channel, starting at 1."""


class Streams(NamedTuple):
    """The residual streams, and an update that is still to be added to them."""

    x: Tensor | None
    y: Tensor | None
    update: Tensor | None = None
    x_share: float = 1.0
    """What X gets of the update; Y gets all of it."""


AddNorm = Callable[["Tensor", "Tensor | None", Any], "tuple[Tensor, Tensor]"]
"""(stream, update, norm) -> the stream with the update added, and the norm of that."""
ReadBoth = Callable[["Streams", Norms], "tuple[Streams, Tensor] | None"]
"""All of `read_streams` for two streams and three norms at once; None where it cannot."""


@dataclass(frozen=True)  # no Settings: torch.compile looks into it
class Topology:
    """All settings of a residual network; what contradicts itself is refused in one line."""

    kind: str = "siamese_post_pre"
    normalized_input: bool | None = None
    """Whether the sum of both streams is normalised; None: yes, where there are two."""
    depth_scale: DepthScale | None = None
    """What X gets of an update: 1/sqrt(2(i+1)) in block i, 1/sqrt(l+1) in sublayer l, or all of it;
    None: sqrt_2i where there are two streams, else none."""
    norm: NormKind = "rms"
    eps: Positive = 1e-5
    residual_in_fp32: bool = False
    """Keep the streams in float32 where the rest is half precision."""

    def __post_init__(self) -> None:
        check_fields(self)
        kind = as_word("norm_topology", ALIASES.get(self.kind, self.kind), TOPOLOGIES)
        object.__setattr__(self, "kind", kind)
        two = self.has_x and self.has_y
        if self.normalized_input is None:
            object.__setattr__(self, "normalized_input", two)
        if self.depth_scale is None:
            object.__setattr__(self, "depth_scale", "sqrt_2i" if two else "none")
        for name, is_odd in (
            ("normalized_input", self.normalized_input and not two),
            ("depth_scale", self.depth_scale != "none" and not self.has_x),
        ):
            if is_odd:
                expected = (
                    f"none for '{self.kind}', which has not the streams; or a siamese topology"
                )
                raise refused(name, getattr(self, name), expected)

    @property
    def has_x(self) -> bool:
        """Whether there is a stream that is normalised."""
        return self.kind not in ("pre", "peri")

    @property
    def has_y(self) -> bool:
        """Whether there is a stream that never is."""
        return self.kind not in ("post", "hybrid")

    @property
    def needs_qkv_norm(self) -> bool:
        """Whether attention reads what is not normalised, and must do it itself."""
        return self.kind in ("hybrid", "siamese_hybrid_pre")

    def norms_of(self, sublayer: int) -> tuple[str, ...]:
        """Names of the norms of a sublayer; even ones are attention, odd ones the MLP."""
        is_mlp = sublayer % 2 == 1
        inside = ("in_norm",) if self.normalized_input else ()
        match self.kind:
            case "pre":
                return ("y_norm",)
            case "peri":
                return ("y_norm", "out_norm")
            case "post":
                return ("x_norm",) if sublayer else ()
            case "hybrid":
                return ("x_norm",) if is_mlp else ()
            case "siamese_post_pre":
                return ("x_norm", "y_norm", *inside)
            case _:
                return ("x_norm", "y_norm", *inside) if is_mlp else ("x_scale", "y_norm")

    @property
    def final_norms(self) -> tuple[str, ...]:
        """Names of the norms behind the last sublayer."""
        x, y = ("x_norm",) * self.has_x, ("y_norm",) * self.has_y
        return x + y + ("in_norm",) * (self.has_x and self.has_y)

    def x_share(self, sublayer: int) -> float:
        """What X gets of a sublayer's update."""
        if self.depth_scale == "sqrt_2i":
            return 1 / math.sqrt(2 * (sublayer // 2 + 1))
        return 1 / math.sqrt(sublayer + 1) if self.depth_scale == "sqrt_l" else 1.0

    def start(self, embedded: Tensor) -> Streams:
        """Both streams begin as the embedding."""
        if self.residual_in_fp32 and embedded.dtype in (torch.float16, torch.bfloat16):
            embedded = embedded.float()
        return Streams(embedded if self.has_x else None, embedded if self.has_y else None)


def read_streams(
    streams: Streams, norms: Norms, add_norm: AddNorm, read_both: ReadBoth | None = None
) -> tuple[Streams, Tensor]:
    """Add the update that is left, and make of the streams what the next sublayer reads."""
    x, y, update, x_share = streams
    if read_both is not None and (read := read_both(streams, norms)) is not None:
        return read
    if x is None:
        y, normed = add_norm(y, update, norms.y_norm)  # type: ignore[arg-type]  # one of both is there
        return Streams(None, y), normed
    part = update if update is None or x_share == 1 else update * x_share
    if norms.x_norm is not None:
        _, x = add_norm(x, part, norms.x_norm)
    elif part is not None:
        x = x + part
    if y is None:
        return Streams(x, None), x
    y, normed = add_norm(y, update, norms.y_norm)
    scaled = x if norms.x_scale is None else x * norms.x_scale
    if norms.in_norm is None:
        return Streams(x, y), scaled + normed
    return Streams(x, y), add_norm(scaled, normed, norms.in_norm)[1]


def settled(streams: Streams) -> Streams:
    """The streams with the update added that was still to be."""
    x, y, update, share = streams
    if update is None:
        return streams
    return Streams(
        None if x is None else x + (update if share == 1 else update * share),
        None if y is None else y + update,
    )
