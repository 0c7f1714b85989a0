"""A dense decoder of the Llama, Mistral, Qwen2, Qwen3 and SiameseNorm families in plain torch.

Parameters carry the names of the Hugging Face state dict, so weights load and save without a
mapping. It exists because importing transformers costs more CPU seconds than a small model's
first training step, and because its work per token outweighs a small model's arithmetic. The
same module trains and samples: the sampler reads the very tensors that the optimiser writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from burnish.lm.architecture import OWN, Architecture
from burnish.lm.fused import (
    SignedRotation,
    add_norm,
    gated,
    norm,
    read_both,
    rotate,
    rotate_and_repeat,
)
from burnish.lm.model_input import ModelInput, Segments
from burnish.models.blocks.residual import Layers, SublayerNorms
from burnish.models.blocks.topology import Norms, Streams, read_streams

KeepsKeys = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor] | None]
"""Is shown every layer's keys and values as they are computed, (B, Hkv, S, Dh) each; may give back
longer ones, with those of a prefix, for the queries to attend to under a mask (B, S, Sk)."""

SHORT = 256
"""Up to this length torch's fused CPU attention is slower with a backward pass than plain
products: 27 against 12 ms for 5 rows of 136 tokens, 135 against 217 ms for 4 rows of 520."""


class Linear(nn.Linear):
    """A linear map that starts empty: weights are loaded, or drawn by `init_weights`.

    Torch's own start would draw every weight twice, and on the meta device it imports the whole
    compiler, 1.5 CPU seconds.
    """

    def reset_parameters(self) -> None:
        pass


class Embedding(nn.Embedding):
    """An embedding that starts empty, for the same reasons."""

    def reset_parameters(self) -> None:
        pass


class Decoder(nn.Module):
    """Token ids to final-normed hidden states, and those to logits."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.architecture = architecture
        self.model = Trunk(architecture)
        self.lm_head = (
            None
            if architecture.tied_head
            else Linear(architecture.hidden_size, architecture.vocab_size, bias=False)
        )
        # Not a buffer: casting the module must not round the frequencies.
        self._inverse_frequencies: dict[torch.device, Tensor] = {}

    @property
    def head_weight(self) -> Tensor:
        """The output projection, (V, D); the embedding itself where the head is tied."""
        return self.model.embed_tokens.weight if self.lm_head is None else self.lm_head.weight

    @property
    def head_prefix(self) -> str:
        """How the names of the head's own weights begin."""
        return "lm_head."

    def forward(self, inputs: ModelInput, keep: KeepsKeys | None = None) -> Tensor:
        """Final-normed hidden states, (B, S, D).

        Under a mask every query needs at least one key. `keep` is shown the keys and values: with
        it, this is the prefill of a sampler.
        """
        ids_BS, positions_BS, mask, _ = inputs
        rows, length = ids_BS.shape
        in_window = None if isinstance(mask, Segments) else self._window_mask(positions_BS, mask)
        # Tokens in one long row: a linear map of two axes is one call, of three it is four.
        hidden_ND = self.model.embed_tokens(ids_BS.reshape(-1))
        rotation = self.rotation(positions_BS, hidden_ND.dtype)
        if isinstance(mask, Tensor):
            mask = _as_read(mask, hidden_ND.dtype).unsqueeze(1)
        windowed = mask
        if in_window is not None:
            windowed = _as_read(in_window, hidden_ND.dtype).unsqueeze(1)
        streams = self.architecture.topology.start(hidden_ND)
        with _on_its_device(ids_BS):
            for index, layer in enumerate(self.model.layers):
                seen = windowed if index in self.architecture.windowed_layers else mask
                streams = layer(streams, rotation, seen, keep, index)
            model = self.model
            _, normed_ND = read_streams(streams, model.final_norms, model.add_norm, model.read_both)
        return normed_ND.view(rows, length, -1)

    def logits(self, hidden: Tensor) -> Tensor:
        """Next-token logits of final-normed hidden states, (..., D) -> (..., V)."""
        if self.lm_head is None:
            return F.linear(hidden, self.model.embed_tokens.weight)
        logits: Tensor = self.lm_head(hidden)
        return logits

    @property
    def takes_segments(self) -> bool:
        """Whether `Segments` may stand for a mask: what flash attention over pieces can do."""
        a = self.architecture
        is_half = self.head_weight.dtype in (torch.bfloat16, torch.float16)
        fits = a.head_dim % 8 == 0 and a.head_dim <= 256
        return is_half and fits and a.sliding_window is None

    def weights_to_save(self) -> dict[str, Tensor]:
        """The state dict of a Hugging Face folder; a tied head is left out."""
        return plain_state(self)

    @property
    def max_positions(self) -> int:
        """Longest sequence that the model was made for."""
        return self.architecture.max_positions

    def longest_row(self, prompt_tokens: int) -> int:
        """How long a row may become that begins with so many tokens of prompt."""
        return self.max_positions

    @property
    def cache_bytes_per_token(self) -> int:
        """What one token of one row costs in the key-value cache."""
        return self.architecture.kv_values_per_token * self.head_weight.element_size()

    def rotation(self, positions_BS: Tensor, dtype: torch.dtype) -> SignedRotation:
        """Cosine and sine for every position, computed in float32."""
        device = positions_BS.device
        frequencies = self._inverse_frequencies.get(device)
        if frequencies is None:
            values = self.architecture.inverse_frequencies()
            # An ordinary tensor even when first asked for under inference_mode: training reuses it.
            with torch.inference_mode(False):
                frequencies = torch.tensor(values, dtype=torch.float32, device=device)
            self._inverse_frequencies[device] = frequencies
        angles_B1SE = (positions_BS.unsqueeze(-1).float() * frequencies).unsqueeze(1)
        cos, sin = angles_B1SE.cos(), angles_B1SE.sin()
        if (scale := self.architecture.rotary_scale) != 1:
            cos, sin = cos * scale, sin * scale
        cos, sin = cos.to(dtype), sin.to(dtype)
        return SignedRotation(torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1))

    def _window_mask(self, positions_BS: Tensor, mask: Tensor | None) -> Tensor | None:
        """What a query of a windowed layer may attend to, (B or 1, S, S); None where all fits.

        Distances are those of positions, so that responses which share a row keep their own; plain
        rows all count alike, and one mask serves them.
        """
        window, length = self.architecture.sliding_window, positions_BS.shape[1]
        if window is None or length <= window:
            return None
        if mask is None:
            mask = torch.ones(1, length, length, dtype=torch.bool, device=positions_BS.device)
            mask = mask.tril_()
            positions_BS = torch.arange(length, device=positions_BS.device).unsqueeze(0)
        return mask & (positions_BS.unsqueeze(2) - positions_BS.unsqueeze(1) < window)


class Trunk(nn.Module):
    """Embedding, layers and final norms (the `model.` part of the state dict)."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        a, size = architecture, architecture.hidden_size
        self.add_norm = partial(add_norm, eps=a.norm_eps)
        self.read_both = partial(read_both, eps=a.norm_eps)
        self.embed_tokens = Embedding(a.vocab_size, size)
        layers = [Layer(a, index) for index in range(a.layers)]
        self.layers: nn.ModuleList | Layers
        if a.family == OWN:
            final = SublayerNorms(a.topology.final_norms, size, a.topology)
            self.layers = Layers(layers, final)
        else:
            self.layers = nn.ModuleList(layers)
            self.norm = nn.RMSNorm(size, eps=a.norm_eps)

    @property
    def final_norms(self) -> Norms:
        """Weights of the norms behind the last layer."""
        if isinstance(self.layers, Layers):
            return self.layers.final.as_weights()
        return Norms(y_norm=self.norm.weight)

    @property
    def trains_norms(self) -> bool:
        """Not with adapters, which leave the model's own weights alone."""
        return any(w is not None and w.requires_grad for w in self.final_norms)


class Layer(nn.Module):
    """Attention and SwiGLU over one or two residual streams; the topology says where norms stand."""

    def __init__(self, architecture: Architecture, index: int) -> None:
        super().__init__()
        a, size = architecture, architecture.hidden_size
        self.add_norm = partial(add_norm, eps=a.norm_eps)
        self.read_both = partial(read_both, eps=a.norm_eps)
        self.shares = tuple(a.topology.x_share(2 * index + place) for place in (0, 1))
        self.self_attn = Attention(a)
        self.mlp = FeedForward(a)
        self.is_own = a.family == OWN
        if self.is_own:
            self.self_attn_norms = SublayerNorms(a.topology.norms_of(2 * index), size, a.topology)
            self.mlp_norms = SublayerNorms(a.topology.norms_of(2 * index + 1), size, a.topology)
        else:
            self.input_layernorm = nn.RMSNorm(size, eps=a.norm_eps)
            self.post_attention_layernorm = nn.RMSNorm(size, eps=a.norm_eps)

    @property
    def norms(self) -> tuple[Norms, Norms]:
        """Weights of the norms of attention and feed-forward."""
        if self.is_own:
            return self.self_attn_norms.as_weights(), self.mlp_norms.as_weights()
        weights = self.input_layernorm.weight, self.post_attention_layernorm.weight
        return Norms(y_norm=weights[0]), Norms(y_norm=weights[1])

    def forward(
        self,
        streams: Streams,
        rotation: SignedRotation,
        mask: Tensor | Segments | None,
        keep: KeepsKeys | None,
        index: int,
    ) -> Streams:
        before, between = self.norms
        streams, normed_ND = read_streams(streams, before, self.add_norm, self.read_both)
        update_ND = self.self_attn(normed_ND, rotation, mask, keep, index)
        streams = self._with(streams, update_ND, before, self.shares[0])
        streams, normed_ND = read_streams(streams, between, self.add_norm, self.read_both)
        return self._with(streams, self.mlp(normed_ND), between, self.shares[1])

    def _with(self, streams: Streams, update_ND: Tensor, norms: Norms, share: float) -> Streams:
        if norms.out_norm is not None:
            _, update_ND = self.add_norm(update_ND, None, norms.out_norm)
        return Streams(streams.x, streams.y, update_ND, share)


class FeedForward(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        a = architecture
        self.gate_proj = Linear(a.hidden_size, a.intermediate_size, bias=a.mlp_bias)
        self.up_proj = Linear(a.hidden_size, a.intermediate_size, bias=a.mlp_bias)
        self.down_proj = Linear(a.intermediate_size, a.hidden_size, bias=a.mlp_bias)

    def forward(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.down_proj(gated(self.gate_proj(hidden), self.up_proj(hidden)))
        return out


class Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        a = architecture
        self.heads, self.kv_heads = a.heads, a.kv_heads
        self.eps = a.norm_eps
        self.is_causal = a.is_causal
        self.q_proj = Linear(a.hidden_size, a.heads * a.head_dim, bias=a.qkv_bias)
        self.k_proj = Linear(a.hidden_size, a.kv_heads * a.head_dim, bias=a.qkv_bias)
        self.v_proj = Linear(a.hidden_size, a.kv_heads * a.head_dim, bias=a.qkv_bias)
        self.o_proj = Linear(a.heads * a.head_dim, a.hidden_size, bias=a.output_bias)
        self.q_norm, self.k_norm, self.v_norm = (
            nn.RMSNorm(a.head_dim, eps=a.norm_eps) if is_normed else None
            for is_normed in (a.qk_norm, a.qk_norm, a.v_norm)
        )

    def forward(
        self,
        hidden_ND: Tensor,
        rotation: SignedRotation,
        mask: Tensor | Segments | None,
        keep: KeepsKeys | None,
        index: int,
    ) -> Tensor:
        rows, _, length, size = rotation.cos.shape
        query = self.q_proj(hidden_ND).view(rows, length, self.heads, size)
        key = self.k_proj(hidden_ND).view(rows, length, self.kv_heads, size)
        value = self.v_proj(hidden_ND).view(rows, length, self.kv_heads, size)
        if self.q_norm is not None and self.k_norm is not None:
            query = norm(query, self.q_norm.weight, self.eps)
            key = norm(key, self.k_norm.weight, self.eps)
        if self.v_norm is not None:
            value = norm(value, self.v_norm.weight, self.eps)
        if mask is not None and keep is None and self.kv_heads != self.heads:
            # Attention kernels with a mask cannot share keys among heads, so they are repeated.
            query, key, value = rotate_and_repeat(query, key, value, rotation)
        else:
            query, key = rotate(query, key, rotation)
            value = value.transpose(1, 2)
        if keep is not None and (joined := keep(index, key, value)) is not None:
            key, value = joined
        attended = _attend(
            query, key, value, mask, is_sampling=keep is not None, is_causal=self.is_causal
        )
        out: Tensor = self.o_proj(attended.transpose(1, 2).reshape(rows * length, -1))
        return out


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | Segments | None,
    *,
    is_sampling: bool,
    is_causal: bool = True,
) -> Tensor:
    """Softmax attention; (B, H, S, Dh) queries over (B, Hkv, Sk, Dh) keys.

    Without a mask a query sees the keys up to its own, or all where the model is not causal.
    """
    if isinstance(mask, Segments):
        return _attend_in_segments(query, key, value, mask, is_causal)
    heads, length = query.shape[1:3]
    kv_heads = key.shape[1]
    is_shared = kv_heads != heads
    if is_shared and query.is_cuda and mask is None and _flash_shares_keys(query, key, value):
        return F.scaled_dot_product_attention(
            query, key, value, is_causal=is_causal, enable_gqa=True
        )
    if is_shared:
        key = key.repeat_interleave(heads // kv_heads, dim=1)
        value = value.repeat_interleave(heads // kv_heads, dim=1)
    # Not a question of gradients: old and reference log-probs are computed without and compared
    # with those computed with them, so both must come from the same kernels.
    if not is_sampling and query.device.type == "cpu" and length <= SHORT:
        return _attend_plainly(query, key, value, mask, is_causal)
    hides = is_causal and mask is None
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=hides)


def _attend_in_segments(
    query: Tensor, key: Tensor, value: Tensor, segments: Segments, is_causal: bool
) -> Tensor:
    """Attention in each piece of the rows, laid end to end; as many keys as queries."""
    from torch.nn.attention.varlen import varlen_attn

    rows, heads, length, size = query.shape
    q, k, v = (one.transpose(1, 2).reshape(rows * length, -1, size) for one in (query, key, value))
    ends, longest = segments
    window = (-1, 0) if is_causal else (-1, -1)
    attended = varlen_attn(q, k, v, ends, ends, longest, longest, window_size=window)
    assert isinstance(attended, Tensor)
    return attended.view(rows, length, heads, size).transpose(1, 2)


def _flash_shares_keys(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether causal flash attention can read the keys of several heads where they are.

    The other fused kernel cannot, and the one that is left would make all scores.
    """
    from torch.backends.cuda import SDPAParams, can_use_flash_attention

    return can_use_flash_attention(SDPAParams(query, key, value, None, 0.0, True, True))


def _attend_plainly(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool
) -> Tensor:
    if mask is None and is_causal:
        length = query.shape[2]
        mask = torch.ones(length, length, dtype=torch.bool).tril()
    scores = query @ key.transpose(-1, -2)
    scores = scores if scores.dtype == torch.float64 else scores.float()
    scores = scores * query.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    attended: Tensor = scores.softmax(-1).to(value.dtype) @ value
    return attended


def _as_read(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """On a GPU what is added to the scores: its kernels would make it of a mask for every layer.

    Its lines start at multiples of eight numbers, else every layer would copy them to such places.
    """
    if mask.device.type != "cuda":
        return mask
    rows, length, keys = mask.shape
    lines = torch.zeros(rows, length, -(-keys // 8) * 8, dtype=dtype, device=mask.device)
    return lines[..., :keys].masked_fill_(~mask, float("-inf"))


@contextmanager
def _on_its_device(ids_BS: Tensor) -> Iterator[None]:
    """Kernels start on the weights' own GPU, and attention without cuDNN's.

    That one plans for seconds whenever it meets a new shape.
    """
    if ids_BS.device.type != "cuda":
        yield
        return
    from torch.nn.attention import SDPBackend, sdpa_kernel

    kinds = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    with torch.cuda.device_of(ids_BS), sdpa_kernel(kinds):  # type: ignore[no-untyped-call]
        yield


def init_weights(decoder: Decoder, seed: int, *, std: float = 0.02) -> None:
    """Random weights as Hugging Face starts them: normal matrices, norms 1, biases 0."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(decoder.named_parameters()):
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=std, generator=generator)
        else:
            nn.init.constant_(parameter, 0.0 if name.endswith("bias") else 1.0)


def plain_state(module: nn.Module) -> dict[str, Tensor]:
    """The state dict as the tensors are now: its hooks would cut gathered weights up again."""
    found: dict[str, Tensor] = {}
    for name, part in module.named_modules(remove_duplicate=False):
        part._save_to_state_dict(found, f"{name}." if name else "", keep_vars=False)
    return found


def plain_head(model: object) -> Tensor | None:
    """The weight (V, D) of a model whose logits are one matrix product and nothing else."""
    if not isinstance(model, Decoder):
        return None
    is_plain = model.lm_head is None or type(model.lm_head) is Linear
    return model.head_weight if is_plain else None
