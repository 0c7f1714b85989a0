"""The elementwise work of a decoder layer, on a GPU one kernel forward and one backward each.

Where the weights are half precision the residual stream is float32. Rounded after every layer it
moved the log-probs of SmolLM2 in bfloat16 by 0.027 on average over 400 tokens of prose, in float32
by 0.018, the rounding of the logits themselves left out. Elsewhere than on a GPU, and for float64,
the same functions are plain torch. The letter E stands for the numbers of one head.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from burnish.lm.hardware import can_run_kernels
from burnish.lm.head import HALF
from burnish.models.blocks.topology import Norms, Streams


class SignedRotation(NamedTuple):
    """Rotary positions of a batch, (B, 1, S, Dh) each."""

    cos: Tensor
    sin: Tensor
    """The first half negated, so that swapping a head's halves is all that is left to do."""


def add_norm(
    residual_ND: Tensor, delta_ND: Tensor | None, weight_D: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """The residual stream with `delta` added, and its root-mean-square norm.

    (N, D), (N, D), (D,) -> (N, D), (N, D). The norm has the weight's type. In half precision the
    stream is float32 and the norm is computed in float32, weight included, and rounded once.
    """
    is_half = weight_D.dtype in HALF
    if is_half and residual_ND.dtype != torch.float32:
        residual_ND = residual_ND.float()
    if (kernels := _kernels(weight_D)) is not None:
        return _AddNorm.apply(residual_ND, delta_ND, weight_D, eps, kernels)  # type: ignore[no-any-return, no-untyped-call]
    if delta_ND is not None:
        residual_ND = residual_ND + delta_ND
    if is_half:
        normed_ND = F.rms_norm(residual_ND, weight_D.shape, weight_D.float(), eps)
        return residual_ND, normed_ND.to(weight_D.dtype)
    return residual_ND, F.rms_norm(residual_ND, weight_D.shape, weight_D, eps)


def read_both(streams: Streams, norms: Norms, eps: float) -> tuple[Streams, Tensor] | None:
    """`read_streams` of SiameseNorm as one kernel; None where there are fewer streams or norms."""
    x, y, update, share = streams
    weights = norms.x_norm, norms.y_norm, norms.in_norm
    if x is None or y is None or update is None or any(w is None for w in weights):
        return None
    if _kernels(weights[0]) is None:
        return None
    if weights[0].dtype in HALF and y.dtype != torch.float32:
        y = y.float()
    new_x, new_y, normed_ND = _ReadBoth.apply(x, y, update, share, *weights, eps)  # type: ignore[no-untyped-call]
    return Streams(new_x, new_y), normed_ND


def norm(x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last axis in the type of `x`: (..., D), (D,) -> (..., D)."""
    if (kernels := _kernels(weight_D)) is None:
        return F.rms_norm(x, weight_D.shape, weight_D, eps)
    flat_ND = x.reshape(-1, x.shape[-1])
    _, normed_ND = _AddNorm.apply(flat_ND, None, weight_D, eps, kernels)  # type: ignore[no-untyped-call]
    normed: Tensor = normed_ND.view(x.shape)
    return normed


def rotate(query_BSHE: Tensor, key_BSHE: Tensor, rotation: SignedRotation) -> tuple[Tensor, Tensor]:
    """Rotary positions, the halves of a head as each pair's two coordinates.

    (B, S, H, Dh), (B, S, Hkv, Dh) -> (B, H, S, Dh), (B, Hkv, S, Dh): heads before tokens, as
    attention reads them. On a GPU those are views of what lies in memory tokens first.
    """
    if (kernels := _kernels(query_BSHE)) is not None:
        heads = (query_BSHE, key_BSHE)
        query, key = _Rotate.apply(kernels, *rotation, key_BSHE.shape[2], *heads)  # type: ignore[no-untyped-call]
        return query.transpose(1, 2), key.transpose(1, 2)
    query = _turned(query_BSHE.transpose(1, 2), rotation)
    return query, _turned(key_BSHE.transpose(1, 2), rotation)


def rotate_and_repeat(
    query_BSHE: Tensor, key_BSHE: Tensor, value_BSHE: Tensor, rotation: SignedRotation
) -> tuple[Tensor, Tensor, Tensor]:
    """`rotate`, and a key and a value for every query head: query head h reads that of h // (H / Hkv).

    (B, S, H, Dh), (B, S, Hkv, Dh) twice -> (B, H, S, Dh) three times.
    """
    if (kernels := _kernels(query_BSHE)) is not None:
        heads = (query_BSHE, key_BSHE, value_BSHE)
        turned = _Rotate.apply(kernels, *rotation, query_BSHE.shape[2], *heads)  # type: ignore[no-untyped-call]
        query, key, value = (each.transpose(1, 2) for each in turned)
        return query, key, value
    query, key = rotate(query_BSHE, key_BSHE, rotation)
    times = query.shape[1] // key.shape[1]
    value = value_BSHE.transpose(1, 2)
    return query, key.repeat_interleave(times, dim=1), value.repeat_interleave(times, dim=1)


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up; any shape, the same for both."""
    if (kernels := _kernels(gate)) is not None:
        return _Gated.apply(gate, up, kernels)  # type: ignore[no-any-return, no-untyped-call]
    return F.silu(gate) * up


def _turned(heads_BHSE: Tensor, rotation: SignedRotation) -> Tensor:
    swapped = heads_BHSE.roll(heads_BHSE.shape[-1] // 2, dims=-1)
    return torch.addcmul(heads_BHSE * rotation.cos, swapped, rotation.sin)


class _AddNorm(torch.autograd.Function):
    """Keeps the sum (for `norm` its input), a number a row, and the weight."""

    @staticmethod
    def forward(
        ctx: Any,
        residual_ND: Tensor,
        delta_ND: Tensor | None,
        weight_D: Tensor,
        eps: float,
        kernels: Any,
    ) -> tuple[Tensor, Tensor]:
        total_ND, normed_ND, scale_N = kernels.add_norm(residual_ND, delta_ND, weight_D, eps)
        ctx.save_for_backward(total_ND, weight_D, scale_N)
        ctx.kernels = kernels
        ctx.delta_dtype = None if delta_ND is None else delta_ND.dtype
        # The last layer's sum and a head's input lead nowhere: no zeros are made for them.
        ctx.set_materialize_grads(False)
        return total_ND, normed_ND

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        ctx: Any, of_total_ND: Tensor | None, of_normed_ND: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        total_ND, weight_D, scale_N = ctx.saved_tensors
        if of_normed_ND is None:
            if of_total_ND is None or ctx.delta_dtype is None:
                return of_total_ND, None, None, None, None
            return of_total_ND, of_total_ND.to(ctx.delta_dtype), None, None, None
        of_residual_ND, of_delta_ND, of_weight_D = ctx.kernels.add_norm_backward(
            of_total_ND,
            of_normed_ND,
            total_ND,
            weight_D,
            scale_N,
            delta_dtype=ctx.delta_dtype,
            needs_weight=ctx.needs_input_grad[2],
        )
        return of_residual_ND, of_delta_ND, of_weight_D, None, None


class _ReadBoth(torch.autograd.Function):
    """Keeps X, the update, the new Y, three numbers a row, and the weights."""

    @staticmethod
    def forward(
        ctx: Any,
        x_ND: Tensor,
        y_ND: Tensor,
        update_ND: Tensor,
        share: float,
        x_weight_D: Tensor,
        y_weight_D: Tensor,
        in_weight_D: Tensor,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        from burnish.lm import siamese_kernels

        x_ND, y_ND, update_ND = x_ND.contiguous(), y_ND.contiguous(), update_ND.contiguous()
        weights = x_weight_D, y_weight_D, in_weight_D
        new_x_ND, new_y_ND, out_ND, scales_3N = siamese_kernels.read_both(
            x_ND, y_ND, update_ND, share, weights, eps
        )
        ctx.save_for_backward(x_ND, new_y_ND, update_ND, *weights, scales_3N)
        ctx.share = share
        return new_x_ND, new_y_ND, out_ND

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        ctx: Any, of_x_ND: Tensor, of_y_ND: Tensor, of_out_ND: Tensor
    ) -> tuple[Tensor | None, ...]:
        from burnish.lm import siamese_kernels

        x_ND, new_y_ND, update_ND, *weights, scales_3N = ctx.saved_tensors
        of_x_ND, of_y_ND, of_update_ND, of_weights = siamese_kernels.read_both_backward(
            of_x_ND,
            of_y_ND,
            of_out_ND,
            x_ND,
            new_y_ND,
            update_ND,
            ctx.share,
            tuple(weights),
            scales_3N,
            needs_weights=any(ctx.needs_input_grad[4:7]),
        )
        return of_x_ND, of_y_ND, of_update_ND, None, *of_weights, None


class _Rotate(torch.autograd.Function):
    """Turns query and key, and spreads keys and values over `key_heads` heads.

    Keeps the angles, which all layers share: the gradient turns by their opposite.
    """

    @staticmethod
    def forward(
        ctx: Any, kernels: Any, cos: Tensor, sin: Tensor, key_heads: int, *heads: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(cos, sin)
        ctx.kernels, ctx.key_heads = kernels, heads[1].shape[2]
        return tuple(kernels.rotate(heads, cos, sin, key_heads=key_heads, is_backward=False))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *of_heads: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        gradients = ctx.kernels.rotate(
            of_heads, cos, sin, key_heads=ctx.key_heads, is_backward=True
        )
        return None, None, None, None, *gradients


class _Gated(torch.autograd.Function):
    """Keeps gate and up; backward computes the sigmoid again."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, kernels: Any) -> Tensor:
        ctx.save_for_backward(gate, up)
        ctx.kernels = kernels
        out: Tensor = kernels.gated(gate, up)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, of_out: Tensor) -> tuple[Tensor | None, ...]:
        gate, up = ctx.saved_tensors
        of_gate, of_up = ctx.kernels.gated_backward(of_out, gate, up)
        return of_gate, of_up, None


def _kernels(tensor: Tensor) -> Any | None:
    if not can_run_kernels(tensor):
        return None
    from burnish.lm import fused_kernels

    return fused_kernels
