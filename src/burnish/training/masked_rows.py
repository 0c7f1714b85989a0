"""Rows of tokens under masks, and what a masked diffusion model makes of them.

    rows = [answer_row(trajectory, canvas=64, end=eos) for trajectory in demonstrations]
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
from burnish.lm.diffusion.layout import both_ways
from burnish.lm.diffusion.sampler import without_mask
from burnish.lm.head import token_logprobs
from burnish.records import Trajectory
from burnish.training.forward import plain_head

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
    text_bytes: int = 0
    """Bytes of the text that the eligible tokens stand for; 0 where not known."""

    @property
    def prompt(self) -> int:
        """Tokens before the first that may be masked."""
        places = np.flatnonzero(self.eligible)
        return int(places[0]) if len(places) else len(self.ids)

    @property
    def count(self) -> int:
        return int(self.eligible.sum())


def answer_row(shown: Trajectory, canvas: int, end: int | None) -> TokenRow:
    """A demonstration; its answer is filled with end tokens to the next multiple of `canvas`.

    So the model learns to end inside a canvas that is longer than the answer. 0: not filled.
    """
    ids, marks = list(shown.token_ids), list(shown.loss_mask)
    missing = -sum(marks) % canvas if canvas and end is not None else 0
    ids += [end or 0] * missing
    marks += [1] * missing
    size = len(shown.text.encode())
    return TokenRow(shown.id, tuple(ids), np.array(marks, dtype=bool), size)


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


def mask_row(
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
    prompts = [unit.row.prompt for unit in units] if architecture.prompt_sees == "prompt" else None
    sizes = [len(unit.places) for unit in units]
    inputs = both_ways(
        noisy,
        pad=architecture.mask_id,
        device=device,
        prompts=prompts,
        multiple=CUDA_MULTIPLE if device.type == "cuda" else 1,
    )
    hidden_USD = module(inputs)
    number = np.repeat(np.arange(len(units), dtype=np.int64), sizes)
    numbers: NDArray[np.int64] = np.stack(
        [number, np.concatenate([u.places for u in units]), np.concatenate(targets)]
    )
    unit_N, place_N, target_N = torch.from_numpy(numbers).to(device)
    logp_N = logprobs_in_place(module, hidden_USD[unit_N, place_N], target_N)
    return UnitLogprobs(logp_N, unit_N, sizes)


def logprobs_in_place(module: Decoder, hidden_ND: Tensor, target_N: Tensor) -> Tensor:
    """Log-prob of each token at its own place, the mask token forbidden; differentiable."""
    weight_VD = plain_head(module)
    if weight_VD is None:
        logits_NV = without_mask(module, module.logits(hidden_ND))
        logits_NV = logits_NV if logits_NV.dtype == torch.float64 else logits_NV.float()
        return logits_NV.log_softmax(-1).gather(1, target_N[:, None]).squeeze(1)
    bias_V = weight_VD.new_zeros(weight_VD.shape[0])
    bias_V[module.architecture.mask_id] = FORBIDDEN
    if not len(target_N):  # still a part of the graph, so that backward has something to do
        return hidden_ND.sum(-1) + 0.0 * weight_VD.sum()
    return token_logprobs(hidden_ND, weight_VD, bias_V, target_N, 1.0)[0]
