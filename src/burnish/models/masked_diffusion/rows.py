"""Records of token ids as one batch: the answer may be masked, prompt and padding never."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from burnish.arguments import as_list, as_table, as_whole
from burnish.errors import ArgumentError
from burnish.tensors import torch

if TYPE_CHECKING:
    from torch import Tensor


class Rows(NamedTuple):
    """Rows of one length, padded on the right."""

    ids_XL: Tensor
    eligible_XL: Tensor
    """The answer, without padding."""
    attention_XL: Tensor
    dropped: int
    """Rows without an answer, or whose answer was cut off."""


LARGEST_ID = 2**31 - 1


def collate(rows: Sequence[Mapping[str, Any]], max_length: int = 4096, pad_id: int = 0) -> Rows:
    """Rows `{"input_ids": [...], "prompt_length": n}` as one batch; rows without an answer are dropped.

    `ids` and `prompt_len` are read too; without a prompt length all is answer.

    >>> from burnish.models.masked_diffusion import collate
    >>> collate([{"input_ids": [5, 6, 7], "prompt_length": 2}, {"ids": [5]}]).eligible_XL.tolist()
    [[False, False, True], [True, False, False]]
    """
    most = as_whole("max_length", max_length, low=1)
    pad = as_whole("pad_id", pad_id, low=0, high=LARGEST_ID)
    kept: list[tuple[list[int], int]] = []
    given = as_list("rows", rows, least=1)
    for place, row in enumerate(given):
        table = as_table(f"rows[{place}]", row)
        ids = table.get("input_ids", table.get("ids"))
        if ids is None:
            raise ArgumentError(f"rows[{place}]: has no input_ids, expected a list of token ids")
        prompt = as_whole(
            "prompt_length", table.get("prompt_length", table.get("prompt_len", 0)), low=0
        )
        tokens = [
            as_whole("input_ids", one, low=0, high=LARGEST_ID) for one in as_list("input_ids", ids)
        ][:most]
        if len(tokens) > prompt:
            kept.append((tokens, prompt))
    if not kept:
        raise ArgumentError(
            f"rows: none of {len(given)} has an answer within {most} tokens; expected input_ids "
            "longer than prompt_length"
        )
    length = max(len(tokens) for tokens, _ in kept)
    ids_XL = torch.tensor([tokens + [pad] * (length - len(tokens)) for tokens, _ in kept])
    sizes_X = torch.tensor([len(tokens) for tokens, _ in kept])
    prompt_X = torch.tensor([prompt for _, prompt in kept])
    place_L = torch.arange(length)
    real_XL = place_L < sizes_X[:, None]
    eligible_XL = real_XL & (place_L >= prompt_X[:, None])
    return Rows(ids_XL, eligible_XL, real_XL, len(given) - len(kept))
