"""What the contrast accepts as embeddings and keys, and what it makes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from burnish.errors import ArgumentError
from burnish.policy.tensors import as_float64, check_tensor

if TYPE_CHECKING:
    from burnish.policy.tensors import Numbers


def as_embeddings(values: Numbers) -> Tensor:
    """Embeddings (B, d) that keep their graph; half precision is raised to float32."""
    read = values if isinstance(values, Tensor) else as_float64(values, "embeddings")
    if read.ndim != 2 or not read.shape[1]:
        raise ArgumentError(f"embeddings: got shape {tuple(read.shape)}, expected (B, d)")
    return read if read.dtype in (torch.float32, torch.float64) else read.to(torch.float32)


def as_keys(keys: Tensor | None, rows: Tensor) -> Tensor:
    """Each rollout's own number, int64 (B,); its position when absent."""
    if keys is None:
        return torch.arange(len(rows), device=rows.device)
    check_tensor(keys, "keys", "(B,) of integers")
    if keys.shape != rows.shape[:1] or keys.is_floating_point():
        raise ArgumentError(
            f"keys: got {keys.dtype} of shape {tuple(keys.shape)}, expected ({len(rows)},) integers"
        )
    return keys.to(rows.device, torch.int64)


def unit_rows(values_BE: Tensor) -> tuple[Tensor, Tensor]:
    """Rows at length 1, and which rows have a direction, bool (B,); the others become 0.

    A row without a direction (NaN, infinite or 0) passes no gradient, so it cannot poison the rest.
    """
    norm_B = torch.linalg.vector_norm(values_BE.detach(), dim=1)
    has_direction_B = norm_B.isfinite() & (norm_B > 0)
    safe_BE = values_BE.masked_fill(~has_direction_B[:, None], 1.0)
    units_BE = safe_BE / torch.linalg.vector_norm(safe_BE, dim=1, keepdim=True)
    return units_BE.masked_fill(~has_direction_B[:, None], 0.0), has_direction_B
