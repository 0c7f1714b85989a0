"""Which Hugging Face `config.json` the built-in decoder can read, and what it needs from one.

Every setting that would change the computation is either read or refused with `Unsupported`; the caller
then falls back to transformers. A stretching that follows the length of the row (dynamic, longrope) is
refused: keys that lie in a cache would have to turn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from burnish.boundary import Count, NonNegative, Positive, PositiveInt
from burnish.errors import UserError
from burnish.models.blocks.topology import DepthScale, Topology

OWN = "burnish-siamesenorm"
"""Our own family, whose norms may stand anywhere (`burnish.models.siamesenorm`)."""
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", OWN)
ROPE_TYPES = ("default", "linear", "llama3", "yarn")
MASKED_DIFFUSION = "burnish-masked-diffusion"
"""`model_type` of a masked diffusion model; `base_model_type` is the family."""


LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
PRE = Topology("pre")
Theta = Annotated[float, Meta(gt=1.0, le=1e15)]


class Unsupported(Exception):
    """The built-in decoder cannot compute this configuration exactly; the text says why."""


class Llama3Scaling(NamedTuple):
    """Frequency-dependent stretching of the rotary positions (Llama 3.1 and later)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


class YarnScaling(NamedTuple):
    """Interpolated long wavelengths, kept short ones, and a scale of queries and keys (YaRN)."""

    factor: float
    original_max_positions: int
    beta_fast: float
    """Pairs that turn more often than this within the original length are kept."""
    beta_slow: float
    """Pairs that turn less often than this are divided by the factor."""
    attention_factor: float
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
    def mask(self) -> int:
        """The mask token of a masked diffusion model."""
        assert self.mask_id is not None
        return self.mask_id

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


class RopeConfig(Struct):
    """Rotary settings, as transformers 5 nests them and version 4 spread them."""

    rope_type: str | None = None
    type: str | None = None
    rope_theta: Theta | None = None
    factor: Positive | None = None
    low_freq_factor: Positive | None = None
    high_freq_factor: Positive | None = None
    original_max_position_embeddings: PositiveInt | None = None
    attention_factor: Positive | None = None
    mscale: NonNegative | None = None
    mscale_all_dim: NonNegative | None = None
    beta_fast: NonNegative | None = None
    beta_slow: NonNegative | None = None
    truncate: bool = True
    partial_rotary_factor: float = 1.0

    @property
    def kind(self) -> str:
        return self.rope_type or self.type or "default"


class DecoderConfig(Struct):
    """What the built-in decoder reads of a `config.json`; what else stands there is left alone."""

    vocab_size: PositiveInt
    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    num_hidden_layers: Annotated[int, Meta(ge=1, le=10_000)]
    num_attention_heads: PositiveInt
    num_key_value_heads: Count | None = None
    head_dim: Count | None = None
    rms_norm_eps: NonNegative = 1e-6
    rope_theta: Theta | None = None
    rope_parameters: RopeConfig | None = None
    rope_scaling: RopeConfig | None = None
    max_position_embeddings: PositiveInt = 2048
    original_max_position_embeddings: PositiveInt | None = None
    partial_rotary_factor: float = 1.0
    hidden_act: str = "silu"
    attention_dropout: float | None = None
    attention_bias: bool | None = False
    mlp_bias: bool | None = False
    tie_word_embeddings: bool | None = None
    quantization_config: Any = None
    sliding_window: int | None = 4096
    """A config that does not mention its window has this one; `null` says that there is none."""
    use_sliding_window: bool | None = False
    max_window_layers: int = 28
    layer_types: list[str] | None = None
    norm_eps: NonNegative = 1e-5
    qkv_norm: str = "none"
    norm_type: str = "rms"
    is_causal: bool = True
    norm_topology: str = Topology.kind
    normalized_input: bool | None = None
    depth_scale: DepthScale | None = None
    mask_token_id: Count | None = None
    prompt_sees: Literal["all", "prompt"] = "all"

    @property
    def rope(self) -> RopeConfig:
        return self.rope_parameters or self.rope_scaling or RopeConfig()


def read_architecture(config: Mapping[str, Any]) -> Architecture:
    """The architecture that a Hugging Face `config.json` describes, or `Unsupported`."""
    family = config.get("model_type")
    is_diffusion = family == MASKED_DIFFUSION
    if is_diffusion:
        family = config.get("base_model_type")
    if family not in FAMILIES:
        raise Unsupported(f"model_type '{family}' is none of {', '.join(FAMILIES)}")
    try:
        read = msgspec.convert(dict(config), DecoderConfig)
    except msgspec.ValidationError as error:
        raise UserError(f"config.json: {error}; expected what save_pretrained writes") from None
    found = _architecture(read, str(family))
    if not is_diffusion:
        return found
    mask = read.mask_token_id
    if mask is None or mask >= found.vocab_size or found.sliding_window is not None:
        raise Unsupported(
            f"mask_token_id is {mask!r}, sliding_window {found.sliding_window}; a masked diffusion "
            f"model needs an id from 0 to {found.vocab_size - 1} and no window"
        )
    return replace(found, mask_id=mask, prompt_sees=read.prompt_sees)


def _architecture(config: DecoderConfig, family: str) -> Architecture:
    heads, hidden, own = config.num_attention_heads, config.hidden_size, family == OWN
    kv_heads = config.num_key_value_heads or heads
    head_dim = config.head_dim or (128 if family == "qwen3" else hidden // heads)
    if heads % kv_heads or head_dim % 2 or not head_dim:
        raise UserError(
            f"config.json: {heads} heads of {head_dim} numbers over {kv_heads} of keys; expected a multiple"
        )
    bias, qkv_norm = bool(config.attention_bias), config.qkv_norm if own else ""
    window, windowed = _sliding_window(config, family)
    rope = config.rope
    for is_other, reason in (
        (
            config.hidden_act not in ("silu", "swish"),
            f"hidden_act '{config.hidden_act}'; known: silu",
        ),
        (config.attention_dropout, "attention_dropout is not zero"),
        (config.quantization_config, "the weights are quantised"),
        (
            {config.partial_rotary_factor, rope.partial_rotary_factor} != {1},
            "partial rotary positions",
        ),
        (rope.kind not in ROPE_TYPES, f"rope type '{rope.kind}'; known: {', '.join(ROPE_TYPES)}"),
        (
            own and config.norm_type != "rms",
            f"norm_type '{config.norm_type}'; the built-in decoder has rms",
        ),
        (own and not config.is_causal, "is_causal is false; the built-in decoder is causal"),
    ):
        if is_other:
            raise Unsupported(reason)
    return Architecture(
        family=family,
        vocab_size=config.vocab_size,
        hidden_size=hidden,
        intermediate_size=config.intermediate_size,
        layers=config.num_hidden_layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        norm_eps=config.norm_eps if own else config.rms_norm_eps,
        rope_theta=rope.rope_theta or config.rope_theta or 10000.0,
        max_positions=config.max_position_embeddings,
        qkv_bias=family == "qwen2" or (family in ("llama", "qwen3") and bias),
        output_bias=family in ("llama", "qwen3") and bias,
        mlp_bias=family == "llama" and bool(config.mlp_bias),
        qk_norm=family == "qwen3" or qkv_norm in ("qk", "qkv"),
        v_norm=qkv_norm == "qkv",
        topology=Topology(
            config.norm_topology, config.normalized_input, config.depth_scale, eps=config.norm_eps
        )
        if own
        else PRE,
        tied_head=own if config.tie_word_embeddings is None else config.tie_word_embeddings,
        rope_linear_factor=_needed(rope, "factor") if rope.kind == "linear" else 1.0,
        rope_llama3=Llama3Scaling(*(_needed(rope, name) for name in LLAMA3))
        if rope.kind == "llama3"
        else None,
        rope_yarn=_yarn_scaling(config) if rope.kind == "yarn" else None,
        sliding_window=window,
        windowed_layers=windowed,
    )


def _needed(rope: RopeConfig, name: str) -> Any:
    found = getattr(rope, name)
    if found is None:
        raise UserError(f"config.json: rope type '{rope.kind}' has no {name}; expected a number")
    return found


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


def _yarn_scaling(config: DecoderConfig) -> YarnScaling:
    """As transformers reads it: a length beside the rope settings goes before one inside them."""
    rope, longest = config.rope, config.max_position_embeddings
    inside = rope.original_max_position_embeddings or longest
    original = config.original_max_position_embeddings or inside
    factor = longest / original if rope.factor is None else rope.factor
    attention = rope.attention_factor
    if attention is None and rope.mscale and rope.mscale_all_dim:
        attention = _magnitude(factor, rope.mscale) / _magnitude(factor, rope.mscale_all_dim)
    return YarnScaling(
        factor=factor,
        original_max_positions=original,
        beta_fast=rope.beta_fast or 32.0,
        beta_slow=rope.beta_slow or 1.0,
        attention_factor=_magnitude(factor) if attention is None else attention,
        truncate=rope.truncate,
    )


def _magnitude(factor: float, scale: float = 1.0) -> float:
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


def _sliding_window(config: DecoderConfig, family: str) -> tuple[int | None, tuple[int, ...]]:
    window, layers, kinds = config.sliding_window, config.num_hidden_layers, config.layer_types
    if family in ("llama", OWN) or window is None:
        return None, ()
    if family == "mistral":
        return window, tuple(range(layers))
    if not config.use_sliding_window:
        if kinds is not None and "sliding_attention" in kinds:
            raise Unsupported("layer_types has windows that use_sliding_window switches off")
        return None, ()
    if kinds is None:
        windowed = tuple(range(config.max_window_layers, layers))
    else:
        windowed = tuple(i for i, kind in enumerate(kinds) if kind == "sliding_attention")
    return (window, windowed) if windowed else (None, ())
