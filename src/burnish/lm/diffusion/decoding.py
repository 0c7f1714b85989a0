"""In which order a masked diffusion model writes: blocks, steps, and which places are filled first.

    settings = Decoding(block=32, steps=8, order="entropy")
    fill_BW = chosen(order_scores(logits_NV, drawn_N, settings.order), is_open_BW, counts_B)

An answer is a canvas of mask tokens, filled block by block from the left. In each step all open places
of the block get a candidate, and the surest ones are kept; the others stay masked. With as many steps
as tokens one is kept a step; fewer steps are faster, and worse where tokens have to agree.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
import torch
from msgspec import Struct
from torch import Tensor

from burnish.errors import ArgumentError, UserError
from burnish.lm.weights import read_json, write_json

Order = Literal["confidence", "entropy", "margin", "random"]
ORDERS: tuple[str, ...] = get_args(Order)
KEY = "masked_diffusion"
"""Of `generation_config.json`: the settings that a model is decoded with unless told otherwise."""


class Decoding(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a masked diffusion model writes an answer."""

    block: int = 32
    """Tokens of a block; blocks are filled from left to right."""
    steps: int = 0
    """Denoising steps of a block, each a pass over the whole row; 0: one for each token."""
    order: Order = "confidence"
    """Which places are filled first: the likeliest candidate, the lowest entropy, the largest lead of
    the likeliest token over the second, or `random`."""
    canvas: int = 0
    """Mask tokens that are laid out at once, as answers were trained; 0: the whole token budget."""

    def __post_init__(self) -> None:
        for name, low in (("block", 1), ("steps", 0), ("canvas", 0)):
            value = getattr(self, name)
            if type(value) is not int or not low <= value <= 1_000_000:
                raise ArgumentError(f"{name}: got {value!r}, expected a whole number from {low} on")
        if self.order not in ORDERS:
            raise ArgumentError(f"order: got {self.order!r}, expected one of {', '.join(ORDERS)}")

    def to_text(self) -> str:
        """As `parse_decoding` reads them.

        >>> Decoding(steps=8).to_text()
        'block=32,steps=8,order=confidence,canvas=0'
        """
        return ",".join(f"{name}={getattr(self, name)}" for name in self.__struct_fields__)


def read_decoding(folder: Path) -> Decoding:
    """The settings that lie with a model; the defaults where it has none."""
    given = read_json(folder / "generation_config.json").get(KEY, {})
    try:
        return msgspec.convert(given, Decoding)
    except (msgspec.ValidationError, ArgumentError) as error:
        raise UserError(f"{folder / 'generation_config.json'}: '{KEY}': {error}") from None


def write_decoding(folder: Path, settings: Decoding) -> None:
    """Put the settings beside a model."""
    file = folder / "generation_config.json"
    plain: dict[str, Any] = msgspec.to_builtins(settings)
    write_json(file, {**read_json(file), KEY: plain})


def parse_decoding(text: str, start: Decoding) -> Decoding:
    """`steps=8,order=entropy` over other settings.

    >>> parse_decoding("steps=8,order=entropy", Decoding()).steps
    8
    """
    found: dict[str, Any] = {}
    for part in filter(None, (one.strip() for one in text.split(","))):
        key, mark, value = (word.strip() for word in part.partition("="))
        if not mark or key not in Decoding.__struct_fields__:
            raise UserError(
                f"decoding: got '{part}', expected key=value with a key of "
                f"{', '.join(Decoding.__struct_fields__)}"
            )
        found[key] = int(value) if value.isascii() and value.isdigit() else value
    try:
        return msgspec.structs.replace(start, **found)
    except ArgumentError as error:
        raise UserError(f"decoding: {error}") from None


def order_scores(logits_NV: Tensor, drawn_N: Tensor, order: str, uniforms_N: Tensor) -> Tensor:
    """How sure each place is of its candidate, (N,); under the model's own distribution."""
    if order == "random":
        return uniforms_N
    logp_NV = logits_NV.float().log_softmax(-1)
    if order == "entropy":
        return torch.xlogy(logp_NV.exp(), logp_NV.exp()).sum(-1)
    if order == "margin":
        two_N2 = logp_NV.exp().topk(2, dim=-1).values
        return two_N2[:, 0] - two_N2[:, 1]
    return logp_NV.gather(1, drawn_N[:, None]).squeeze(1)


def chosen(score_BW: Tensor, is_open_BW: Tensor, count_B: Tensor) -> Tensor:
    """The `count` open places of each row with the highest scores, bool (B, W); ties to the left."""
    ranked_BW = score_BW.masked_fill(~is_open_BW, float("-inf"))
    order_BW = ranked_BW.sort(dim=1, descending=True, stable=True).indices
    rank_BW = torch.empty_like(order_BW)
    places_BW = torch.arange(score_BW.shape[1], device=score_BW.device).expand_as(order_BW)
    rank_BW.scatter_(1, order_BW, places_BW)
    return (rank_BW < count_B[:, None]) & is_open_BW


def step_counts(tokens: int, steps: int) -> list[int]:
    """How many of a block's tokens are kept in each of its steps, as even as can be.

    >>> step_counts(10, 4), step_counts(3, 0)
    ([3, 3, 2, 2], [1, 1, 1])
    """
    steps = min(steps or tokens, tokens)
    return [tokens // steps + (place < tokens % steps) for place in range(steps)]
