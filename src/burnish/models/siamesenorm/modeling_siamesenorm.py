"""A decoder over any residual topology, in the Hugging Face convention.

The whole model: an embedding, a `ResidualStack` of attention and SwiGLU, a head. Only the stack knows
that there may be two streams, so the key-value cache is that of every decoder.

First weights, as OLMo's `full_megatron` draws them (normal, cut at 3 standard deviations):

    embedding, q, k, v, gate, up     init_std = 1 / sqrt(2.5 hidden_size), or initializer_range
    o, down                          init_std / sqrt(2 layers)
    head of its own                  1 / sqrt(hidden_size)
    norms, x_scale                   1
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
import transformers
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    GenerationMixin,
    PreTrainedModel,
    initialization as init,
)
from transformers.cache_utils import Cache, DynamicCache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_layers import GenericForSequenceClassification
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from burnish.arguments import refused
from burnish.boundary import NonNegative, Positive, PositiveInt, Seed, public
from burnish.errors import ArgumentError
from burnish.models.blocks import Attention, ResidualStack, SwiGLU, rotation
from burnish.models.blocks.layers import QkvNorm
from burnish.models.blocks.topology import DepthScale, NormKind, Topology
from burnish.models.folders import causal_output, init_transformer, new_own, read_settings

FAMILIES = ("llama", "mistral", "qwen3")


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


class Head(nn.Linear):
    """Hidden states to logits."""


class SiameseNormPreTrainedModel(PreTrainedModel):  # type: ignore[misc]
    """What both models share: how weights begin."""

    config_class = SiameseNormConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules: ClassVar[list[str]] = ["ResidualBlock"]
    _skip_keys_device_placement: ClassVar[list[str]] = ["past_key_values"]
    _supports_sdpa = True
    _can_compile_fullgraph = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Called for every module; what was loaded from a file is left as it is."""
        std = self.config.hidden_size**-0.5 if isinstance(module, Head) else self.config.init_std
        init_transformer(module, self.config.num_hidden_layers, std)
        if not isinstance(module, nn.Linear | nn.Embedding):
            for name, parameter in module.named_parameters(recurse=False):
                init.zeros_(parameter) if name == "bias" else init.ones_(parameter)


class SiameseNormModel(SiameseNormPreTrainedModel):
    """Token ids to normalised hidden states."""

    def __init__(self, config: SiameseNormConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        blocks = [_sublayers(config, index) for index in range(config.num_hidden_layers)]
        self.layers = ResidualStack(blocks, config.hidden_size, config.topology)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        watch: Any = None,
        **_: Any,
    ) -> BaseModelOutputWithPast:
        """Hidden states (B, T, D); `watch` is shown the streams behind every block.

        A mask of four axes is used as it is. `hidden_states` are the embeddings and what stands
        behind each block: Y, or X where there is no Y; the last entry is the output.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give input_ids or inputs_embeds, and not both")
        h = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        use_cache = self.config.use_cache if use_cache is None else use_cache
        is_checkpointed = self.layers.gradient_checkpointing and self.training
        if use_cache and past_key_values is None and not is_checkpointed:
            past_key_values = DynamicCache(config=self.config)
        seen = 0 if past_key_values is None else past_key_values.get_seq_length()
        mask_of = create_causal_mask if self.config.is_causal else create_bidirectional_mask
        # Given positions are searched for packed rows; those of a plain pass need no search and no mask.
        causal = {"position_ids": position_ids} if self.config.is_causal else {}
        if position_ids is None:
            position_ids = (torch.arange(h.shape[1], device=h.device) + seen).unsqueeze(0)
        mask = mask_of(
            config=self.config,
            inputs_embeds=h,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            **causal,
        )
        if mask is not None and mask.is_floating_point():
            mask = mask.to(h.dtype)
        layers: list[Tensor] = [h]

        def note(index: int, before: Any, after: Any, updates: list[Tensor]) -> None:
            layers.append(after.x if after.y is None else after.y)
            if watch is not None:
                watch(index, before, after, updates)

        wanted = output_hidden_states or self.config.output_hidden_states
        turn = rotation(position_ids, self.config.head_dim, self.config.rope_theta, h.dtype)
        out = self.layers(
            h,
            watch=note if wanted or watch is not None else None,
            rotation=turn,
            mask=mask,
            cache=past_key_values,
        )
        return BaseModelOutputWithPast(
            last_hidden_state=out,
            past_key_values=past_key_values,
            hidden_states=(*layers[:-1], out) if wanted else None,
        )


class SiameseNormForCausalLM(SiameseNormPreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """`SiameseNormModel` with a head over the vocabulary."""

    _tied_weights_keys: ClassVar[dict[str, str]] = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: SiameseNormConfig) -> None:
        super().__init__(config)
        self.model = SiameseNormModel(config)
        self.lm_head = Head(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        *,
        labels: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        return_dict: bool | None = None,
        **more: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Logits (B, T, V), and the mean loss where there are labels.

        The first three are named because transformers looks for them; `more` is what else
        `SiameseNormModel.forward` or the loss takes.
        """
        outputs = self.model(input_ids, attention_mask, position_ids, **more)
        size = self.config.vocab_size
        return causal_output(self, outputs, size, labels, logits_to_keep, return_dict, **more)


class SiameseNormForSequenceClassification(
    GenericForSequenceClassification,  # type: ignore[misc]
    SiameseNormPreTrainedModel,
):
    """`SiameseNormModel` with a score of the last token: a reward model."""


def _sublayers(config: SiameseNormConfig, index: int) -> tuple[Attention, SwiGLU]:
    attention = Attention(
        config.hidden_size,
        config.num_attention_heads,
        config.num_key_value_heads,
        head_dim=config.head_dim,
        qkv_norm=config.qkv_norm or "none",
        eps=config.norm_eps,
        causal=config.is_causal,
        index=index,
    )
    return attention, SwiGLU(config.hidden_size, config.intermediate_size)


@public
def new_model(
    folder: Path | None = None,
    *,
    seed: Seed = 0,
    dtype: Literal["float32", "bfloat16", "float16", "float64"] = "float32",
    **sizes: object,
) -> SiameseNormForCausalLM:
    """A model with random weights; written to `folder` too, where there is one.

    `sizes` are the settings of `SiameseNormConfig`. The folder gets config and weights; a tokenizer
    comes from elsewhere. The same seed gives the same weights.

    >>> model = new_model(norm_topology="siamese", num_hidden_layers=2, hidden_size=32)
    >>> model.num_parameters()
    53856
    """
    return new_own(SiameseNormForCausalLM, sizes, folder, seed, dtype)


@public
def from_prenorm(
    model: PreTrainedModel,
    warm: Literal["x_gain_zero", "none"] = "x_gain_zero",
    *,
    normalized_input: bool = True,
) -> SiameseNormForCausalLM:
    """A post_pre model with the weights of a Llama, Mistral or Qwen3 of transformers. Experimental.

    The paper trains from scratch. With `warm="x_gain_zero"` every gain of X starts at 0, so X carries
    nothing and the model computes what it did before, up to the eps of norms that are applied twice; the
    gains then learn. With "none" X takes part at once, which is another function: expect a loss near that
    of a new model.

    >>> import transformers
    >>> config = transformers.LlamaConfig(
    ...     vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2
    ... )
    >>> from_prenorm(transformers.LlamaForCausalLM(config)).config.norm_topology
    'siamese_post_pre'
    """
    config = _config(model, normalized_input)
    made: SiameseNormForCausalLM = SiameseNormForCausalLM(config).to(model.dtype).eval()
    weights = dict(model.state_dict())
    found: dict[str, torch.Tensor] = {}
    for name, ours in made.state_dict().items():
        if name in weights:
            found[name] = weights[name]
        elif name.endswith(".x_norm.weight"):
            found[name] = torch.zeros_like(ours) if warm == "x_gain_zero" else torch.ones_like(ours)
        else:
            found[name] = _norm(name, weights, normalized_input).expand_as(ours).clone()
    made.load_state_dict(found)
    made.to(model.device)
    return made


def _norm(name: str, weights: dict[str, torch.Tensor], normalized_input: bool) -> torch.Tensor:
    """The old norm goes where the sublayer reads; a Y norm before that has gain 1."""
    is_final = ".final." in name
    takes_old = name.endswith("in_norm.weight") or not (normalized_input or is_final)
    if not takes_old:
        return torch.ones(1)
    if is_final:
        return weights["model.norm.weight"]
    layer = name.split(".")[2]
    old = "input_layernorm" if "self_attn_norms" in name else "post_attention_layernorm"
    return weights[f"model.layers.{layer}.{old}.weight"]


def _config(model: Any, normalized_input: bool) -> SiameseNormConfig:
    old: Any = getattr(model, "config", None)
    family = getattr(old, "model_type", None)
    if family not in FAMILIES:
        raise ArgumentError(
            f"model: got {type(model).__name__}, expected a causal language model of transformers "
            f"of the families {', '.join(FAMILIES)}"
        )
    rope = old.rope_parameters or {}
    # Qwen3 says by layer whether it sees the last tokens alone.
    kinds = getattr(old, "layer_types", None) or ()
    has_windows = family == "mistral" and old.sliding_window is not None
    odd = {
        "rope type": rope.get("rope_type", "default") != "default",
        "attention_bias": bool(getattr(old, "attention_bias", False)),
        "mlp_bias": bool(getattr(old, "mlp_bias", False)),
        "sliding_window": has_windows or any(kind != "full_attention" for kind in kinds),
        "hidden_act": old.hidden_act != "silu",
    }
    if any(odd.values()):
        wrong = ", ".join(name for name, is_odd in odd.items() if is_odd)
        raise ArgumentError(f"model: its {wrong} has no counterpart in a siamesenorm model")
    names = (
        "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads "
        "num_key_value_heads max_position_embeddings tie_word_embeddings bos_token_id eos_token_id "
        "pad_token_id"
    )
    return SiameseNormConfig(
        **{name: getattr(old, name) for name in names.split()},
        head_dim=getattr(old, "head_dim", None),
        rope_theta=float(rope.get("rope_theta", 10000.0)),
        norm_eps=old.rms_norm_eps,
        norm_topology="siamese_post_pre",
        normalized_input=normalized_input,
        qkv_norm="qk" if family == "qwen3" else "none",
    )


AutoConfig.register(SiameseNormConfig.model_type, SiameseNormConfig, exist_ok=True)
AutoModel.register(SiameseNormConfig, SiameseNormModel, exist_ok=True)
AutoModelForCausalLM.register(SiameseNormConfig, SiameseNormForCausalLM, exist_ok=True)
AutoModelForSequenceClassification.register(
    SiameseNormConfig, SiameseNormForSequenceClassification, exist_ok=True
)
