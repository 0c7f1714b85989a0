"""Linear maps of one input as one product, over weights that lie side by side in memory.

Query, key and value projections read the same input, and so do gate and up. Their weights keep
their names and shapes, but are loaded next to each other, so that a view over all of them costs
nothing and what the optimiser writes into one is in the view.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def joined_linear(hidden_ND: Tensor, weights: Sequence[Tensor]) -> tuple[Tensor, ...] | None:
    """hidden @ weight.T for each weight, by one product; None where they do not lie side by side."""
    joined_MD = side_by_side(weights)
    if joined_MD is None:
        return None
    return _JoinedLinear.apply(hidden_ND, joined_MD, *weights)  # type: ignore[no-any-return, no-untyped-call]


class _JoinedLinear(torch.autograd.Function):
    """Keeps the input; the weights' gradients are parts of one product too."""

    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, joined_MD: Tensor, *weights: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(hidden_ND, *weights)
        ctx.sizes = [weight.shape[0] for weight in weights]
        return torch.split(F.linear(hidden_ND, joined_MD), ctx.sizes, dim=-1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *of_parts: Tensor) -> tuple[Tensor | None, ...]:
        hidden_ND, *weights = ctx.saved_tensors
        joined_MD = side_by_side(weights)
        assert joined_MD is not None, "weights moved between forward and backward"
        of_all_NM = torch.cat(of_parts, dim=-1)
        of_hidden_ND = of_all_NM @ joined_MD if ctx.needs_input_grad[0] else None
        of_weights: tuple[Tensor | None, ...] = (None,) * len(weights)
        if any(ctx.needs_input_grad[2:]):
            of_weights = torch.split(of_all_NM.t() @ hidden_ND, ctx.sizes)
        return of_hidden_ND, None, *of_weights


def side_by_side(tensors: Sequence[Tensor]) -> Tensor | None:
    """One view over tensors that follow each other in memory along their first axis, or None."""
    first = tensors[0].detach()
    end = first.storage_offset()
    for tensor in tensors:
        apart = (
            tensor.untyped_storage().data_ptr() != first.untyped_storage().data_ptr()
            or tensor.storage_offset() != end
            or tensor.shape[1:] != first.shape[1:]
            or not tensor.is_contiguous()
        )
        if apart:
            return None
        end += tensor.numel()
    rows = sum(tensor.shape[0] for tensor in tensors)
    return first.as_strided((rows, *first.shape[1:]), first.stride(), first.storage_offset())


def laid_side_by_side(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same weights, those that a decode step reads together moved next to each other."""
    laid = dict(weights)
    for name in weights:
        for group in (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")):
            stem, found, kind = name.rpartition(f"{group[0]}.")
            if not found:
                continue
            members = [f"{stem}{part}.{kind}" for part in group]
            joined = torch.cat([laid.pop(member) for member in members])
            sizes = [weights[member].shape[0] for member in members]
            laid.update(zip(members, torch.split(joined, sizes), strict=True))
    return laid
