"""How many tokens one forward and backward pass may hold."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch

from burnish.lm.decoder import Decoder
from burnish.lm.head import CPU_CHUNK_BYTES, GPU_CHUNK_BYTES
from burnish.training.packing import ROW_TOKENS

CPU_TOKENS = 4096
"""A CPU gains nothing from larger passes."""
GPU_TOKENS = 16384
"""On a GPU, for models whose shape is not known here."""
MOST_TOKENS = 2**18
SHARE = 0.6
"""Of the free device memory; gradients and what a forward pass throws away need the rest."""


class LayerShape(Protocol):
    """The sizes of a decoder that decide what a token leaves behind for the backward pass."""

    @property
    def layers(self) -> int: ...
    @property
    def hidden(self) -> int: ...
    @property
    def intermediate(self) -> int: ...
    @property
    def kv_width(self) -> int: ...
    @property
    def bytes_per_value(self) -> int: ...


class Sizes(NamedTuple):
    """A `LayerShape` by itself."""

    layers: int
    hidden: int
    intermediate: int
    kv_width: int
    bytes_per_value: int


def activation_bytes_per_token(shape: LayerShape) -> int:
    """What one token keeps in device memory between forward and backward, over all layers."""
    per_layer = 6 * shape.hidden + 2 * shape.kv_width + 4 * shape.intermediate
    return shape.layers * per_layer * shape.bytes_per_value


def logits_bytes(trained: int, vocabulary: int, bytes_per_value: int, *, is_gpu: bool) -> int:
    """What the logits of trained tokens take at one time: those of one chunk."""
    most = GPU_CHUNK_BYTES if is_gpu else CPU_CHUNK_BYTES
    return min(trained * vocabulary * bytes_per_value, most)


def pass_tokens(model: object, device: torch.device) -> int:
    """The token budget of one pass: by free memory on a GPU, a constant elsewhere."""
    if device.type != "cuda":
        return CPU_TOKENS
    if not isinstance(model, Decoder):
        return GPU_TOKENS
    free, _ = torch.cuda.mem_get_info(device)
    return tokens_within(free, decoder_sizes(model))


def tokens_within(free: int, shape: LayerShape) -> int:
    """How many tokens fit into the free bytes, with a chunk of logits and a packed row's mask."""
    mask = ROW_TOKENS * (1 + shape.bytes_per_value)
    room = SHARE * free - 2 * GPU_CHUNK_BYTES
    fitting = int(room / (activation_bytes_per_token(shape) + mask))
    return min(max(fitting, ROW_TOKENS), MOST_TOKENS)


def decoder_sizes(decoder: Decoder) -> Sizes:
    """The sizes of a built-in decoder."""
    a = decoder.architecture
    return Sizes(
        layers=a.layers,
        hidden=a.hidden_size,
        intermediate=a.intermediate_size,
        kv_width=a.kv_heads * a.head_dim,
        bytes_per_value=decoder.head_weight.element_size(),
    )
