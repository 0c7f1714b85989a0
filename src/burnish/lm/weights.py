"""The weight files of a Hugging Face folder: safetensors, never pickle."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


def write_weights(file: Path, weights: dict[str, Tensor]) -> None:
    """One safetensors file, complete or not there at all."""
    from safetensors.torch import save_file

    partial = file.with_name(f"{file.name}.partial-{os.getpid()}")
    contiguous = {name: tensor.detach().contiguous() for name, tensor in weights.items()}
    save_file(contiguous, str(partial), metadata={"format": "pt"})
    os.replace(partial, file)
