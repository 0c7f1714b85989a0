"""Tokens `high_entropy`: the policy loss of the most uncertain tokens alone.

Most tokens of an answer follow from those before them; the few at which the next-token distribution
is wide decide where it goes. Training on the top fifth by entropy is as good as on all (arXiv
2506.01939). The others keep their place in the loss's denominators and in its auxiliary terms. The
quantile is that of the whole mini-batch, whatever its micro-batches; TRL's is of one micro-batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from burnish.arguments import as_number
from burnish.policy.base import require
from burnish.policy.tokens import TokenBatch, TokenMarker
from burnish.tensors import as_finite, check_tensor, torch

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.tensors import Numbers


class HighEntropy(TokenMarker, frozen=True, tag="high_entropy"):
    """Only the tokens of highest entropy have a policy loss."""

    share: float = 0.2
    """Of the tokens of a mini-batch."""

    def check(self) -> None:
        require(0 < self.share <= 1, "share", self.share, "above 0, up to 1")

    def mark(self, tokens: TokenBatch) -> Tensor:
        """The tokens that are trained."""
        return _highest(tokens.entropy_N.double(), self.share)


def high_entropy_tokens(entropies: Numbers, share: float = 0.2) -> Tensor:
    """True where an entropy is in the top `share` of all: (N,) -> bool (N,).

    At or above the `1 - share` quantile, which lies between two values where it falls between them.
    """
    entropy_N = as_finite(entropies, "entropies")
    check_tensor(entropy_N, "entropies", "(N,)", 1)
    return _highest(entropy_N, as_number("share", share, above=0, high=1))


def _highest(entropy_N: Tensor, share: float) -> Tensor:
    if not len(entropy_N):
        return torch.zeros_like(entropy_N, dtype=torch.bool)
    # Not torch.quantile, which refuses more than 16 million values.
    place = (1 - share) * (len(entropy_N) - 1)
    below = int(place)
    above = min(below + 1, len(entropy_N) - 1)
    sorted_N = entropy_N.sort().values
    threshold = sorted_N[below] + (sorted_N[above] - sorted_N[below]) * (place - below)
    return entropy_N >= threshold
