"""Which rollouts are compared with which, in blocks of bounded size, and random picks among them.

Inside groups the work is (Q, G, G): groups of equal size stand together, so nothing is padded and a
group's numbers do not depend on the size of another. Where everyone is compared with the whole
batch, anchors come a few at a time, so that no table of all pairs ever exists.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from burnish.policy.groups import Groups

BLOCK_PAIRS = 1 << 20
"""Pairs of one block: 4 MiB for each float32 table."""

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX = ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64))


class Block(NamedTuple):
    """Positions in the batch: each anchor of row q is compared with each candidate of row q."""

    anchors_QA: Tensor
    candidates_QC: Tensor


def blocks(
    groups: Groups, wanted_B: Tensor, most_pairs: int = BLOCK_PAIRS, *, whole_batch: bool
) -> Iterator[Block]:
    """Blocks in which every wanted rollout is an anchor exactly once.

    Rollouts that are not wanted, bool (B,), may be anchors of a block too. A group of one has
    nothing to be compared with and is in none.
    """
    families = [_everyone(wanted_B)] if whole_batch else _by_size(groups)
    for members_QC in families:
        size = members_QC.shape[1]
        if size < 2:
            continue
        if size**2 <= most_pairs:
            for part_QC in torch.split(members_QC, most_pairs // size**2):
                yield Block(part_QC, part_QC)
            continue
        for members_C in members_QC:
            anchors_A = members_C[wanted_B[members_C]]
            for part_A in torch.split(anchors_A, max(most_pairs // size, 1)):
                yield Block(part_A[None], members_C[None])


def pick(mask_QAC: Tensor, anchor_keys_QA: Tensor, candidate_keys_QC: Tensor, seed: int) -> Tensor:
    """One candidate for each anchor, uniform over those of its mask: -> (Q, A) positions in C.

    The pick is the candidate with the highest hash of (seed, anchor's key, candidate's key): it
    depends on nothing but those, so neither order nor other groups change it.
    """
    anchors_QA1 = mixed(anchor_keys_QA * _GOLDEN + _wrapped(seed))[:, :, None]
    hash_QAC = mixed(anchors_QA1 + candidate_keys_QC[:, None, :] * _GOLDEN)
    return hash_QAC.masked_fill(~mask_QAC, torch.iinfo(torch.int64).min).argmax(-1)


def _everyone(wanted_B: Tensor) -> Tensor:
    return torch.arange(len(wanted_B), device=wanted_B.device)[None]


def _by_size(groups: Groups) -> Iterator[Tensor]:
    """The members of all groups of one size, (Q, G), for each size."""
    sizes_Q = torch.zeros(groups.total, dtype=torch.int64, device=groups.index_B.device)
    sizes_Q.index_add_(0, groups.index_B, torch.ones_like(groups.index_B))
    starts_Q = sizes_Q.cumsum(0) - sizes_Q
    order_B = groups.index_B.argsort(stable=True)
    for size in torch.unique(sizes_Q).tolist():
        first_Q1 = starts_Q[sizes_Q == size][:, None]
        yield order_B[first_Q1 + torch.arange(size, device=order_B.device)]


def mixed(values: Tensor) -> Tensor:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014) in wrapping 64-bit integers."""
    for shift, factor in _MIX:
        values = (values ^ _shifted(values, shift)) * factor
    return values ^ _shifted(values, 31)


def _shifted(values: Tensor, bits: int) -> Tensor:
    """A logical shift to the right: the sign of a 64-bit integer does not smear."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)


def _wrapped(seed: int) -> int:
    """Any integer as the 64-bit signed one that it is congruent to."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)
