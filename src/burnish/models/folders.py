"""What models of this package share: settings read by their types, weights made, written and opened."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
import transformers
from msgspec import Meta
from torch import Tensor, nn
from transformers import PreTrainedModel, initialization as init
from transformers.modeling_outputs import CausalLMOutputWithPast

from burnish.arguments import as_path, as_seed, as_word
from burnish.boundary import Call, Reader, namespace, reader
from burnish.errors import ArgumentError, UserError, first_line
from burnish.models import quiet_transformers
from burnish.models.blocks import OutputLinear

if int(transformers.__version__.partition(".")[0]) < 5:
    raise UserError("models need transformers 5. Run: pip install --upgrade transformers")

Size = Annotated[int, Meta(ge=1, le=65_536)]
Layers = Annotated[int, Meta(ge=1, le=1024)]
MOST_WEIGHTS = 1 << 31
"""Of a model: 8 GiB in single precision."""
Opened = TypeVar("Opened", bound=PreTrainedModel)


def read_settings(config: transformers.PreTrainedConfig) -> None:
    """Read a config's own settings as their types have them, in its `__post_init__`."""
    kind: Any = type(config)
    for name, read in _readers(kind).items():
        setattr(config, name, read(name, getattr(config, name), Call()))


def check_names(kind: Any, settings: Iterable[str]) -> None:
    """Refuse settings that a config of ours does not have; transformers would keep them unread."""
    for name in settings:
        as_word(kind.__name__, name, _readers(kind))


@cache
def _readers(kind: Any) -> dict[str, Reader]:
    """Of the settings that transformers' own configs do not have, or that have another type here."""
    names = namespace(kind.__module__)
    return {
        one.name: reader(eval(str(one.type), names))
        for one in fields(kind)
        if one.name in kind.__annotations__ and one.type != "Any"
    }


def new_own(
    kind: type[Opened],
    sizes: Mapping[str, Any],
    folder: str | Path | None,
    seed: int,
    dtype: str = "float32",
) -> Opened:
    """A model of this package with random weights; written to `folder` too, where there is one."""
    check_names(kind.config_class, sizes)
    config = kind.config_class(**sizes)
    check_size(kind, config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(as_seed(seed))
        model: Opened = kind(config).to(getattr(torch, dtype))
    config.dtype = dtype
    if folder is not None:
        save_own(model, folder)
    return model


def save_own(model: PreTrainedModel, folder: str | Path) -> None:
    """Write a model of this package to a folder that `open_own` opens."""
    target = as_path("folder", folder, "a folder to write")
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror or error}") from None
    with quiet_transformers(only_errors=True):
        model.save_pretrained(target)


def open_own(kind: type[Opened], folder: str | Path, what: str) -> Opened:
    """A model of this package from its folder; whatever is wrong with that gets one line."""
    place = as_path("folder", folder, f"the folder of {what}")
    try:
        found = json.loads((place / "config.json").read_bytes()).get("model_type")
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        said = error.strerror if isinstance(error, OSError) else "no table"
        raise UserError(f"{place}: config.json of {what} cannot be read ({said})") from None
    wanted = kind.config_class.model_type
    if found != wanted:
        raise UserError(f"{place}: holds a model of type {found!r}; expected {wanted!r}")
    model: Opened
    try:
        with quiet_transformers(only_errors=True):
            check_size(kind, kind.config_class.from_pretrained(place))
            # Refused below in one line: transformers would draw what is missing at random.
            model, loaded = kind.from_pretrained(
                place, output_loading_info=True, ignore_mismatched_sizes=True
            )
    except Exception as error:  # boundary: transformers meets whatever the folder holds
        raise UserError(f"{place}: cannot be loaded ({first_line(error)})") from error
    wrong = [(name, "is missing") for name in loaded["missing_keys"]]
    wrong += [(one[0], "has another shape") for one in loaded["mismatched_keys"]]
    wrong += [(name, "has no place") for name in loaded["unexpected_keys"]]
    if wrong:
        name, problem = min(wrong)
        raise UserError(
            f"{place}: its weights do not fit config.json: {name} {problem}, {len(wrong)} in all. Write "
            "it again"
        )
    if (name := not_finite(model)) is not None:
        raise UserError(f"{place}: its weight {name} holds NaN or infinity. Write it again")
    model.eval()
    return model


def check_size(kind: type[PreTrainedModel], config: Any) -> None:
    """Refuse sizes whose weights no memory would hold, before any is made."""
    with torch.device("meta"):
        count = sum(weight.numel() for weight in kind(config).parameters())
    if count > MOST_WEIGHTS:
        raise ArgumentError(f"config: makes {count:,} weights, expected up to {MOST_WEIGHTS:,}")


def not_finite(model: PreTrainedModel) -> str | None:
    """The first weight that holds NaN or infinity."""
    return next((n for n, w in model.named_parameters() if not bool(w.isfinite().all())), None)


def init_transformer(module: nn.Module, layers: int, std: float) -> None:
    """First weights of linear maps, embeddings and norms; what was loaded stays as it is."""
    if isinstance(module, nn.Linear):
        own = std / (2 * layers) ** 0.5 if isinstance(module, OutputLinear) else std
        init.trunc_normal_(module.weight, std=own, a=-3 * own, b=3 * own)
        if module.bias is not None:
            init.zeros_(module.bias)
    elif isinstance(module, nn.Embedding):
        init.trunc_normal_(module.weight, std=std, a=-3 * std, b=3 * std)


def causal_output(
    model: Any,
    outputs: Any,
    size: int,
    labels: Tensor | None,
    logits_to_keep: int | Tensor,
    return_dict: bool | None,
    **more: Any,
) -> CausalLMOutputWithPast | tuple[Any, ...]:
    """Logits (B, S, V) of hidden states by a model's head, and the mean loss where there are labels."""
    kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
    logits, loss = model.lm_head(outputs.last_hidden_state[:, kept]), None
    if labels is not None:
        loss = model.loss_function(logits=logits, labels=labels, vocab_size=size, **more)
    output = CausalLMOutputWithPast(
        loss=loss,
        logits=logits,
        past_key_values=outputs.past_key_values,
        hidden_states=outputs.hidden_states,
        attentions=outputs.attentions,
    )
    return output.to_tuple() if return_dict is False else output
