"""Load a folder's weights through transformers, and refuse what transformers would only warn of."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch

from burnish.errors import UserError, first_line, is_out_of_memory
from burnish.lm.architecture import OWN
from burnish.lm.scalar_head import is_classifier
from burnish.lm.weights import misplaced, read_json

_LAYER = re.compile(r"(.*?\b(?:layers?|blocks?|h)\.)(\d{1,9})\.")
"""The name of a stack of layers at the beginning of a weight's name, and the number of the layer."""


def load_pretrained(auto: Any, folder: Path, dtype: torch.dtype) -> Any:
    """A folder's model by one of transformers' Auto classes, without settings for `generate`."""
    import transformers

    # For the whole process, as transformers chooses kernels by itself: cuDNN's attention fails now and
    # then where shapes change from call to call (PyTorch issue 190321); others take its place.
    torch.backends.cuda.enable_cudnn_sdp(False)
    transformers.utils.logging.disable_progress_bar()
    try:
        model, found = auto.from_pretrained(
            str(folder),
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    # Boundary: transformers raises what it likes for a folder that it cannot make sense of.
    except Exception as error:
        if isinstance(error, MemoryError) or is_out_of_memory(error):
            raise
        reason = first_line(error)
        if "ignore_mismatched_sizes" in reason:
            reason = "its weights have other sizes than its config.json says"
        raise UserError(f"{folder} cannot be loaded by transformers: {reason}") from error
    unused: set[str] = set()
    if is_classifier({"architectures": model.config.architectures}):
        # A classifier is saved without the weights that make logits.
        head = model.get_output_embeddings()
        own = {id(weight) for weight in head.parameters()} if head is not None else set()
        unused = {name for name, weight in model.named_parameters() if id(weight) in own}
    _check_names(folder, model, found, unused)
    # `generate` would add what the folder's own file asks for, such as a repetition penalty.
    model.generation_config = transformers.GenerationConfig()
    return model


def _check_names(folder: Path, model: Any, found: dict[str, Any], unused: Collection[str]) -> None:
    """Refuse weights that are missing, or that say that the model is another one: transformers warns.

    Missing ones would be random; `unused` ones may be. Files of other families may hold what their
    forward does not use, but not further layers of a stack that the model has.
    """
    for name in sorted(found.get("missing_keys") or ()):
        if not name.startswith("score.") and name not in unused:
            lack = f"its config.json asks for weight {name} and no file has it"
            saved = "expected the settings that the weights were saved with"
            raise UserError(f"{folder}: {lack}; {saved}")
    layers = [layer for name in model.state_dict() if (layer := _LAYER.match(name))]
    stacks, known = {layer[1] for layer in layers}, {layer[0] for layer in layers}
    is_own = model.config.model_type == OWN
    for name in sorted(found.get("unexpected_keys") or ()):
        layer = _LAYER.match(name)
        is_further = layer is not None and layer[1] in stacks and layer[0] not in known
        if (is_own and not name.startswith("score.") and name not in unused) or is_further:
            raise misplaced(folder, name)


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
