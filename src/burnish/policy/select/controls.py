"""Piece 3: filters to compare a filter with, which keep as many rollouts and know less.

A filter that drops rollouts trains on fewer, and that alone changes a run. `random_filter` drops as
many blindly and `magnitude_filter` those with the smallest advantages; a filter is worth its name
where it beats both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from burnish.policy.tensors import as_float64
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
    if values_B.ndim != 1:
        raise ValueError(f"values: got shape {tuple(values_B.shape)}, expected (B,)")
    candidates_B = _candidates(among, len(values_B)).to(values_B.device)
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
    candidates_B = _candidates(among, count)
    kept = _how_many(keep_count, share, int(candidates_B.sum()))
    positions = candidates_B.nonzero()[:, 0].tolist()
    drawn = sorted(positions, key=lambda position: derive(seed, "random_filter", position))[:kept]
    keep_B = torch.zeros(count, dtype=torch.bool)
    keep_B[drawn] = True
    return keep_B


def _candidates(among: Numbers | None, count: int) -> Tensor:
    if among is None:
        return torch.ones(count, dtype=torch.bool)
    candidates_B = as_float64(among, "among").bool()
    if candidates_B.shape != (count,):
        raise ValueError(f"among: got shape {tuple(candidates_B.shape)}, expected ({count},)")
    return candidates_B


def _how_many(keep_count: int | None, share: float | None, candidates: int) -> int:
    if (keep_count is None) == (share is None):
        raise ValueError(
            f"keep_count and share: got {keep_count} and {share}, expected exactly one of the two"
        )
    if share is not None:
        if not 0 <= share <= 1:
            raise ValueError(f"share: got {share}, expected a number from 0 to 1")
        return round(share * candidates)
    if keep_count is None or not 0 <= keep_count <= candidates:
        raise ValueError(
            f"keep_count: got {keep_count}, expected 0 to the {candidates} rollouts there are"
        )
    return keep_count
