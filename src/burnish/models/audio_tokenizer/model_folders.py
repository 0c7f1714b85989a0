"""Models of this package in folders: made with random weights, written, and opened again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from transformers import PreTrainedModel
from transformers.utils import logging

from burnish.arguments import as_path, as_seed
from burnish.errors import UserError

Opened = TypeVar("Opened", bound=PreTrainedModel)


def new_own(kind: type[Opened], config: Any, folder: str | Path | None, seed: int) -> Opened:
    """A model of this package with random weights; written to `folder` too, where there is one."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(as_seed("seed", seed))
        model: Opened = kind(config)
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
    with _quiet():
        model.save_pretrained(target)


def open_own(kind: type[Opened], folder: str | Path, what: str) -> Opened:
    """A model of this package from its folder; whatever is wrong with that gets one line."""
    place = as_path("folder", folder, f"the folder of {what}")
    try:
        found = json.loads((place / "config.json").read_bytes()).get("model_type")
    except (OSError, ValueError, AttributeError) as error:
        said = error.strerror if isinstance(error, OSError) else "no table"
        raise UserError(
            f"{place}: config.json cannot be read ({said}); expected the folder of {what}"
        ) from None
    wanted = kind.config_class.model_type
    if found != wanted:
        raise UserError(f"{place}: holds a model of type {found!r}; expected {wanted!r}")
    model: Opened
    try:
        with _quiet():
            # Refused below in one line: transformers would draw what is missing at random.
            model, loaded = kind.from_pretrained(
                place, output_loading_info=True, ignore_mismatched_sizes=True
            )
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        first_line = (str(error).splitlines() or [""])[0]
        raise UserError(f"{place}: cannot be loaded ({first_line}). Write it again") from error
    wrong = [(name, "is missing") for name in loaded["missing_keys"]]
    wrong += [(one[0], "has another shape") for one in loaded["mismatched_keys"]]
    wrong += [(name, "has no place") for name in loaded["unexpected_keys"]]
    if wrong:
        name, problem = min(wrong)
        raise UserError(
            f"{place}: its weights do not fit config.json: {name} {problem}, {len(wrong)} in all. Write "
            "it again"
        )
    for name, weight in model.named_parameters():
        if not bool(weight.isfinite().all()):
            raise UserError(f"{place}: its weight {name} holds NaN or infinity. Write it again")
    model.eval()
    return model


@contextmanager
def _quiet() -> Iterator[None]:
    """Inside, transformers draws no progress bar, for these models are small, and prints no table."""
    was_on, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if was_on:
            logging.enable_progress_bar()
