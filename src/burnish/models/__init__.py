"""Architectures and objectives, on torch alone: every room may use them.

`burnish.models.blocks` has the parts that the architectures share; each architecture has a folder
in the Hugging Face convention (`configuration_x.py`, `modeling_x.py`).
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Iterator
from contextlib import contextmanager

OWN = {
    "burnish-siamesenorm": "burnish.models.siamesenorm",
    "burnish-visual": "burnish.models.visual",
    "burnish-audio-tokenizer": "burnish.models.audio_tokenizer",
    "burnish-audio-representation": "burnish.models.audio_tokenizer.representation",
    "burnish-audio-generator": "burnish.models.audio_tokenizer.generator",
}
"""Model types of this room, and the package that makes each known to transformers."""


def register(model_type: object) -> None:
    """Make a model type known to transformers' Auto classes, where it is one of this room."""
    if isinstance(model_type, str) and model_type in OWN:
        importlib.import_module(OWN[model_type])


def has_transformers() -> bool:
    """Whether a transformers is here that the models of this room are written for: 5 or newer."""
    try:
        return int(importlib.metadata.version("transformers").partition(".")[0]) >= 5
    except importlib.metadata.PackageNotFoundError:
        return False


@contextmanager
def quiet_transformers(*, only_errors: bool = False) -> Iterator[None]:
    """Inside, transformers draws no progress bars, which would stand among ours, or says less too."""
    from transformers.utils import logging

    was_on, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    if only_errors:
        logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if was_on:
            logging.enable_progress_bar()
