"""Piece 6 by name: the clip bounds of each rollout."""

from __future__ import annotations

from typing import assert_never

from torch import Tensor

from burnish.policy import pieces, plugins
from burnish.policy.advantage import weighted_sum
from burnish.policy.batch import RewardBatch
from burnish.policy.trust_region.by_pass_rate import PASS_BUCKETS, pass_buckets, pass_rates
from burnish.policy.trust_region.elastic import elastic_bounds, group_variance
from burnish.policy.trust_region.static import static_bounds


def bounds(
    piece: pieces.TrustRegion, values_B: Tensor, batch: RewardBatch, given: RewardBatch
) -> tuple[Tensor, Tensor]:
    """How far below and above 1 a ratio may go; both shaped as the advantages.

    `batch` holds the shaped rewards, `given` the rewards as they were scored.
    """
    match piece:
        case pieces.StaticRegion():
            return static_bounds(values_B, piece.low, piece.high)
        case pieces.Elastic():
            return elastic_bounds(
                values_B,
                piece.low,
                piece.high,
                piece.strength,
                piece.center,
                piece.cap,
                piece.macro,
                _variance(piece, values_B, given),
                piece.least,
                piece.most,
                piece.most,
            )
        case pieces.Function():
            return plugins.call_trust_region(piece, values_B, batch)
        case _:
            assert_never(piece)


def _variance(piece: pieces.Elastic, values_B: Tensor, given: RewardBatch) -> Tensor | None:
    """The spread of each group's rewards, 0 to 1; shaped to stand beside the advantages."""
    if not piece.macro or piece.range is None:
        return None
    total_B = weighted_sum(given.rewards_BK, given.weights_K)
    spread_B = group_variance(total_B, given.groups_B, *piece.range)
    return spread_B if values_B.ndim == 1 else spread_B[:, None].expand_as(values_B)


def buckets_of(piece: pieces.TrustRegion, given: RewardBatch) -> Tensor | None:
    """The pass-rate bucket of each rollout's group, (B,) int64; -1 or None where it is not known.

    Known are the pass rates of an elastic region with a `range`, which is that of the weighted sum,
    and those of a single reward that is 0 or 1 in the whole step: groups of a graded reward that
    happen to hold no other value say nothing of its range.
    """
    if isinstance(piece, pieces.Elastic) and piece.range is not None:
        total_B = weighted_sum(given.rewards_BK, given.weights_K)
        return pass_buckets(pass_rates(total_B, given.groups_B, *piece.range))
    counted_BK = given.rewards_BK[:, given.weights_K != 0]
    is_plain_BK = counted_BK.isnan() | (counted_BK == 0) | (counted_BK == 1)
    if counted_BK.shape[1] != 1 or not is_plain_BK.all():
        return None
    return pass_buckets(pass_rates(counted_BK, given.groups_B))


def describe_bounds(
    values_B: Tensor, low_B: Tensor, high_B: Tensor, buckets_B: Tensor | None = None
) -> dict[str, float]:
    """Mean, least and greatest of the bound that binds: above for A > 0, below for A < 0.

    With `buckets_B` also the mean of each pass-rate bucket that has such a rollout.
    """
    found: dict[str, float] = {}
    for name, bound_B, chosen_B in (("high", high_B, values_B > 0), ("low", low_B, values_B < 0)):
        binding = bound_B[chosen_B]
        if len(binding):
            found |= {
                f"bounds/{name}_mean": binding.mean().item(),
                f"bounds/{name}_least": binding.min().item(),
                f"bounds/{name}_most": binding.max().item(),
            }
        for number, bucket in enumerate(PASS_BUCKETS if buckets_B is not None else ()):
            is_here_B = buckets_B == number
            inside = bound_B[is_here_B][chosen_B[is_here_B]]
            if len(inside):
                found[f"bounds/{name}_mean/{bucket}"] = inside.mean().item()
    return found
