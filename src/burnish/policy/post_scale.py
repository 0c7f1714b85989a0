"""Post-scale `none` and `batch_whiten`: rescale the advantages over the batch.

`batch_whiten` standardises them over the kept rollouts, each counted once or once per token (GDPO,
arXiv 2601.05242). Where we differ: groups without signal stay at 0 and leave the statistics. The
published mean shift pushes all rollouts of such a group by the same amount, which teaches the
model to repeat, or to avoid, whatever it wrote; `ignore_zero_signal=False` is that form.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from burnish.boundary import UNREAD, NonNegative, public
from burnish.errors import ArgumentError
from burnish.policy.base import Component
from burnish.policy.groups import is_constant, one_group
from burnish.tensors import check_finite, torch

if TYPE_CHECKING:
    from jaxtyping import Bool, Float64
    from torch import Tensor

    from burnish.policy.batch import RewardBatch
    from burnish.policy.groups import Lengths


class NoPostScale(Component, frozen=True, tag="none"):
    """Advantages as they are."""

    def rescale(
        self, values_B: Tensor, keep_B: Tensor, signal_B: Tensor, batch: RewardBatch
    ) -> Tensor:
        return values_B


class BatchWhiten(Component, frozen=True, tag="batch_whiten"):
    """Standardise the advantages over the kept part of the batch (GDPO)."""

    scope: Literal["token", "rollout"] = "token"
    """What a rollout counts for in mean and deviation: its tokens, or one."""
    shift: bool = True
    """Subtract the mean; False only divides by the standard deviation."""
    ignore_zero_signal: bool = True
    """Rollouts without signal keep advantage 0 and leave the statistics."""

    def rescale(
        self, values_B: Tensor, keep_B: Tensor, signal_B: Tensor, batch: RewardBatch
    ) -> Tensor:
        return batch_whiten.plain(
            values_B,
            batch.lengths_B.to(values_B),
            keep=keep_B,
            signal=signal_B,
            scope=self.scope,
            shift=self.shift,
            ignore_zero_signal=self.ignore_zero_signal,
        )


@public
def batch_whiten(
    advantages: Annotated[Float64[Tensor, " B"], UNREAD],
    lengths: Lengths | None = None,
    *,
    keep: Bool[Tensor, " B"] | None = None,
    signal: Bool[Tensor, " B"] | None = None,
    scope: Literal["token", "rollout"] = "token",
    shift: bool = True,
    ignore_zero_signal: bool = True,
    eps: NonNegative = 1e-8,
) -> Tensor:
    """`(A - mean) / sqrt(variance + eps)` over the kept part of the batch: (B,) -> (B,).

    `lengths`: tokens of each rollout, needed by scope `token`; `keep` and `signal`: bool (B,), all
    True when absent. Mean and variance (ddof 1) run over tokens or rollouts; `shift=False` only
    divides. Rollouts outside the statistics get 0, and so does everyone where fewer than two
    entries are left or all of them are equal: a variance of 0 is no scale.
    """
    values_B = advantages
    usable_B = torch.ones_like(values_B, dtype=torch.bool) if keep is None else keep
    check_finite(values_B, "advantages", usable_B)
    if signal is not None and ignore_zero_signal:
        usable_B = usable_B & signal
    if scope == "token" and lengths is None:
        raise ArgumentError(
            "lengths: got none, expected tokens per rollout; scope 'token' needs them"
        )
    # How many entries each rollout stands for.
    counts_B = torch.ones_like(values_B) if lengths is None or scope == "rollout" else lengths
    weight_B = counts_B * usable_B
    usable_B = weight_B > 0
    entries = weight_B.sum()
    seen = values_B[usable_B]
    if entries < 2 or is_constant(seen[:, None], one_group(seen)).all():
        return torch.zeros_like(values_B)
    used_B = values_B.masked_fill(~usable_B, 0.0)
    mean = (weight_B * used_B).sum() / entries
    centred_B = (used_B - mean).masked_fill(~usable_B, 0.0)
    variance = (weight_B * centred_B.square()).sum() / (entries - 1)
    return (centred_B if shift else used_B) / (variance + eps).sqrt()
