"""The tokenizer of a recipe's model, without loading the model."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from burnish.errors import UserError

if TYPE_CHECKING:
    from burnish.lm.tokenizer import Tokenizer


class Found(NamedTuple):
    """A tokenizer, and whose it is."""

    tokenizer: Tokenizer
    what: str


def tokenizer_for(model: str) -> Found:
    """The model's own tokenizer where its folder is at hand, else one token a byte."""
    try:
        from burnish.lm.tiny import write_byte_tokenizer
        from burnish.lm.tokenizer import Tokenizer
    except ModuleNotFoundError as error:
        raise UserError(
            f"tokens need the package '{error.name}'. Install it: pip install 'burnish[torch]'"
        ) from error
    folder = _folder_of(model)
    if folder is not None:
        return Found(Tokenizer.from_folder(folder), f"tokenizer of '{model}'")
    with tempfile.TemporaryDirectory() as scratch:
        write_byte_tokenizer(Path(scratch))
        tokenizer = Tokenizer.from_folder(Path(scratch))
    whose = "tokenizer of 'tiny'" if model == "tiny" else f"not '{model}', which is not at hand"
    return Found(tokenizer, f"one token a byte ({whose})")


def _folder_of(model: str) -> Path | None:
    """A local folder, or the cache of the embedded model where it was converted before."""
    if model == "tiny":
        return None
    if model != "smollm2":
        return Path(model)
    from burnish.lm.cache_folder import cache_folder

    made = sorted(cache_folder().glob("smollm2*"))
    return made[-1] if made else None
