"""Which tokens have a policy loss: all, the most uncertain, or all but those that use up entropy.

A covariance over all tokens, or a quantile of their entropies, is not the mean of those of the
micro-batches: a component that needs one marks its tokens once, over the whole mini-batch and all
processes (TRL's quantile and verl's covariance are of one micro-batch).

`high_entropy` trains the top fifth of the tokens by entropy alone (arXiv 2506.01939). `clip_cov` and
`kl_cov` hold back the tokens that make the policy surer of itself (arXiv 2505.22617). With
`cov_t = (A_t - mean A)(log p_t - mean log p)` over the mini-batch, `clip_cov` leaves a few tokens with a
high covariance, drawn by the run's seed, out of the clipped loss; `kl_cov` has no clip and holds the
tokens with the highest covariance near the policy that sampled, by `coefficient |log ratio|`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from burnish.arguments import ordered
from burnish.boundary import NonNegative, Number, PositiveShare, Seed, public
from burnish.policy.base import Component
from burnish.policy.batch import needed
from burnish.policy.objective import Clipped, Surrogate, SurrogateTerms, clipped_surrogate
from burnish.tensors import torch

if TYPE_CHECKING:
    from jaxtyping import Float64
    from torch import Tensor

    from burnish.policy.batch import LossBatch


class TokenBatch(NamedTuple):
    """The trained tokens of a mini-batch in one row, rollout by rollout; each (N,), no gradient."""

    logp_N: Tensor
    old_logp_N: Tensor
    advantages_N: Tensor
    low_N: Tensor
    high_N: Tensor
    entropy_N: Tensor
    seed: int = 0


class TokenMarker(Component, frozen=True):
    """Base of components that mark tokens of the whole mini-batch."""

    @abstractmethod
    def mark(self, tokens: TokenBatch) -> Tensor: ...


class AllTokens(Component, frozen=True, tag="all"):
    """Every trained token has its policy loss."""


def batch_marks(markers: Mapping[str, TokenMarker], batch: LossBatch) -> dict[str, Tensor]:
    """The marks of a batch that is the whole mini-batch: slot -> (B, T) bool."""
    if not markers:
        return {}
    used_BT = batch.mask_BT.bool() & batch.keep_B.bool()[:, None]
    entropy_BT = needed(batch.entropy_BT, "entropy_BT", "the recipe marks tokens")

    def row(values: Tensor) -> Tensor:
        spread = values if values.ndim == 2 else values[:, None].expand_as(used_BT)
        return spread.detach()[used_BT]

    tokens = TokenBatch(
        logp_N=row(batch.logp_BT),
        old_logp_N=row(batch.old_logp_BT),
        advantages_N=row(batch.advantages_B),
        low_N=row(batch.low_B),
        high_N=row(batch.high_B),
        entropy_N=row(entropy_BT),
        seed=batch.seed,
    )
    found = {}
    for slot, component in markers.items():
        found[slot] = used_BT.clone()
        found[slot][used_BT] = component.mark(tokens)
    return found


class HighEntropy(TokenMarker, frozen=True, tag="high_entropy"):
    """Only the tokens of highest entropy have a policy loss."""

    share: PositiveShare = 0.2
    """Of the tokens of a mini-batch."""

    def mark(self, tokens: TokenBatch) -> Tensor:
        return high_entropy_tokens.plain(tokens.entropy_N.double(), self.share)


@public
def high_entropy_tokens(entropies: Float64[Tensor, " N"], share: PositiveShare = 0.2) -> Tensor:
    """True where an entropy is in the top `share` of all: (N,) -> bool (N,).

    At or above the `1 - share` quantile, which lies between two values where it falls between them.
    """
    if not len(entropies):
        return torch.zeros_like(entropies, dtype=torch.bool)
    # Not torch.quantile, which refuses more than 16 million values.
    place = (1 - share) * (len(entropies) - 1)
    below = int(place)
    above = min(below + 1, len(entropies) - 1)
    sorted_N = entropies.sort().values
    threshold = sorted_N[below] + (sorted_N[above] - sorted_N[below]) * (place - below)
    return entropies >= threshold


class ClipCov(TokenMarker, frozen=True, tag="clip_cov"):
    """The clipped loss without a few tokens of high covariance, drawn at random (Clip-Cov)."""

    share: PositiveShare = 2e-4
    """Tokens that are left out, of all; at least one where any is in range."""
    low: Number = 1.0
    """A token can be drawn where its covariance is between the two."""
    high: Number = 5.0
    """The upper end of that range."""

    def check(self) -> None:
        ordered("low", self.low, "high", self.high)

    def mark(self, tokens: TokenBatch) -> Tensor:
        ratio_N = (tokens.logp_N - tokens.old_logp_N).exp()
        bounds = tokens.low_N, tokens.high_N
        is_clipped_N = clipped_surrogate.plain(ratio_N, tokens.advantages_N, *bounds).is_clipped_BT
        cov_N = token_covariance.plain(tokens.advantages_N.double(), tokens.logp_N.double())
        is_open_N = (cov_N > self.low) & (cov_N < self.high) & ~is_clipped_N
        return _draw(is_open_N, _count(self.share, len(cov_N)), tokens.seed)

    def token_losses(self, terms: SurrogateTerms) -> Surrogate:
        cut = Clipped().token_losses(terms)
        assert terms.marked_BT is not None, "marked by `loss` or by the trainer"
        return cut._replace(loss_BT=cut.loss_BT.masked_fill(terms.marked_BT, 0.0))


class KlCov(TokenMarker, frozen=True, tag="kl_cov"):
    """The loss without a clip; tokens of the highest covariance are held by a KL (KL-Cov)."""

    share: PositiveShare = 2e-4
    """Tokens that are held, of all; at least one."""
    coefficient: NonNegative = 1.0
    """Weight of the KL on those tokens."""

    def mark(self, tokens: TokenBatch) -> Tensor:
        cov_N = token_covariance.plain(tokens.advantages_N.double(), tokens.logp_N.double())
        return _highest(cov_N, _count(self.share, len(cov_N)))

    def token_losses(self, terms: SurrogateTerms) -> Surrogate:
        assert terms.marked_BT is not None, "marked by `loss` or by the trainer"
        held_BT = self.coefficient * terms.change_BT.abs().masked_fill(~terms.marked_BT, 0.0)
        loss_BT = held_BT - terms.change_BT.exp() * terms.advantages_BT
        nothing_BT = torch.zeros_like(loss_BT, dtype=torch.bool)
        return Surrogate(loss_BT, nothing_BT, nothing_BT)


@public
def token_covariance(advantages: Float64[Tensor, " N"], logp: Float64[Tensor, " N"]) -> Tensor:
    """`(A - mean A)(log p - mean log p)` of each token, over all: (N,), (N,) -> (N,) float64."""
    return (advantages - advantages.mean()) * (logp - logp.mean())


@public
def clip_cov_tokens(
    covariance: Float64[Tensor, " N"],
    share: PositiveShare = 2e-4,
    low: Number = 1.0,
    high: Number = 5.0,
    seed: Seed = 0,
) -> Tensor:
    """Which tokens Clip-Cov leaves out of a loss that clips none: (N,) -> bool (N,).

    `max(1, int(share N))` tokens with a covariance between `low` and `high`, drawn by `seed`; all of
    them where there are fewer.
    """
    ordered("low", low, "high", high)
    is_open_N = (covariance > low) & (covariance < high)
    return _draw(is_open_N, _count(share, len(covariance)), seed)


@public
def kl_cov_tokens(covariance: Float64[Tensor, " N"], share: PositiveShare = 2e-4) -> Tensor:
    """Which tokens KL-Cov holds, the `max(1, int(share N))` of highest covariance: (N,) -> bool (N,)."""
    return _highest(covariance, _count(share, len(covariance)))


def _count(share: float, tokens: int) -> int:
    return min(max(1, int(share * tokens)), tokens)


def _highest(values_N: Tensor, count: int) -> Tensor:
    """The `count` highest values; of equal ones the first, so that every process marks the same."""
    order_N = values_N.sort(descending=True, stable=True).indices
    found_N = torch.zeros_like(values_N, dtype=torch.bool)
    found_N[order_N[:count]] = True
    return found_N


def _draw(is_open_N: Tensor, count: int, seed: int) -> Tensor:
    """At most `count` of the open tokens, each with the same chance."""
    draw = torch.Generator().manual_seed(seed)
    lot_N = torch.rand(len(is_open_N), generator=draw, dtype=torch.float64).to(is_open_N.device)
    return _highest(lot_N.masked_fill(~is_open_N, -1.0), count) & is_open_N
