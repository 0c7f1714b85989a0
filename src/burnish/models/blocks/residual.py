"""A stack of residual blocks over one of six topologies.

A sublayer sees one tensor and gives one back, so that masks, caches, adapters and experts stay its
own business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from burnish.models.blocks.layers import LayerNorm, RMSNorm
from burnish.models.blocks.topology import (
    Norms,
    Streams,
    Topology,
    read_streams,
    settled,
)

Watch = Callable[[int, Streams, Streams, list[Tensor]], None]
"""(block, streams before, streams behind, updates of its sublayers)."""


class SublayerNorms(nn.Module):
    """The norms of one sublayer, or those behind the last, as parameters."""

    def __init__(self, names: Sequence[str], size: int, topology: Topology) -> None:
        super().__init__()
        self.x_norm: nn.Module | None = None
        self.y_norm: nn.Module | None = None
        self.in_norm: nn.Module | None = None
        self.out_norm: nn.Module | None = None
        self.x_scale = nn.Parameter(torch.ones(size)) if "x_scale" in names else None
        kind = RMSNorm if topology.norm == "rms" else LayerNorm
        for name in names:
            if name != "x_scale":
                setattr(self, name, kind(size, topology.eps))

    def as_modules(self) -> Norms:
        """For `read_streams`."""
        return Norms(self.x_norm, self.y_norm, self.in_norm, self.out_norm, self.x_scale)

    def as_weights(self) -> Norms:
        """For an engine that has its own arithmetic; of RMS norms the weight is all there is."""
        parts = (self.x_norm, self.y_norm, self.in_norm, self.out_norm)
        x, y, inside, out = (None if norm is None else norm.weight for norm in parts)
        return Norms(x, y, inside, out, self.x_scale)


class ResidualBlock(nn.Module):
    """Two sublayers and their norms."""

    def __init__(
        self,
        first: nn.Module,
        second: nn.Module,
        size: int,
        topology: Topology,
        index: int,
    ) -> None:
        super().__init__()
        self.self_attn, self.mlp = first, second
        self.self_attn_norms = SublayerNorms(topology.norms_of(2 * index), size, topology)
        self.mlp_norms = SublayerNorms(topology.norms_of(2 * index + 1), size, topology)
        self.topology, self.index = topology, index

    def forward(
        self, x: Tensor | None, y: Tensor | None, dtype: torch.dtype, context: dict[str, Any]
    ) -> tuple[Tensor | None, Tensor | None, list[Tensor]]:
        """Both streams behind the block, and what its sublayers added."""
        streams = Streams(x, y)
        parts = ((self.self_attn, self.self_attn_norms), (self.mlp, self.mlp_norms))
        updates = []
        for place, (sublayer, norms) in enumerate(parts):
            modules = norms.as_modules()
            streams, fused = read_streams(streams, modules, add_norm)
            update = sublayer(fused.to(dtype), **context)
            if modules.out_norm is not None:
                update = modules.out_norm(update)
            updates.append(update)
            share = self.topology.x_share(2 * self.index + place)
            streams = settled(Streams(streams.x, streams.y, update, share))
        return streams.x, streams.y, updates


class Layers(nn.Module):
    """Modules named by their number, and the norms behind them, `final`."""

    def __init__(self, layers: Sequence[nn.Module], final: SublayerNorms) -> None:
        super().__init__()
        self.final = final
        self.count = len(layers)
        for index, layer in enumerate(layers):
            self.add_module(str(index), layer)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(self.count))

    def __getitem__(self, index: int) -> Any:
        return self.get_submodule(str(range(self.count)[index]))


class ResidualStack(Layers):
    """Residual blocks and the norms behind them: (B, T, D) -> (B, T, D).

    Block i is named `i`, the last norms `final`.
    """

    def __init__(
        self,
        blocks: Sequence[tuple[nn.Module, nn.Module]],
        size: int,
        topology: Topology,
    ) -> None:
        super().__init__(
            [ResidualBlock(*pair, size, topology, index) for index, pair in enumerate(blocks)],
            SublayerNorms(topology.final_norms, size, topology),
        )
        self.topology = topology
        self.gradient_checkpointing = False

    def forward(self, h: Tensor, watch: Watch | None = None, **context: Any) -> Tensor:
        """`context` is handed to every sublayer."""
        streams = self.topology.start(h)
        is_checkpointed = self.gradient_checkpointing and self.training
        for index, block in enumerate(self):
            arguments = (streams.x, streams.y, h.dtype, context)
            if is_checkpointed:
                x, y, updates = checkpoint(block, *arguments, use_reentrant=False)
            else:
                x, y, updates = block(*arguments)
            if watch is not None:
                watch(index, streams, Streams(x, y), updates)
            streams = Streams(x, y)
        _, out = read_streams(streams, self.final.as_modules(), add_norm)
        return out.to(h.dtype)


def add_norm(stream: Tensor, update: Tensor | None, norm: Any) -> tuple[Tensor, Tensor]:
    """The stream with an update, and its norm by a module or any function."""
    stream = stream if update is None else stream + update
    return stream, norm(stream)
