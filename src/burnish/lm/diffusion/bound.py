"""How likely a masked diffusion model finds given tokens: a lower bound, estimated with masks.

    found = likelihood_bound(loaded.module, [(prompt_ids, response_ids)], samples=32)
    found[0].logprob, found[0].standard_error

A masked diffusion model has no exact log-prob. With l of L response tokens masked, l drawn from 1 to
L, `-E[L/l * sum of the masked tokens' nll]` is a lower bound of it (LLaDA). The number l is drawn in
strata and masks come from the seed, the length and the sample's number alone: two models are
compared on the very same masks. The standard error says how far the estimate is from the bound. The gap
between bound and log-likelihood is not estimated.

A model that was trained on a canvas filled with end tokens (`canvas`) is asked about such a canvas:
the end tokens behind a response that ended count too, with its last token. Behind one that was cut off
the canvas is open: masked, and not counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from burnish.arguments import as_whole
from burnish.lm.decoder import Decoder
from burnish.lm.diffusion.masked_rows import TokenRow, Unit, pair_row, passes, unit_logprobs
from burnish.seeds import derive

SAMPLES = 32
"""Masks of one response."""
PASS_TOKENS = {"cpu": 8192, "cuda": 65536}


class Bound(NamedTuple):
    """A lower bound of the log-prob of one response, in nats."""

    logprob: float | None
    """None where it is no number: the response holds the mask token, or the model gave none."""
    standard_error: float | None
    """Of the estimate, over masks; None with one mask."""
    samples: int
    tokens: tuple[float, ...]
    """What each token contributes; they add up to `logprob`. None of them where that is None."""


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
    samples = as_whole("samples", samples, low=1)
    mask = module.architecture.mask_id
    assert mask is not None
    device = module.head_weight.device
    longest = module.max_positions
    rows = [
        pair_row(prompt, answer, mask=mask, longest=longest, canvas=canvas, end=end)
        for prompt, answer in pairs
    ]
    units = [
        unit._replace(number=i * samples + k)
        for i, row in enumerate(rows)
        if row.count
        for k, unit in enumerate(bound_units(row, samples, seed))
    ]
    parts = [[[0.0] * len(answer) for _ in range(samples)] for _, answer in pairs]
    for some in passes(units, PASS_TOKENS["cuda" if device.type == "cuda" else "cpu"]):
        found = unit_logprobs(module, some, device)
        logps = iter(found.logp_N.double().tolist())
        for unit in some:
            i, k = divmod(unit.number, samples)
            sample, first = parts[i][k], unit.row.prompt
            for place, chance in zip(unit.places, unit.chances, strict=True):
                sample[min(int(place) - first, len(sample) - 1)] += next(logps) / chance
    return [
        Bound(None, None, samples, ()) if row.has_target(mask) else _bound(own)
        for row, own in zip(rows, parts, strict=True)
    ]


def bound_units(row: TokenRow, samples: int, seed: int, number: int = 0) -> list[Unit]:
    """A row under the masks that its bound is estimated with."""
    columns = np.flatnonzero(row.eligible)
    return [
        Unit(row, columns[places], np.full(len(places), len(places) / len(columns)), number=number)
        for places in mask_places(len(columns), samples, seed)
    ]


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


def _bound(samples: Sequence[Sequence[float]]) -> Bound:
    count = len(samples)
    totals = [math.fsum(own) for own in samples]
    tokens = tuple(math.fsum(column) / count for column in zip(*samples, strict=True))
    if not tokens:
        return Bound(0.0, None, count, ())
    if not all(map(math.isfinite, totals)):
        return Bound(None, None, count, ())
    mean = math.fsum(totals) / count
    if count < 2:
        return Bound(mean, None, count, tokens)
    spread = math.fsum((total - mean) ** 2 for total in totals) / (count - 1)
    return Bound(mean, math.sqrt(spread / count), count, tokens)
