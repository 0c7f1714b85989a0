"""The config of a decoder over any residual topology, in the Hugging Face convention."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import transformers

from burnish.arguments import refused
from burnish.boundary import NonNegative, Positive, PositiveInt
from burnish.models.blocks.layers import QkvNorm
from burnish.models.blocks.topology import DepthScale, NormKind, Topology
from burnish.models.folders import read_settings


class SiameseNormConfig(transformers.PreTrainedConfig):  # type: ignore[misc]
    """Sizes and topology of a `SiameseNormForCausalLM`.

    `norm_topology` is pre, post, peri, hybrid, siamese_post_pre or siamese_hybrid_pre; "siamese" is
    siamese_post_pre. The settings that a topology has not are refused.

    >>> SiameseNormConfig(norm_topology="siamese").depth_scale
    'sqrt_2i'
    """

    model_type = "burnish-siamesenorm"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]

    vocab_size: PositiveInt = 260
    hidden_size: PositiveInt = 64
    intermediate_size: PositiveInt = 192
    num_hidden_layers: PositiveInt = 4
    num_attention_heads: PositiveInt = 4
    num_key_value_heads: PositiveInt | None = None
    head_dim: PositiveInt | None = None
    hidden_act: Literal["silu"] = "silu"
    max_position_embeddings: PositiveInt = 1024
    rope_theta: Positive = 10000.0
    norm_topology: str = "siamese_post_pre"
    normalized_input: bool | None = None
    depth_scale: DepthScale | None = None
    residual_in_fp32: bool = False
    norm_type: NormKind = "rms"
    norm_eps: Positive = 1e-5
    qkv_norm: QkvNorm | None = None
    """Norms of heads before they are rotated: none, qk or qkv; None takes what the topology needs."""
    is_causal: bool = True
    initializer_range: NonNegative | None = None
    """Standard deviation of the first weights; None: 1 / sqrt(2.5 hidden_size)."""
    tie_word_embeddings: bool = True
    use_cache: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        read_settings(self)
        self.num_key_value_heads = self.num_key_value_heads or self.num_attention_heads
        self.head_dim = self.head_dim or self.hidden_size // self.num_attention_heads
        topology = self.topology
        self.norm_topology = topology.kind
        self.normalized_input = topology.normalized_input
        self.depth_scale = topology.depth_scale
        if self.qkv_norm is None:
            self.qkv_norm = "qkv" if topology.needs_qkv_norm else "none"
        if topology.needs_qkv_norm and self.qkv_norm != "qkv":
            raise refused("qkv_norm", self.qkv_norm, f"qkv for {topology.kind}")
        super().__post_init__(**kwargs)

    @property
    def topology(self) -> Topology:
        """The settings of the residual streams."""
        return Topology(
            self.norm_topology,
            self.normalized_input,
            self.depth_scale,
            self.norm_type,
            self.norm_eps,
            self.residual_in_fp32,
        )

    @property
    def init_std(self) -> float:
        """Standard deviation of the first weights."""
        if self.initializer_range is not None:
            return float(self.initializer_range)
        return float((2.5 * self.hidden_size) ** -0.5)
