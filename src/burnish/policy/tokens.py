"""Tokens that a component marks by statistics of the whole mini-batch, before it is cut.

A covariance over all tokens, or a quantile of their entropies, is not the mean of those of the
micro-batches. So a component that needs one marks its tokens once, over the whole mini-batch and all
processes, and each micro-batch is given its part of the marks: `LossBatch.marks`, by slot. A batch
without marks is the whole, and `loss` marks its tokens itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from burnish.errors import ArgumentError
from burnish.policy.base import Component

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.policy.batch import LossBatch


class TokenBatch(NamedTuple):
    """The trained tokens of a mini-batch in one row, rollout by rollout; each (N,), no gradient."""

    logp_N: Tensor
    old_logp_N: Tensor
    advantages_N: Tensor
    low_N: Tensor
    """Clip bounds below 1 and above."""
    high_N: Tensor
    entropy_N: Tensor
    seed: int = 0


class TokenMarker(Component, frozen=True):
    """Base of components that mark tokens of the whole mini-batch."""

    def mark(self, tokens: TokenBatch) -> Tensor:
        """Which tokens, (N,) bool."""
        raise NotImplementedError


class AllTokens(Component, frozen=True, tag="all"):
    """Every trained token has its policy loss."""


def mark_tokens(markers: Mapping[str, TokenMarker], tokens: TokenBatch) -> dict[str, Tensor]:
    """The marks of a recipe's components on a whole mini-batch: slot -> (N,) bool."""
    return {slot: component.mark(tokens) for slot, component in markers.items()}


def batch_marks(markers: Mapping[str, TokenMarker], batch: LossBatch) -> dict[str, Tensor]:
    """The marks of a batch that is the whole mini-batch: slot -> (B, T) bool."""
    if not markers:
        return {}
    used_BT = batch.mask_BT.bool() & batch.keep_B.bool()[:, None]
    if batch.entropy_BT is None:
        raise ArgumentError("entropy_BT: got none, expected (B, T); the recipe marks tokens")

    def row(values: Tensor) -> Tensor:
        spread = values if values.ndim == 2 else values[:, None].expand_as(used_BT)
        return spread.detach()[used_BT]

    tokens = TokenBatch(
        logp_N=row(batch.logp_BT),
        old_logp_N=row(batch.old_logp_BT),
        advantages_N=row(batch.advantages_B),
        low_N=row(batch.low_B),
        high_N=row(batch.high_B),
        entropy_N=row(batch.entropy_BT),
        seed=batch.seed,
    )
    found = {}
    for slot, marked_N in mark_tokens(markers, tokens).items():
        found[slot] = used_BT.clone()
        found[slot][used_BT] = marked_N
    return found
