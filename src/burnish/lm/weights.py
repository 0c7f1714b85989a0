"""The weight files of a Hugging Face folder: safetensors, never pickle."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.errors import UserError
from burnish.lm.base import shipped_model
from burnish.seeds import digest

if TYPE_CHECKING:  # a tokenizer reads its folder without torch
    from torch import Tensor

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


def write_weights(file: Path, weights: dict[str, Tensor]) -> None:
    """One safetensors file, complete or not there at all."""
    from safetensors.torch import save_file

    partial = file.with_name(f"{file.name}.partial-{os.getpid()}")
    contiguous = {name: tensor.detach().contiguous() for name, tensor in weights.items()}
    save_file(contiguous, str(partial), metadata={"format": "pt"})
    os.replace(partial, file)


def weight_files(folder: Path) -> list[Path]:
    """The files that hold a folder's weights: one, or those that its index names."""
    index = folder / INDEX
    if not index.is_file():
        return [folder / WEIGHTS]
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise UserError(
            f"{index} has no 'weight_map' from weights to files; expected what save_pretrained "
            "writes beside its shards"
        )
    names = sorted({str(name) for name in places.values()})
    for name in names:
        if Path(name).name != name or not (folder / name).is_file():
            raise UserError(f"{index} names '{name}', which is not a file of this folder")
    return [folder / name for name in names]


def read_weights(file: Path) -> dict[str, Tensor]:
    """The tensors of one file."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        weights: dict[str, Tensor] = load_file(str(file))
    except SafetensorError as error:
        raise UserError(f"{file} is not a safetensors file: {error}") from error
    return weights


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


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object; empty where there is no such file."""
    if not file.is_file():
        return {}
    try:
        read = json.loads(file.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise UserError(f"{file} is not valid JSON: {error}") from error
    except RecursionError:
        raise UserError(f"{file} is not valid JSON: nested too deeply") from None
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from error
    if not isinstance(read, dict):
        raise UserError(f"{file} holds a {type(read).__name__}; expected a JSON object")
    return read


def write_json(file: Path, content: dict[str, Any]) -> None:
    """Indented, with sorted keys: equal contents give equal files."""
    file.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


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
