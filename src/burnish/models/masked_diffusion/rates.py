"""Which mask rates t to train on: the best density, its fitted curve, and draws from it (P-POTS).

Rates drawn from p(t) at weight 1/p(t) leave the expected loss as it is. The variance of one draw is
`∫ (g² + v)/p dt - (∫ g dt)²`, g and v being the mean and the variance of the loss at a rate; it is
least for `p* ∝ sqrt(g² + v)` (arXiv 2511.18159). Where we differ from the release: v counts how data
differ too (`moment="within"` is the release's), the density reaches both ends of [0, 1], and weights
belong to the very density that was drawn from.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from msgspec import Meta

from burnish.arguments import refused
from burnish.boundary import (
    MISSING,
    SOME,
    NonNegative,
    Positive,
    PositiveInt,
    Seed,
    Share,
    public,
)
from burnish.errors import ArgumentError
from burnish.tensors import check_finite, torch

if TYPE_CHECKING:
    from jaxtyping import Float64
    from torch import Tensor

    Grid = Annotated[Float64[Tensor, " T"], Meta(ge=0, le=1)]
    Costs = Annotated[Float64[Tensor, " T"], Meta(ge=0)]
    Table = Annotated[Float64[Tensor, "X T K"], MISSING, SOME]
    Known = Annotated[Float64[Tensor, "X T"], Meta(ge=0, le=1)]

Moment = Literal["second", "within"]

MAX_WEIGHT = 1e6
MIX_UNIFORM = 0.1
"""Share of uniform draws in runs and reports; the bare fit has none."""
FINE = 257
"""Points of the grid over [0, 1] that a fitted curve is drawn from."""
RUNAWAY = 2.0
"""Beyond the probe's rates a curve is at most this many times its largest value on them."""
FEWEST = 5
"""Rates with a loss that a fit needs."""
PARAMETERS = ("a", "b", "A", "r", "q", "kappa", "m")


class Cells(NamedTuple):
    """Cells that together are all of [0, 1]."""

    t_T: Tensor
    """Their middles."""
    width_T: Tensor


def rate_cells(rates: int) -> Cells:
    """The rates that a probe and a variance report measure: small cells where t is small.

    Their edges are the squares of 0, 1/T, ..., 1. At small t a loss is of the order 1/p: a grid j/T would
    begin where most of the noise of short answers lies before it.
    """
    edges = (torch.arange(rates + 1, dtype=torch.float64) / rates).square()
    return Cells((edges[1:] + edges[:-1]) / 2, edges.diff())


@public
def optimal_t_density(g: Float64[Tensor, " T"], v: Costs, t_grid: Grid) -> Tensor:
    """The density of t with the least variance, `sqrt(g² + v)` of trapezoid integral 1: three (T,).

    `g` is the mean loss at each rate of the grid and `v` its variance there.

    >>> optimal_t_density(g=[3.0, 3.0], v=[16.0, 16.0], t_grid=[0.0, 1.0]).tolist()
    [1.0, 1.0]
    """
    check_grid(t_grid)
    return normalised((g.square() + v).sqrt(), t_grid, "g and v")


@public
def sampler_variance(p: Costs, g: Float64[Tensor, " T"], v: Costs, t_grid: Grid) -> Tensor:
    """Variance of one weighted loss where t is drawn from `p`: `∫ (g² + v)/p dt - (∫ g dt)²`.

    `p` is a density on the grid whose trapezoid integral is 1, as `optimal_t_density` gives it.

    >>> sampler_variance(p=[1.0, 1.0], g=[3.0, 3.0], v=[16.0, 16.0], t_grid=[0.0, 1.0]).item()
    16.0
    """
    check_grid(t_grid)
    area, second_T = torch.trapezoid(p, t_grid).item(), g.square() + v
    if abs(area - 1) > 1e-3 or ((p == 0) & (second_T > 0)).any():
        raise refused("p", f"integral {area:g}", "1, and above 0 where there is a loss")
    ratio_T = torch.where(second_T > 0, second_T / p.clamp(min=1e-300), 0.0)
    return torch.trapezoid(ratio_T, t_grid) - torch.trapezoid(g, t_grid).square()


class Rates(NamedTuple):
    """Drawn rates, float64, of the shape of u."""

    t: Tensor
    weight: Tensor
    """`1/p(t)`, at most `max_weight`; clipped ones bias the loss."""


@public
def sample_t(
    t_grid: Grid,
    density: Costs,
    u: Annotated[Float64[Tensor, "*X"], Meta(ge=0, le=1)],
    max_weight: Positive = MAX_WEIGHT,
) -> Rates:
    """Rates by the inverse of the distribution function at `u`, and weights `1/p(t)`.

    The density is normalised by the trapezoid rule. Between two grid points it is linear and the
    inverse quadratic, so that a weight belongs to the very density that was drawn from.

    >>> found = sample_t(t_grid=[0.0, 1.0], density=[0.0, 5.0], u=[0.25, 1.0])
    >>> found.t.tolist(), found.weight.tolist()
    ([0.5, 1.0], [1.0, 0.5])
    """
    check_grid(t_grid)
    return inverse_cdf(t_grid, normalised(density, t_grid, "density"), u, max_weight)


def inverse_cdf(grid_T: Tensor, p_T: Tensor, u_X: Tensor, max_weight: float) -> Rates:
    """As `sample_t` for a density of integral 1; values are not looked at."""
    width_C = grid_T.diff()
    mass_C = (p_T[1:] + p_T[:-1]) / 2 * width_C
    ends_C = mass_C.cumsum(0)
    ends_C = ends_C / ends_C[-1]
    starts_C = torch.cat([ends_C.new_zeros(1), ends_C[:-1]])
    # Cells without mass are never drawn from, not even by u = 1.
    last = int(mass_C.nonzero()[-1])
    cell_X = torch.searchsorted(ends_C, u_X.contiguous(), right=True).clamp(max=last)
    left_X = (u_X - starts_C[cell_X]).clamp(min=0)
    low_X, width_X = p_T[cell_X], width_C[cell_X]
    slope_X = (p_T[cell_X + 1] - low_X) / width_X
    here_X = (low_X.square() + 2 * slope_X * left_X).clamp(min=0).sqrt()
    step_X = torch.minimum(2 * left_X / (low_X + here_X).clamp(min=1e-300), width_X)
    return Rates(grid_T[cell_X] + step_X, (1 / here_X.clamp(min=1e-300)).clamp(max=max_weight))


class Strata(NamedTuple):
    """How n rates are spread over strata of equal width."""

    count: int  # type: ignore[assignment]  # the published name; a tuple's count() is not needed
    """Strata."""
    per_stratum: int
    """Rates that every stratum gets."""
    extra: int
    """Strata, drawn at random, that get one more."""


@public
def stratum_counts(n: PositiveInt) -> Strata:
    """Strata for the n rates of one update: `k = ceil(sqrt(n))`, `n // k` each, the rest at random.

    >>> stratum_counts(10)
    Strata(count=4, per_stratum=2, extra=2)
    """
    count = math.isqrt(n - 1) + 1
    return Strata(count, n // count, n % count)


class Moments(NamedTuple):
    """Of the loss at each rate, float64 (T,)."""

    g: Tensor
    """Mean."""
    v: Tensor
    """Variance: all of it, or that over masks alone (`within`)."""
    w: Tensor
    """`sqrt(g² + v)`, to which the best density is proportional; NaN where no loss is known."""


@public
def probe_moments(
    losses: Table,
    loss_max: Positive | None = 10.0,
    moment: Moment = "second",
    chances: Known | None = None,
) -> Moments:
    """What each rate costs, from a table of losses [x0, t, pattern].

    `second` is the root of the mean squared loss, exact for the variance of a draw; `within` is the
    reference's, which leaves out how rows differ. Losses are cut at `loss_max`; None cuts nothing. A
    missing loss is NaN or None. `chances` [x0, t] says how likely a mask is to be one of the table's,
    where that has no empty ones: all others have loss 0.

    >>> probe_moments([[[3.0, 3.0]], [[1.0, 1.0]]], moment="within").w.tolist()
    [2.0]
    """
    if loss_max is not None:
        losses = losses.clamp(max=loss_max)
    chance_XT1 = losses.new_ones(losses.shape[:2]) if chances is None else chances.to(losses)
    chance_XT1 = chance_XT1[:, :, None]

    def spread(centre: Tensor) -> Tensor:
        """Squared distance from a centre, masks that are not in the table included: (X, T, K)."""
        return chance_XT1 * (losses - centre).square() + (1 - chance_XT1) * centre.square()

    g_T = (chance_XT1 * losses).nanmean((0, 2))
    if moment == "second":
        v_T = spread(g_T[None, :, None]).nanmean((0, 2))
    else:
        v_T = spread(chance_XT1 * losses.nanmean(2, keepdim=True)).nanmean(2).nanmean(0)
    return Moments(g_T, v_T, (g_T.square() + v_T).sqrt())


def check_grid(grid_T: Tensor) -> None:
    """Refuse a grid of rates over which nothing can be summed up."""
    if len(grid_T) < 2 or not (grid_T.diff() > 0).all():
        raise ArgumentError("t_grid: expected at least two increasing rates")


def normalised(values_T: Tensor, grid_T: Tensor, what: str) -> Tensor:
    """A density of trapezoid integral 1."""
    area = torch.trapezoid(values_T, grid_T)
    if not area > 0:
        raise ArgumentError(f"{what}: the integral is 0, expected a density above 0 somewhere")
    return values_T / area


@public
def epr_density(
    t: Annotated[Float64[Tensor, "*X"], Meta(ge=0, le=1)],
    a: NonNegative,
    b: NonNegative,
    A: NonNegative,
    r: NonNegative,
    q: NonNegative,
    kappa: NonNegative,
    m: NonNegative,
) -> Tensor:
    """EPR curve, `sqrt(a t^r + b (1 - t)^q + (A exp(kappa t^m))²)`; not normalised.

    >>> epr_density([0.0, 1.0], a=5.0, b=3.0, A=1.0, r=1.0, q=2.0, kappa=0.0, m=1.0).tolist()
    [2.0, 2.449489742783178]
    """
    found = _epr(t, *torch.tensor([a, b, A, r, q, kappa, m], dtype=torch.float64))
    check_finite(found, "the density of these A, kappa")
    return found


class EprFit(NamedTuple):
    """A curve through what each rate costs."""

    p: Tensor
    """Density on the given grid, trapezoid integral 1, the uniform share included."""
    params: dict[str, float]
    """a, b, A, r, q, kappa, m; empty where the fit fell back to uniform."""
    kl: float | None
    """Of the costs to the curve, before the uniform share; None without a fit."""
    mix_uniform: float
    fine_grid: Tensor
    """From 0 to 1, both included."""
    fine_density: Tensor
    """The same curve on `fine_grid`: what training draws from."""
    fallback: str
    """Why there is no fit and p is uniform; empty where there is one."""


@public
def fit_epr(
    t_grid: Grid,
    w: Annotated[Float64[Tensor, " T"], Meta(ge=0), MISSING],
    n_starts: PositiveInt = 20,
    mix_uniform: Share = 0.0,
    *,
    seed: Seed = 0,
) -> EprFit:
    """Fit the EPR curve to `w`, what each rate of the grid costs: least KL(w ‖ curve).

    BFGS from `n_starts` points; a missing cost (NaN or None) is left out. `mix_uniform` draws that
    share uniformly, which bounds the weights by its inverse. With fewer than 5 costs the density is
    uniform, and a warning says so. Costs that are all 0 are refused.

    >>> grid = [0.1, 0.3, 0.5, 0.7, 0.9]
    >>> [round(x, 3) for x in fit_epr(grid, [1.0, 1.0, 1.0, 1.0, 1.0], n_starts=3).p.tolist()]
    [1.25, 1.25, 1.25, 1.25, 1.25]
    """
    check_grid(t_grid)
    is_known_T = ~w.isnan()
    known = int(is_known_T.sum())
    if known < FEWEST:
        return _uniform(t_grid, mix_uniform, f"{known} rates have a loss")
    # Gradients are needed here also where the caller's inference mode has turned them off.
    with torch.inference_mode(False):
        grid_T = t_grid[is_known_T].clone()
        target_T = normalised(w[is_known_T], grid_T, "w").clone()
        centre_N = torch.tensor((-0.3, 0.4, -1.0, 0.3, 0.2, -0.2, 0.2), dtype=torch.float64)
        generator = torch.Generator().manual_seed(seed)
        shape = (n_starts, len(centre_N))
        spread_SN = torch.randn(shape, generator=generator, dtype=torch.float64)
        log_T = torch.where(target_T > 0, target_T.clamp(min=1e-300).log(), 0.0)

        def divergence(raw_SN: Tensor) -> Tensor:
            p_ST = _epr(grid_T, *_constrained(raw_SN).T[:, :, None])
            log_p_ST = (p_ST / torch.trapezoid(p_ST, grid_T)[:, None]).log()
            return torch.trapezoid(target_T * (log_T - log_p_ST), grid_T)

        found_SN, kl_S = _bfgs(divergence, centre_N + 0.6 * spread_SN)
    best = int(kl_S.argmin())
    named = dict(zip(PARAMETERS, _constrained(found_SN[best]).tolist(), strict=True))
    return density_of(t_grid, named, mix_uniform, kl=max(kl_S[best].item(), 0.0))


def fit_or_uniform(
    grid_T: Tensor, w_T: Tensor, n_starts: int = 20, mix_uniform: float = 0.0
) -> EprFit:
    """As `fit_epr`, but where every cost is 0 rates are uniform and a warning says so: a run goes on."""
    known_T = w_T[~w_T.isnan()]
    if len(known_T) >= FEWEST and (known_T == 0).all():
        return _uniform(grid_T, mix_uniform, "every loss is 0")
    return fit_epr.plain(grid_T, w_T, n_starts, mix_uniform)


def _uniform(grid_T: Tensor, share: float, found: str) -> EprFit:
    why = f"{found}; t is drawn uniformly (a fit needs {FEWEST} rates with losses above 0)"
    warnings.warn(f"fit_epr: {why}", RuntimeWarning, stacklevel=3)
    return density_of(grid_T, {}, share, fallback=why)


def density_of(
    grid_T: Tensor,
    params: Mapping[str, float],
    mix_uniform: float,
    *,
    kl: float | None = None,
    fallback: str = "",
) -> EprFit:
    """A fit from its parameters, as a checkpoint keeps them; uniform without parameters.

    Beyond the ends of the grid, where nothing was measured, the curve may run away: there it is held
    at `RUNAWAY` times its largest value on the grid.
    """
    fine_F = torch.linspace(0, 1, FINE, dtype=torch.float64)
    numbers = torch.tensor([params[name] for name in PARAMETERS if params], dtype=torch.float64)

    def density(at_T: Tensor) -> Tensor:
        if not params:
            return normalised(torch.ones_like(at_T), at_T, "w")
        most = RUNAWAY * _epr(grid_T, *numbers).max()
        curve_T = normalised(_epr(at_T, *numbers).clamp(max=most), at_T, "w")
        return normalised((1 - mix_uniform) * curve_T + mix_uniform, at_T, "density")

    return EprFit(density(grid_T), dict(params), kl, mix_uniform, fine_F, density(fine_F), fallback)


def _epr(t: Tensor, *curve: Tensor) -> Tensor:
    a, b, A, r, q, kappa, m = curve
    return (a * t**r + b * (1 - t) ** q + (A * (kappa * t**m).exp()).square()).sqrt()


def _constrained(raw_XN: Tensor) -> Tensor:
    """Free numbers as a, b, A > 0, r, q, m >= 1, kappa >= 0 (in the order a b A r q kappa m)."""
    least = (1e-9, 1e-9, 1e-9, 1.0, 1.0, 0.0, 1.0)
    return torch.nn.functional.softplus(raw_XN) + torch.tensor(least, dtype=raw_XN.dtype)


def _bfgs(function: Callable[[Tensor], Tensor], begin_SN: Tensor) -> tuple[Tensor, Tensor]:
    """Least values from several starts at once, each with its own inverse Hessian: (S, N) -> (S,).

    Our own, because neither the core nor the torch extra brings scipy.
    """
    at_SN = begin_SN.clone()
    value_S, gradient_SN = _with_gradient(function, at_SN)
    eye_NN = torch.eye(at_SN.shape[1], dtype=at_SN.dtype)
    inverse_SNN = eye_NN.repeat(len(at_SN), 1, 1)
    is_done_S = torch.zeros_like(value_S, dtype=torch.bool)
    for _ in range(300):
        step_SN = -(inverse_SNN @ gradient_SN[:, :, None])[:, :, 0]
        fall_S = (step_SN * gradient_SN).sum(1)
        size_S = _armijo(function, at_SN, value_S, step_SN, fall_S, is_done_S)
        before_S = value_S
        moved_SN = size_S[:, None] * step_SN
        at_SN = at_SN + moved_SN
        value_S, next_SN = _with_gradient(function, at_SN)
        is_done_S = before_S - value_S <= 1e-13
        if is_done_S.all():
            break
        turned_SN = next_SN - gradient_SN
        gradient_SN = next_SN
        curvature_S = (moved_SN * turned_SN).sum(1)
        is_good_S = curvature_S > 1e-14 * moved_SN.norm(dim=1) * turned_SN.norm(dim=1)
        rho_S = 1 / curvature_S.where(is_good_S, torch.ones_like(curvature_S))
        left_SNN = eye_NN - rho_S[:, None, None] * moved_SN[:, :, None] * turned_SN[:, None, :]
        update_SNN = left_SNN @ inverse_SNN @ left_SNN.transpose(1, 2)
        update_SNN += rho_S[:, None, None] * moved_SN[:, :, None] * moved_SN[:, None, :]
        # A start whose curvature is lost goes on from steepest descent.
        inverse_SNN = torch.where(is_good_S[:, None, None], update_SNN, eye_NN)
    return at_SN, value_S


def _armijo(
    function: Callable[[Tensor], Tensor],
    at_SN: Tensor,
    value_S: Tensor,
    step_SN: Tensor,
    fall_S: Tensor,
    is_done_S: Tensor,
) -> Tensor:
    """The largest of 1, 1/2, 1/4, ... that lowers each value enough; 0 where none does or is asked for."""
    # Free numbers far out change nothing but overflow exp.
    size_S = (5.0 / step_SN.abs().amax(1).clamp(min=1e-300)).clamp(max=1.0)
    found_S = torch.zeros_like(size_S)
    for _ in range(20):
        tried_S = function(at_SN + size_S[:, None] * step_SN)
        is_lower_S = ~is_done_S & (tried_S < value_S + 1e-4 * size_S * fall_S)
        found_S = torch.where((found_S == 0) & is_lower_S, size_S, found_S)
        if (is_done_S | (found_S > 0)).all():
            break
        size_S = size_S / 2
    return found_S


def _with_gradient(function: Callable[[Tensor], Tensor], at_SN: Tensor) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        free_SN = at_SN.detach().requires_grad_()
        value_S = function(free_SN)
        (gradient_SN,) = torch.autograd.grad(value_S.sum(), free_SN)
    return value_S.detach(), gradient_SN
