"""Which mask rates t to train on: the best density, its fitted curve, and draws from it (P-POTS).

    moments = probe_moments(losses_XTK)                          # what each rate costs
    fit = fit_epr(t_grid, moments.w, mix_uniform=0.1)            # a smooth curve through it
    t, weight = sample_t(fit.fine_grid, fit.fine_density, u)     # E[weight * loss(t)] is unbiased

Rates drawn from p(t) at weight 1/p(t) leave the expected loss as it is. The variance of one draw is
`∫ (g² + v)/p dt - (∫ g dt)²`, g and v being the mean and the variance of the loss at a rate; it is
least for `p* ∝ sqrt(g² + v)` (arXiv 2511.18159). Where we differ from the release: v counts how data
differ too (`moment="within"` is the release's), the density reaches both ends of [0, 1], and weights
belong to the very density that was drawn from.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from burnish.arguments import as_number, as_whole, as_word, refused
from burnish.errors import ArgumentError
from burnish.models.masked_diffusion.objective import as_rates
from burnish.tensors import as_finite, as_float64, check_finite, check_shape, torch

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.tensors import Numbers

MOMENTS = ("second", "within")
MAX_WEIGHT = 1e6
MIX_UNIFORM = 0.1
"""Share of uniform draws in runs and reports; the bare fit has none."""
AREA_TOLERANCE = 1e-3
"""How far from 1 the integral of a given density may be."""


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
    count = as_whole("rates", rates, low=2, high=100_000)
    edges = (torch.arange(count + 1, dtype=torch.float64) / count).square()
    return Cells((edges[1:] + edges[:-1]) / 2, edges.diff())


def optimal_t_density(g: Numbers, v: Numbers, t_grid: Numbers) -> Tensor:
    """The density of t with the least variance, `sqrt(g² + v)` of trapezoid integral 1: three (T,).

    `g` is the mean loss at each rate of the grid and `v` its variance there.

    >>> from burnish.models.masked_diffusion import optimal_t_density
    >>> optimal_t_density(g=[3.0, 3.0], v=[16.0, 16.0], t_grid=[0.0, 1.0]).tolist()
    [1.0, 1.0]
    """
    grid_T = as_grid(t_grid)
    second_T = _second_moment(g, v, grid_T)
    return normalised(second_T.sqrt(), grid_T, "g and v")


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
    area = torch.trapezoid(p_T, grid_T).item()
    if abs(area - 1) > AREA_TOLERANCE:
        raise ArgumentError(
            f"p: its trapezoid integral over t_grid is {area:g}, expected 1 (to {AREA_TOLERANCE:g}); "
            "divide p by it"
        )
    never_T = (p_T == 0) & (second_T > 0)
    if never_T.any():
        at = grid_T[never_T][0].item()
        raise ArgumentError(
            f"p: is 0 at t = {at:g}, where there is a loss; expected a density above 0"
        )
    ratio_T = torch.where(second_T > 0, second_T / p_T.clamp(min=1e-300), 0.0)
    g_T = as_finite(g, "g").to(grid_T)
    return torch.trapezoid(ratio_T, grid_T) - torch.trapezoid(g_T, grid_T).square()


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
    p_T = normalised(_on_grid(density, "density", grid_T), grid_T, "density")
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
    losses: Numbers,
    loss_max: float | None = 10.0,
    moment: str = "second",
    chances: Numbers | None = None,
) -> Moments:
    """What each rate costs, from a table of losses [x0, t, pattern].

    `second` is the root of the mean squared loss, exact for the variance of a draw; `within` is the
    reference's, which leaves out how rows differ. Losses are cut at `loss_max`; None cuts nothing. A
    missing loss is NaN or None. `chances` [x0, t] says how likely a mask is to be one of the table's,
    where that has no empty ones: all others have loss 0.

    >>> from burnish.models.masked_diffusion import probe_moments
    >>> probe_moments([[[3.0, 3.0]], [[1.0, 1.0]]], moment="within").w.tolist()
    [2.0]
    """
    moment = as_word("moment", moment, MOMENTS)
    losses_XTK = as_float64(losses, "losses")
    if losses_XTK.ndim != 3 or not losses_XTK.numel():
        raise ArgumentError(
            f"losses: got shape {tuple(losses_XTK.shape)}, expected (x0, t, pattern)"
        )
    check_finite(losses_XTK, "losses", ~losses_XTK.isnan())
    if loss_max is not None:
        losses_XTK = losses_XTK.clamp(max=as_number("loss_max", loss_max, above=0))
    shape = tuple(losses_XTK.shape[:2])
    chance_XT1 = losses_XTK.new_ones(shape)[:, :, None]
    if chances is not None:
        read_XT = as_finite(chances, "chances").to(losses_XTK)
        if tuple(read_XT.shape) != shape:
            raise ArgumentError(
                f"chances: got shape {tuple(read_XT.shape)}, expected one for each row and rate of "
                f"losses, {shape}"
            )
        if not ((read_XT >= 0) & (read_XT <= 1)).all():
            raise refused("chances", read_XT.tolist(), "chances from 0 to 1")
        chance_XT1 = read_XT[:, :, None]

    def spread(centre: Tensor) -> Tensor:
        """Squared distance from a centre, masks that are not in the table included: (X, T, K)."""
        return chance_XT1 * (losses_XTK - centre).square() + (1 - chance_XT1) * centre.square()

    g_T = (chance_XT1 * losses_XTK).nanmean((0, 2))
    if moment == "second":
        v_T = spread(g_T[None, :, None]).nanmean((0, 2))
    else:
        v_T = spread(chance_XT1 * losses_XTK.nanmean(2, keepdim=True)).nanmean(2).nanmean(0)
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


def normalised(values_T: Tensor, grid_T: Tensor, what: str) -> Tensor:
    """A density of trapezoid integral 1."""
    area = torch.trapezoid(values_T, grid_T)
    if not area > 0:
        raise ArgumentError(f"{what}: the integral is 0, expected a density above 0 somewhere")
    return values_T / area
