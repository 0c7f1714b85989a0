"""Piece 3: filters to compare a filter with, which keep as many rollouts and know less.

A filter that drops rollouts trains on fewer, and that alone changes a run. `random_filter` drops as
many blindly and `magnitude_filter` those with the smallest advantages; a filter is worth its name
where it beats both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from burnish.arguments import as_number, as_whole
from burnish.errors import ArgumentError
from burnish.policy.tensors import as_float64, as_mask, check_tensor
from burnish.seeds import derive

if TYPE_CHECKING:
    from burnish.policy.tensors import Numbers


def magnitude_filter(
    values: Numbers,
    keep_count: int | None = None,
    *,
    share: float | None = None,
    among: Numbers | None = None,
) -> Tensor:
    """True for the rollouts with the largest `|A|`: (B,) -> bool (B,); of equals the first win.

    How many: `keep_count`, or `share` of the candidates, rounded. `among`, bool (B,): the
    candidates; without it all rollouts.
    """
    values_B = as_float64(values, "values")
    check_tensor(values_B, "values", "(B,)", 1)
    candidates_B = _candidates(among, values_B)
    count = _how_many(keep_count, share, int(candidates_B.sum()))
    # A missing value comes after the smallest present one, what is no candidate last of all.
    strength_B = values_B.abs().nan_to_num(nan=-1.0, posinf=torch.inf)
    strength_B = strength_B.masked_fill(~candidates_B, -2.0)
    order_B = torch.argsort(strength_B, descending=True, stable=True)
    return torch.zeros_like(candidates_B).index_fill_(0, order_B[:count], True)


def random_filter(
    count: int,
    keep_count: int | None = None,
    seed: int = 0,
    *,
    share: float | None = None,
    among: Numbers | None = None,
) -> Tensor:
    """True for as many of `count` rollouts, drawn without regard to anything: bool (B,).

    Each rollout's lot comes from `seed` and its position alone, the same on every machine.
    """
    count = as_whole("count", count, low=0)
    seed = as_whole("seed", seed)
    candidates_B = _candidates(among, torch.empty(count))
    kept = _how_many(keep_count, share, int(candidates_B.sum()))
    positions = candidates_B.nonzero()[:, 0].tolist()
    drawn = sorted(positions, key=lambda position: derive(seed, "random_filter", position))[:kept]
    keep_B = torch.zeros(count, dtype=torch.bool)
    keep_B[drawn] = True
    return keep_B


def _candidates(among: Numbers | None, rows_B: Tensor) -> Tensor:
    if among is None:
        return torch.ones_like(rows_B, dtype=torch.bool)
    return as_mask(among, "among", tuple(rows_B.shape)).to(rows_B.device)


def _how_many(keep_count: int | None, share: float | None, candidates: int) -> int:
    if (keep_count is None) == (share is None):
        raise ArgumentError(
            f"keep_count and share: got {keep_count} and {share}, expected exactly one of the two"
        )
    if share is not None:
        return round(as_number("share", share, low=0, high=1) * candidates)
    # At most as many rollouts as there are to choose among.
    return as_whole("keep_count", keep_count, low=0, high=candidates)
