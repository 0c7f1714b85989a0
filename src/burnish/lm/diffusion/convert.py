"""A causal model made into the start of a masked diffusion model.

The weights stay. Attention looks both ways, the logits at a place are those of the token at that
place (no shift), and one token is the mask: a reserved one that no text has, or a new one whose
embedding is the mean of all. Such a model writes nonsense until it is trained.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import tokenizers
import torch
from torch import Tensor

from burnish.arguments import as_new_folder, as_word
from burnish.errors import UserError
from burnish.lm import tokenizer as tokenizer_files
from burnish.lm.architecture import FAMILIES, MASKED_DIFFUSION, Unsupported, read_architecture
from burnish.lm.embedded import make_once
from burnish.lm.scalar_head import is_classifier
from burnish.lm.tokenizer import Tokenizer
from burnish.lm.weights import (
    WEIGHTS,
    read_json,
    read_weights,
    weight_files,
    write_json,
    write_weights,
)

NAMES = ("[MASK]", "<mask>", "<|mask|>", "<|mdm_mask|>")
"""Tokens that are taken for the mask where a tokenizer has one."""
NEW = "<|mask|>"
KNOWN_WORDS = ("pad", "bos", "eos", "end", "unk", "im_start", "im_end", "think", "tool", "vision")
"""Parts of the names of special tokens that chats or readers may need."""


class MaskToken(NamedTuple):
    """The token that stands for one to be predicted."""

    id: int
    text: str
    is_new: bool
    """Neither the tokenizer nor, perhaps, the embedding has it yet."""


class Converted(NamedTuple):
    """What a conversion wrote."""

    folder: Path
    mask: MaskToken
    prompt_sees: str


def convert(
    source: Path,
    target: Path,
    *,
    mask_token: str = "",
    prompt_sees: Literal["all", "prompt"] = "all",
) -> Converted:
    """Write a causal model's folder as a masked diffusion model's.

    `mask_token` is the text of a token to use as the mask; empty: chosen, see `choose_mask`. With
    `prompt_sees="prompt"` prompts do not attend to answers, so that a decoder keeps their keys.
    """
    as_word("prompt_sees", prompt_sees, ("all", "prompt"))
    as_new_folder("target", target)
    config = read_json(source / "config.json")
    size = _check_source(source, config)
    mask = choose_mask(Tokenizer.from_folder(source), size, mask_token)
    weights: dict[str, Tensor] = {}
    for file in weight_files(source):
        weights |= read_weights(file)
    if mask.is_new:
        weights = _with_mean(weights, size, mask.id)
        size = max(size, mask.id + 1)
    target.mkdir(parents=True, exist_ok=True)
    write_weights(target / WEIGHTS, weights)
    write_json(target / "config.json", _config(config, mask, size, prompt_sees))
    for name in (*tokenizer_files.FILES, "generation_config.json"):
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
    if mask.is_new:  # its id is the next one
        file = target / "tokenizer.json"
        backend = tokenizers.Tokenizer.from_file(str(file))
        backend.add_special_tokens([tokenizers.AddedToken(NEW, special=True, normalized=False)])
        if backend.token_to_id(NEW) != mask.id:
            raise UserError(
                f"{source}: the tokenizer numbers its tokens with gaps; give one of its own as mask_token"
            )
        backend.save(str(file))
    settings = read_json(target / "tokenizer_config.json")
    write_json(target / "tokenizer_config.json", {**settings, "mask_token": mask.text})
    return Converted(target, mask, prompt_sees)


def cached_conversion(source: Path) -> Path:
    """A shipped model's folder, converted once into burnish's cache folder."""

    def build(folder: Path) -> None:
        convert(source, folder)

    return make_once(f"{source.name}-diffusion-v1", build)


def choose_mask(tokenizer: Tokenizer, rows: int, wanted: str = "") -> MaskToken:
    """The mask token: the one wanted, one by that name, a reserved one, or a new one.

    A reserved token is the last special token that neither the chat template nor the tokenizer's own
    settings use. `rows` is the size of the embedding; rows without a token are used before a new one.
    """
    added = tokenizer.backend.get_added_tokens_decoder()
    used = {*tokenizer.eos_ids, tokenizer.pad_id}
    if wanted:
        found = tokenizer.backend.token_to_id(wanted)
        if found not in added or not added[found].special or found >= rows or found in used:
            raise UserError(
                f"mask_token: '{wanted}' is no unused special token of this model; expected one, or none"
            )
        return MaskToken(int(found), wanted, is_new=False)
    for name in (tokenizer.special_tokens.get("mask_token", ""), *NAMES):
        found = tokenizer.backend.token_to_id(name)
        if found in added and found < rows:
            return MaskToken(int(found), name, is_new=False)
    template = tokenizer.template.source if tokenizer.template else ""

    def is_free(id_: int, text: str) -> bool:
        is_named = text in tokenizer.special_tokens.values() or text in template
        return id_ not in used and not is_named and not any(w in text.lower() for w in KNOWN_WORDS)

    reserved = [
        (i, token.content)
        for i, token in added.items()
        if token.special and i < rows and is_free(i, token.content)
    ]
    if reserved:
        return MaskToken(*max(reserved), is_new=False)
    return MaskToken(tokenizer.vocab_size, NEW, is_new=True)


def _check_source(source: Path, config: Mapping[str, Any]) -> int:
    if config.get("model_type") == MASKED_DIFFUSION or is_classifier(config):
        raise UserError(
            f"{source} is a masked diffusion model already, or a reward model; expected a causal one"
        )
    try:
        return read_architecture(config).vocab_size
    except Unsupported as reason:
        raise UserError(
            f"{source} cannot become a masked diffusion model: {reason}; expected {', '.join(FAMILIES)}"
        ) from None


def _config(
    config: Mapping[str, Any], mask: MaskToken, size: int, prompt_sees: str
) -> dict[str, Any]:
    """The config under its own type. A window makes no sense for a row that is read both ways."""
    kept = {k: v for k, v in config.items() if k not in ("layer_types", "auto_map")}
    return kept | {
        "model_type": MASKED_DIFFUSION,
        "architectures": ["BurnishMaskedDiffusion"],
        "base_model_type": config["model_type"],
        "mask_token_id": mask.id,
        "prompt_sees": prompt_sees,
        "sliding_window": None,
        "use_sliding_window": False,
        "vocab_size": size,
    }


def _with_mean(weights: dict[str, Tensor], size: int, row: int) -> dict[str, Tensor]:
    """Every matrix over the vocabulary with the mean of the rows before it in a row of its own.

    Embeddings may be padded: rows that no token had are not counted.
    """
    if row > size:
        raise UserError(
            f"mask_token: the tokenizer has {row} tokens, the embedding {size} rows; name one of them"
        )
    found = {}
    for name, value in weights.items():
        is_wide = name.rpartition(".")[0].endswith(("embed_tokens", "lm_head"))
        if is_wide and value.shape[0] == size:
            mean = value[:row].float().mean(0, keepdim=True).to(value.dtype)
            value = torch.cat([value[:row], mean, value[row + 1 :]])
        found[name] = value
    return found
