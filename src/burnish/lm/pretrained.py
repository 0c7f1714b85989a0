"""Load a folder's weights through transformers, and refuse what transformers would only warn of.

    load_pretrained(AutoModelForCausalLM, folder, torch.float32)

Weights that no file has would be random; in models of ours, weights without a place are refused too.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch

from burnish.errors import UserError, first_line, is_out_of_memory
from burnish.lm.architecture import OWN
from burnish.lm.scalar_head import is_classifier


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
    is_scored = is_classifier({"architectures": model.config.architectures})
    unused = _output_names(model) if is_scored else ()
    _check_names(folder, found, unused, is_own=model.config.model_type == OWN)
    # `generate` would add what the folder's own file asks for, such as a repetition penalty.
    model.generation_config = transformers.GenerationConfig()
    return model


def _output_names(model: Any) -> set[str]:
    """Names of the weights that make logits; a classifier is saved without them."""
    head = model.get_output_embeddings()
    own = {id(weight) for weight in head.parameters()} if head is not None else set()
    return {name for name, weight in model.named_parameters() if id(weight) in own}


def _check_names(
    folder: Path, found: dict[str, Any], unused: Collection[str], *, is_own: bool
) -> None:
    """Refuse weights that are missing, or in a model of ours have no place: transformers only warns.

    Missing ones would be random; `unused` ones may be. Other families' files may hold what their
    forward does not use.
    """
    complaints = {"missing_keys": "its config.json asks for weight {} and no file has it"}
    if is_own:
        complaints["unexpected_keys"] = (
            "weight {} has no place in the model that config.json describes"
        )
    for kind, what in complaints.items():
        names = [
            name
            for name in sorted(found.get(kind) or ())
            if not name.startswith("score.") and name not in unused
        ]
        if names:
            raise UserError(
                f"{folder}: {what.format(names[0])}; expected the settings that the weights were "
                "saved with"
            )
