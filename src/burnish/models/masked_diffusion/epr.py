"""The EPR curve: a smooth density through what each mask rate costs (P-POTS).

    fit = fit_epr(t_grid, w, mix_uniform=0.1)
    sample_t(fit.fine_grid, fit.fine_density, u)

Seven parameters, fitted by least KL from several starts at once (arXiv 2511.18159).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from burnish.arguments import as_number, as_whole, refused
from burnish.models.masked_diffusion.objective import as_rates
from burnish.models.masked_diffusion.rates import as_grid, normalised
from burnish.tensors import as_float64, check_finite, check_shape, torch

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.tensors import Numbers

FINE = 257
"""Points of the grid over [0, 1] that a fitted curve is drawn from."""
RUNAWAY = 2.0
"""Beyond the probe's rates a curve is at most this many times its largest value on them."""
FEWEST = 5
"""Rates with a loss that a fit needs."""
PARAMETERS = ("a", "b", "A", "r", "q", "kappa", "m")
_CENTRE = (-0.3, 0.4, -1.0, 0.3, 0.2, -0.2, 0.2)
_NOISE = 0.6


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
    found = _epr(
        t_X, *(torch.tensor(as_number(k, x, low=0), dtype=torch.float64) for k, x in given.items())
    )
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
    uniform, and a warning says so. Costs that are all 0 are refused.

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
        return _uniform(grid_T, share, f"{known} rates have a loss")
    target_T = normalised(w_T[is_known_T], grid_T[is_known_T], "w")
    # Gradients are needed here also where the caller's inference mode has turned them off.
    with torch.inference_mode(False):
        raw, kl = _least_kl(grid_T[is_known_T].clone(), target_T.clone(), starts, seed)
    named = dict(zip(PARAMETERS, _constrained(raw).tolist(), strict=True))
    return density_of(grid_T, named, share, kl=kl)


def fit_or_uniform(
    t_grid: Numbers, w: Numbers, n_starts: int = 20, mix_uniform: float = 0.0
) -> EprFit:
    """As `fit_epr`, but where every cost is 0 rates are uniform and a warning says so: a run goes on."""
    w_T = as_float64(w, "w")
    known_T = w_T[~w_T.isnan()]
    if len(known_T) >= FEWEST and (known_T == 0).all():
        return _uniform(as_grid(t_grid), mix_uniform, "every loss is 0")
    return fit_epr(t_grid, w_T, n_starts, mix_uniform)


def _uniform(grid_T: Tensor, share: float, found: str) -> EprFit:
    why = f"{found}; t is drawn uniformly (a fit needs {FEWEST} rates with losses above 0)"
    warnings.warn(f"fit_epr: {why}", RuntimeWarning, stacklevel=3)
    return density_of(grid_T, {}, share, fallback=why)


def density_of(
    t_grid: Numbers,
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
    grid_T = as_grid(t_grid)
    mix_uniform = as_number("mix_uniform", mix_uniform, low=0, high=1)
    if params:
        params = {name: as_number(name, params.get(name), low=0) for name in PARAMETERS}
    fine_F = torch.linspace(0, 1, FINE, dtype=torch.float64)
    numbers = [
        torch.tensor(float(params[name]), dtype=torch.float64) for name in PARAMETERS if params
    ]

    def density(at_T: Tensor) -> Tensor:
        if not params:
            return normalised(torch.ones_like(at_T), at_T, "w")
        most = RUNAWAY * _epr(grid_T, *numbers).max()
        curve_T = _epr(at_T, *numbers).clamp(max=most)
        return mixed(normalised(curve_T, at_T, "w"), at_T, mix_uniform)

    return EprFit(density(grid_T), dict(params), kl, mix_uniform, fine_F, density(fine_F), fallback)


def mixed(density_T: Tensor, grid_T: Tensor, share: float) -> Tensor:
    """A share of uniform draws, `(1 - share) p + share`, of integral 1 again."""
    return normalised((1 - share) * density_T + share, grid_T, "density")


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
    """Least values from several starts at once, each with its own inverse Hessian: (S, N) -> (S,).

    Our own, because neither the core nor the torch extra brings scipy.
    """
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
