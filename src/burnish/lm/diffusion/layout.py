"""Rows of tokens as what a model that looks both ways reads.

    inputs = both_ways([[5, 6, 7], [5, 6]], pad=0, device=device)
    inputs = both_ways(rows, prompts=[2, 1], pad=0, device=device)     # prompts see themselves alone

    inputs = packed_input(rows, starts, pad=0, device=device)       # several documents in a row

Padding and rows that share a line are told apart by segments: a token sees its own segment. Padding
is one segment of its own, so that no softmax runs over nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from burnish.lm.model_input import ModelInput, Segments

PADDING = -1
"""Segment of the padding."""


def both_ways(
    rows: Sequence[Sequence[int]],
    *,
    pad: int,
    device: torch.device,
    prompts: Sequence[int] | None = None,
    multiple: int = 1,
) -> ModelInput:
    """Rows padded on the right; with `prompts`, so many first tokens of each see only each other.

    The width is a multiple of `multiple`. Without prompts and padding there is no mask at all.
    """
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
    rows: Sequence[Sequence[int]],
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
