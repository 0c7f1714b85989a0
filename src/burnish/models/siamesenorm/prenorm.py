"""Turn a Pre-Norm checkpoint into one with two streams. Experimental: the paper trains from scratch.

With `warm="x_gain_zero"` every gain of X starts at 0, so X carries nothing and the model computes what
it did before, up to the eps of norms that are applied twice; the gains then learn. With `warm="none"`
X takes part at once, which is another function: expect a loss near that of a new model.
"""

from __future__ import annotations

from typing import Any

import torch

from burnish.arguments import as_flag, as_word
from burnish.errors import ArgumentError
from burnish.models.siamesenorm.configuration_siamesenorm import SiameseNormConfig
from burnish.models.siamesenorm.modeling_siamesenorm import SiameseNormForCausalLM

FAMILIES = ("llama", "mistral", "qwen3")
WARM = ("x_gain_zero", "none")


def from_prenorm(
    model: Any, warm: str = "x_gain_zero", *, normalized_input: bool = True
) -> SiameseNormForCausalLM:
    """A post_pre model with the weights of a Llama, Mistral or Qwen3 of transformers. Experimental.

    >>> import transformers
    >>> from burnish.models.siamesenorm import from_prenorm
    >>> config = transformers.LlamaConfig(
    ...     vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2
    ... )
    >>> from_prenorm(transformers.LlamaForCausalLM(config)).config.norm_topology
    'siamese_post_pre'
    """
    as_word("warm", warm, WARM)
    config = _config(model, as_flag("normalized_input", normalized_input))
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


def _has_windows(config: Any) -> bool:
    """Whether some layer sees the last tokens alone; Qwen3 says so by layer."""
    if config.model_type == "mistral" and config.sliding_window is not None:
        return True
    return any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or ())


def _config(model: Any, normalized_input: bool) -> SiameseNormConfig:
    old: Any = getattr(model, "config", None)
    family = getattr(old, "model_type", None)
    if family not in FAMILIES:
        raise ArgumentError(
            f"model: got {type(model).__name__}, expected a causal language model of transformers "
            f"of the families {', '.join(FAMILIES)}"
        )
    rope = old.rope_parameters or {}
    odd = {
        "rope type": rope.get("rope_type", "default") != "default",
        "attention_bias": bool(getattr(old, "attention_bias", False)),
        "mlp_bias": bool(getattr(old, "mlp_bias", False)),
        "sliding_window": _has_windows(old),
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
