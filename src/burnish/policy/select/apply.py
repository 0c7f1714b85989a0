"""Piece 3 by name: which rollouts a recipe trains on, and how much each counts."""

from __future__ import annotations

from typing import NamedTuple, assert_never

import torch
from torch import Tensor

from burnish.policy import pieces, plugins
from burnish.policy.advantage import weighted_sum
from burnish.policy.batch import Estimate, RewardBatch
from burnish.policy.select.conflict import conflict_keep, group_keep_ratio
from burnish.policy.select.controls import magnitude_filter, random_filter
from burnish.policy.select.skew import skew_filter


def select(
    piece: pieces.Select, estimate: Estimate, signal_B: Tensor, batch: RewardBatch
) -> tuple[Tensor, Tensor]:
    """Which rollouts to keep, bool (B,), and the factor of each one's advantage, (B,)."""
    ones_B = torch.ones(len(signal_B), dtype=torch.float64, device=signal_B.device)
    match piece:
        case pieces.KeepAll():
            return torch.ones_like(signal_B), ones_B
        case pieces.InformativeGroups():
            return signal_B, ones_B
        case pieces.SignConflict() | pieces.SnrConflict():
            keep_B = _without_conflict(piece, estimate, batch)
            if not piece.query_weights:
                return keep_B, ones_B
            return keep_B, group_keep_ratio(keep_B, batch.groups_B, present=estimate.is_present_B)
        case pieces.Magnitude():
            count, among_B = _budget(piece, estimate, signal_B, batch)
            return magnitude_filter(estimate.values_B, count, among=among_B) | ~among_B, ones_B
        case pieces.RandomDrop():
            count, among_B = _budget(piece, estimate, signal_B, batch)
            drawn_B = random_filter(len(among_B), count, seed=batch.seed, among=among_B)
            return drawn_B | ~among_B, ones_B
        case pieces.Skew():
            shares_K = batch.weights_K / batch.weights_K.abs().sum()
            outcomes_B = weighted_sum(batch.rewards_BK, shares_K)
            return skew_filter(outcomes_B, batch.groups_B, piece.threshold), ones_B
        case pieces.Function():
            return plugins.call_select(piece, estimate, batch)
        case _:
            assert_never(piece)


def _without_conflict(
    piece: pieces.SignConflict | pieces.SnrConflict, estimate: Estimate, batch: RewardBatch
) -> Tensor:
    tau = 1.0 if isinstance(piece, pieces.SignConflict) else piece.tau
    # At tau 1 every conflict is dropped: a conflict's ratio is below 1.
    return conflict_keep(
        estimate.per_reward_BK,
        "snr" if tau < 1 else "hard",
        tau,
        sign_eps=piece.sign_eps,
        weights=batch.weights_K,
    )


class _Budget(NamedTuple):
    """What a control may keep: as many rollouts as the filter it stands in for."""

    rollouts: int
    among_B: Tensor
    """Rollouts of groups with signal; the others teach nothing, kept or not."""


def _budget(
    piece: pieces.Magnitude | pieces.RandomDrop,
    estimate: Estimate,
    signal_B: Tensor,
    batch: RewardBatch,
) -> _Budget:
    among_B = estimate.is_present_B & signal_B
    return _Budget(int((_without_conflict(piece.like, estimate, batch) & among_B).sum()), among_B)
