"""Control variates over mask rates: running losses by bin of t.

    found = ema_control_variate(losses_B, t_B, baseline_K, lr=0.01)
    found.adjusted_mean, found.baseline

A bin's running loss is subtracted from the losses of its rates, so that the reported loss swings less
with the rates that were drawn. **It changes no update**: the baseline carries no gradient, so every
parameter moves exactly as without it. It is for monitoring and early stopping.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from burnish.arguments import as_number
from burnish.errors import ArgumentError
from burnish.models.masked_diffusion.objective import as_rates
from burnish.tensors import as_finite, as_logp, check_finite, check_shape, torch

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.tensors import Numbers

BINS = 10
LEARNING_RATE = 0.01


class ControlVariate(NamedTuple):
    """One step."""

    adjusted_mean: Tensor
    """Mean of `l - c b_k`, with the baseline before this step; keeps the gradient of the losses."""
    baseline: Tensor
    """Running loss of each bin after this step, float64 (K,)."""


def bins_of(t_B: Tensor, bins: int) -> Tensor:
    """Bin of each rate, `round(t (K - 1))`, halves to the even bin."""
    return (t_B * (bins - 1)).round().long()


def ema_control_variate(
    losses: Numbers,
    t: Numbers,
    baseline: Numbers,
    lr: float = LEARNING_RATE,
    coefficient: float = 1.0,
) -> ControlVariate:
    """Losses less their bin's running loss, and the running losses after this step: (B,), (B,), (K,).

    Losses of one bin are averaged before the update (the reference keeps the last). The gradient of
    `adjusted_mean` is that of the mean loss.

    >>> from burnish.models.masked_diffusion import ema_control_variate
    >>> found = ema_control_variate(losses=[2.0, 4.0], t=[0.0, 0.1], baseline=[1.0, 5.0], lr=0.5)
    >>> found.adjusted_mean.item(), found.baseline.tolist()
    (2.0, [2.0, 5.0])
    """
    losses_B = as_logp(losses, "losses")
    if losses_B.ndim != 1 or not len(losses_B):
        raise ArgumentError(f"losses: got shape {tuple(losses_B.shape)}, expected (B,)")
    check_finite(losses_B, "losses")
    t_B = as_rates(t, "t").to(losses_B.device)
    check_shape(t_B, "t", tuple(losses_B.shape))
    baseline_K = as_finite(baseline, "baseline").to(losses_B.device)
    if baseline_K.ndim != 1 or not len(baseline_K):
        raise ArgumentError(f"baseline: got shape {tuple(baseline_K.shape)}, expected (K,)")
    lr = as_number("lr", lr, low=0, high=1)
    coefficient = as_number("coefficient", coefficient)
    bin_B = bins_of(t_B, len(baseline_K))
    adjusted_B = losses_B - coefficient * baseline_K[bin_B].to(losses_B)
    return ControlVariate(adjusted_B.mean(), ema_update(baseline_K, losses_B, bin_B, lr))


def ema_update(baseline_K: Tensor, losses_B: Tensor, bin_B: Tensor, lr: float) -> Tensor:
    """Running losses after a step; a bin without a loss keeps its own."""
    values_B = losses_B.detach().to(baseline_K)
    sum_K = torch.zeros_like(baseline_K).index_add(0, bin_B, values_B)
    count_K = torch.zeros_like(baseline_K).index_add(0, bin_B, torch.ones_like(values_B))
    moved_K = (1 - lr) * baseline_K + lr * sum_K / count_K.clamp(min=1)
    return torch.where(count_K > 0, moved_K, baseline_K)
