"""Outcomes of comparisons as advantages (BRPO of Writing-Zero, arXiv 2506.00103).

In each group one rollout, drawn uniformly at random, is the reference; the others are worth +1
where they beat it and -1 where they lose, with no mean and no deviation. Averaged over the draw
the advantages of an antisymmetric judge add up to 0. Groups that nearly all won or lost are dropped
(`select.skew`).

Where we differ: a comparison without verdict is missing, not lost. The published rule counts it as
a loss, and an outage of the judge then pushes every rollout down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from burnish.arguments import as_number
from burnish.errors import ArgumentError
from burnish.policy.groups import as_groups, standardise
from burnish.policy.select.skew import is_within
from burnish.policy.tensors import as_float64

if TYPE_CHECKING:
    from burnish.policy.tensors import Numbers


class BrpoAdvantages(NamedTuple):
    """What comparing with one rollout of each group gave."""

    advantages: Tensor
    """float64, shaped as the outcomes; 0 for the reference, without verdict, and if dropped."""
    keep: Tensor
    """bool, () or (Q,): False where the group is dropped."""
    skew: Tensor
    """`|sum of outcomes| / G`, () or (Q,)."""


def brpo_advantages(
    outcomes: Numbers,
    reference_index: int | Numbers | None,
    skew_threshold: float = 0.6,
    *,
    center: bool = False,
) -> BrpoAdvantages:
    """Advantages of one group (G,) or of many (Q, G) from outcomes in [-1, 1], NaN where missing.

    `reference_index`, a number or (Q,), says who was the reference; what stands at its place in
    `outcomes` is ignored. None: every rollout has an outcome, a mean over several references.
    `center` subtracts the mean of the group and divides by its deviation (ddof 1), both over the
    rollouts with a verdict, which is `grpo_advantage` of these outcomes.
    """
    as_number("skew_threshold", skew_threshold, low=0, high=1)
    given = as_float64(outcomes, "outcomes")
    if given.ndim not in (1, 2) or given.shape[-1] == 0:
        raise ArgumentError(f"outcomes: got shape {tuple(given.shape)}, expected (G,) or (Q, G)")
    outcomes_QG = given.reshape(-1, given.shape[-1]).clone()
    if (outcomes_QG.abs() > 1).any():
        worst = outcomes_QG.abs().nan_to_num(nan=0.0).max().item()
        raise ArgumentError(f"outcomes: got one of size {worst:g}, expected -1 (lost) to 1 (won)")
    if reference_index is not None:
        index_Q = _references(reference_index, outcomes_QG)
        outcomes_QG.scatter_(1, index_Q[:, None], torch.nan)
    judged_QG = outcomes_QG.nan_to_num(nan=0.0)
    skew_Q = judged_QG.sum(1).abs() / judged_QG.shape[1]
    keep_Q = is_within(skew_Q, skew_threshold)
    values_QG = _centred(outcomes_QG) if center else judged_QG
    values_QG = values_QG.masked_fill(~keep_Q[:, None], 0.0)
    if given.ndim == 1:
        return BrpoAdvantages(values_QG[0], keep_Q[0], skew_Q[0])
    return BrpoAdvantages(values_QG, keep_Q, skew_Q)


def _references(reference_index: int | Numbers, outcomes_QG: Tensor) -> Tensor:
    """The reference of each group, int64 (Q,)."""
    queries, size = outcomes_QG.shape
    given = as_float64(reference_index, "reference_index").to(outcomes_QG.device)
    index_Q = given.reshape(-1)
    whole_Q = (index_Q >= 0) & (index_Q < size) & (index_Q == index_Q.floor())
    if index_Q.shape != (queries,) or not whole_Q.all():
        raise ArgumentError(
            f"reference_index: got {given.tolist()}, expected a position from 0 to {size - 1} "
            f"for each of the {queries} groups"
        )
    return index_Q.long()


def _centred(outcomes_QG: Tensor) -> Tensor:
    labels_QG = torch.arange(len(outcomes_QG), device=outcomes_QG.device)[:, None]
    labels_B = labels_QG.expand_as(outcomes_QG).reshape(-1)
    values_B1 = outcomes_QG.reshape(-1, 1)
    scaled_B1 = standardise(values_B1, as_groups(labels_B, values_B1), eps=1e-6, ddof=1)
    return scaled_B1.view_as(outcomes_QG)
