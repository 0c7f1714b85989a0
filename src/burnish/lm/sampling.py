"""From logits to tokens: pure functions over rows, with one uniform number a row and a step.

A row's token follows from its own logits, its own settings and its own uniform number, by
inverting the cumulative distribution. So a row never depends on its neighbours in the batch, and
log-probs come from the same float32 numbers that the draw used. Axis B counts the rows of a
decoding batch, V the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from burnish import seeds
from burnish.lm.base import Sampling

_BLOCK = 256
"""Tokens summed at once when a draw is located in a large vocabulary."""
_ONE_SCAN = 2048
"""Vocabularies up to this size are searched in one scan."""


_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX = ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64))


class RowSettings(NamedTuple):
    """How each row samples; a filter that no row uses is None."""

    greedy_B: Tensor | None
    all_greedy: bool
    temperature_B1: Tensor | None
    """None: 1 for every row. Greedy rows hold 1."""
    top_k_B1: Tensor | None
    """Rows without a limit hold the size of the vocabulary."""
    top_p_B1: Tensor | None
    min_p_B1: Tensor | None

    def select(self, rows: Tensor) -> RowSettings:
        """The settings of some rows, in the order given."""
        columns = (one[rows] if isinstance(one, Tensor) else one for one in self)
        return RowSettings(*columns)  # type: ignore[arg-type]  # each of its own kind


class Draw(NamedTuple):
    """One new token a row."""

    tokens_B: Tensor
    logprobs_B: Tensor
    """float32, under the tempered distribution before any filter."""
    raw_logprobs_B: Tensor
    """float32, under the model's own distribution; where no row is tempered, the same tensor."""


def row_settings(rows: Sequence[Sampling], vocab_size: int, device: torch.device) -> RowSettings:
    """Settings of a batch, one entry of `rows` a row."""

    def column(values: list[float], off: float, dtype: torch.dtype) -> Tensor | None:
        if all(value == off for value in values):
            return None
        return torch.tensor(values, dtype=dtype, device=device).unsqueeze(1)

    greedy = [row.temperature == 0 for row in rows]
    return RowSettings(
        greedy_B=torch.tensor(greedy, device=device) if any(greedy) else None,
        all_greedy=all(greedy),
        temperature_B1=column([row.temperature or 1.0 for row in rows], 1.0, torch.float32),
        top_k_B1=column(
            [min(row.top_k or vocab_size, vocab_size) for row in rows], vocab_size, torch.long
        ),
        top_p_B1=column([row.top_p for row in rows], 1.0, torch.float32),
        min_p_B1=column([row.min_p for row in rows], 0.0, torch.float32),
    )


def row_seed(sampling: Sampling, index: int) -> int:
    """The seed of completion `index`: from (seed, index) alone."""
    return seeds.derive(sampling.seed, index)


def uniforms(seeds_B: Tensor, steps: int) -> Tensor:
    """Uniform numbers in [0, 1) with 24 bits, (B, T): number t of a row follows from its seed and t.

    SplitMix64 (Steele, Lea and Flood 2014) in wrapping 64-bit integers: equal on every device, and
    no generator has to be seeded for each row.
    """
    counter_T = torch.arange(1, steps + 1, device=seeds_B.device) * _GOLDEN
    mixed_BT = seeds_B.unsqueeze(1) + counter_T
    for shift, factor in _MIX:
        mixed_BT = (mixed_BT ^ _shifted(mixed_BT, shift)) * factor
    mixed_BT = mixed_BT ^ _shifted(mixed_BT, 31)
    return _shifted(mixed_BT, 40).float() * 2.0**-24


def draw(
    logits_BV: Tensor, settings: RowSettings, uniforms_B: Tensor, forbidden: Sequence[int] = ()
) -> Draw:
    """Draw one token a row and give its log-probs.

    `forbidden` tokens are never drawn: a filter like the others, which log-probs do not see.
    """
    tempered_BV = temper(logits_BV, settings.temperature_B1)
    peak_B1, best_B1 = tempered_BV.max(dim=-1, keepdim=True)
    weights_BV = (tempered_BV - peak_B1).exp_()
    total_B1 = weights_BV.sum(dim=-1, keepdim=True)
    if forbidden:
        weights_BV[:, list(forbidden)] = 0.0
        best_B1 = weights_BV.argmax(dim=-1, keepdim=True)
    if settings.all_greedy:
        tokens_B1 = best_B1
    else:
        tokens_B1 = locate(keep_only(weights_BV, settings), uniforms_B.unsqueeze(1))
        if settings.greedy_B is not None:
            tokens_B1 = torch.where(settings.greedy_B.unsqueeze(1), best_B1, tokens_B1)
    logprobs_B = (tempered_BV.gather(1, tokens_B1) - peak_B1 - total_B1.log()).squeeze(1)
    raw_B = logprobs_B
    if settings.temperature_B1 is not None:
        logits_BV = logits_BV.float()
        raw_B = logits_BV.gather(1, tokens_B1).squeeze(1) - logits_BV.logsumexp(dim=-1)
    return Draw(tokens_B1.squeeze(1), logprobs_B, raw_B)


def temper(logits_BV: Tensor, temperature_B1: Tensor | None) -> Tensor:
    """Float32 logits divided by each row's temperature."""
    logits_BV = logits_BV.float()
    return logits_BV if temperature_B1 is None else logits_BV / temperature_B1


def keep_only(weights_BV: Tensor, settings: RowSettings) -> Tensor:
    """Unnormalised probabilities with everything outside top-k, top-p and min-p set to 0.

    The filters act in that order, each on what the one before left; the likeliest token always
    stays. Ties at a border are broken by token id, so exactly k tokens stay under top-k.
    """
    if settings.top_k_B1 is not None or settings.top_p_B1 is not None:
        sorted_BV, order_BV = weights_BV.sort(dim=-1, descending=True, stable=True)
        keep_BV = torch.ones_like(sorted_BV, dtype=torch.bool)
        if settings.top_k_B1 is not None:
            rank_V = torch.arange(sorted_BV.shape[-1], device=sorted_BV.device)
            keep_BV &= rank_V < settings.top_k_B1
            sorted_BV = sorted_BV * keep_BV
        if settings.top_p_B1 is not None:
            before_BV = sorted_BV.cumsum(dim=-1) - sorted_BV
            within_BV = before_BV < settings.top_p_B1 * sorted_BV.sum(dim=-1, keepdim=True)
            # Rows with top_p 1 keep their tail whatever the rounding of the sums.
            keep_BV &= within_BV | (settings.top_p_B1 >= 1)
            keep_BV[:, 0] = True
        weights_BV = weights_BV * torch.zeros_like(keep_BV).scatter_(1, order_BV, keep_BV)
    if settings.min_p_B1 is not None:
        floor_B1 = settings.min_p_B1 * weights_BV.amax(dim=-1, keepdim=True)
        weights_BV = weights_BV * (weights_BV >= floor_B1)
    return weights_BV


def locate(weights_BV: Tensor, uniforms_B1: Tensor) -> Tensor:
    """First token whose cumulative weight exceeds u times the total, (B, 1).

    Never a token of weight 0: the threshold stays below the total. A large vocabulary is searched
    in two short scans, first for the block and then inside it.
    """
    if weights_BV.shape[1] <= _ONE_SCAN:
        cumulative_BV = weights_BV.cumsum(dim=-1)
        return _invert(cumulative_BV, uniforms_B1 * cumulative_BV[:, -1:])[0]
    blocks_BNW = _blocks(weights_BV)
    sums_BN = blocks_BNW.sum(dim=-1).cumsum(dim=-1)
    block_B1, left_B1 = _invert(sums_BN, uniforms_B1 * sums_BN[:, -1:])
    inside_BW = blocks_BNW.gather(1, block_B1.unsqueeze(-1).expand(-1, 1, _BLOCK)).squeeze(1)
    within_B1, _ = _invert(inside_BW.cumsum(dim=-1), left_B1)
    return (block_B1 * _BLOCK + within_B1).clamp_max(weights_BV.shape[1] - 1)


def top_logprobs(logits_BV: Tensor, settings: RowSettings, count: int) -> tuple[Tensor, Tensor]:
    """The `count` likeliest tokens under the tempered distribution: log-probs and ids, (B, count)."""
    logprobs_BV = temper(logits_BV, settings.temperature_B1).log_softmax(dim=-1)
    values, ids = logprobs_BV.topk(min(count, logprobs_BV.shape[-1]), dim=-1)
    return values, ids


def _invert(cumulative_BN: Tensor, threshold_B1: Tensor) -> tuple[Tensor, Tensor]:
    """First index above the threshold, and how far into its step the threshold lies."""
    total_B1 = cumulative_BN[:, -1:]
    # One rounding step below the total, so that some index always lies above.
    threshold_B1 = torch.minimum(threshold_B1, total_B1 * (1 - 2**-23))
    index_B1 = torch.searchsorted(cumulative_BN, threshold_B1, right=True)
    # Weights that are not numbers have no such index; the log-prob will say so, not a wild read.
    index_B1 = index_B1.clamp_max(cumulative_BN.shape[1] - 1)
    before_B1 = cumulative_BN.gather(1, (index_B1 - 1).clamp_min(0)) * (index_B1 > 0)
    return index_B1, threshold_B1 - before_B1


def _blocks(weights_BV: Tensor) -> Tensor:
    """(B, N, _BLOCK), padded with weight 0 at the end of the vocabulary."""
    rows, size = weights_BV.shape
    short = -size % _BLOCK
    if short:
        weights_BV = torch.nn.functional.pad(weights_BV, (0, short))
    return weights_BV.view(rows, -1, _BLOCK)


def _shifted(values: Tensor, bits: int) -> Tensor:
    """Shift to the right without keeping the sign; torch has no unsigned shift."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)
