"""Surrogates `clip_cov` and `kl_cov`: hold back the tokens that use up the policy's entropy.

Entropy falls by the covariance of log-prob and advantage: tokens that are likely already and were
rewarded make the policy surer of itself (arXiv 2505.22617). With `cov_t = (A_t - mean A)(log p_t -
mean log p)` over all tokens of the mini-batch, `clip_cov` leaves a few tokens with a high covariance,
drawn at random, out of the clipped loss; `kl_cov` has no clip and holds the tokens with the highest
covariance near the policy that sampled, by `coefficient |log ratio|`. Means, ranks and counts are
those of the whole mini-batch, whatever its micro-batches; verl's are of one micro-batch. The draw of
`clip_cov` follows the run's seed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from burnish.arguments import as_number, as_seed
from burnish.policy.base import require
from burnish.policy.objective import Clipped, Surrogate, SurrogateTerms, clipped_surrogate
from burnish.policy.tokens import TokenBatch, TokenMarker
from burnish.tensors import as_finite, check_shape, check_tensor, torch

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.tensors import Numbers


class ClipCov(TokenMarker, frozen=True, tag="clip_cov"):
    """The clipped loss without a few tokens of high covariance, drawn at random (Clip-Cov)."""

    share: float = 2e-4
    """Tokens that are left out, of all; at least one where any is in range."""
    low: float = 1.0
    """A token can be drawn where its covariance is between the two."""
    high: float = 5.0
    """The upper end of that range."""

    def check(self) -> None:
        require(0 < self.share <= 1, "share", self.share, "above 0, up to 1")
        require(math.isfinite(self.low), "low", self.low, "finite")
        require(self.low < self.high < math.inf, "high", self.high, "above `low`, finite")

    def mark(self, tokens: TokenBatch) -> Tensor:
        """The tokens that are left out."""
        ratio_N = (tokens.logp_N - tokens.old_logp_N).exp()
        bounds = tokens.low_N, tokens.high_N
        is_clipped_N = clipped_surrogate(ratio_N, tokens.advantages_N, *bounds).is_clipped_BT
        cov_N = _covariance(tokens.advantages_N.double(), tokens.logp_N.double())
        is_open_N = (cov_N > self.low) & (cov_N < self.high) & ~is_clipped_N
        return _draw(is_open_N, _count(self.share, len(cov_N)), tokens.seed)

    def token_losses(self, terms: SurrogateTerms) -> Surrogate:
        """Clipped loss of each token, 0 where it is left out."""
        cut = Clipped().token_losses(terms)
        assert terms.marked_BT is not None, "marked by `loss` or by the trainer"
        return cut._replace(loss_BT=cut.loss_BT.masked_fill(terms.marked_BT, 0.0))


class KlCov(TokenMarker, frozen=True, tag="kl_cov"):
    """The loss without a clip; tokens of the highest covariance are held by a KL (KL-Cov)."""

    share: float = 2e-4
    """Tokens that are held, of all; at least one."""
    coefficient: float = 1.0
    """Weight of the KL on those tokens."""

    def check(self) -> None:
        require(0 < self.share <= 1, "share", self.share, "above 0, up to 1")
        require(0 <= self.coefficient < math.inf, "coefficient", self.coefficient, "at least 0")

    def mark(self, tokens: TokenBatch) -> Tensor:
        """The tokens that are held."""
        cov_N = _covariance(tokens.advantages_N.double(), tokens.logp_N.double())
        return _highest(cov_N, _count(self.share, len(cov_N)))

    def token_losses(self, terms: SurrogateTerms) -> Surrogate:
        """Loss of each token, with the distance to the sampling policy where it is held."""
        assert terms.marked_BT is not None, "marked by `loss` or by the trainer"
        held_BT = self.coefficient * terms.change_BT.abs().masked_fill(~terms.marked_BT, 0.0)
        loss_BT = held_BT - terms.change_BT.exp() * terms.advantages_BT
        nothing_BT = torch.zeros_like(loss_BT, dtype=torch.bool)
        return Surrogate(loss_BT, nothing_BT, nothing_BT)


def token_covariance(advantages: Numbers, logp: Numbers) -> Tensor:
    """`(A - mean A)(log p - mean log p)` of each token, over all: (N,), (N,) -> (N,) float64."""
    advantages_N, logp_N = as_finite(advantages, "advantages"), as_finite(logp, "logp")
    check_tensor(advantages_N, "advantages", "(N,)", 1)
    check_shape(logp_N, "logp", tuple(advantages_N.shape))
    return _covariance(advantages_N, logp_N.to(advantages_N.device))


def _covariance(advantages_N: Tensor, logp_N: Tensor) -> Tensor:
    return (advantages_N - advantages_N.mean()) * (logp_N - logp_N.mean())


def clip_cov_tokens(
    covariance: Numbers, share: float = 2e-4, low: float = 1.0, high: float = 5.0, seed: int = 0
) -> Tensor:
    """Which tokens Clip-Cov leaves out of a loss that clips none: (N,) -> bool (N,).

    `max(1, int(share N))` tokens with a covariance between `low` and `high`, drawn by `seed`; all of
    them where there are fewer.
    """
    cov_N, count = _read(covariance, share)
    low = as_number("low", low)
    high = as_number("high", high, above=low)
    return _draw((cov_N > low) & (cov_N < high), count, as_seed("seed", seed))


def kl_cov_tokens(covariance: Numbers, share: float = 2e-4) -> Tensor:
    """Which tokens KL-Cov holds, the `max(1, int(share N))` of highest covariance: (N,) -> bool (N,)."""
    return _highest(*_read(covariance, share))


def _read(covariance: Numbers, share: float) -> tuple[Tensor, int]:
    cov_N = as_finite(covariance, "covariance")
    check_tensor(cov_N, "covariance", "(N,)", 1)
    return cov_N, _count(as_number("share", share, above=0, high=1), len(cov_N))


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
