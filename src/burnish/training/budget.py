"""How many bytes a forward and backward pass holds, and how many tokens it may therefore have.

Counted from the operations that keep something for the backward pass. With b bytes a value, r for
the residual stream (at least float32), D hidden, A = heads x head size, K = key heads x head size,
I intermediate and H heads, a token keeps in one layer

    r (2 D) + b (2 D + 4 A + 3 I) + 4 (H + 2)        with the fused kernels of a GPU
    r (4 D) + b (2 D + 4 A + 4 I) + 4 (H + 2)        in plain torch

and more where attention is not one kernel, is masked, or norms its queries and keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from burnish.lm.decoder import SHORT, Decoder
from burnish.lm.folder import LoadedModel
from burnish.lm.hardware import available_bytes, can_run_kernels
from burnish.lm.head import CPU_CHUNK_BYTES, GPU_CHUNK_BYTES
from burnish.training.forward import CHUNK
from burnish.training.packing import ROW_TOKENS

CPU_TOKENS = 4096
"""A CPU gains nothing from larger passes."""
GPU_TOKENS = 16384
"""On a GPU, for models whose shape is not known here."""
MOST_TOKENS = 2**18
SHARE = 0.6
"""Of the free device memory; gradients and what a forward pass throws away need the rest."""
COUNT = 4
"""Bytes of a number a row: a norm's scale, a head's log of the sum of exponentials."""


@dataclass(frozen=True)
class Sizes:
    """What decides how much a token leaves behind for the backward pass."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    bytes_per_value: int
    is_gpu: bool
    is_fused: bool = False
    """Norms, rotation and gate are one kernel each."""
    is_built_in: bool = True
    """The decoder of `burnish.lm`, which has plain attention for short rows on a CPU."""
    has_qk_norm: bool = False
    norms: int = 2
    """Of a layer; more where there are two residual streams."""
    trains_norms: bool = True
    """Not with adapters, which leave the model's own weights alone."""

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def residual_bytes(self) -> int:
        """Of a number in the residual stream, which half precision keeps in float32."""
        return max(self.bytes_per_value, 4)


def activation_bytes_per_token(sizes: Sizes, row_tokens: int, *, is_masked: bool) -> int:
    """What one token of a row of `row_tokens` keeps between forward and backward.

    `is_masked`: the batch has a mask of its own, because rows hold several rollouts.
    """
    b, r = sizes.bytes_per_value, sizes.residual_bytes
    # A fused norm keeps its input; torch's own also what its weight's gradient is made of.
    normed = 1 if sizes.is_fused or not sizes.trains_norms else 2
    layer = (sizes.norms * normed * r + 2 * b) * sizes.hidden + sizes.norms * COUNT
    layer += (3 if sizes.is_fused else 4) * b * sizes.intermediate
    layer += attention_bytes(sizes, row_tokens, is_masked=is_masked)
    if is_masked:
        layer += masked_attention_bytes(sizes, row_tokens)
    if sizes.has_qk_norm:
        kept = b if sizes.is_fused else normed * r
        layer += kept * (sizes.query_width + sizes.kv_width)
        layer += COUNT * (sizes.heads + sizes.kv_heads)
    # Once: the last norm, what the head reads of it, the rotation's angles, ids and places.
    once = (normed * r + b) * sizes.hidden + 2 * b * sizes.head_dim + 15 * COUNT
    if is_masked:
        once += row_tokens * (1 + b if sizes.is_gpu else 1)
    return sizes.layers * layer + once


def attention_bytes(sizes: Sizes, row_tokens: int, *, is_masked: bool) -> int:
    """What attention keeps of a token in one layer, the mask left out."""
    b = sizes.bytes_per_value
    # Flash attention, which is for half precision, reads the keys of several heads where they are.
    if sizes.is_gpu and sizes.is_built_in and b < 4 and not is_masked:
        return 2 * b * (sizes.query_width + sizes.kv_width) + COUNT * sizes.heads
    kept = 4 * b * sizes.query_width
    if not _is_plain(sizes, row_tokens):
        return kept + COUNT * sizes.heads
    # The weights as softmax gives them, in at least float32, and rounded where values are half.
    rounded = b if b < 4 else 0
    return kept + (sizes.residual_bytes + rounded) * sizes.heads * row_tokens


def masked_attention_bytes(sizes: Sizes, row_tokens: int) -> int:
    """What a mask adds to a token's attention in one layer."""
    if sizes.is_gpu:
        # All layers add the same tensor to their scores.
        return 0
    # Plain attention keeps the mask's opposite; torch's kernel what it adds to the scores.
    return row_tokens * (1 if _is_plain(sizes, row_tokens) else sizes.bytes_per_value)


def _is_plain(sizes: Sizes, row_tokens: int) -> bool:
    """Whether attention is plain products and keeps its scores."""
    return sizes.is_built_in and not sizes.is_gpu and row_tokens <= SHORT


def logits_bytes(
    trained: int,
    vocabulary: int,
    bytes_per_value: int,
    *,
    is_gpu: bool,
    has_plain_head: bool = True,
) -> int:
    """What the logits of trained tokens take at one time: those of one chunk.

    A head that is more than one matrix product keeps the logits, their tempered copy and the
    probabilities, in float32.
    """
    if not has_plain_head:
        return min(trained, CHUNK) * vocabulary * 4 * 3
    if is_gpu:
        return min(trained * vocabulary * bytes_per_value, GPU_CHUNK_BYTES)
    return min(trained * vocabulary * max(bytes_per_value, 4), CPU_CHUNK_BYTES)


def pass_tokens(model: object, device: torch.device) -> int:
    """The token budget of one pass: by free memory on a GPU, a constant elsewhere."""
    if device.type != "cuda":
        return CPU_TOKENS
    if not isinstance(model, Decoder):
        return GPU_TOKENS
    vocabulary = model.head_weight.shape[0]
    return tokens_within(available_bytes(device), decoder_sizes(model), vocabulary)


def tokens_within(free: int, sizes: Sizes, vocabulary: int) -> int:
    """How many tokens of packed rows fit into the free bytes beside their logits.

    Logits and their gradient are there for a chunk of tokens at one time: for all of a small pass.
    """
    kept = activation_bytes_per_token(sizes, ROW_TOKENS, is_masked=True)
    logits = vocabulary * sizes.bytes_per_value
    fitting = int(SHARE * free / (kept + 2 * logits))
    if fitting * logits > GPU_CHUNK_BYTES:
        fitting = int((SHARE * free - 2 * GPU_CHUNK_BYTES) / kept)
    return min(max(fitting, ROW_TOKENS), MOST_TOKENS)


def decoder_sizes(decoder: Decoder) -> Sizes:
    """The sizes of a built-in decoder, where it is now."""
    a, weight = decoder.architecture, decoder.head_weight
    return Sizes(
        layers=a.layers,
        hidden=a.hidden_size,
        intermediate=a.intermediate_size,
        heads=a.heads,
        kv_heads=a.kv_heads,
        head_dim=a.head_dim,
        bytes_per_value=weight.element_size(),
        is_gpu=weight.is_cuda,
        is_fused=can_run_kernels(weight),
        has_qk_norm=a.qk_norm,
        norms=sum(len(a.topology.norms_of(2 + place)) for place in (0, 1)),
        trains_norms=decoder.model.trains_norms,
    )


def model_sizes(loaded: LoadedModel) -> Sizes:
    """The sizes of any loaded model: an estimate for those from transformers.

    Their configs name sizes in their own ways, and their layers may be built otherwise.
    """
    if isinstance(loaded.module, Decoder):
        return decoder_sizes(loaded.module)
    config, weight = loaded.config, loaded.module.head_weight
    hidden, size = weight.shape[1], weight.element_size()
    layers = int(config.get("num_hidden_layers") or config.get("n_layer") or 1)
    heads = int(config.get("num_attention_heads") or config.get("n_head") or 1)
    head_dim = int(config.get("head_dim") or max(1, hidden // heads))
    kv_width = loaded.module.cache_bytes_per_token // (2 * layers * size) or hidden
    return Sizes(
        layers=layers,
        hidden=hidden,
        intermediate=int(config.get("intermediate_size") or 4 * hidden),
        heads=heads,
        kv_heads=max(1, kv_width // head_dim),
        head_dim=head_dim,
        bytes_per_value=size,
        is_gpu=weight.is_cuda,
        is_built_in=False,
    )
