"""Which mask rates t to train on: the best density, its fitted curve, and draws from it (P-POTS).

    moments = probe_moments(losses_XTK)                          # what each rate costs
    fit = fit_epr(t_grid, moments.w, mix_uniform=0.05)           # a smooth curve through it
    t, weight = sample_t(fit.fine_grid, fit.fine_density, u)     # E[weight * loss(t)] is unbiased

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
from typing import TYPE_CHECKING, NamedTuple

from burnish.arguments import as_number, as_whole, as_word, refused
from burnish.errors import ArgumentError
from burnish.models.masked_diffusion.objective import as_rates
from burnish.tensors import as_finite, as_float64, check_finite, check_shape, torch

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.tensors import Numbers

MAX_WEIGHT = 1e6
FINE = 257
"""Points of the grid over [0, 1] that a fitted curve is drawn from."""
FEWEST = 5
"""Rates with a loss that a fit needs."""
PARAMETERS = ("a", "b", "A", "r", "q", "kappa", "m")
_CENTRE = (-0.3, 0.4, -1.0, 0.3, 0.2, -0.2, 0.2)
_NOISE = 0.6


def optimal_t_density(g: Numbers, v: Numbers, t_grid: Numbers) -> Tensor:
    """The density of t with the least variance, `sqrt(g² + v)` of trapezoid integral 1: three (T,).

    `g` is the mean loss at each rate of the grid and `v` its variance there.

    >>> from burnish.models.masked_diffusion import optimal_t_density
    >>> optimal_t_density(g=[3.0, 3.0], v=[16.0, 16.0], t_grid=[0.0, 1.0]).tolist()
    [1.0, 1.0]
    """
    grid_T = as_grid(t_grid)
    second_T = _second_moment(g, v, grid_T)
    return _normalised(second_T.sqrt(), grid_T, "g and v")


def sampler_variance(p: Numbers, g: Numbers, v: Numbers, t_grid: Numbers) -> Tensor:
    """Variance of one weighted loss where t is drawn from `p`: `∫ (g² + v)/p dt - (∫ g dt)²`.

    `p` is a density on the grid whose trapezoid integral is 1, as `optimal_t_density` gives it.

    >>> from burnish.models.masked_diffusion import sampler_variance
    >>> sampler_variance(p=[1.0, 1.0], g=[3.0, 3.0], v=[16.0, 16.0], t_grid=[0.0, 1.0]).item()
    16.0
    """
    grid_T = as_grid(t_grid)
    second_T = _second_moment(g, v, grid_T)
    p_T = _on_grid(p, "p", grid_T)
    never_T = (p_T == 0) & (second_T > 0)
    if never_T.any():
        at = grid_T[never_T][0].item()
        raise ArgumentError(
            f"p: is 0 at t = {at:g}, where there is a loss; expected a density above 0"
        )
    ratio_T = torch.where(second_T > 0, second_T / p_T.clamp(min=1e-300), 0.0)
    g_T = as_finite(g, "g").to(grid_T)
    return torch.trapezoid(ratio_T, grid_T) - torch.trapezoid(g_T, grid_T).square()


def epr_density(
    t: Numbers, a: float, b: float, A: float, r: float, q: float, kappa: float, m: float
) -> Tensor:
    """EPR curve, `sqrt(a t^r + b (1 - t)^q + (A exp(kappa t^m))²)`; not normalised.

    >>> from burnish.models.masked_diffusion import epr_density
    >>> epr_density([0.0, 1.0], a=5.0, b=3.0, A=1.0, r=1.0, q=2.0, kappa=0.0, m=1.0).tolist()
    [2.0, 2.449489742783178]
    """
    t_X = as_rates(t, "t")
    if not t_X.numel():
        raise refused("t", t, "at least one rate")
    given = {"a": a, "b": b, "A": A, "r": r, "q": q, "kappa": kappa, "m": m}
    found = _epr(t_X, *(torch.tensor(as_number(k, x, low=0)).double() for k, x in given.items()))
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


def fit_epr(
    t_grid: Numbers, w: Numbers, n_starts: int = 20, mix_uniform: float = 0.0, *, seed: int = 0
) -> EprFit:
    """Fit the EPR curve to `w`, what each rate of the grid costs: least KL(w ‖ curve).

    BFGS from `n_starts` points; a missing cost (NaN or None) is left out. `mix_uniform` draws that
    share uniformly, which bounds the weights by its inverse. With fewer than 5 costs the density is
    uniform, and a warning says so.

    >>> from burnish.models.masked_diffusion import fit_epr
    >>> grid = [0.1, 0.3, 0.5, 0.7, 0.9]
    >>> [round(x, 3) for x in fit_epr(grid, [1.0, 1.0, 1.0, 1.0, 1.0], n_starts=3).p.tolist()]
    [1.25, 1.25, 1.25, 1.25, 1.25]
    """
    grid_T = as_grid(t_grid)
    starts = as_whole("n_starts", n_starts, low=1, high=10_000)
    share = as_number("mix_uniform", mix_uniform, low=0, high=1)
    seed = as_whole("seed", seed, low=0, high=2**32 - 1)
    w_T = as_float64(w, "w").to(grid_T.device)
    check_shape(w_T, "w", tuple(grid_T.shape))
    is_known_T = ~w_T.isnan()
    check_finite(w_T, "w", is_known_T)
    if (w_T[is_known_T] < 0).any():
        raise refused("w", w_T.tolist(), "costs of at least 0")
    known = int(is_known_T.sum())
    if known < FEWEST:
        why = f"{known} rates have a loss, a fit needs {FEWEST}; t is drawn uniformly"
        warnings.warn(f"fit_epr: {why}", RuntimeWarning, stacklevel=2)
        return density_of(grid_T, {}, share, fallback=why)
    target_T = _normalised(w_T[is_known_T], grid_T[is_known_T], "w")
    raw, kl = _least_kl(grid_T[is_known_T], target_T, starts, seed)
    named = dict(zip(PARAMETERS, _constrained(raw).tolist(), strict=True))
    return density_of(grid_T, named, share, kl=kl)


def density_of(
    t_grid: Numbers,
    params: Mapping[str, float],
    mix_uniform: float,
    *,
    kl: float | None = None,
    fallback: str = "",
) -> EprFit:
    """A fit from its parameters, as a checkpoint keeps them; uniform without parameters."""
    grid_T = as_grid(t_grid)
    fine_F = torch.linspace(0, 1, FINE, dtype=torch.float64)

    def density(at_T: Tensor) -> Tensor:
        if not params:
            return _normalised(torch.ones_like(at_T), at_T, "w")
        curve_T = epr_density(at_T, **{name: params[name] for name in PARAMETERS})
        return mixed(_normalised(curve_T, at_T, "w"), at_T, mix_uniform)

    return EprFit(density(grid_T), dict(params), kl, mix_uniform, fine_F, density(fine_F), fallback)


def mixed(density_T: Tensor, grid_T: Tensor, share: float) -> Tensor:
    """A share of uniform draws, `(1 - share) p + share`, of integral 1 again."""
    return _normalised((1 - share) * density_T + share, grid_T, "density")


class Rates(NamedTuple):
    """Drawn rates, float64, of the shape of u."""

    t: Tensor
    weight: Tensor
    """`1/p(t)`, at most `max_weight`; clipped ones bias the loss."""


def sample_t(
    t_grid: Numbers,
    density: Numbers,
    u: Numbers,
    max_weight: float = MAX_WEIGHT,
    cells: str = "linear",
) -> Rates:
    """Rates by the inverse of the distribution function at `u`, and weights `1/p(t)`.

    The density is normalised by the trapezoid rule. Between two grid points it is `linear` and the
    inverse is quadratic; `constant` takes the mean of both ends. For both, the weight belongs to what
    was drawn from. `reference` draws as `constant` and weighs as `linear`, which is a little biased.
    All three agree on a flat density, and more closely the finer the grid is.

    >>> from burnish.models.masked_diffusion import sample_t
    >>> found = sample_t(t_grid=[0.0, 1.0], density=[0.0, 5.0], u=[0.25, 1.0])
    >>> found.t.tolist(), found.weight.tolist()
    ([0.5, 1.0], [1.0, 0.5])
    """
    cells = as_word("cells", cells, ("linear", "constant", "reference"))
    most = as_number("max_weight", max_weight, above=0)
    grid_T = as_grid(t_grid)
    p_T = _normalised(_on_grid(density, "density", grid_T), grid_T, "density")
    u_X = as_finite(u, "u").to(grid_T.device)
    if not u_X.numel() or not ((u_X >= 0) & (u_X <= 1)).all():
        raise refused("u", u, "numbers from 0 to 1")
    return inverse_cdf(grid_T, p_T, u_X, most, cells)


def inverse_cdf(
    grid_T: Tensor, p_T: Tensor, u_X: Tensor, max_weight: float, cells: str = "linear"
) -> Rates:
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
    if cells == "linear":
        slope_X = (p_T[cell_X + 1] - low_X) / width_X
        here_X = (low_X.square() + 2 * slope_X * left_X).clamp(min=0).sqrt()
        step_X = 2 * left_X / (low_X + here_X).clamp(min=1e-300)
    else:
        here_X = mass_C[cell_X] / width_X
        step_X = left_X / here_X
    step_X = torch.minimum(step_X, width_X)
    if cells == "reference":
        here_X = low_X + (p_T[cell_X + 1] - low_X) * step_X / width_X
    return Rates(grid_T[cell_X] + step_X, (1 / here_X.clamp(min=1e-300)).clamp(max=max_weight))


class Strata(NamedTuple):
    """How n rates are spread over strata of equal width."""

    count: int  # type: ignore[assignment]  # the published name; a tuple's count() is not needed
    """Strata."""
    per_stratum: int
    """Rates that every stratum gets."""
    extra: int
    """Strata, drawn at random, that get one more."""


def stratum_counts(n: int, rounding: str = "ceil") -> Strata:
    """Strata for the n rates of one update: `k = ceil(sqrt(n))`, `n // k` each, the rest at random.

    `rounding="floor"` is the reference's number of strata.

    >>> from burnish.models.masked_diffusion import stratum_counts
    >>> stratum_counts(10)
    Strata(count=4, per_stratum=2, extra=2)
    """
    n = as_whole("n", n, low=1, high=2**53)
    rounding = as_word("rounding", rounding, ("ceil", "floor"))
    root = math.isqrt(n)
    count = root + 1 if rounding == "ceil" and root * root < n else root
    return Strata(count, n // count, n % count)


class Moments(NamedTuple):
    """Of the loss at each rate, float64 (T,)."""

    g: Tensor
    """Mean."""
    v: Tensor
    """Variance: all of it, or that over masks alone (`within`)."""
    w: Tensor
    """`sqrt(g² + v)`, to which the best density is proportional; NaN where no loss is known."""


def probe_moments(
    losses: Numbers, loss_max: float | None = 10.0, moment: str = "second"
) -> Moments:
    """What each rate costs, from a table of losses [x0, t, pattern].

    `second` is the root of the mean squared loss, exact for the variance of a draw; `within` is the
    reference's, which leaves out how rows differ. Losses are cut at `loss_max`; None cuts nothing. A
    missing loss is NaN or None.

    >>> from burnish.models.masked_diffusion import probe_moments
    >>> probe_moments([[[3.0, 3.0]], [[1.0, 1.0]]], moment="within").w.tolist()
    [2.0]
    """
    moment = as_word("moment", moment, ("second", "within"))
    losses_XTK = as_float64(losses, "losses")
    if losses_XTK.ndim != 3 or not losses_XTK.numel():
        raise ArgumentError(
            f"losses: got shape {tuple(losses_XTK.shape)}, expected (x0, t, pattern)"
        )
    check_finite(losses_XTK, "losses", ~losses_XTK.isnan())
    if loss_max is not None:
        losses_XTK = losses_XTK.clamp(max=as_number("loss_max", loss_max, above=0))
    g_T = losses_XTK.nanmean((0, 2))
    if moment == "second":
        v_T = (losses_XTK - g_T[None, :, None]).square().nanmean((0, 2))
    else:
        centred_XTK = losses_XTK - losses_XTK.nanmean(2, keepdim=True)
        v_T = centred_XTK.square().nanmean(2).nanmean(0)
    return Moments(g_T, v_T, (g_T.square() + v_T).sqrt())


def as_grid(values: Numbers) -> Tensor:
    """Rates of a grid: at least two, increasing, from 0 to 1."""
    grid_T = as_rates(values, "t_grid")
    if grid_T.ndim != 1 or len(grid_T) < 2 or not (grid_T.diff() > 0).all():
        raise refused("t_grid", grid_T.tolist(), "at least two increasing rates")
    return grid_T


def _second_moment(g: Numbers, v: Numbers, grid_T: Tensor) -> Tensor:
    g_T = as_finite(g, "g").to(grid_T)
    check_shape(g_T, "g", tuple(grid_T.shape))
    return g_T.square() + _on_grid(v, "v", grid_T)


def _on_grid(values: Numbers, what: str, grid_T: Tensor) -> Tensor:
    read_T = as_finite(values, what).to(grid_T)
    check_shape(read_T, what, tuple(grid_T.shape))
    if (read_T < 0).any():
        raise refused(what, read_T.tolist(), "values of at least 0")
    return read_T


def _normalised(values_T: Tensor, grid_T: Tensor, what: str) -> Tensor:
    area = torch.trapezoid(values_T, grid_T)
    if not area > 0:
        raise ArgumentError(f"{what}: the integral is 0, expected a density above 0 somewhere")
    return values_T / area


def _epr(t: Tensor, *curve: Tensor) -> Tensor:
    a, b, A, r, q, kappa, m = curve
    return (a * t**r + b * (1 - t) ** q + (A * (kappa * t**m).exp()).square()).sqrt()


def _constrained(raw_XN: Tensor) -> Tensor:
    """Free numbers as a, b, A > 0, r, q, m >= 1, kappa >= 0 (in the order a b A r q kappa m)."""
    least = (1e-9, 1e-9, 1e-9, 1.0, 1.0, 0.0, 1.0)
    return torch.nn.functional.softplus(raw_XN) + torch.tensor(least, dtype=raw_XN.dtype)


def _least_kl(grid_T: Tensor, target_T: Tensor, starts: int, seed: int) -> tuple[Tensor, float]:
    """The best of several starts and its KL."""
    centre_N = torch.tensor(_CENTRE, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    spread_SN = torch.randn(starts, len(_CENTRE), generator=generator, dtype=torch.float64)
    begin_SN = centre_N + _NOISE * spread_SN
    log_T = torch.where(target_T > 0, target_T.clamp(min=1e-300).log(), 0.0)

    def divergence(raw_SN: Tensor) -> Tensor:
        p_ST = _epr(grid_T, *_constrained(raw_SN).T[:, :, None])
        log_p_ST = (p_ST / torch.trapezoid(p_ST, grid_T)[:, None]).log()
        return torch.trapezoid(target_T * (log_T - log_p_ST), grid_T)

    found_SN, kl_S = _bfgs(divergence, begin_SN)
    best = int(kl_S.argmin())
    return found_SN[best], max(kl_S[best].item(), 0.0)


def _bfgs(
    function: Callable[[Tensor], Tensor], begin_SN: Tensor, iterations: int = 300
) -> tuple[Tensor, Tensor]:
    """Least values from several starts at once, each with its own inverse Hessian: (S, N) -> (S,)."""
    at_SN = begin_SN.clone()
    value_S, gradient_SN = _with_gradient(function, at_SN)
    eye_NN = torch.eye(at_SN.shape[1], dtype=at_SN.dtype)
    inverse_SNN = eye_NN.repeat(len(at_SN), 1, 1)
    is_done_S = torch.zeros_like(value_S, dtype=torch.bool)
    for _ in range(iterations):
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
