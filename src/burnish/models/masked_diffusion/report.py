"""The variance report: where the noise of training comes from and what each sampler would make of it.

From one table of second moments of the loss (and of its gradient on a few parameters) by row and rate, the
variance of one row follows for every density of rates, with one mask, two or MIRROR's pair, with strata or
without: `Var = ∫ M(t)/p(t) dt - |∫ E z dt|²`, `M = E|z|²`. Two independent masks have `M - V/2`, V being the
variance over masks of one row; k strata subtract `k sum_s |∫_s E z dt|²` in the place of `|∫ E z dt|²`.
Means of few rows are noisy and their squares too large; the variance over rows, divided by their number,
is taken off. Intervals are over rows (bootstrap, 95 %).

At small t a loss is nearly always 0 and rarely large, of the order 1/p. So cells of the grid shrink
towards t = 0, and only masks that hide something are drawn; the chance of hiding nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from msgspec import Meta

from burnish.boundary import SOME, Count, Draws, PositiveInt, Seed, public
from burnish.errors import ArgumentError
from burnish.models.masked_diffusion.objective import (
    MirrorMasks,
    Rows,
    mask_chance,
    nonempty_mask_fields,
    row_losses,
    token_nll,
)
from burnish.models.masked_diffusion.rates import (
    MIX_UNIFORM,
    Cells,
    EprFit,
    fit_or_uniform,
    rate_cells,
)
from burnish.tensors import torch

if TYPE_CHECKING:
    from jaxtyping import Float64
    from torch import Tensor

MASK_KINDS = {"one mask": 1, "two independent masks": 2, "MIRROR": 2}
"""Forward passes a row."""
COORDINATES = 4096
"""Of the gradient; the trace is scaled to all."""


class VarianceParts(NamedTuple):
    """A + B + C = total."""

    A: Tensor
    """Mask pattern: what masks of one row at one rate differ by."""
    B: Tensor
    """Mask rate: what the rates of one row differ by."""
    C: Tensor
    """Data: what rows differ by."""
    total: Tensor


@public
def decompose_variance(
    losses: Annotated[Float64[Tensor, "X T K"], SOME],
) -> VarianceParts:
    """Variance of a table of losses by mask, rate and data: [x0, t, pattern] -> four numbers.

    `Var(l) = E Var(l | x0, t) + E Var(g | x0) + Var E(g | x0)`, `g(x0, t)` being the mean over masks
    (arXiv 2511.18159): population variances, whose sum is that of the whole table exactly. A mean over K masks
    is noisy, so B is too large by `A/K (1 - 1/T)` and C by `A/(K T)`, while A is too small by A/K;
    `variance_report` takes that out.

    >>> [part.item() for part in decompose_variance([[[0.0, 2.0], [4.0, 6.0]]])]
    [1.0, 4.0, 0.0, 5.0]
    """
    mean_XT = losses.mean(2)
    A = losses.var(2, correction=0).mean()
    B = mean_XT.var(1, correction=0).mean()
    C = mean_XT.mean(1).var(correction=0)
    return VarianceParts(A, B, C, losses.var(correction=0))


@dataclass(frozen=True)
class Interval:
    """A figure with its 95 % interval over rows."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Part:
    """A share of the loss's variance."""

    variance: Interval
    share: Interval


@dataclass(frozen=True)
class SamplerVariance:
    """What one row's draw varies by under one sampler."""

    name: str
    rates: str
    masks: str
    strata: int
    """Strata of the rates; 1 is none."""
    forwards: int
    loss: Interval
    gradient: Interval | None
    """Trace of the covariance of the gradient; None without parameters."""

    @property
    def cost(self) -> float:
        """Variance times forward passes: what counts at equal compute and endless rows."""
        figure = self.gradient or self.loss
        return figure.value * self.forwards


@dataclass(frozen=True)
class VarianceReport:
    """Everything that the command shows."""

    parts: dict[str, Part]
    """A mask, B rate, C data, corrected for the number of masks."""
    t: list[float]
    mean: list[float]
    """Of the loss at each rate."""
    second_moment: list[float]
    """Root of the mean squared loss at each rate: to this the best density is proportional."""
    fit: EprFit
    samplers: list[SamplerVariance]
    rows: int
    masks: int
    forwards: int
    """Forward passes of a row that the report took."""
    parameters: int
    """Coordinates of the gradient that were measured; 0 is none."""

    @property
    def best(self) -> SamplerVariance:
        """Least variance per forward pass; of equal candidates, the stratified one."""
        least = min(self.samplers, key=lambda one: one.cost)
        alike = (
            one
            for one in self.samplers
            if (one.rates, one.masks) == (least.rates, least.masks) and one.strata > least.strata
        )
        return next((one for one in alike if one.cost <= 1.02 * least.cost), least)

    def to_json(self) -> dict[str, Any]:
        """Plain numbers and texts."""
        fit = {key: getattr(self.fit, key) for key in ("params", "kl", "mix_uniform", "fallback")}
        samplers = [{**asdict(one), "cost": one.cost} for one in self.samplers]
        return asdict(self) | {"fit": fit, "samplers": samplers, "best": self.best.name}


@public
def variance_report(
    model: Callable[..., Any],
    rows: Rows,
    mask_id: Count,
    *,
    parameters: Sequence[Tensor] = (),
    rates: PositiveInt = 20,
    masks: Annotated[int, Meta(ge=2, le=1_000_000)] = 8,
    strata: Draws = 8,
    seed: Seed = 0,
    device: str = "cpu",
    with_prompts: bool = False,
    on_row: Callable[[int, int], None] | None = None,
) -> VarianceReport:
    """Variance of a masked diffusion loss by source, and under each sampler.

    `model(input_ids, attention_mask)` gives logits (B, L, V), or an object that has them as `.logits`.
    `parameters` are the few tensors whose gradient is measured, at most `COORDINATES` numbers of them
    picked at random; the trace is scaled to all. `masks` is the number of pairs at each rate, `strata`
    those of StraTS: a training step has `stratum_counts(rows).count`. `with_prompts` calls
    `model(input_ids, attention_mask, prompt_lengths)`, for a model whose prompts see themselves alone. It
    takes `rows * rates * masks * 2` forward passes of a row; `on_row(done, of)` is told after each row.
    """
    if len(rows.ids_XL) < 2:
        raise ArgumentError("rows: got 1 with an answer, expected at least 2 to tell data noise")
    generator, grid = torch.Generator().manual_seed(seed), rate_cells(rates)
    size = sum(one.numel() for one in parameters)
    index_N = torch.arange(size)
    if size > COORDINATES:
        index_N = torch.randperm(size, generator=generator)[:COORDINATES].sort().values
    scale = (size / max(1, len(index_N))) ** 0.5

    def measured(row: Rows, t: Tensor) -> list[_Moments]:
        """Of the loss, and of the gradient where it is measured, at one rate of one row."""
        p = mask_chance(t).item()
        ids_BL = row.ids_XL.expand(2 * masks, -1)
        eligible_KL = row.eligible_XL.expand(masks, -1)
        chance_K = torch.full((masks,), p, dtype=torch.float64, device=ids_BL.device)
        fields = nonempty_mask_fields(MirrorMasks(), chance_K, eligible_KL, generator)
        u_KL, chance = fields.u_FBL[0], fields.chance_B[0].item()
        # MIRROR's pairs: the first K masks and their mirror images.
        mask_BL = torch.cat([u_KL < p, u_KL > 1 - p]) & row.eligible_XL
        more = [row.eligible_XL.int().argmax(1).expand(2 * masks)] if with_prompts else []
        with torch.set_grad_enabled(bool(parameters)):
            hidden_BL = ids_BL.masked_fill(mask_BL, mask_id)
            output = model(hidden_BL, row.attention_XL.expand_as(ids_BL), *more)
            nll_BL = token_nll(getattr(output, "logits", output), ids_BL, mask_id)
            count_B = mask_BL.new_full((2 * masks,), int(row.eligible_XL.sum()), dtype=torch.long)
            loss_B = row_losses(nll_BL, mask_BL, torch.full_like(nll_BL[:, 0], p), count_B)
        if not loss_B.isfinite().all():
            raise ArgumentError(f"model: gave a loss of {loss_B.max().item():g} at t = {t:g}")
        vectors = [loss_B.detach().double().cpu()[:, None]]
        if parameters:
            vectors.append(scale * _gradients(loss_B, parameters, index_N))
        return [_moments(one, masks, chance) for one in vectors]

    stats = []
    for place in range(len(rows.ids_XL)):
        ids, eligible, attention = (part[place : place + 1].to(device) for part in rows[:3])
        row = Rows(ids, eligible, attention, 0)
        kinds = zip(*(measured(row, t) for t in grid.t_T), strict=True)
        stats.append([_Moments(*map(torch.stack, zip(*one, strict=True))) for one in kinds])
        if on_row:
            on_row(place + 1, len(rows.ids_XL))
    by_kind = [
        _Moments(*map(torch.stack, zip(*rows_of_one, strict=True)))
        for rows_of_one in zip(*stats, strict=True)
    ]
    return _report(by_kind, grid, masks, strata, len(index_N))


def _gradients(loss_B: Tensor, parameters: Sequence[Tensor], index_N: Tensor) -> Tensor:
    """Gradient of each loss at the picked coordinates, (B, N)."""
    found = []
    for loss in loss_B:
        parts = torch.autograd.grad(
            loss, list(parameters), retain_graph=True, materialize_grads=True
        )
        flat = torch.cat([part.flatten() for part in parts])
        found.append(flat[index_N.to(flat.device)].double().cpu())
    return torch.stack(found)


class _Moments(NamedTuple):
    """Of the loss or of the gradient: at one rate, then stacked over rates and rows, (X, T, ...)."""

    second_3: Tensor
    """E|z|² of one mask, the mean of two independent ones, and MIRROR's pair."""
    mean_N: Tensor
    """E z."""
    noise: Tensor
    """Variance of that mean over the drawn masks."""


def _moments(z_BN: Tensor, masks: int, chance: float) -> _Moments:
    """Moments at one rate, from pairs of masks that hide something; all others have z = 0."""
    pair_KN = (z_BN[:masks] + z_BN[masks:]) / 2
    mean_N = chance * pair_KN.mean(0)
    noise = chance**2 * pair_KN.var(0).sum() / masks
    one = chance * z_BN.square().sum(1).mean()
    within = one - (mean_N.square().sum() - noise)
    mirror = chance * pair_KN.square().sum(1).mean()
    return _Moments(torch.stack([one, one - within / 2, mirror]), mean_N, noise)


def _report(
    kinds: Sequence[_Moments],
    grid: Cells,
    masks: int,
    strata: int,
    coordinates: int,
) -> VarianceReport:
    second_T = kinds[0].second_3[:, :, 0].contiguous().mean(0)
    root_T = second_T.clamp(min=0).sqrt()
    fit = fit_or_uniform(grid.t_T, root_T, mix_uniform=MIX_UNIFORM)
    # Densities of integral 1 over the cells, which all integrals here use.
    densities = {
        "uniform": torch.ones_like(grid.t_T),
        "P-POTS": fit.p / (fit.p * grid.width_T).sum(),
    }
    rows, rates = kinds[0].noise.shape
    resamples = torch.randint(rows, (1000, rows), generator=torch.Generator().manual_seed(0))
    samplers = []
    for rate_name, p_T in densities.items():
        for count in dict.fromkeys((1, strata)):
            figures = [_variances(one, grid, p_T, count, resamples) for one in kinds]
            label = f", {count} strata" if count > 1 else ""
            for place, (mask_name, forwards) in enumerate(MASK_KINDS.items()):
                name = f"{rate_name}, {mask_name}{label}"
                loss, gradient = figures[0][place], figures[1][place] if len(figures) > 1 else None
                sampler = (name, rate_name, mask_name, count, forwards)
                samplers.append(SamplerVariance(*sampler, loss, gradient))
    return VarianceReport(
        _parts(kinds[0], grid, resamples),
        grid.t_T.tolist(),
        kinds[0].mean_N[:, :, 0].mean(0).tolist(),
        root_T.tolist(),
        fit,
        samplers,
        rows,
        masks,
        rows * rates * masks * 2,
        coordinates,
    )


def _variances(
    found: _Moments, grid: Cells, p_T: Tensor, strata: int, resamples_RX: Tensor
) -> list[Interval]:
    """Variance of one row's draw for the three kinds of masks."""
    rows = len(found.noise)
    moment_X3 = (found.second_3.transpose(1, 2) * grid.width_T / p_T).contiguous().sum(2)
    # Integral of each row's mean over each stratum, (X, S, N), and all inner products of rows.
    shares_ST = _stratum_shares(p_T * grid.width_T, strata) * grid.width_T
    parts_XSN = torch.einsum("st,xtn->xsn", shares_ST, found.mean_N)
    inner_XX = strata * torch.einsum("xsn,ysn->xy", parts_XSN, parts_XSN)

    def figure(index: Tensor) -> Tensor:
        own = inner_XX[index][:, index]
        biased = own.mean()
        # |mean of rows|² is too large by the variance over rows, with n - 1, over their number.
        spread = (own.diagonal().mean() - biased) * rows / (rows - 1)
        return moment_X3[index].mean(0) - (biased - spread / rows)

    value_3 = figure(torch.arange(rows))
    drawn_R3 = torch.stack([figure(index) for index in resamples_RX])
    return [_interval(value_3[k], drawn_R3[:, k]) for k in range(3)]


def _shares(parts: Tensor) -> Tensor:
    """Shares (..., 3) that add up to 1; a part that is below 0 by chance is none."""
    parts = parts.clamp(min=0.0)
    return parts / parts.sum(-1, keepdim=True).clamp(min=1e-300)


def _stratum_shares(mass_T: Tensor, strata: int) -> Tensor:
    """Share of each cell, by the mass of its draws, that falls into each stratum of u: (S, T)."""
    ends_T = (mass_T / mass_T.sum()).cumsum(0)
    starts_T = torch.cat([ends_T.new_zeros(1), ends_T[:-1]])
    edges = torch.arange(strata + 1, dtype=torch.float64) / strata
    low_S, high_S = edges[:-1, None], edges[1:, None]
    shared_ST = (torch.minimum(ends_T, high_S) - torch.maximum(starts_T, low_S)).clamp(min=0)
    return shared_ST / shared_ST.sum(0)


def _parts(loss: _Moments, grid: Cells, resamples_RX: Tensor) -> dict[str, Part]:
    """A, B and C of the loss, less what the noise of few masks adds, with intervals over rows."""
    one_XT, g_XT = loss.second_3[:, :, 0].contiguous(), loss.mean_N[:, :, 0].contiguous()
    noise_XT, width_T, rows = loss.noise, grid.width_T, len(loss.noise)
    square_XT = g_XT.square() - noise_XT
    whole_X = (g_XT * width_T).sum(1)
    noise_X = (noise_XT * width_T.square()).sum(1)
    A_X = ((one_XT - square_XT) * width_T).sum(1)
    B_X = (square_XT * width_T).sum(1) - (whole_X.square() - noise_X)

    def parts(index: Tensor) -> Tensor:
        C = whole_X[index].var() - noise_X[index].mean()
        return torch.stack([A_X[index].mean(), B_X[index].mean(), C])

    value_3 = parts(torch.arange(rows))
    drawn_R3 = torch.stack([parts(index) for index in resamples_RX])
    # Resampled rows repeat: their variance is (n - 1)/n of that of rows.
    drawn_R3[:, 2] *= rows / (rows - 1)
    share_3, shares_R3 = _shares(value_3), _shares(drawn_R3)
    return {
        name: Part(_interval(value_3[k], drawn_R3[:, k]), _interval(share_3[k], shares_R3[:, k]))
        for k, name in enumerate("ABC")
    }


def _interval(value: Tensor, drawn_R: Tensor) -> Interval:
    low, high = drawn_R.quantile(torch.tensor([0.025, 0.975], dtype=drawn_R.dtype)).tolist()
    return Interval(value.item(), low, high)
