"""Parts that architectures share: norms, attention, SwiGLU, and residual stacks over six topologies."""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.models.blocks.layers import Attention as Attention
    from burnish.models.blocks.layers import LayerNorm as LayerNorm
    from burnish.models.blocks.layers import OutputLinear as OutputLinear
    from burnish.models.blocks.layers import RMSNorm as RMSNorm
    from burnish.models.blocks.layers import Rotation as Rotation
    from burnish.models.blocks.layers import SwiGLU as SwiGLU
    from burnish.models.blocks.layers import layer_norm as layer_norm
    from burnish.models.blocks.layers import rms_norm as rms_norm
    from burnish.models.blocks.layers import rotate as rotate
    from burnish.models.blocks.layers import rotation as rotation
    from burnish.models.blocks.residual import ResidualBlock as ResidualBlock
    from burnish.models.blocks.residual import ResidualStack as ResidualStack
    from burnish.models.blocks.topology import TOPOLOGIES as TOPOLOGIES
    from burnish.models.blocks.topology import Norms as Norms
    from burnish.models.blocks.topology import Streams as Streams
    from burnish.models.blocks.topology import Topology as Topology

__getattr__, __dir__ = lazy_exports(__name__)
