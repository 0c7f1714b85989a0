"""Scores and hidden states of token rows by a model with a scalar head, in batches.

score_rows(loaded, [scored_ids(loaded.tokenizer, talk) for talk in talks])   # one a row
score_places(loaded, [row.ids for row in rows], [row.places for row in rows])  # one a step
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from burnish.lm.base import media_of
from burnish.lm.folder import LoadedModel
from burnish.lm.hardware import is_device_full
from burnish.lm.model_input import ModelInput
from burnish.lm.scalar_head import padding_token

ROW_TOKENS = 8192
"""Tokens of one forward pass of `score_rows` on a CPU; eight times as many on a GPU."""


@torch.no_grad()
def score_rows(loaded: LoadedModel, rows: Sequence[Sequence[int]], tokens: int = 0) -> list[float]:
    """Scores of token rows, in their order; rows of similar length share a pass.

    `tokens` bounds one pass, 0 for what the device likes; a full GPU halves it.
    """
    found = score_places(loaded, rows, [[len(row) - 1] for row in rows], tokens)
    return [score for (score,) in found]


@torch.no_grad()
def score_places(
    loaded: LoadedModel,
    rows: Sequence[Sequence[int]],
    places: Sequence[Sequence[int]],
    tokens: int = 0,
) -> list[list[float]]:
    """Scores at some places of each row, in their order."""
    assert loaded.score_head is not None
    score_N = loaded.score_head(_hidden_places(loaded, rows, places, tokens)).double().cpu()
    return [part.tolist() for part in score_N.split([len(wanted) for wanted in places])]


@torch.no_grad()
def hidden_rows(loaded: LoadedModel, rows: Sequence[Sequence[int]], tokens: int = 0) -> Tensor:
    """The hidden state at the last token of each row, (N, D), in their order."""
    return _hidden_places(loaded, rows, [[len(row) - 1] for row in rows], tokens)


def _hidden_places(
    loaded: LoadedModel,
    rows: Sequence[Sequence[int]],
    places: Sequence[Sequence[int]],
    tokens: int,
) -> Tensor:
    """Hidden states at the places of all rows, one after the other, (N, D)."""
    size = tokens or (ROW_TOKENS if loaded.device.type == "cpu" else 8 * ROW_TOKENS)
    while True:
        try:
            return _in_passes(loaded, rows, places, size)
        except RuntimeError as error:
            if not is_device_full(error) or size < 512:
                raise
        # Outside the handler: the error's frames hold the tensors that did not fit.
        size //= 2
        torch.cuda.empty_cache()


def _in_passes(
    loaded: LoadedModel, rows: Sequence[Sequence[int]], places: Sequence[Sequence[int]], size: int
) -> Tensor:
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))
    pad, device = padding_token(loaded.tokenizer), loaded.device
    found: list[Tensor] = []
    for part in _within(order, rows, size):
        width = len(rows[part[0]])
        ids_RS = torch.tensor([[*rows[i], *[pad] * (width - len(rows[i]))] for i in part])
        length_R = torch.tensor([len(rows[i]) for i in part], device=device)
        column_S = torch.arange(width, device=device)
        # Padding has position 0, as in training; a row's largest position tells its own length.
        positions_RS = column_S * (column_S < length_R[:, None])
        media = [media_of(rows[i]) for i in part]
        inputs = ModelInput(ids_RS.to(device), positions_RS, media=media if any(media) else None)
        hidden_RSD = loaded.module(inputs)
        flat = [row * width + place for row, i in enumerate(part) for place in places[i]]
        wanted_N = torch.tensor(flat, dtype=torch.int64, device=device)
        found.append(hidden_RSD.flatten(0, 1).index_select(0, wanted_N))
    if not found:
        return loaded.module.head_weight.new_zeros(0, loaded.module.head_weight.shape[-1])
    # Back from longest first to the order of the rows.
    starts = dict(zip(order, _starts([len(places[i]) for i in order]), strict=True))
    back = [starts[i] + k for i in range(len(rows)) for k in range(len(places[i]))]
    return torch.cat(found).index_select(0, torch.tensor(back, dtype=torch.int64, device=device))


def _starts(lengths: Sequence[int]) -> list[int]:
    """Where each of several pieces begins when they stand one after the other."""
    return [0, *accumulate(lengths)][: len(lengths)]


def _within(
    order: Iterable[int], rows: Sequence[Sequence[int]], tokens: int
) -> Iterable[list[int]]:
    """Longest rows first; rows x longest stays within the tokens."""
    part: list[int] = []
    for i in order:
        if part and (len(part) + 1) * len(rows[part[0]]) > tokens:
            yield part
            part = []
        part.append(i)
    if part:
        yield part
