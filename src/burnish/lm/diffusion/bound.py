"""How likely a masked diffusion model finds given tokens: a lower bound, estimated with masks.

    found = likelihood_bound(loaded.module, [(prompt_ids, response_ids)], samples=32)
    found[0].logprob, found[0].standard_error

A masked diffusion model has no exact log-prob. With l of L response tokens masked, l drawn from 1 to
L, `-E[L/l * sum of the masked tokens' nll]` is a lower bound of it (LLaDA). The number l is drawn in
strata and masks come from the seed, the length and the sample's number alone: two models are
compared on the very same masks. The standard error says how far the estimate is from the bound; how
far the bound is from the truth nobody knows.

A model that was trained on a canvas filled with end tokens (`canvas`) is asked about such a canvas:
the end tokens behind the response count too, with its last token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from burnish.lm.decoder import Decoder
from burnish.lm.diffusion.layout import both_ways
from burnish.lm.diffusion.sampler import without_mask
from burnish.lm.head import chunk_tokens
from burnish.seeds import derive

SAMPLES = 32
"""Masks of one response."""
PASS_TOKENS = {"cpu": 8192, "cuda": 65536}


class Bound(NamedTuple):
    """A lower bound of the log-prob of one response, in nats."""

    logprob: float
    standard_error: float | None
    """Of the estimate, over masks; None with one mask, or where every mask is the same one."""
    samples: int
    tokens: tuple[float, ...]
    """What each token contributes; they add up to `logprob`."""

    @property
    def per_token(self) -> float | None:
        """Nats a token; None for an empty response."""
        return self.logprob / len(self.tokens) if self.tokens else None

    def bits_per_byte(self, size: int) -> float | None:
        """An upper bound of the bits that one of `size` bytes takes; None without bytes."""
        return -self.logprob / (size * math.log(2)) if size else None


class _Masked(NamedTuple):
    """One response under one mask."""

    pair: int
    row: list[int]
    prompt: int
    places: list[int]
    """Of the masked tokens, in the response."""


@torch.no_grad()
def likelihood_bound(
    module: Decoder,
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    *,
    samples: int = SAMPLES,
    seed: int = 0,
    canvas: int = 0,
    end: int | None = None,
) -> list[Bound]:
    """Bounds for responses to prompts, each as token ids; an empty response has log-prob 0."""
    filled = [(prompt, fill(answer, canvas, end)) for prompt, answer in pairs]
    rows = [row for i, pair in enumerate(filled) for row in _masked(module, i, pair, samples, seed)]
    parts = [[[0.0] * len(answer) for _ in range(samples)] for _, answer in pairs]
    seen = [0] * len(pairs)
    logps = iter(_logprobs(module, [pair[1] for pair in filled], rows))
    for row in rows:
        sample = parts[row.pair][seen[row.pair]]
        seen[row.pair] += 1
        weight = len(filled[row.pair][1]) / len(row.places)
        for place in row.places:
            sample[min(place, len(sample) - 1)] += weight * next(logps)
    return [_bound(own) for own in parts]


def fill(answer: Sequence[int], canvas: int, end: int | None) -> list[int]:
    """An answer with end tokens up to the next multiple of the canvas; an empty one stays empty.

    >>> fill([5, 6, 2], canvas=4, end=2)
    [5, 6, 2, 2]
    """
    if not answer or not canvas or end is None:
        return list(answer)
    return [*answer, *[end] * (-len(answer) % canvas)]


def mask_places(length: int, samples: int, seed: int) -> list[list[int]]:
    """The masked places of each sample: from the seed, the length and the sample's number alone.

    The numbers of masked tokens lie in strata, so that few and many are seen equally often.

    >>> [len(places) for places in mask_places(4, 4, seed=0)]
    [1, 2, 3, 4]
    """
    found = []
    for sample in range(samples):
        generator = torch.Generator().manual_seed(derive(seed, "bound", length, sample))
        inside = float(torch.rand(1, generator=generator, dtype=torch.float64))
        count = 1 + min(length - 1, int((sample + inside) / samples * length))
        order = torch.randperm(length, generator=generator)
        found.append(sorted(order[:count].tolist()))
    return found


def _masked(
    module: Decoder, pair: int, ids: tuple[Sequence[int], Sequence[int]], samples: int, seed: int
) -> list[_Masked]:
    prompt, answer = ids
    mask = module.architecture.mask_id
    assert mask is not None
    if not answer:
        return []
    found = []
    for places in mask_places(len(answer), samples, seed):
        row = [*prompt, *answer]
        for place in places:
            row[len(prompt) + place] = mask
        found.append(_Masked(pair, row, len(prompt), places))
    return found


def _logprobs(
    module: Decoder, answers: Sequence[Sequence[int]], rows: Sequence[_Masked]
) -> list[float]:
    """Log-probs of all masked tokens, row after row."""
    found: list[float] = []
    device = module.head_weight.device
    budget = PASS_TOKENS["cuda" if device.type == "cuda" else "cpu"]
    sees = module.architecture.prompt_sees
    start = 0
    while start < len(rows):
        longest, end = 0, start
        while end < len(rows) and (end + 1 - start) * max(longest, len(rows[end].row)) <= max(
            budget, len(rows[start].row)
        ):
            longest = max(longest, len(rows[end].row))
            end += 1
        some = rows[start:end]
        prompts = [row.prompt for row in some] if sees == "prompt" else None
        pad = module.architecture.mask_id or 0
        hidden = module(both_ways([r.row for r in some], pad=pad, device=device, prompts=prompts))
        where = [(i, r.prompt + p) for i, r in enumerate(some) for p in r.places]
        target = [answers[r.pair][p] for r in some for p in r.places]
        line_N, column_N = torch.tensor(where, device=device).unbind(1)
        target_N = torch.tensor(target, device=device)
        found += masked_logprobs(module, hidden[line_N, column_N], target_N).tolist()
        start = end
    return found


def masked_logprobs(module: Decoder, hidden_ND: Tensor, target_N: Tensor) -> Tensor:
    """Log-probs of tokens where they stand, the mask token forbidden; without a gradient."""
    weight = module.head_weight
    size = chunk_tokens(weight.shape[0], weight.dtype, weight.device)
    parts = []
    for hidden_CD, target_C in zip(
        torch.split(hidden_ND, size), torch.split(target_N, size), strict=True
    ):
        logits_CV = without_mask(module, module.logits(hidden_CD))
        logits_CV = logits_CV if logits_CV.dtype == torch.float64 else logits_CV.float()
        logp_CV = logits_CV.log_softmax(-1)
        parts.append(logp_CV.gather(1, target_C[:, None]).squeeze(1))
    return torch.cat(parts) if parts else hidden_ND.new_zeros(0)


def _bound(samples: Sequence[Sequence[float]]) -> Bound:
    count = len(samples)
    totals = [math.fsum(own) for own in samples]
    mean = math.fsum(totals) / count
    tokens = tuple(math.fsum(column) / count for column in zip(*samples, strict=True))
    if not tokens:
        return Bound(0.0, None, count, ())
    if count < 2:
        return Bound(mean, None, count, tokens)
    spread = math.fsum((total - mean) ** 2 for total in totals) / (count - 1)
    return Bound(mean, math.sqrt(spread / count), count, tokens)
