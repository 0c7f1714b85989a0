"""Parts that architectures share: norms, attention, SwiGLU, and residual stacks over six topologies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.models.blocks.attention import (
        Attention,
        GeluMLP,
        OutputLinear,
        Rotation,
        SwiGLU,
        rotate,
        rotation,
    )
    from burnish.models.blocks.norms import LayerNorm, RMSNorm, layer_norm, rms_norm
    from burnish.models.blocks.residual import ResidualBlock, ResidualStack
    from burnish.models.blocks.topology import TOPOLOGIES, Norms, Streams, Topology

__all__ = [
    "TOPOLOGIES",
    "Attention",
    "GeluMLP",
    "LayerNorm",
    "Norms",
    "OutputLinear",
    "RMSNorm",
    "ResidualBlock",
    "ResidualStack",
    "Rotation",
    "Streams",
    "SwiGLU",
    "Topology",
    "layer_norm",
    "rms_norm",
    "rotate",
    "rotation",
]
__getattr__, __dir__ = lazy_exports(__name__)
