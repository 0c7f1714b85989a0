"""Rows of tokens under masks, and what a masked diffusion model makes of them.

    rows = [answer_row(shown, canvas=64, end=eos, mask=mask_id, longest=2048) for shown in shown_ones]
    for some in passes(masked, tokens=8192):
        loss_U = unit_losses(module, some, device)           # (U,), with a gradient

A unit is one row under one mask. Units are cut into passes by length; what a unit's loss is does not
depend on its pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from burnish.lm.decoder import Decoder
from burnish.lm.diffusion.layout import both_ways, packed_input
from burnish.lm.diffusion.sampler import without_mask
from burnish.lm.head import chunk_tokens, token_logprobs
from burnish.lm.model_input import ModelInput, Segments
from burnish.lm.plain_head import plain_head
from burnish.records import Trajectory

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


def fill(answer: Sequence[int], canvas: int, end: int | None, room: int | None = None) -> Filled:
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
    prompt: Sequence[int],
    answer: Sequence[int],
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
    """A demonstration, or an answer that a model wrote, on its canvas.

    So the model learns to end inside a canvas that is longer than the answer.
    """
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
    """Columns that are masked."""
    chances: NDArray[np.float64]
    """With which each of them was."""
    scale: float = 1.0
    """Weight of its loss in the update."""
    number: int = 0
    """Of the row in the batch, or of the unit."""


def unit_of(
    row: TokenRow, mask_L: NDArray[np.bool_], chance_L: NDArray[np.float64], **more: Any
) -> Unit:
    """A row under a mask (L,) drawn with these chances (L,)."""
    places = np.flatnonzero(mask_L & row.eligible)
    return Unit(row, places, chance_L[places], **more)


def passes(units: Sequence[Unit], tokens: int) -> Iterator[list[Unit]]:
    """Units of similar length together, longest first, so that each pass has about `tokens` tokens."""
    some: list[Unit] = []
    for unit in sorted(units, key=lambda unit: -len(unit.row.ids)):
        if some and (len(some) + 1) * len(some[0].row.ids) > tokens:
            yield some
            some = []
        some.append(unit)
    if some:
        yield some


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
    """Which unit each belongs to."""
    sizes: list[int]
    """Masked tokens of each unit."""


def unit_logprobs(module: Decoder, units: Sequence[Unit], device: torch.device) -> UnitLogprobs:
    """Log-prob of every masked token where it stands; the mask token itself is impossible."""
    architecture = module.architecture
    assert architecture.mask_id is not None
    noisy, targets = [], []
    for unit in units:
        ids = np.array(unit.row.ids, dtype=np.int64)
        targets.append(ids[unit.places])
        ids[unit.places] = architecture.mask_id
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
    """Rows as the model reads them; those of documents have no prompt."""
    architecture = module.architecture
    assert architecture.mask_id is not None
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
            pad=architecture.mask_id,
            multiple=multiple,
            takes_segments=Segments.can_run(module, device),
        )
    is_apart = architecture.prompt_sees == "prompt"
    return both_ways(
        noisy,
        pad=architecture.mask_id,
        device=device,
        prompts=[unit.row.prompt for unit in units] if is_apart else None,
        multiple=multiple,
    )


def logprobs_in_place(module: Decoder, hidden_ND: Tensor, target_N: Tensor) -> Tensor:
    """Log-prob of each token at its own place, the mask token forbidden; differentiable."""
    weight_VD = plain_head(module)
    if weight_VD is None:
        return _through_logits(module, hidden_ND, target_N)
    bias_V = weight_VD.new_zeros(weight_VD.shape[0])
    bias_V[module.architecture.mask_id] = FORBIDDEN
    if not len(target_N):  # still a part of the graph, so that backward has something to do
        return hidden_ND.sum(-1) + 0.0 * weight_VD.sum()
    return token_logprobs(hidden_ND, weight_VD, bias_V, target_N, 1.0)[0]


def _through_logits(module: Decoder, hidden_ND: Tensor, target_N: Tensor) -> Tensor:
    """The same through the module's own logits, a chunk of tokens at a time."""
    weight = module.head_weight
    size = chunk_tokens(weight.shape[0], weight.dtype, weight.device)
    pairs = zip(torch.split(hidden_ND, size), torch.split(target_N, size), strict=True)
    parts = []
    for hidden_CD, target_C in pairs:
        logits_CV = without_mask(module, module.logits(hidden_CD))
        logits_CV = logits_CV if logits_CV.dtype == torch.float64 else logits_CV.float()
        parts.append(logits_CV.log_softmax(-1).gather(1, target_C[:, None]).squeeze(1))
    return torch.cat(parts)
