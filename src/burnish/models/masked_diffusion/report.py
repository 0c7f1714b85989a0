"""The variance report: where the noise of training comes from and what each sampler would make of it.

    report = variance_report(model, rows, mask_id, parameters=[model.lm_head.weight])
    report.parts["A"].share, report.best.name

One table serves all samplers. A few rows are masked at a grid of rates, several pairs of complementary
masks each; from the second moment of the loss (and of its gradient on a few parameters) at each rate, the
variance of one row follows for every density of rates, with one mask, two or MIRROR's pair, with
strata or without. Nothing is drawn again, so samplers are compared on the same noise. Intervals are
over rows (bootstrap, 95 %).

For z the loss, or the gradient as a vector: `Var = ∫ M(t)/p(t) dt - |∫ E z dt|²`, `M = E|z|²`. Two
independent masks have `M - V/2`, V being the variance over masks of one row; k strata subtract
`k sum_s |∫_s E z dt|²` in the place of `|∫ E z dt|²`. Means of few rows are noisy and their squares too
large; the variance over rows, divided by their number, is taken off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from burnish.arguments import as_function, as_list, as_number, as_seed, as_table, as_whole
from burnish.errors import ArgumentError
from burnish.models.masked_diffusion.objective import EPS, mask_chance, row_losses, token_nll
from burnish.models.masked_diffusion.rates import EprFit, fit_epr
from burnish.models.masked_diffusion.variance import decompose_variance
from burnish.tensors import torch

if TYPE_CHECKING:
    from torch import Generator, Tensor

MASK_KINDS = {"one mask": 1, "two independent masks": 2, "MIRROR": 2}
"""Forward passes a row."""
_DRAWS = 1000


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
        """Least variance for its forward passes."""
        return min(self.samplers, key=lambda one: one.cost)

    def to_json(self) -> dict[str, Any]:
        """Plain numbers and texts."""
        found = asdict(self)
        found["fit"] = {
            "params": self.fit.params,
            "kl": self.fit.kl,
            "mix_uniform": self.fit.mix_uniform,
            "fallback": self.fit.fallback,
        }
        found["samplers"] = [{**asdict(one), "cost": one.cost} for one in self.samplers]
        return found | {"best": self.best.name}


class Rows(NamedTuple):
    """Rows of one length, padded on the right."""

    ids_XL: Tensor
    eligible_XL: Tensor
    """The answer, without padding."""
    attention_XL: Tensor
    dropped: int
    """Rows without an answer, or whose answer was cut off."""


def collate(rows: Sequence[Mapping[str, Any]], max_length: int = 4096, pad_id: int = 0) -> Rows:
    """Rows `{"input_ids": [...], "prompt_length": n}` as one batch; rows without an answer are dropped.

    `ids` and `prompt_len` are read too; without a prompt length all is answer.

    >>> from burnish.models.masked_diffusion import collate
    >>> collate([{"input_ids": [5, 6, 7], "prompt_length": 2}, {"ids": [5]}]).eligible_XL.tolist()
    [[False, False, True], [True, False, False]]
    """
    most = as_whole("max_length", max_length, low=1)
    pad = as_whole("pad_id", pad_id, low=0)
    kept: list[tuple[list[int], int]] = []
    given = as_list("rows", rows, least=1)
    for place, row in enumerate(given):
        table = as_table(f"rows[{place}]", row)
        ids = table.get("input_ids", table.get("ids"))
        if ids is None:
            raise ArgumentError(f"rows[{place}]: has no input_ids, expected a list of token ids")
        prompt = as_whole(
            "prompt_length", table.get("prompt_length", table.get("prompt_len", 0)), low=0
        )
        tokens = [as_whole("input_ids", one, low=0) for one in as_list("input_ids", ids)][:most]
        if len(tokens) > prompt:
            kept.append((tokens, prompt))
    if not kept:
        raise ArgumentError(
            f"rows: none of {len(given)} has an answer within {most} tokens; expected input_ids "
            "longer than prompt_length"
        )
    length = max(len(tokens) for tokens, _ in kept)
    ids_XL = torch.tensor([tokens + [pad] * (length - len(tokens)) for tokens, _ in kept])
    sizes_X = torch.tensor([len(tokens) for tokens, _ in kept])
    prompt_X = torch.tensor([prompt for _, prompt in kept])
    place_L = torch.arange(length)
    real_XL = place_L < sizes_X[:, None]
    eligible_XL = real_XL & (place_L >= prompt_X[:, None])
    return Rows(ids_XL, eligible_XL, real_XL, len(given) - len(kept))


def variance_report(
    model: Callable[[Tensor, Tensor], Any],
    rows: Sequence[Mapping[str, Any]] | Rows,
    mask_id: int,
    *,
    parameters: Sequence[Tensor] = (),
    rates: int = 20,
    masks: int = 8,
    strata: int = 8,
    mix_uniform: float = 0.05,
    coordinates: int = 4096,
    seed: int = 0,
    eps: float = EPS,
    device: str = "cpu",
    on_row: Callable[[int, int], None] | None = None,
) -> VarianceReport:
    """Variance of a masked diffusion loss by source, and under each sampler.

    `model(input_ids, attention_mask)` gives logits (B, L, V), or an object that has them as `.logits`.
    `parameters` are the few tensors whose gradient is measured, at most `coordinates` numbers of them
    picked at random; the trace is scaled to all. `masks` is the number of pairs at each rate, `strata`
    those of StraTS. It takes `rows * rates * masks * 2` forward passes of a row; `on_row(done, of)` is
    told after each row.
    """
    as_function("model", model)
    table = rows if isinstance(rows, Rows) else collate(rows)
    if len(table.ids_XL) < 2:
        raise ArgumentError("rows: got 1 with an answer, expected at least 2 to tell data noise")
    rates = as_whole("rates", rates, low=5, high=10_000)
    masks = as_whole("masks", masks, low=2, high=10_000)
    strata = as_whole("strata", strata, low=1, high=rates)
    mix_uniform = as_number("mix_uniform", mix_uniform, low=0, high=1)
    generator = torch.Generator().manual_seed(as_seed("seed", seed))
    # Midpoints of equal cells: together they are all of [0, 1].
    grid_T = (torch.arange(rates, dtype=torch.float64) + 0.5) / rates
    picked = _picked(parameters, coordinates, generator)
    stats = []
    for place in range(len(table.ids_XL)):
        ids, eligible, attention = (part[place : place + 1].to(device) for part in table[:3])
        row = Rows(ids, eligible, attention, 0)
        stats.append(_measure_row(model, row, grid_T, masks, mask_id, generator, picked, eps))
        if on_row:
            on_row(place + 1, len(table.ids_XL))
    return _report(stats, grid_T, masks, strata, mix_uniform, picked)


class _Picked(NamedTuple):
    parameters: list[Tensor]
    index_N: Tensor
    scale: float


def _picked(parameters: Sequence[Tensor], most: int, generator: Generator) -> _Picked:
    """Coordinates of the gradient that are kept."""
    most = as_whole("coordinates", most, low=1)
    given = as_list("parameters", parameters)
    for one in given:
        if not isinstance(one, torch.Tensor) or not one.requires_grad:
            raise ArgumentError("parameters: expected tensors that require a gradient")
    size = sum(one.numel() for one in given)
    index_N = torch.arange(size)
    if size > most:
        index_N = torch.randperm(size, generator=generator)[:most].sort().values
    return _Picked(given, index_N, size / max(1, len(index_N)))


class _RowStats(NamedTuple):
    """Of one row: the table of losses, and moments of the loss (first) and of the gradient."""

    losses_TK: Tensor
    second: list[Tensor]
    """For the loss and the gradient: E|z|² of one mask, two, and MIRROR's pair, (3, T)."""
    mean: list[Tensor]
    """E z at each rate, (T, N)."""


def _measure_row(
    model: Callable[[Tensor, Tensor], Any],
    row: Rows,
    grid_T: Tensor,
    masks: int,
    mask_id: int,
    generator: Generator,
    picked: _Picked,
    eps: float,
) -> _RowStats:
    """All rates and pairs of masks of one row."""
    losses, second, mean = [], [], []
    length = row.ids_XL.shape[1]
    for t in grid_T:
        u_KL = torch.rand(masks, length, generator=generator, dtype=torch.float64)
        u_KL = u_KL.to(row.ids_XL.device)
        p = mask_chance(t, eps).to(u_KL)
        # MIRROR's pairs: the first K masks and their mirror images.
        mask_BL = torch.cat([u_KL < p, u_KL > 1 - p]) & row.eligible_XL
        ids_BL = row.ids_XL.expand(2 * masks, length)
        with torch.set_grad_enabled(bool(picked.parameters)):
            output = model(ids_BL.masked_fill(mask_BL, mask_id), row.attention_XL.expand_as(ids_BL))
            logits = getattr(output, "logits", output)
            nll_BL = token_nll(logits, ids_BL, mask_id)
            count_B = row.eligible_XL.sum(1).expand(2 * masks)
            loss_B = row_losses(nll_BL, mask_BL, p.to(nll_BL).expand(2 * masks), count_B)
        if not loss_B.isfinite().all():
            raise ArgumentError(f"model: gave a loss of {loss_B.max().item():g} at t = {t:g}")
        vectors = [loss_B.detach().double().cpu()[:, None]]
        if picked.parameters:
            vectors.append(_gradients(loss_B, picked))
        losses.append(vectors[0][:masks, 0])
        moments = [_second_moments(one, masks) for one in vectors]
        second.append(moments)
        mean.append([one.mean(0) for one in vectors])
    kinds = range(len(second[0]))
    return _RowStats(
        torch.stack(losses),
        [torch.stack([at[kind] for at in second], 1) for kind in kinds],
        [torch.stack([at[kind] for at in mean]) for kind in kinds],
    )


def _gradients(loss_B: Tensor, picked: _Picked) -> Tensor:
    """Gradient of each loss at the picked coordinates, (B, N)."""
    found = []
    for loss in loss_B:
        if not loss.requires_grad:
            raise ArgumentError("parameters: the loss does not depend on them")
        parts = torch.autograd.grad(
            loss, picked.parameters, retain_graph=True, materialize_grads=True
        )
        flat = torch.cat([part.flatten() for part in parts])
        found.append(flat[picked.index_N.to(flat.device)].double().cpu())
    return torch.stack(found).mul(picked.scale**0.5)


def _second_moments(z_BN: Tensor, masks: int) -> Tensor:
    """E|z|² of one mask, the mean of two independent ones, and MIRROR's, (3,)."""
    first_KN, second_KN = z_BN[:masks], z_BN[masks:]
    one = z_BN.square().sum(1).mean()
    # Each half is of independent masks; the two halves are not independent of each other.
    within = (first_KN.var(0).sum() + second_KN.var(0).sum()) / 2
    mirror = ((first_KN + second_KN) / 2).square().sum(1).mean()
    return torch.stack([one, one - within / 2, mirror])


def _report(
    stats: list[_RowStats],
    grid_T: Tensor,
    masks: int,
    strata: int,
    mix_uniform: float,
    picked: _Picked,
) -> VarianceReport:
    losses_XTK = torch.stack([one.losses_TK for one in stats])
    rows, rates = losses_XTK.shape[:2]
    second_T = torch.stack([one.second[0][0] for one in stats]).mean(0)
    root_T = second_T.clamp(min=0).sqrt()
    fit = fit_epr(grid_T, root_T, mix_uniform=mix_uniform)
    # Densities of integral 1 by the midpoint rule, which all integrals here use.
    densities = {"uniform": torch.ones_like(grid_T), "P-POTS": fit.p / fit.p.mean()}
    resamples = torch.randint(rows, (_DRAWS, rows), generator=torch.Generator().manual_seed(0))
    samplers = []
    for rate_name, p_T in densities.items():
        for count in dict.fromkeys((1, strata)):
            figures = [
                _variances([one.second[kind] for one in stats], [one.mean[kind] for one in stats])(
                    p_T, count, resamples
                )
                for kind in range(len(stats[0].second))
            ]
            for place, (mask_name, forwards) in enumerate(MASK_KINDS.items()):
                label = f"{rate_name}, {mask_name}" + (f", {count} strata" if count > 1 else "")
                gradient = figures[1][place] if len(figures) > 1 else None
                samplers.append(
                    SamplerVariance(
                        label, rate_name, mask_name, count, forwards, figures[0][place], gradient
                    )
                )
    return VarianceReport(
        _parts(losses_XTK, resamples),
        grid_T.tolist(),
        losses_XTK.mean((0, 2)).tolist(),
        root_T.tolist(),
        fit,
        samplers,
        rows,
        masks,
        rows * rates * masks * 2,
        len(picked.index_N),
    )


def _variances(
    second: list[Tensor], mean: list[Tensor]
) -> Callable[[Tensor, int, Tensor], list[Interval]]:
    """Variance of one row's draw, for three kinds of masks, as a function of density and strata."""
    second_X3T, mean_XTN = torch.stack(second), torch.stack(mean)

    def at(p_T: Tensor, strata: int, resamples_RX: Tensor) -> list[Interval]:
        rows = len(second_X3T)
        moment_X3 = (second_X3T / p_T).mean(2)
        # Integral of each row's mean over each stratum, (X, S, N), and all inner products of rows.
        parts_XSN = torch.einsum("st,xtn->xsn", _stratum_weights(p_T, strata), mean_XTN)
        inner_XX = strata * torch.einsum("xsn,ysn->xy", parts_XSN, parts_XSN)

        def square(index: Tensor) -> Tensor:
            """|mean over rows|², less what noise of few rows adds."""
            own = inner_XX[index][:, index]
            biased = own.mean()
            # The variance over rows: mean |h_x|² - |mean h|², with n - 1.
            spread = (own.diagonal().mean() - biased) * rows / (rows - 1)
            return biased - spread / rows

        def figure(index: Tensor) -> Tensor:
            return moment_X3[index].mean(0) - square(index)

        value_3 = figure(torch.arange(rows))
        drawn_R3 = torch.stack([figure(index) for index in resamples_RX])
        return [_interval(value_3[k], drawn_R3[:, k]) for k in range(3)]

    return at


def _stratum_weights(p_T: Tensor, strata: int) -> Tensor:
    """How much of each cell of the grid falls into each stratum of u, in units of t: (S, T)."""
    ends_T = (p_T / p_T.sum()).cumsum(0)
    starts_T = torch.cat([ends_T.new_zeros(1), ends_T[:-1]])
    edges = torch.arange(strata + 1, dtype=torch.float64) / strata
    low_S, high_S = edges[:-1, None], edges[1:, None]
    shared_ST = (torch.minimum(ends_T, high_S) - torch.maximum(starts_T, low_S)).clamp(min=0)
    return shared_ST / (ends_T - starts_T) / len(p_T)


def _parts(losses_XTK: Tensor, resamples_RX: Tensor) -> dict[str, Part]:
    """A, B and C with intervals over rows."""
    value = torch.stack(decompose_variance(losses_XTK, corrected=True))
    # A resample has equal rows, which the correction of C would take for less noise: its rows are
    # counted with n instead of n - 1 by the factor below.
    rows = len(losses_XTK)
    drawn = []
    for index in resamples_RX:
        if (index == index[0]).all():
            continue
        found = torch.stack(decompose_variance(losses_XTK[index], corrected=True))
        found[2] *= rows / (rows - 1)
        found[3] = found[:3].sum()
        drawn.append(found)
    drawn_R4 = torch.stack(drawn)
    shares_R4 = drawn_R4 / drawn_R4[:, 3:].clamp(min=1e-300)
    share = value / value[3].clamp(min=1e-300)
    return {
        name: Part(_interval(value[k], drawn_R4[:, k]), _interval(share[k], shares_R4[:, k]))
        for k, name in enumerate("ABC")
    }


def _interval(value: Tensor, drawn_R: Tensor) -> Interval:
    low, high = drawn_R.quantile(torch.tensor([0.025, 0.975], dtype=drawn_R.dtype)).tolist()
    return Interval(value.item(), low, high)
