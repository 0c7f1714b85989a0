"""Which Hugging Face `config.json` the built-in decoder can read, and what it needs from one.

The families are Llama (SmolLM and SmolLM2 are Llamas), Mistral, Qwen2, Qwen3 and our own: RMSNorm,
rotary positions, grouped-query attention, SwiGLU. They differ in a few switches: a bias on the query,
key and value projections, a norm on queries and keys, whether the head is the embedding, which
layers look back through a sliding window, how rotary positions are stretched (linear, llama3,
yarn), and, in our own, where the norms stand (`topology`). Every setting that would change the
computation is either read or refused with `Unsupported`; the caller then falls back to transformers.
Refused for one is every stretching that follows the length of the row (dynamic, longrope): keys that
lie in a cache would have to turn.

A masked diffusion model is one of these families that looks both ways (`lm/diffusion/convert.py`). Its
`model_type` is its own, so that no reader takes it for a causal model; the family is beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from burnish.errors import ArgumentError, UserError
from burnish.models.blocks.topology import Topology

OWN = "burnish-siamesenorm"
"""Our own family, whose norms may stand anywhere (`burnish.models.siamesenorm`)."""
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", OWN)
ROPE_TYPES = ("default", "linear", "llama3", "yarn")
MASKED_DIFFUSION = "burnish-masked-diffusion"
"""`model_type` of a masked diffusion model; `base_model_type` is the family."""


PRE = Topology("pre")


class Unsupported(Exception):
    """The built-in decoder cannot compute this configuration exactly; the text says why."""


@dataclass(frozen=True)
class Llama3Scaling:
    """Frequency-dependent stretching of the rotary positions (Llama 3.1 and later)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True)
class YarnScaling:
    """Interpolated long wavelengths, kept short ones, and a scale of queries and keys (YaRN)."""

    factor: float
    original_max_positions: int
    beta_fast: float
    """Pairs that turn more often than this within the original length are kept."""
    beta_slow: float
    """Pairs that turn less often than this are divided by the factor."""
    attention_factor: float
    """What cosine and sine are multiplied by."""
    truncate: bool
    """Whether the ends of the ramp are rounded outwards to whole pairs."""


@dataclass(frozen=True)
class Architecture:
    """Everything the decoder's computation depends on."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    rope_theta: float
    max_positions: int
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    v_norm: bool = False
    topology: Topology = PRE
    """Where the norms stand, and how many residual streams there are."""
    tied_head: bool = False
    rope_linear_factor: float = 1.0
    rope_llama3: Llama3Scaling | None = None
    rope_yarn: YarnScaling | None = None
    sliding_window: int | None = None
    """Tokens that a windowed layer sees, the newest included; None where every layer sees all."""
    windowed_layers: tuple[int, ...] = ()
    mask_id: int | None = None
    """Of a masked diffusion model: the token that stands for one to be predicted. Its rows look
    both ways, and the logits at a place are those of the token at that place."""
    prompt_sees: Literal["all", "prompt"] = "all"
    """Of a masked diffusion model: what a prompt attends to. `prompt`: itself alone, so that its keys
    do not change while the answer is written."""

    @property
    def is_causal(self) -> bool:
        return self.mask_id is None

    @property
    def kv_values_per_token(self) -> int:
        """Numbers that one token leaves in the key-value cache."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    def inverse_frequencies(self) -> list[float]:
        """Rotary frequency of each pair of dimensions, (head_dim / 2,)."""
        half = self.head_dim // 2
        plain = [self.rope_theta ** (-2 * i / self.head_dim) for i in range(half)]
        if self.rope_llama3 is not None:
            return [_stretch(f, self.rope_llama3) for f in plain]
        if self.rope_yarn is not None:
            return _interpolated(plain, self.rope_theta, self.rope_yarn)
        return [f / self.rope_linear_factor for f in plain]

    @property
    def rotary_scale(self) -> float:
        """What cosine and sine of every position are multiplied by."""
        return 1.0 if self.rope_yarn is None else self.rope_yarn.attention_factor


def read_architecture(config: Mapping[str, Any]) -> Architecture:
    """The architecture that a Hugging Face `config.json` describes, or `Unsupported`."""
    family = config.get("model_type")
    if family == MASKED_DIFFUSION:
        return _read_masked_diffusion(config)
    if family not in FAMILIES:
        raise Unsupported(f"model_type '{family}' is none of {', '.join(FAMILIES)}")
    _refuse_what_would_change_the_computation(config)
    heads = int(config["num_attention_heads"])
    hidden = int(config["hidden_size"])
    head_dim = config.get("head_dim") or (128 if family == "qwen3" else hidden // heads)
    bias = bool(config.get("attention_bias", False))
    own = family == OWN
    qkv_norm = config.get("qkv_norm", "none") if own else ""
    rope = _rope_settings(config)
    layers = int(config["num_hidden_layers"])
    window, windowed = _sliding_window(config, family, layers)
    return Architecture(
        family=family,
        vocab_size=int(config["vocab_size"]),
        hidden_size=hidden,
        intermediate_size=int(config["intermediate_size"]),
        layers=layers,
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(head_dim),
        norm_eps=float(config.get("norm_eps", 1e-5) if own else config.get("rms_norm_eps", 1e-6)),
        rope_theta=float(rope.get("rope_theta", 10000.0)),
        max_positions=int(config.get("max_position_embeddings", 2048)),
        qkv_bias=family == "qwen2" or (family in ("llama", "qwen3") and bias),
        output_bias=family in ("llama", "qwen3") and bias,
        mlp_bias=family == "llama" and bool(config.get("mlp_bias", False)),
        qk_norm=family == "qwen3" or qkv_norm in ("qk", "qkv"),
        v_norm=qkv_norm == "qkv",
        topology=_topology(config) if own else PRE,
        tied_head=bool(config.get("tie_word_embeddings", own)),
        rope_linear_factor=_linear_factor(rope),
        rope_llama3=_llama3_scaling(rope),
        rope_yarn=_yarn_scaling(rope, config),
        sliding_window=window,
        windowed_layers=windowed,
    )


def _topology(config: Mapping[str, Any]) -> Topology:
    """Where the norms of our own family stand; half precision keeps Y in float32 in any case."""
    if config.get("norm_type", "rms") != "rms":
        raise Unsupported(f"norm_type '{config['norm_type']}'; the built-in decoder has rms")
    if not config.get("is_causal", True):
        raise Unsupported("is_causal is false; the built-in decoder is causal")
    try:
        return Topology(
            config.get("norm_topology", Topology.kind),
            config.get("normalized_input"),
            config.get("depth_scale"),
            eps=config.get("norm_eps", 1e-5),
        )
    except ArgumentError as error:
        raise UserError(f"config.json: {error}") from None


def _read_masked_diffusion(config: Mapping[str, Any]) -> Architecture:
    found = read_architecture({**config, "model_type": config.get("base_model_type")})
    mask, sees = config.get("mask_token_id"), config.get("prompt_sees", "all")
    if not isinstance(mask, int) or not 0 <= mask < found.vocab_size:
        raise Unsupported(
            f"mask_token_id is {mask!r}; a masked diffusion model needs an id from 0 to "
            f"{found.vocab_size - 1}"
        )
    if sees not in ("all", "prompt"):
        raise Unsupported(f"prompt_sees is {sees!r}; known: all, prompt")
    if found.sliding_window is not None:
        raise Unsupported("a masked diffusion model with a sliding window")
    return replace(found, mask_id=mask, prompt_sees=cast(Literal["all", "prompt"], sees))


def _refuse_what_would_change_the_computation(config: Mapping[str, Any]) -> None:
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise Unsupported(f"hidden_act '{activation}'; the built-in decoder has silu")
    if config.get("attention_dropout"):
        raise Unsupported("attention_dropout is not zero")
    if config.get("quantization_config"):
        raise Unsupported("the weights are quantised")
    if config.get("partial_rotary_factor", 1.0) != 1.0:
        raise Unsupported("partial rotary positions")


def _rope_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary settings as one table: transformers 5 nests them, version 4 spread them."""
    nested = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    nested.setdefault("rope_type", nested.get("type", "default"))
    if "rope_theta" in config:
        nested.setdefault("rope_theta", config["rope_theta"])
    if nested["rope_type"] not in ROPE_TYPES:
        raise Unsupported(f"rope type '{nested['rope_type']}'; known: {', '.join(ROPE_TYPES)}")
    if nested.get("partial_rotary_factor", 1.0) != 1.0:
        raise Unsupported("partial rotary positions")
    return nested


def _linear_factor(rope: Mapping[str, Any]) -> float:
    return float(rope["factor"]) if rope["rope_type"] == "linear" else 1.0


def _llama3_scaling(rope: Mapping[str, Any]) -> Llama3Scaling | None:
    if rope["rope_type"] != "llama3":
        return None
    return Llama3Scaling(
        factor=float(rope["factor"]),
        low_freq_factor=float(rope["low_freq_factor"]),
        high_freq_factor=float(rope["high_freq_factor"]),
        original_max_positions=int(rope["original_max_position_embeddings"]),
    )


def _stretch(frequency: float, scaling: Llama3Scaling) -> float:
    """Llama 3's rule: long wavelengths divided by the factor, short ones kept, a ramp between."""
    turns = scaling.original_max_positions * frequency / (2 * math.pi)
    if turns < scaling.low_freq_factor:
        return frequency / scaling.factor
    if turns > scaling.high_freq_factor:
        return frequency
    span = scaling.high_freq_factor - scaling.low_freq_factor
    smooth = (turns - scaling.low_freq_factor) / span
    return (1 - smooth) * frequency / scaling.factor + smooth * frequency


def _yarn_scaling(rope: Mapping[str, Any], config: Mapping[str, Any]) -> YarnScaling | None:
    """As transformers reads it: a length beside the rope settings goes before one inside them."""
    if rope["rope_type"] != "yarn":
        return None
    longest = int(config.get("max_position_embeddings", 2048))
    inside = rope.get("original_max_position_embeddings") or longest
    original = int(config.get("original_max_position_embeddings") or inside)
    factor = longest / original if rope.get("factor") is None else float(rope["factor"])
    attention = rope.get("attention_factor")
    if attention is None:
        all_dim = rope.get("mscale_all_dim")
        if rope.get("mscale") and all_dim:
            attention = _magnitude(factor, rope["mscale"]) / _magnitude(factor, all_dim)
        else:
            attention = _magnitude(factor)
    return YarnScaling(
        factor=factor,
        original_max_positions=original,
        beta_fast=float(rope.get("beta_fast") or 32),
        beta_slow=float(rope.get("beta_slow") or 1),
        attention_factor=float(attention),
        truncate=bool(rope.get("truncate", True)),
    )


def _magnitude(factor: float, scale: float = 1.0) -> float:
    """YaRN's scale of queries and keys for a stretching."""
    return 1.0 if factor <= 1 else 0.1 * float(scale) * math.log(factor) + 1.0


def _interpolated(plain: list[float], theta: float, scaling: YarnScaling) -> list[float]:
    """YaRN's rule: fast pairs kept, slow ones divided by the factor, a ramp over pairs between."""
    size = 2 * len(plain)

    def pair_that_turns(times: float) -> float:
        wavelength = scaling.original_max_positions / (times * 2 * math.pi)
        return size * math.log(wavelength) / (2 * math.log(theta))

    low, high = pair_that_turns(scaling.beta_fast), pair_that_turns(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    span = (high - low) or 0.001
    ramp = [min(max((pair - low) / span, 0.0), 1.0) for pair in range(len(plain))]
    return [f * (r / scaling.factor + 1 - r) for f, r in zip(plain, ramp, strict=True)]


def _sliding_window(
    config: Mapping[str, Any], family: str, layers: int
) -> tuple[int | None, tuple[int, ...]]:
    """The window and the layers that use it."""
    # A config that does not mention its window has this one; `null` says that there is none.
    window = config.get("sliding_window", 4096)
    if family in ("llama", OWN) or window is None:
        return None, ()
    if family == "mistral":
        return int(window), tuple(range(layers))
    kinds = config.get("layer_types")
    if not config.get("use_sliding_window", False):
        if kinds is not None and "sliding_attention" in kinds:
            raise Unsupported("layer_types has windows that use_sliding_window switches off")
        return None, ()
    if kinds is None:
        windowed = tuple(range(int(config.get("max_window_layers", 28)), layers))
    else:
        windowed = tuple(i for i, kind in enumerate(kinds) if kind == "sliding_attention")
    return (int(window), windowed) if windowed else (None, ())
