"""Parts that architectures share: norms, attention, SwiGLU, and residual stacks over six topologies."""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.models.blocks.layers import (
        Attention as Attention,
        LayerNorm as LayerNorm,
        OutputLinear as OutputLinear,
        RMSNorm as RMSNorm,
        Rotation as Rotation,
        SwiGLU as SwiGLU,
        layer_norm as layer_norm,
        rms_norm as rms_norm,
        rotate as rotate,
        rotation as rotation,
    )
    from burnish.models.blocks.residual import (
        ResidualBlock as ResidualBlock,
        ResidualStack as ResidualStack,
    )
    from burnish.models.blocks.topology import (
        TOPOLOGIES as TOPOLOGIES,
        Norms as Norms,
        Streams as Streams,
        Topology as Topology,
    )

__getattr__, __dir__ = lazy_exports(__name__)
