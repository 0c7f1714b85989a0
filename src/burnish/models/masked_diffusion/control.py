"""Control variates over mask rates: running losses, or running gradients, by bin of t.

Subtracting a bin's running loss makes the reported loss swing less and **changes no update**: the
baseline carries no gradient. Two ways that do change updates: `LossBaseline(mode="rescale")` divides a
loss by its bin's share, so that every rate pulls about alike (another objective, biased);
`GradientBaseline` subtracts a bin's running *gradient* and adds back its mean over all rates: a true
control variate, unbiased, for a few parameters (memory: bins times parameters).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from burnish.boundary import (
    SOME,
    Fraction,
    Number,
    PositiveInt,
    PositiveShare,
    Share,
    public,
    public_method,
)
from burnish.tensors import torch

if TYPE_CHECKING:
    from jaxtyping import Float, Float64
    from torch import Tensor

    from burnish.models.masked_diffusion.objective import Rates

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


@public
def ema_control_variate(
    losses: Annotated[Float[Tensor, " B"], SOME],
    t: Rates,
    baseline: Annotated[Float64[Tensor, " K"], SOME],
    lr: Share = LEARNING_RATE,
    coefficient: Number = 1.0,
) -> ControlVariate:
    """Losses less their bin's running loss, and the running losses after this step: (B,), (B,), (K,).

    Losses of one bin are averaged before the update (the reference keeps the last). The gradient of
    `adjusted_mean` is that of the mean loss.

    >>> found = ema_control_variate(losses=[2.0, 4.0], t=[0.0, 0.1], baseline=[1.0, 5.0], lr=0.5)
    >>> found.adjusted_mean.item(), found.baseline.tolist()
    (2.0, [2.0, 5.0])
    """
    bin_B = bins_of(t, len(baseline))
    adjusted_B = losses - coefficient * baseline[bin_B].to(losses)
    return ControlVariate(adjusted_B.mean(), ema_update(baseline, losses, bin_B, lr))


def ema_update(baseline_K: Tensor, losses_B: Tensor, bin_B: Tensor, lr: float) -> Tensor:
    """Running losses after a step; a bin without a loss keeps its own."""
    values_B = losses_B.detach().to(baseline_K)
    sum_K = torch.zeros_like(baseline_K).index_add(0, bin_B, values_B)
    count_K = torch.zeros_like(baseline_K).index_add(0, bin_B, torch.ones_like(values_B))
    moved_K = (1 - lr) * baseline_K + lr * sum_K / count_K.clamp(min=1)
    return torch.where(count_K > 0, moved_K, baseline_K)


class LossBaseline:
    """Running losses by bin over the steps of a run (EMA).

    `subtract` changes what is reported and no update; `rescale` changes updates, with bias.
    """

    @public_method
    def __init__(
        self,
        mode: Literal["subtract", "rescale"] = "subtract",
        bins: PositiveInt = BINS,
        lr: Share = LEARNING_RATE,
    ) -> None:
        self.mode, self.bins, self.lr = mode, bins, lr
        self.baseline = [0.0] * bins

    @public_method
    def adjust(self, losses_B: Float[Tensor, " B"], t_B: Rates) -> Tensor:
        """Losses of a step as they are reported or trained on, (B,); the running losses move on.

        A loss that is no number is refused, and spoils nothing.
        """
        baseline_K = torch.tensor(self.baseline, dtype=torch.float64, device=losses_B.device)
        bin_B = bins_of(t_B.to(losses_B.device), self.bins)
        if self.mode == "subtract":
            adjusted_B = losses_B - baseline_K[bin_B].to(losses_B)
        else:
            adjusted_B = losses_B / self.scales(t_B).to(losses_B)
        moved_K = ema_update(baseline_K, losses_B, bin_B, self.lr)
        if self.mode == "rescale":
            # A bin starts at its first loss: one on its way up from 0 would weigh by how often it was seen.
            first_K = ema_update(baseline_K, losses_B, bin_B, 1.0)
            moved_K = torch.where(baseline_K > 0, moved_K, first_K)
        self.baseline = moved_K.tolist()
        return adjusted_B

    def scales(self, t_B: Tensor) -> Tensor:
        """What `rescale` divides losses at these rates by, (B,): known before they are."""
        baseline_K = torch.tensor(self.baseline, dtype=torch.float64, device=t_B.device)
        here_B, known_K = baseline_K[bins_of(t_B, self.bins)], baseline_K[baseline_K > 0]
        scale_B = here_B / known_K.mean() if len(known_K) else torch.zeros_like(here_B)
        # A bin that was never seen has no scale yet.
        return torch.where(scale_B > 0, scale_B, torch.ones_like(scale_B))

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"baseline": list(self.baseline)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from `state()`."""
        self.baseline = list(state["baseline"])


class GradientBaseline:
    """Running gradients by bin of t for a few parameters: a true control variate.

    The gradient of a batch is `mean w_i grad l_i`. Less `mean w_i b_k(t_i)`, plus `sum_k width_k b_k`,
    its expectation over rates (`correction`), it has the same mean; b is of earlier steps alone (`learn`).
    """

    @public_method
    def __init__(
        self,
        parameters: Sequence[Tensor],
        bins: PositiveInt = BINS,
        lr: Share = 0.1,
        low: Fraction = 0.0,
        high: PositiveShare = 1.0,
    ) -> None:
        """`low` and `high` bound the rates."""
        self.parameters, self.bins, self.lr = parameters, bins, lr
        self.low, self.high = low, high
        first, size = parameters[0], sum(one.numel() for one in parameters)
        self.gradients_KN = torch.zeros(bins, size, dtype=first.dtype, device=first.device)

    def correction(self, t_B: Tensor, weight_B: Tensor) -> Tensor:
        """What to add to the gradient of rows with these rates, (N,): known before their losses."""
        weights_K = torch.zeros(self.bins, dtype=torch.float64, device=t_B.device)
        weights_K.index_add_(0, bins_of(t_B, self.bins), weight_B.double() / len(t_B))
        widths_K = bin_widths(self.bins, self.low, self.high).to(weights_K)
        return (widths_K - weights_K).to(self.gradients_KN) @ self.gradients_KN

    def bin_gradients(self, row_loss_B: Tensor, t_B: Tensor) -> Tensor:
        """Gradients of the losses of each bin, added up, (K, N); the graph is kept."""
        bin_B = bins_of(t_B, self.bins)
        found_KN = torch.zeros_like(self.gradients_KN)
        for one in sorted(set(bin_B.tolist())):
            total = row_loss_B[bin_B == one].sum()
            parts = torch.autograd.grad(total, list(self.parameters), retain_graph=True)
            found_KN[one] = torch.cat([part.flatten() for part in parts])
        return found_KN

    def learn(self, sums_KN: Tensor, t_B: Tensor) -> None:
        """Move the running gradients, from the sums of all rows of a step at these rates."""
        bin_B = bins_of(t_B.to(sums_KN.device), self.bins)
        ones_B = torch.ones(len(bin_B), dtype=sums_KN.dtype, device=sums_KN.device)
        count_K = torch.zeros_like(sums_KN[:, 0]).index_add(0, bin_B, ones_B)
        mean_KN = (sums_KN / count_K.clamp(min=1)[:, None]).to(self.gradients_KN)
        moved_KN = self.gradients_KN + self.lr * (mean_KN - self.gradients_KN)
        seen_K1 = (count_K > 0).to(self.gradients_KN.device)[:, None]
        self.gradients_KN = torch.where(seen_K1, moved_KN, self.gradients_KN)


def bin_widths(bins: int, low: float = 0.0, high: float = 1.0) -> Tensor:
    """Share of the rates from `low` to `high` in each bin of `bins_of`; both ends have half a share."""
    if bins == 1:
        return torch.ones(1, dtype=torch.float64)
    edges = (torch.arange(bins + 1, dtype=torch.float64) - 0.5) / (bins - 1)
    return edges.clamp(low, high).diff() / (high - low)


class Smoothed(NamedTuple):
    """One step."""

    loss: float | None
    """None at the first step: there is no running loss before it."""
    baseline: list[float | None]
    """Running loss of each bin after this step; None where no rate has fallen yet."""


def smoothed_loss(
    losses_B: Tensor,
    t_B: Tensor,
    weight_B: Tensor,
    baseline: Sequence[float | None],
    *,
    lr: float = LEARNING_RATE,
    low: float = 0.0,
    high: float = 1.0,
) -> Smoothed:
    """The loss of a step less the luck of its rates, without bias; (B,) each, losses unweighted.

    `mean w (l - b_k) + sum_k width_k b_k` with the running losses b of earlier steps: with weights 1/p
    the sum is what is subtracted on average. A bin not seen before has b = 0 in both terms, and begins
    with its first loss. `low` and `high` are the bounds of the rates.
    """
    known_K = torch.tensor([b or 0.0 for b in baseline], dtype=torch.float64)
    is_new_K = torch.tensor([b is None for b in baseline])
    losses_B, t_B, weight_B = (x.detach().double().cpu() for x in (losses_B, t_B, weight_B))
    bin_B = bins_of(t_B, len(known_K))
    found = (weight_B * (losses_B - known_K[bin_B])).mean()
    found = found + bin_widths(len(known_K), low, high) @ known_K
    moved_K = ema_update(known_K, losses_B, bin_B, lr)
    moved_K = torch.where(is_new_K, ema_update(known_K, losses_B, bin_B, 1.0), moved_K)
    is_seen_K = ~is_new_K
    is_seen_K[bin_B] = True
    after = [b if seen else None for b, seen in zip(moved_K.tolist(), is_seen_K, strict=True)]
    return Smoothed(None if bool(is_new_K.all()) else found.item(), after)
