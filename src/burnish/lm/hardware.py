"""What the hardware does with a tensor: which types are half precision, where kernels can run."""

from __future__ import annotations

import functools
import importlib.util

import torch
from torch import Tensor

HALF = (torch.bfloat16, torch.float16)


def can_run_kernels(tensor: Tensor) -> bool:
    """On a GPU, for everything but float64, where Triton is installed."""
    return tensor.is_cuda and tensor.dtype != torch.float64 and _has_triton()


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None
