"""Rows of tokens under masks, and what a masked diffusion model makes of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from burnish.lm.base import TokenIds
from burnish.lm.decoder import Decoder, plain_head
from burnish.lm.head import chunk_tokens, token_logprobs
from burnish.lm.model_input import ModelInput, Segments, passes
from burnish.records import Trajectory
from burnish.seeds import derive

PADDING = -1


def both_ways(
    rows: Sequence[TokenIds],
    *,
    pad: int,
    device: torch.device,
    prompts: TokenIds | None = None,
    multiple: int = 1,
) -> ModelInput:
    """Rows padded on the right; with `prompts`, so many first tokens of each see only each other."""
    longest = max(map(len, rows))
    size = multiple * -(-longest // multiple)
    ids_RS = torch.tensor([[*row, *[pad] * (size - len(row))] for row in rows], device=device)
    lengths_R = torch.tensor([len(row) for row in rows], device=device)
    columns_S = torch.arange(size, device=device)
    positions_RS = columns_S.expand(len(rows), size)
    if prompts is None and all(len(row) == size for row in rows):
        return ModelInput(ids_RS, positions_RS)
    segment_RS = torch.where(columns_S < lengths_R[:, None], 0, PADDING)
    prompts_R = None if prompts is None else torch.tensor(list(prompts), device=device)
    return ModelInput(ids_RS, positions_RS, segment_mask(segment_RS, prompts_R))


def packed_input(
    rows: Sequence[TokenIds],
    starts: Sequence[NDArray[np.int64]],
    *,
    device: torch.device,
    pad: int,
    multiple: int = 1,
    takes_segments: bool = False,
) -> ModelInput:
    """Rows of several documents that do not see each other; positions restart with each.

    `starts` has for every token of a row the column at which its document begins. Padding is a
    document of its own.
    """
    longest = max(map(len, rows))
    size = multiple * -(-longest // multiple)
    ids_RS = np.full((len(rows), size), pad, dtype=np.int64)
    starts_RS = np.zeros((len(rows), size), dtype=np.int64)
    for place, (row, own) in enumerate(zip(rows, starts, strict=True)):
        ids_RS[place, : len(row)] = row
        starts_RS[place, : len(row)] = own
        starts_RS[place, len(row) :] = len(row)
    positions_RS = torch.from_numpy(np.arange(size) - starts_RS).to(device)
    ids = torch.from_numpy(ids_RS).to(device)
    if not starts_RS.any():
        return ModelInput(ids, positions_RS)
    if takes_segments:
        return ModelInput(ids, positions_RS, Segments.of(starts_RS, device))
    return ModelInput(ids, positions_RS, segment_mask(torch.from_numpy(starts_RS).to(device)))


def segment_mask(segment_RS: Tensor, prompts_R: Tensor | None = None) -> Tensor:
    """May a query see a key: both are of one segment, and the query is no prompt or the key is one.

    (R, S), (R,) -> bool (R, S, S). Prompts stand at the beginning of a line with one segment.
    """
    mask_RSS = segment_RS[:, :, None] == segment_RS[:, None, :]
    if prompts_R is None:
        return mask_RSS
    columns_S = torch.arange(segment_RS.shape[1], device=segment_RS.device)
    is_prompt_RS = columns_S < prompts_R[:, None]
    return mask_RSS & (~is_prompt_RS[:, :, None] | is_prompt_RS[:, None, :])


FORBIDDEN = -3e4
"""Added to the logit of the mask token: its probability is exactly 0, in half precision too."""
CUDA_MULTIPLE = 8
"""Widths on a GPU are multiples of this: its kernels read masks of such widths as they are."""


@dataclass(frozen=True)
class TokenRow:
    """A row as it is without masks."""

    id: str
    ids: tuple[int, ...]
    eligible: NDArray[np.bool_]
    """What may be masked: the answer, never the prompt."""
    starts: NDArray[np.int64] | None = None
    """Where documents in the row do not see each other: the column at which each token's begins."""

    @property
    def prompt(self) -> int:
        """Tokens before the first that may be masked."""
        places = np.flatnonzero(self.eligible)
        return int(places[0]) if len(places) else len(self.ids)

    @property
    def count(self) -> int:
        return int(self.eligible.sum())

    def has_target(self, token: int) -> bool:
        """Whether a token stands where it may have to be predicted."""
        return bool((np.array(self.ids)[self.eligible] == token).any())


class Filled(NamedTuple):
    """An answer on its canvas."""

    ids: list[int]
    """The answer; where it ended, with end tokens to the end of the canvas."""
    open: int
    """Places behind it that nobody wrote: masked, and never counted."""


def fill(answer: TokenIds, canvas: int, end: int | None, room: int | None = None) -> Filled:
    """An answer on a canvas of the next multiple of `canvas` tokens, at most `room`.

    An answer that ends with the end token is filled with more of them, as models are trained. One that
    was cut off wrote no end: the rest of its canvas is open. An empty answer stays empty, and without
    a canvas or an end token nothing is added.

    >>> fill([5, 6, 2], canvas=4, end=2), fill([5, 6, 7], canvas=4, end=2)
    (Filled(ids=[5, 6, 2, 2], open=0), Filled(ids=[5, 6, 7], open=1))
    """
    ids = list(answer)
    if not ids or not canvas or end is None:
        return Filled(ids, 0)
    missing = -len(ids) % canvas
    if room is not None:
        missing = max(0, min(missing, room - len(ids)))
    return Filled(ids + [end] * missing, 0) if ids[-1] == end else Filled(ids, missing)


def pair_row(
    prompt: TokenIds,
    answer: TokenIds,
    *,
    mask: int,
    longest: int,
    canvas: int = 0,
    end: int | None = None,
    id: str = "",
) -> TokenRow:
    """An answer on its canvas behind a prompt; `longest` is what the model reads."""
    ids, is_open = fill(answer, canvas, end, longest - len(prompt))
    marks = [False] * len(prompt) + [True] * len(ids) + [False] * is_open
    return TokenRow(id, (*prompt, *ids, *[mask] * is_open), np.array(marks, dtype=bool))


def answer_row(
    shown: Trajectory, *, canvas: int, end: int | None, mask: int, longest: int
) -> TokenRow:
    """A demonstration, or an answer that a model wrote, on its canvas."""
    cut = shown.prompt_length
    ids, marks = shown.token_ids, np.array(shown.loss_mask, dtype=bool)
    row = pair_row(
        ids[:cut], ids[cut:], mask=mask, longest=longest, canvas=canvas, end=end, id=shown.id
    )
    eligible = row.eligible.copy()
    eligible[: len(marks)] = marks
    return TokenRow(row.id, row.ids, eligible)


class Unit(NamedTuple):
    """One row under one mask."""

    row: TokenRow
    places: NDArray[np.int64]
    chances: NDArray[np.float64]
    scale: float = 1.0
    number: int = 0
    """Of the row in the batch, or of the unit."""


def unit_of(
    row: TokenRow, mask_L: NDArray[np.bool_], chance_L: NDArray[np.float64], **more: Any
) -> Unit:
    """A row under a mask (L,) drawn with these chances (L,)."""
    places = np.flatnonzero(mask_L & row.eligible)
    return Unit(row, places, chance_L[places], **more)


def unit_passes(units: Sequence[Unit], tokens: int) -> Iterator[list[Unit]]:
    """Units of similar length together, longest first, so that each pass has about `tokens` tokens."""
    return passes(units, tokens, lambda unit: len(unit.row.ids))


def unit_losses(module: Decoder, units: Sequence[Unit], device: torch.device) -> Tensor:
    """`(1/n) sum_masked nll / chance` of each unit, (U,); exactly 0 where nothing is masked."""
    found = unit_logprobs(module, units, device)
    counts = np.array([max(unit.row.count, 1) for unit in units])
    weight = 1.0 / (np.concatenate([u.chances for u in units]) * np.repeat(counts, found.sizes))
    weight_N = torch.from_numpy(weight).to(device=device, dtype=found.logp_N.dtype)
    total_U = found.logp_N.new_zeros(len(units))
    return total_U.index_add(0, found.unit_N, -found.logp_N * weight_N)


class UnitLogprobs(NamedTuple):
    """Log-probs of the masked tokens of some units, one after the other."""

    logp_N: Tensor
    unit_N: Tensor
    sizes: list[int]


def unit_logprobs(module: Decoder, units: Sequence[Unit], device: torch.device) -> UnitLogprobs:
    """Log-prob of every masked token where it stands; the mask token itself is impossible."""
    noisy, targets = [], []
    for unit in units:
        ids = np.array(unit.row.ids, dtype=np.int64)
        targets.append(ids[unit.places])
        ids[unit.places] = module.architecture.mask
        noisy.append(ids.tolist())
    sizes = [len(unit.places) for unit in units]
    inputs = _inputs(module, units, noisy, device)
    hidden_USD = module(inputs)
    number = np.repeat(np.arange(len(units), dtype=np.int64), sizes)
    numbers: NDArray[np.int64] = np.stack(
        [number, np.concatenate([u.places for u in units]), np.concatenate(targets)]
    )
    unit_N, place_N, target_N = torch.from_numpy(numbers).to(device)
    logp_N = logprobs_in_place(module, hidden_USD[unit_N, place_N], target_N)
    return UnitLogprobs(logp_N, unit_N, sizes)


def _inputs(
    module: Decoder, units: Sequence[Unit], noisy: list[list[int]], device: torch.device
) -> ModelInput:
    architecture = module.architecture
    multiple = CUDA_MULTIPLE if device.type == "cuda" else 1
    if any(unit.row.starts is not None for unit in units):
        starts = [
            np.zeros(len(unit.row.ids), np.int64) if unit.row.starts is None else unit.row.starts
            for unit in units
        ]
        return packed_input(
            noisy,
            starts,
            device=device,
            pad=architecture.mask,
            multiple=multiple,
            takes_segments=Segments.can_run(module, device),
        )
    is_apart = architecture.prompt_sees == "prompt"
    return both_ways(
        noisy,
        pad=architecture.mask,
        device=device,
        prompts=[unit.row.prompt for unit in units] if is_apart else None,
        multiple=multiple,
    )


def without_mask(module: Decoder, logits_NV: Tensor) -> Tensor:
    """The logits with the mask token made impossible: nothing is ever predicted to be a mask."""
    forbidden_V = torch.zeros(logits_NV.shape[-1], dtype=torch.bool, device=logits_NV.device)
    forbidden_V[module.architecture.mask] = True
    return logits_NV.masked_fill(forbidden_V, float("-inf"))


def logprobs_in_place(module: Decoder, hidden_ND: Tensor, target_N: Tensor) -> Tensor:
    """Log-prob of each token at its own place, the mask token forbidden; differentiable."""
    weight_VD = plain_head(module)
    if weight_VD is None:  # the module's own logits, a chunk of tokens at a time
        weight = module.head_weight
        size = chunk_tokens(weight.shape[0], weight.dtype, weight.device)
        parts = []
        for start in range(0, max(1, len(target_N)), size):
            chunk = slice(start, start + size)
            logits_CV = without_mask(module, module.logits(hidden_ND[chunk]))
            logits_CV = logits_CV if logits_CV.dtype == torch.float64 else logits_CV.float()
            parts.append(logits_CV.log_softmax(-1).gather(1, target_N[chunk, None]).squeeze(1))
        return torch.cat(parts)
    bias_V = weight_VD.new_zeros(weight_VD.shape[0])
    bias_V[module.architecture.mask_id] = FORBIDDEN
    if not len(target_N):  # still a part of the graph, so that backward has something to do
        return hidden_ND.sum(-1) + 0.0 * weight_VD.sum()
    return token_logprobs(hidden_ND, weight_VD, bias_V, target_N, 1.0)[0]


SAMPLES = 32
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
    pairs: Sequence[tuple[TokenIds, TokenIds]],
    *,
    samples: int = SAMPLES,
    seed: int = 0,
    canvas: int = 0,
    end: int | None = None,
) -> list[Bound]:
    """Bounds for responses to prompts, each as token ids; an empty response has log-prob 0."""
    mask = module.architecture.mask
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
    for some in unit_passes(units, PASS_TOKENS["cuda" if device.type == "cuda" else "cpu"]):
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
