"""The decoder's weights as the decode step reads them: its own tensors, several products as one.

Query, key and value projections read the same input, and so do gate and up. Where their weights
lie side by side in memory (`burnish.lm.folder` loads them so) one product over a view does the work
of three; the view is the parameters' own memory, so what the optimiser writes is what is sampled.
Anything else, such as a projection with adapters, is called as the module it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from burnish.lm.decoder import Decoder, Layer, Linear
from burnish.models.blocks.topology import Norms

FEW_ROWS = 48
"""Up to this many rows a CPU is faster with the product the other way round, the weight first: by
1.2 to 1.7 times for 16 and 32 rows in float32 and bfloat16, turning the result included."""


class Projection:
    """Linear maps of one input, their outputs side by side."""

    def __init__(self, *parts: nn.Module) -> None:
        self.parts = parts
        self.weight: Tensor | None = None
        self.bias: Tensor | None = None
        plain = [part for part in parts if type(part) is Linear]
        if len(plain) == len(parts):
            self.weight = side_by_side([part.weight for part in plain])
            biases = [part.bias for part in plain if part.bias is not None]
            if biases:
                self.bias = side_by_side(biases) if len(biases) == len(plain) else None
                self.weight = self.weight if self.bias is not None else None

    def __call__(self, hidden_BD: Tensor) -> Tensor:
        if self.weight is not None:
            if hidden_BD.device.type == "cpu" and 1 < len(hidden_BD) <= FEW_ROWS:
                out_BN = torch.mm(self.weight, hidden_BD.t()).t()
                return out_BN.contiguous() if self.bias is None else out_BN + self.bias
            return F.linear(hidden_BD, self.weight, self.bias)
        if len(self.parts) == 1:
            out: Tensor = self.parts[0](hidden_BD)
            return out
        return torch.cat([part(hidden_BD) for part in self.parts], dim=-1)


class LayerPlan:
    """One layer's weights."""

    def __init__(self, layer: Layer, window: int) -> None:
        """`window`: tokens the layer sees, the newest included; 0 for all."""
        self.window = window
        attention, feed = layer.self_attn, layer.mlp
        self.norms, self.feed_norms = (detached(norms) for norms in layer.norms)
        self.shares = layer.shares
        self.qkv = Projection(attention.q_proj, attention.k_proj, attention.v_proj)
        self.q_norm = None if attention.q_norm is None else attention.q_norm.weight.detach()
        self.k_norm = None if attention.k_norm is None else attention.k_norm.weight.detach()
        self.v_norm = None if attention.v_norm is None else attention.v_norm.weight.detach()
        self.out = Projection(attention.o_proj)
        self.gate_up = Projection(feed.gate_proj, feed.up_proj)
        self.down = Projection(feed.down_proj)


class Plan:
    """Everything a decode step reads of a decoder."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.architecture = decoder.architecture
        self.embedding = decoder.model.embed_tokens.weight.detach()
        layers = [layer for layer in decoder.model.layers if isinstance(layer, Layer)]
        a = self.architecture
        self.layers = [
            LayerPlan(layer, (a.sliding_window or 0) if index in a.windowed_layers else 0)
            for index, layer in enumerate(layers)
        ]
        self.final_norms = detached(decoder.model.final_norms)
        self.addresses = addresses(decoder)

    @property
    def is_current(self) -> bool:
        """Whether the decoder's parameters still live where this plan reads them."""
        return self.addresses == addresses(self.decoder)


def detached(norms: Norms) -> Norms:
    """The same weights without their graph."""
    return Norms(*(None if weight is None else weight.detach() for weight in norms))


def addresses(module: nn.Module) -> tuple[int, ...]:
    """Where each parameter's numbers are."""
    return tuple(parameter.data_ptr() for parameter in module.parameters())


def side_by_side(tensors: Sequence[Tensor]) -> Tensor | None:
    """One view over tensors that follow each other in memory along their first axis, or None."""
    first = tensors[0].detach()
    end = first.storage_offset()
    for tensor in tensors:
        apart = (
            tensor.untyped_storage().data_ptr() != first.untyped_storage().data_ptr()
            or tensor.storage_offset() != end
            or tensor.shape[1:] != first.shape[1:]
            or not tensor.is_contiguous()
        )
        if apart:
            return None
        end += tensor.numel()
    rows = sum(tensor.shape[0] for tensor in tensors)
    return first.as_strided((rows, *first.shape[1:]), first.stride(), first.storage_offset())


def laid_side_by_side(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same weights, those that a decode step reads together moved next to each other."""
    laid = dict(weights)
    for name in weights:
        for group in (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")):
            stem, found, kind = name.rpartition(f"{group[0]}.")
            if not found:
                continue
            members = [f"{stem}{part}.{kind}" for part in group]
            joined = torch.cat([laid.pop(member) for member in members])
            sizes = [weights[member].shape[0] for member in members]
            laid.update(zip(members, torch.split(joined, sizes), strict=True))
    return laid
