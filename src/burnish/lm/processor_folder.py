"""The processor of a model's folder, by transformers; without torchvision where only videos need it."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

from burnish.errors import UserError, first_line
from burnish.lm.weights import read_json

logger = logging.getLogger(__name__)

_CLASS_FILES = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")


def load_processor(folder: Path) -> Any:
    """The processor by transformers' own rules, or without what only its videos need."""
    import transformers

    try:
        return transformers.AutoProcessor.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    # Boundary: transformers raises what it likes for a folder that it cannot make sense of.
    except Exception as error:
        named = [read_json(folder / file).get("processor_class") for file in _CLASS_FILES]
        kind = next((name for name in named if isinstance(name, str)), "")
        if hasattr(transformers, kind):
            own = without_videos(getattr(transformers, kind))
            try:
                return own.from_pretrained(str(folder), local_files_only=True)
            except Exception:  # boundary, as above: the first reason is the one to tell
                logger.debug("%s without videos cannot be loaded either", kind, exc_info=True)
        raise UserError(
            f"{folder}: its processor cannot be loaded by transformers: {first_line(error)}"
        ) from error


def without_videos(kind: Any) -> Any:
    """A processor's class without its part for videos, which asks for torchvision and num2words."""
    parts = kind.get_attributes()
    if "video_processor" not in parts:
        return kind
    place = parts.index("video_processor")
    module = sys.modules[kind.__module__]
    if getattr(module, "num2words", True) is None:
        # SmolVLM's refuses to be made without it, though only texts about videos are made with it.
        module.__dict__["num2words"] = str

    class Still(kind):  # type: ignore[misc]
        @classmethod
        def get_attributes(cls) -> list[str]:
            return [name for name in parts if name != "video_processor"]

        @classmethod
        def _get_arguments_from_pretrained(cls, *args: Any, **options: Any) -> list[Any]:
            found = list(super()._get_arguments_from_pretrained(*args, **options))
            return [*found[:place], None, *found[place:]]

    Still.__name__ = kind.__name__
    return Still
