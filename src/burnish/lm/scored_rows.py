"""Scores and hidden states of token rows by a model with a scalar head, in batches.

score_rows(loaded, [scored_ids(loaded.tokenizer, talk) for talk in talks])
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

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
    assert loaded.score_head is not None
    score_N = loaded.score_head(hidden_rows(loaded, rows, tokens))
    return [float(score) for score in score_N.double().cpu()]


@torch.no_grad()
def hidden_rows(loaded: LoadedModel, rows: Sequence[Sequence[int]], tokens: int = 0) -> Tensor:
    """The hidden state at the last token of each row, (N, D), in their order."""
    size = tokens or (ROW_TOKENS if loaded.device.type == "cpu" else 8 * ROW_TOKENS)
    while True:
        try:
            return _hidden_rows(loaded, rows, size)
        except RuntimeError as error:
            if not is_device_full(error) or size < 512:
                raise
        # Outside the handler: the error's frames hold the tensors that did not fit.
        size //= 2
        torch.cuda.empty_cache()


def _hidden_rows(loaded: LoadedModel, rows: Sequence[Sequence[int]], size: int) -> Tensor:
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
        hidden_RSD = loaded.module(ModelInput(ids_RS.to(device), positions_RS))
        found.append(hidden_RSD[torch.arange(len(part), device=device), length_R - 1])
    if not found:
        return loaded.module.head_weight.new_zeros(0, loaded.module.head_weight.shape[-1])
    place = torch.tensor(order, device=device).argsort()
    return torch.cat(found).index_select(0, place)


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
