"""The elementwise work of `lm.head` as two Triton kernels: logits are read once, and written once.

All arithmetic is in float32 whatever the logits' type; both kernels run one program a row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 8192
WARPS = 8


def score_rows(
    logits_CV: Tensor, target_C: Tensor, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-prob of the target, entropy and log-normaliser of each row, (C,) float32 each."""
    rows, vocabulary = logits_CV.shape
    out_3C = torch.empty(3, rows, dtype=torch.float32, device=logits_CV.device)
    if rows:
        with torch.cuda.device_of(logits_CV):
            _score_row[(rows,)](
                logits_CV,
                target_C,
                out_3C[0],
                out_3C[1],
                out_3C[2],
                logits_CV.stride(0),
                1.0 / temperature,
                VOCABULARY=vocabulary,
                BLOCK=_block(vocabulary),
                num_warps=WARPS,
            )
    return out_3C[0], out_3C[1], out_3C[2]


def to_gradient(
    logits_CV: Tensor,
    target_C: Tensor,
    norm_C: Tensor,
    entropy_C: Tensor,
    of_logp_C: Tensor,
    of_entropy_C: Tensor | None,
    temperature: float,
) -> None:
    """Turn logits into the loss's gradient by them, in place."""
    rows, vocabulary = logits_CV.shape
    if rows:
        _row_to_gradient[(rows,)](
            logits_CV,
            target_C,
            norm_C.contiguous(),
            entropy_C.contiguous(),
            of_logp_C.contiguous(),
            of_logp_C if of_entropy_C is None else of_entropy_C.contiguous(),
            logits_CV.stride(0),
            1.0 / temperature,
            VOCABULARY=vocabulary,
            HAS_ENTROPY=of_entropy_C is not None,
            BLOCK=_block(vocabulary),
            num_warps=WARPS,
        )


def _block(vocabulary: int) -> int:
    return int(min(BLOCK, triton.next_power_of_2(vocabulary)))


@triton.jit
def _score_row(
    logits: tl.tensor,
    target: tl.tensor,
    logp: tl.tensor,
    entropy: tl.tensor,
    norm: tl.tensor,
    stride: tl.tensor,
    inverse_temperature: tl.tensor,
    VOCABULARY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    found = tl.load(logits + tl.load(target + row)).to(tl.float32) * inverse_temperature
    # Shifted by the largest logit so far; the target's stands in for it at first, so that no
    # difference of infinities arises.
    top = found
    total = 0.0
    weighted = 0.0
    for start in range(0, VOCABULARY, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        z = tl.load(logits + columns, mask=columns < VOCABULARY, other=float("-inf"))
        z = z.to(tl.float32) * inverse_temperature
        higher = tl.maximum(top, tl.max(z, axis=0))
        fall = top - higher
        shrink = tl.exp(fall)
        shifted = z - higher
        power = tl.exp(shifted)
        weighted = (weighted + total * fall) * shrink
        weighted += tl.sum(tl.where(power > 0.0, power * shifted, 0.0), axis=0)
        total = total * shrink + tl.sum(power, axis=0)
        top = higher
    log_total = tl.log(total)
    tl.store(logp + row, found - top - log_total)
    tl.store(entropy + row, log_total - weighted / total)
    tl.store(norm + row, top + log_total)


@triton.jit
def _row_to_gradient(
    logits: tl.tensor,
    target: tl.tensor,
    norm: tl.tensor,
    entropy: tl.tensor,
    of_logp: tl.tensor,
    of_entropy: tl.tensor,
    stride: tl.tensor,
    inverse_temperature: tl.tensor,
    VOCABULARY: tl.constexpr,
    HAS_ENTROPY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    wanted = tl.load(target + row)
    row_norm = tl.load(norm + row)
    from_logp = tl.load(of_logp + row) * inverse_temperature
    for start in range(0, VOCABULARY, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        inside = columns < VOCABULARY
        z = tl.load(logits + columns, mask=inside, other=float("-inf"))
        log_p = z.to(tl.float32) * inverse_temperature - row_norm
        p = tl.exp(log_p)
        gradient = tl.where(columns == wanted, from_logp, 0.0) - from_logp * p
        if HAS_ENTROPY:
            from_entropy = tl.load(of_entropy + row) * inverse_temperature
            surprise = tl.where(p > 0.0, p * (log_p + tl.load(entropy + row)), 0.0)
            gradient -= from_entropy * surprise
        tl.store(logits + columns, gradient.to(logits.dtype.element_ty), mask=inside)
