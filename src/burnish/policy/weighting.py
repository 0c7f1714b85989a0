"""The weights of the rewards in piece 2: as given, or renewed every step from three factors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, assert_never

import torch
from torch import Tensor

from burnish.errors import UserError, did_you_mean
from burnish.policy import pieces
from burnish.policy.batch import RewardBatch
from burnish.policy.state import PolicyState
from burnish.policy.tri_factor import WeightState, next_weights


class Weighed(NamedTuple):
    """Weights (K,) of this step, what is remembered, and what a person may read."""

    weights_K: Tensor
    state: PolicyState
    metrics: dict[str, float]


def weigh_rewards(
    piece: pieces.Weights, normalised_BK: Tensor, batch: RewardBatch, state: PolicyState
) -> Weighed:
    """How much each reward counts; `normalised_BK` are the shaped rewards, `batch` the given ones."""
    given_K = batch.weights_K.to(torch.float64)
    match piece:
        case pieces.GivenWeights():
            return Weighed(given_K, state, {})
        case pieces.TriFactor():
            counts_K = given_K != 0
            names = [name for name, counts in zip(batch.titles, counts_K, strict=True) if counts]
            before = state.weights or WeightState.initial(len(names))
            after, factors = renew_weights(
                piece, before, normalised_BK[:, counts_K], batch.rewards_BK[:, counts_K], names
            )
            weights_K = given_K.clone()
            weights_K[counts_K] *= after.weights_K
            table = {"weight": after.weights_K, **factors}
            metrics = {
                f"weights/{name}/{what}": value
                for what, values in table.items()
                for name, value in zip(names, values.tolist(), strict=True)
            }
            return Weighed(weights_K, replace(state, weights=after), metrics)
        case _:
            assert_never(piece)


def renew_weights(
    piece: pieces.TriFactor,
    before: WeightState,
    normalised_BK: Tensor,
    rewards_BK: Tensor,
    names: Sequence[str],
) -> tuple[WeightState, dict[str, Tensor]]:
    """`next_weights` by the numbers of a piece; `names` are those of the rewards that count."""
    return next_weights(
        before,
        normalised_BK,
        rewards_BK,
        by_name("threshold", piece.threshold, names, torch.nan),
        by_name("severity", piece.severity, names, 0.0),
        eta_weak=piece.eta_weak,
        eta_red=piece.eta_red,
        w_min=piece.w_min,
        w_max=piece.w_max,
        beta=piece.beta,
        beta_progress=piece.beta_progress,
        beta_violation=piece.beta_violation,
    )


def by_name(key: str, table: dict[str, float], names: Sequence[str], default: float) -> Tensor:
    """A setting of the weights as a number for each reward, (K,)."""
    for name in table:
        if name not in names:
            raise UserError(
                f"policy.weights.{key}: '{name}' is no reward that counts; expected "
                f"{', '.join(names)}.{did_you_mean(name, names)}"
            )
    return torch.tensor([table.get(name, default) for name in names], dtype=torch.float64)
