"""The files of a Hugging Face folder, each read as its type: the one place where odd ones are refused.

A type names what is read and lets everything else stand. Weights are safetensors, never pickle.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from burnish.errors import UserError
from burnish.lm.base import JsonObject, shipped_model
from burnish.seeds import digest

if TYPE_CHECKING:  # a tokenizer reads its folder without torch
    from torch import Tensor

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"

T = TypeVar("T")
TokenId = Annotated[int, Meta(ge=-1, lt=2**31)]
"""-1 is none, as some configs write it."""


class EndTokens(Struct):
    """Of `config.json` and `generation_config.json`: how texts end and are padded."""

    eos_token_id: TokenId | list[TokenId] | None = None
    pad_token_id: TokenId | None = None

    @property
    def eos_ids(self) -> list[int]:
        given = self.eos_token_id if isinstance(self.eos_token_id, list) else [self.eos_token_id]
        return [token for token in given if token is not None and token >= 0]

    @property
    def pad_id(self) -> int | None:
        return self.pad_token_id if (self.pad_token_id or 0) >= 0 else None


class ModelConfig(EndTokens):
    """What every `config.json` says; a family's sizes are `DecoderConfig`, or transformers' matter."""

    model_type: str = ""
    dtype: str | None = None
    torch_dtype: str | None = None


class WrittenToken(Struct):
    """A special token as a table."""

    content: str


class NamedTemplate(Struct):
    """One of several chat templates."""

    name: str
    template: str


class TokenizerSettings(Struct):
    """Of `tokenizer_config.json` over `special_tokens_map.json`, and of `chat_template.json`."""

    bos_token: str | WrittenToken | None = None
    eos_token: str | WrittenToken | None = None
    unk_token: str | WrittenToken | None = None
    sep_token: str | WrittenToken | None = None
    pad_token: str | WrittenToken | None = None
    cls_token: str | WrittenToken | None = None
    mask_token: str | WrittenToken | None = None
    chat_template: str | list[NamedTemplate] | None = None

    @property
    def texts(self) -> dict[str, str]:
        """The text of each token that is named."""
        named = ((name, getattr(self, name)) for name in self.__struct_fields__[:-1])
        return {
            name: token.content if isinstance(token, WrittenToken) else token
            for name, token in named
            if token
        }

    @property
    def template(self) -> str | None:
        """The chat template; of several the one named default, else the first."""
        if not isinstance(self.chat_template, list):
            return self.chat_template
        by_name = {one.name: one.template for one in self.chat_template}
        return by_name.get("default", next(iter(by_name.values()), None))


FileName = Annotated[str, Meta(pattern=r"^[^/\\]+$")]


class WeightIndex(Struct):
    """Of `model.safetensors.index.json`: which file of the folder holds which weight."""

    weight_map: Annotated[dict[str, FileName], Meta(min_length=1)]


def read_file(file: Path, kind: type[T], beneath: Path | None = None) -> T:
    """A JSON file as its type, over another one; the type's defaults where there is no such file."""
    try:
        return msgspec.convert((read_json(beneath) if beneath else {}) | read_json(file), kind)
    except msgspec.ValidationError as error:
        raise UserError(f"{file}: {error}; expected what save_pretrained writes") from None


def read_text(file: Path) -> str:
    """A text in UTF-8."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read as UTF-8: {error}") from None


def write_weights(file: Path, weights: dict[str, Tensor]) -> None:
    """One safetensors file, complete or not there at all."""
    from safetensors.torch import save_file

    partial = file.with_name(f"{file.name}.partial-{os.getpid()}")
    contiguous = {name: tensor.detach().contiguous() for name, tensor in weights.items()}
    save_file(contiguous, str(partial), metadata={"format": "pt"})
    os.replace(partial, file)


def misplaced(folder: Path, name: str) -> UserError:
    """For a weight that the model of `config.json` has no place for, such as one of a further layer."""
    return UserError(
        f"{folder}: weight {name} has no place in the model that config.json describes; expected the "
        "settings that the weights were saved with"
    )


def weight_files(folder: Path) -> list[Path]:
    """The files that hold a folder's weights: one, or those that its index names."""
    index = folder / INDEX
    if not index.is_file():
        return [folder / WEIGHTS]
    return [
        folder / name for name in sorted(set(read_file(index, WeightIndex).weight_map.values()))
    ]


def read_weights(file: Path, start: str = "") -> dict[str, Tensor]:
    """The tensors of one file whose names begin with `start`; the others are not read."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(file), framework="pt") as weights:
            names = [name for name in weights.keys() if name.startswith(start)]  # noqa: SIM118
            return {name: weights.get_tensor(name) for name in names}
    except (OSError, SafetensorError) as error:
        raise UserError(f"{file} is not a safetensors file: {error}") from error


def weights_checksum(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """A checksum of named tensors: names, types, shapes and every byte. It finds mistakes, not
    attacks: a CRC-32 of each, over half a gigabyte a second.
    """
    import torch

    facts = []
    for name, tensor in sorted(tensors, key=lambda pair: pair[0]):
        raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        facts.append((name, str(tensor.dtype), tuple(tensor.shape), zlib.crc32(raw.data)))
    return digest(repr(facts))


def read_json(file: Path) -> JsonObject:
    """A JSON object; empty where there is no such file."""
    if not file.is_file():
        return {}
    try:
        read = json.loads(file.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError, OSError) as error:
        raise UserError(f"{file} is not valid JSON: {error}") from error
    if not isinstance(read, dict):
        raise UserError(f"{file} holds a {type(read).__name__}; expected a JSON object")
    return read


def write_json(file: Path, content: JsonObject) -> None:
    """Indented, with sorted keys: equal contents give equal files."""
    file.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def llama_config(
    *, hidden_size: int, num_attention_heads: int, rope_theta: float, **others: Any
) -> JsonObject:
    """The `config.json` of a Llama without biases."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "dtype": "float32",
        "head_dim": hidden_size // num_attention_heads,
        "hidden_act": "silu",
        "hidden_size": hidden_size,
        "initializer_range": 0.02,
        "mlp_bias": False,
        "num_attention_heads": num_attention_heads,
        "rope_parameters": {"rope_theta": rope_theta, "rope_type": "default"},
        "tie_word_embeddings": True,
        **others,
    }


SUFFIXES = frozenset({".safetensors", ".json", ".jinja"})
"""Weights, config, tokenizer and chat template: what a reply depends on."""


def files_identity(name: str, folder: Path) -> str:
    """A digest of the names, sizes and times of a model's files; empty for a shipped model.

    Weights of the same shape have the same size, so the times are needed; a copied folder counts as
    another model, which costs calls and never a wrong answer.
    """
    if shipped_model(name):
        return ""
    files = sorted(file for file in folder.glob("*") if file.suffix in SUFFIXES)
    facts = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return digest(repr(facts))
