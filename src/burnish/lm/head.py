"""The output projection of a language model without a tensor of all its logits.

    logp_N, entropy_N = token_logprobs(hidden_ND, weight_VD, None, target_N, temperature=1.0)

The logits of 16 k tokens over a 49 k vocabulary take 3 GB in float32, and autograd would keep
several tensors of that size. Here logits live for one chunk of tokens at a time, are reduced to
three numbers a token, and are turned into their own gradient in place. A single chunk is kept from
forward to backward; of several, backward computes each again (one more matrix product).

With p = softmax(z / T), and g, h the gradients that reach log-prob and entropy H:
dz_j = (g (1[j = target] - p_j) - h p_j (log p_j + H)) / T.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from burnish.lm.hardware import can_run_kernels

GPU_CHUNK_BYTES = 2 * 2**30
CPU_CHUNK_BYTES = 128 * 2**20
CACHED_BYTES = 2**20
"""Logits per round of elementwise operations on a CPU: all rounds but the first read its cache."""

HALF = (torch.bfloat16, torch.float16)


class RowScores(NamedTuple):
    """What is kept of each token's distribution; all (N,), float32, or float64 for such logits."""

    logp_N: Tensor
    entropy_N: Tensor
    norm_N: Tensor
    """Log of the sum of the exponentials of the tempered logits."""


def chunk_tokens(vocabulary: int, dtype: torch.dtype, device: torch.device) -> int:
    """How many tokens have logits at one time."""
    if device.type == "cuda":
        return max(1, GPU_CHUNK_BYTES // (vocabulary * dtype.itemsize))
    return max(1, CPU_CHUNK_BYTES // (vocabulary * max(dtype.itemsize, 4)))


def token_logprobs(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    target_N: Tensor,
    temperature: float,
    *,
    entropy_gradient: bool = False,
    chunk: int = 0,
) -> tuple[Tensor, Tensor]:
    """Log-prob of each target and entropy of its distribution, softmax(logits / temperature).

    (N, D), (V, D), (V,), (N,) -> (N,), (N,); float64 for float64 inputs, else float32. Entropy
    carries a gradient only with `entropy_gradient`. `chunk`: how many tokens have logits at one
    time, 0 for `chunk_tokens`.
    """
    size = chunk or chunk_tokens(weight_VD.shape[0], weight_VD.dtype, weight_VD.device)
    inputs = (hidden_ND, weight_VD, bias_V)
    is_trained = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs)
    logp_N, entropy_N = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden_ND, weight_VD, bias_V, target_N, temperature, entropy_gradient, size, is_trained
    )
    return logp_N, entropy_N


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        target_N: Tensor,
        temperature: float,
        entropy_gradient: bool,
        chunk: int,
        is_trained: bool,
    ) -> tuple[Tensor, Tensor]:
        parts: list[RowScores] = []
        logits_CV: Tensor | None = None
        for hidden_CD, target_C in zip(
            torch.split(hidden_ND, chunk), torch.split(target_N, chunk), strict=True
        ):
            logits_CV = None  # one chunk goes before the next one comes
            logits_CV = _logits(hidden_CD, weight_VD, bias_V)
            parts.append(score_rows(logits_CV, target_C, temperature))
        scores = RowScores(*(torch.cat(column) for column in zip(*parts, strict=True)))
        if is_trained:
            ctx.save_for_backward(
                hidden_ND, weight_VD, bias_V, target_N, scores.norm_N, scores.entropy_N
            )
            ctx.settings = temperature, entropy_gradient, chunk
            ctx.kept = logits_CV if len(parts) == 1 else None
        if not entropy_gradient:
            ctx.mark_non_differentiable(scores.entropy_N)
        return scores.logp_N, scores.entropy_N

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, of_logp_N: Tensor, of_entropy_N: Tensor) -> tuple[Tensor | None, ...]:
        hidden_ND, weight_VD, bias_V, target_N, norm_N, entropy_N = ctx.saved_tensors
        temperature, entropy_gradient, chunk = ctx.settings
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        of_hidden_ND = torch.empty_like(hidden_ND) if needs_hidden else None
        of_weight_VD: Tensor | None = None
        of_bias_V: Tensor | None = None
        for start in range(0, len(hidden_ND), chunk):
            rows = slice(start, start + chunk)
            # The kept logits become the gradient; a second backward pass computes them again.
            logits_CV, ctx.kept = ctx.kept, None
            if logits_CV is None:
                logits_CV = _logits(hidden_ND[rows], weight_VD, bias_V)
            to_gradient(
                logits_CV,
                target_N[rows],
                norm_N[rows],
                entropy_N[rows],
                of_logp_N[rows],
                of_entropy_N[rows] if entropy_gradient else None,
                temperature,
            )
            gradient_CV = logits_CV.to(weight_VD.dtype)
            del logits_CV
            if of_hidden_ND is not None:
                torch.mm(gradient_CV, weight_VD, out=of_hidden_ND[rows])
            if needs_weight:
                of_weight_VD = _plus_product(of_weight_VD, gradient_CV, hidden_ND[rows])
            if needs_bias:
                sum_V = gradient_CV.sum(0, dtype=norm_N.dtype)
                of_bias_V = sum_V if of_bias_V is None else of_bias_V + sum_V
            del gradient_CV
        if of_weight_VD is not None:
            of_weight_VD = of_weight_VD.to(weight_VD.dtype)
        if of_bias_V is not None and bias_V is not None:
            of_bias_V = of_bias_V.to(bias_V.dtype)
        return of_hidden_ND, of_weight_VD, of_bias_V, None, None, None, None, None


def _logits(hidden_CD: Tensor, weight_VD: Tensor, bias_V: Tensor | None) -> Tensor:
    """Fresh logits (C, V); off the GPU half precision is widened for the elementwise work."""
    logits_CV = torch.nn.functional.linear(hidden_CD, weight_VD, bias_V)
    is_half = logits_CV.dtype in HALF
    return logits_CV.float() if is_half and _kernels(logits_CV) is None else logits_CV


def _plus_product(total_VD: Tensor | None, gradient_CV: Tensor, hidden_CD: Tensor) -> Tensor:
    """The weight's gradient with one more chunk; sums of several are in at least float32."""
    if total_VD is None:
        return gradient_CV.t() @ hidden_CD
    if gradient_CV.dtype in (torch.float32, torch.float64):
        return total_VD.addmm_(gradient_CV.t(), hidden_CD)
    return total_VD.float().add_(gradient_CV.t() @ hidden_CD)


def score_rows(logits_CV: Tensor, target_C: Tensor, temperature: float) -> RowScores:
    """Log-prob of the target, entropy and log-normaliser of each row; leaves the logits alone."""
    if (kernels := _kernels(logits_CV)) is not None:
        return RowScores(*kernels.score_rows(logits_CV, target_C, temperature))
    block = _block_rows(logits_CV)
    parts = [
        _score_block(z_CV, target, temperature)
        for z_CV, target in zip(
            torch.split(logits_CV, block), torch.split(target_C, block), strict=True
        )
    ]
    return RowScores(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _score_block(z_CV: Tensor, target_C: Tensor, temperature: float) -> RowScores:
    top_C1 = z_CV.amax(-1, keepdim=True)
    shifted_CV = z_CV - top_C1
    if temperature != 1.0:
        shifted_CV /= temperature
        top_C1 = top_C1 / temperature
    found_C = shifted_CV.gather(1, target_C[:, None])[:, 0]
    exp_CV = shifted_CV.exp()
    sum_C = exp_CV.sum(-1)
    log_sum_C = sum_C.log()
    mean_C = exp_CV.mul_(shifted_CV).sum(-1) / sum_C
    return RowScores(found_C - log_sum_C, log_sum_C - mean_C, top_C1[:, 0] + log_sum_C)


def to_gradient(
    logits_CV: Tensor,
    target_C: Tensor,
    norm_C: Tensor,
    entropy_C: Tensor,
    of_logp_C: Tensor,
    of_entropy_C: Tensor | None,
    temperature: float,
) -> None:
    """Turn logits into the loss's gradient by them, in place; the module's text has the formula."""
    if (kernels := _kernels(logits_CV)) is not None:
        kernels.to_gradient(
            logits_CV, target_C, norm_C, entropy_C, of_logp_C, of_entropy_C, temperature
        )
        return
    block = _block_rows(logits_CV)
    scaled_C1 = (of_logp_C / temperature)[:, None]
    for start in range(0, len(logits_CV), block):
        rows = slice(start, start + block)
        z_CV = logits_CV[rows]
        if temperature != 1.0:
            z_CV /= temperature
        z_CV -= norm_C[rows, None]
        if of_entropy_C is None:
            z_CV.exp_().mul_(-scaled_C1[rows])
        else:
            weight_CV = (z_CV + entropy_C[rows, None]) * (-of_entropy_C[rows, None] / temperature)
            z_CV.exp_().mul_(weight_CV.sub_(scaled_C1[rows]))
        z_CV.scatter_add_(1, target_C[rows, None], scaled_C1[rows])


def _block_rows(logits_CV: Tensor) -> int:
    if logits_CV.device.type != "cpu":
        return max(1, len(logits_CV))
    return max(1, CACHED_BYTES // (logits_CV.shape[1] * logits_CV.element_size()))


def _kernels(logits_CV: Tensor) -> Any | None:
    if not can_run_kernels(logits_CV):
        return None
    from burnish.lm import fused_kernels

    return fused_kernels
