"""Samplers of mask rates and masks, and `Noise`, which composes one of each.

Only `rate_uniforms` and `mask_uniforms` draw; everything else is a function of what they drew. Every
combination estimates the mean over uniform rates without bias, but for four: `clipped` leaves rates
out, a cut weight counts too little (`clipped_share`), syntax tokens of a prompt change what is learned,
and ISAD's weight by token does not correct that other tokens now see fewer delimiters
(`delimiter_weight="row"` does, with more noise the more delimiters a row has).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from msgspec import Meta, field
from msgspec.structs import replace

from burnish.boundary import (
    Count,
    Draws,
    Fraction,
    Positive,
    PositiveInt,
    PositiveShare,
    Seed,
    Settings,
    Share,
    public,
    public_method,
)
from burnish.errors import ArgumentError
from burnish.models.masked_diffusion.control import LossBaseline
from burnish.models.masked_diffusion.objective import (
    EPS,
    IndependentMasks,
    MaskPass,
    MirrorMasks,
    batch_loss,
    isad_mask_prob,
    mask_chance,
    nonempty_mask_fields,
    row_losses,
)
from burnish.models.masked_diffusion.rates import (
    FINE,
    MAX_WEIGHT,
    MIX_UNIFORM,
    EprFit,
    Moment,
    Rates,
    density_of,
    fit_or_uniform,
    inverse_cdf,
    probe_moments,
    rate_cells,
    stratum_counts,
)
from burnish.tensors import check_finite, check_shape, torch

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from burnish.models.masked_diffusion.rates import Grid, Known, Table

    LossesOf = Callable[["Noised", Tensor], Tensor]


RATES = 29
MASKS = 10
DelimiterWeight = Literal["token", "row"]
Chance = Annotated[float, Meta(gt=0.0, lt=1.0)]


class UniformRates(Settings, frozen=True):
    """Rates between two bounds, all at weight 1; with other bounds than 0 and 1 the loss is biased."""

    low: Fraction = 0.0
    high: PositiveShare = 1.0

    def check(self) -> None:
        if self.low >= self.high:
            raise ArgumentError(f"high: got {self.high}, expected above `low`, {self.low}")

    def rates(self, u_B: Tensor) -> Rates:
        return Rates(self.low + (self.high - self.low) * u_B, torch.ones_like(u_B))

    def clipped_share(self, weight_B: Tensor) -> float:
        return 0.0

    def state(self) -> dict[str, Any]:
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        pass


class PPots:
    """Rates where the loss is large or noisy, at weight 1/p (P-POTS).

    Uniform until `refit` has seen a probe: a table of losses by row, rate and mask.
    """

    @public_method
    def __init__(
        self,
        mix_uniform: Share = MIX_UNIFORM,
        refit_every: Count = 0,
        start: Count = 0,
        n_starts: PositiveInt = 20,
        moment: Moment = "second",
        loss_max: Positive | None = None,
        max_weight: Positive = MAX_WEIGHT,
    ) -> None:
        """`mix_uniform` is the share of uniform draws; weights are at most its inverse.

        `refit_every` steps lie between fits, 0 fits once; before the step `start` rates are uniform.
        Losses of a probe are cut at `loss_max`.
        """
        self.mix_uniform, self.refit_every, self.start = mix_uniform, refit_every, start
        self.n_starts, self.moment, self.loss_max = n_starts, moment, loss_max
        self.max_weight = max_weight
        self.fit: EprFit | None = None
        self.fitted_at: int | None = None
        self.probe: dict[str, list[Any]] = {}

    def wants_probe(self, step: int) -> bool:
        """True where this step should begin with a probe and a fit."""
        if self.fitted_at is None:
            return step >= self.start
        return self.refit_every > 0 and step - self.fitted_at >= self.refit_every

    @public_method
    def refit(
        self, t_grid: Grid, losses: Table, chances: Known | None = None, *, step: Count = 0
    ) -> EprFit:
        """Fit the density to a table of losses [x0, t, pattern] on a grid of rates, as a `Probe` has it.

        Where every loss is 0 rates stay uniform, and a warning says so.
        """
        moments = probe_moments.plain(losses, self.loss_max, self.moment, chances)
        self.fit = fit_or_uniform(t_grid, moments.w, self.n_starts, self.mix_uniform)
        self.fitted_at = step
        self.probe = {
            "t": t_grid.tolist(),
            # JSON has no NaN: a rate without a loss is left to the reader as None.
            "w": [None if w != w else w for w in moments.w.tolist()],
        }
        return self.fit

    def rates(self, u_B: Tensor) -> Rates:
        if self.fit is None:
            return Rates(u_B, torch.ones_like(u_B))
        grid_F, density_F = (x.to(u_B) for x in (self.fit.fine_grid, self.fit.fine_density))
        return inverse_cdf(grid_F, density_F, u_B, self.max_weight)

    def clipped_share(self, weight_B: Tensor) -> float:
        """Of a fitted density; without one no weight is cut."""
        return 0.0 if self.fit is None else (weight_B >= self.max_weight).double().mean().item()

    def state(self) -> dict[str, Any]:
        if self.fit is None:
            return {}
        return {
            "family": "epr" if self.fit.params else "uniform",
            "params": dict(self.fit.params),
            "mix_uniform": self.fit.mix_uniform,
            "grid_size": FINE,
            "probe": self.probe,
            "kl": self.fit.kl,
            "fitted_at": self.fitted_at,
            "fallback": self.fit.fallback,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Draw from the stored curve again, bit by bit."""
        if not state:
            self.fit, self.fitted_at, self.probe = None, None, {}
            return
        self.fit = density_of(
            torch.tensor(state["probe"]["t"], dtype=torch.float64),
            state["params"],
            state["mix_uniform"],
            kl=state["kl"],
            fallback=state["fallback"],
        )
        self.probe, self.fitted_at = dict(state["probe"]), state["fitted_at"]


class NoisedLoss(NamedTuple):
    """Both keep the gradient."""

    loss: Tensor
    """Weighted mean over rows and passes."""
    row_B: Tensor
    """Unweighted, the mean over passes."""


class Noised(NamedTuple):
    """A batch with its masks."""

    ids_PBL: Tensor
    """Token ids with the mask token in the place of masked ones, a batch for each pass."""
    t_B: Tensor
    weight_B: Tensor
    count_B: Tensor
    """Tokens of each row that could be masked."""
    passes: list[MaskPass]
    clipped_share: float
    """Share of rows whose weight was cut; above 0 the loss is biased."""

    def loss(self, nll_PBL: Tensor | Sequence[Tensor]) -> NoisedLoss:
        """The loss from each pass's negative log-probs of the true tokens."""
        given, rows = list(nll_PBL), []
        for place, (nll, one) in enumerate(zip(given, self.passes, strict=True)):
            check_shape(nll, f"nll_PBL[{place}]", tuple(one.mask_BL.shape))
            check_finite(nll, f"nll_PBL[{place}]", one.mask_BL)
            rows.append(row_losses(nll, one.mask_BL, one.chance_BX.to(nll), self.count_B))
        row_B = torch.stack(rows).mean(0) if len(rows) > 1 else rows[0]
        return NoisedLoss(batch_loss(row_B, self.count_B, self.weight_B.to(row_B)), row_B)

    def metrics(self) -> dict[str, float]:
        """What a step should log of its noise."""
        masked_PB = torch.stack([one.mask_BL.sum(1) for one in self.passes])
        eligible = int(self.count_B.sum())
        return {
            "clipped_share": self.clipped_share,
            "mean_rate": self.t_B.mean().item(),
            "mean_weight": self.weight_B.mean().item(),
            "empty_share": (masked_PB == 0).double().mean().item(),
            "masked_share": masked_PB.sum().item() / max(1, eligible * len(self.passes)),
        }


class Noise(Settings, frozen=True):
    """A sampler of rates, a sampler of masks, and what they share."""

    rates: UniformRates | PPots = field(default_factory=UniformRates)
    masks: IndependentMasks | MirrorMasks = IndependentMasks()
    strata: bool = False
    """Spread the rates of an update over strata (StraTS)."""
    delimiters: frozenset[int] = frozenset()
    """Token ids that are masked more often (ISAD)."""
    delta: Share = 0.2
    """How much more often."""
    delimiter_weight: DelimiterWeight = "token"
    """`token` is ISAD's weight 1/q: unbiased if no token's loss depends on which delimiters are masked.
    `row` weighs by the ratio of the whole row's masks, with q at most halfway from p to 1: unbiased
    always."""
    eps: Chance = EPS
    baseline: LossBaseline | None = None
    """Running losses by bin that losses are adjusted with (EMA)."""

    def rate_uniforms(self, n: int, generator: Generator) -> Tensor:
        """Uniform numbers for all n rows of an update, micro-batches and ranks together: (n,)."""
        u_N = _draw((n,), generator)
        if not self.strata:
            return u_N
        strata = stratum_counts.plain(n)
        extra = torch.randperm(strata.count, generator=generator)[: strata.extra]
        stratum_N = torch.cat([torch.arange(strata.count).repeat(strata.per_stratum), extra])
        order_N = torch.randperm(n, generator=generator)
        return ((stratum_N.to(u_N) + u_N) / strata.count)[order_N]

    def mask_uniforms(self, rows: int, length: int, generator: Generator) -> Tensor:
        """Fields of uniform numbers for the masks of a batch, (F, B, L)."""
        return _draw((self.masks.fields, rows, length), generator)

    def corrupt(
        self, ids_BL: Tensor, eligible_BL: Tensor, u_B: Tensor, u_FBL: Tensor, mask_id: int
    ) -> Noised:
        """Rates, weights and masked copies of a batch, from numbers drawn before."""
        device = ids_BL.device
        drawn = self.rates.rates(u_B.to(device))
        p_B = mask_chance(drawn.t, self.eps)
        chance_BX = self.chances(ids_BL, p_B)
        passes = self.masks.passes(u_FBL.to(device), chance_BX, eligible_BL)
        if self.delimiters and self.delimiter_weight == "row":
            passes = [_row_weighted(one, p_B[:, None], chance_BX, eligible_BL) for one in passes]
        ids_PBL = torch.stack([ids_BL.masked_fill(one.mask_BL, mask_id) for one in passes])
        clipped = self.rates.clipped_share(drawn.weight)
        return Noised(ids_PBL, drawn.t, drawn.weight, eligible_BL.sum(1), passes, clipped)

    def chances(self, ids_BL: Tensor, p_B: Tensor) -> Tensor:
        """With which tokens are masked where most have chance p: (B,), or (B, L) with delimiters."""
        if not self.delimiters:
            return p_B
        known = torch.tensor(sorted(self.delimiters), device=ids_BL.device)
        q_BL = isad_mask_prob.plain(p_B, torch.isin(ids_BL, known), self.delta).q
        # What is possible at p must be possible at q: never certain unless p is.
        is_row = self.delimiter_weight == "row"
        return torch.minimum(q_BL, (1 + p_B[:, None]) / 2) if is_row else q_BL

    def loss(self, noised: Noised, nll_PBL: Tensor | Sequence[Tensor]) -> NoisedLoss:
        """As `noised.loss`, adjusted by the running losses; `row_B` is as it was measured."""
        found = noised.loss(nll_PBL)
        if self.baseline is None:
            return found
        adjusted_B = self.baseline.adjust(found.row_B, noised.t_B)
        weight_B = noised.weight_B.to(adjusted_B)
        return NoisedLoss(batch_loss(adjusted_B, noised.count_B, weight_B), found.row_B)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, as JSON has it."""
        return {
            "rates": self.rates.state(),
            "baseline": None if self.baseline is None else self.baseline.state(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from `state()`."""
        self.rates.load(state["rates"])
        if self.baseline is not None and state["baseline"] is not None:
            self.baseline.load(state["baseline"])


@public
def build_noise(
    rates: Literal["uniform", "clipped", "p_pots"] = "uniform",
    masks: Literal["independent", "mirror", "mirror_deduplicated"] = "independent",
    *,
    passes: PositiveInt = 1,
    strata: bool = False,
    delimiters: Sequence[Count] = (),
    delta: Share = 0.2,
    delimiter_weight: DelimiterWeight = "token",
    eps: Chance = EPS,
    control: Literal["none", "subtract", "rescale"] = "none",
    options: Mapping[str, object] | None = None,
) -> Noise:
    """Noise by names: `rates` uniform, clipped or p_pots; `masks` independent or mirror.

    `passes` is how many independent masks a row gets, `strata` turns StraTS on, `control` is `none`,
    `subtract` (the reported loss alone) or `rescale` (biased), `options` are those of `UniformRates`
    (for `clipped`) or `PPots`.

    >>> build_noise("p_pots", "mirror", options={"mix_uniform": 0.1}).masks.forwards
    2
    """
    if masks != "independent" and passes != 1:
        raise ArgumentError(f"passes: got {passes}, expected 1 for masks {masks}, which has two")
    given: dict[str, Any] = dict(options or {})
    if rates == "clipped":
        given = {"low": 0.1, "high": 0.9} | given
    elif rates == "uniform" and given:
        raise ArgumentError(f"options: got {', '.join(given)}, rates uniform has none")
    is_once = masks == "mirror_deduplicated"
    return Noise(
        PPots(**given) if rates == "p_pots" else UniformRates(**given),
        IndependentMasks(passes) if masks == "independent" else MirrorMasks(is_once),
        strata,
        frozenset(delimiters),
        delta,
        delimiter_weight,
        eps,
        None if control == "none" else LossBaseline(control),
    )


@public
def evaluation_uniforms(n: Draws, length: Draws, seed: Seed = 0) -> tuple[Tensor, Tensor]:
    """One stratified uniform rate a row and one field: what held-out losses are measured with.

    The same for every sampler that a run trains with, so that runs can be compared.
    """
    generator = torch.Generator().manual_seed(seed)
    order_N = torch.randperm(n, generator=generator)
    u_N = ((torch.arange(n) + _draw((n,), generator)) / n)[order_N]
    return u_N, _draw((1, n, length), generator)


def _row_weighted(one: MaskPass, p_BX: Tensor, q_BL: Tensor, eligible_BL: Tensor) -> MaskPass:
    """The pass weighed by how much likelier its mask is at chance p than at q, over the whole row."""
    ratio_BL = torch.where(one.mask_BL, p_BX / q_BL, (1 - p_BX) / (1 - q_BL).clamp(min=1e-300))
    # Where p and q agree the ratio is 1, also for 0/0 at p = 1.
    ratio_BL = torch.where(eligible_BL & (p_BX != q_BL), ratio_BL, 1.0)
    divisor_BX = one.chance_BX * (p_BX / q_BL)
    return MaskPass(one.mask_BL, divisor_BX / ratio_BL.prod(1, keepdim=True))


def _draw(shape: tuple[int, ...], generator: Generator) -> Tensor:
    return torch.rand(shape, generator=generator, dtype=torch.float64, device=generator.device)


class Probe(NamedTuple):
    """Losses by row, rate and mask."""

    t_grid: Tensor
    """Rates, closer together where they are small, (T,)."""
    losses: Tensor
    """[x0, t, pattern], NaN where the model gave no finite number. No mask is empty."""
    chances: Tensor
    """[x0, t]: of a mask not to be empty."""


def probe_table(
    losses_of: LossesOf,
    ids_XL: Tensor,
    eligible_XL: Tensor,
    mask_id: int,
    generator: Generator,
    *,
    noise: Noise,
    rates: int = RATES,
    masks: int = MASKS,
) -> Probe:
    """Losses of rows at a grid of rates, `masks` masks each; rows without an answer are left out.

    `losses_of(noised, row_N)` has all masked copies at once, with the places of their rows in `ids_XL`.
    Of `noise` the delimiters and `eps` count; rates are those of the grid, one mask a pass. MIRROR's pairs
    cost nearly the same at each rate, and half as many of them would be measured.
    """
    kept_X = eligible_XL.any(1).nonzero()[:, 0]
    if not len(kept_X):
        raise ArgumentError("eligible: no row has an answer; expected at least one to probe with")
    grid_T = rate_cells(rates).t_T
    shape = (len(kept_X), len(grid_T), masks)
    row_N = kept_X.repeat_interleave(shape[1] * shape[2])
    t_N = grid_T.repeat_interleave(shape[2]).repeat(shape[0]).to(ids_XL.device)
    plain = replace(noise, rates=UniformRates(), masks=IndependentMasks(), baseline=None)
    ids_NL, eligible_NL = ids_XL[row_N], eligible_XL[row_N]
    chance_NX = plain.chances(ids_NL, mask_chance(t_N, plain.eps))
    fields = nonempty_mask_fields(IndependentMasks(), chance_NX, eligible_NL, generator)
    noised = plain.corrupt(ids_NL, eligible_NL, t_N, fields.u_FBL, mask_id)
    loss_N = losses_of(noised, row_N)
    check_shape(loss_N, "what losses_of gives", (len(row_N),))
    losses_XTK = loss_N.double().cpu().view(shape)
    chance_XT = fields.chance_B.cpu().view(shape)[:, :, 0]
    return Probe(grid_T, losses_XTK.masked_fill(~losses_XTK.isfinite(), torch.nan), chance_XT)
