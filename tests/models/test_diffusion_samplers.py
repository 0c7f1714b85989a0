"""Every combination of rate and mask sampler estimates one loss; reductions, strata, checkpoints."""

import itertools
import json
import math
from functools import cache

import numpy as np
import pytest
import torch

from burnish.config.schema import DiffusionTrain
from burnish.errors import ArgumentError
from burnish.models.masked_diffusion import (
    IndependentMasks,
    MirrorMasks,
    Noise,
    PPots,
    build_noise,
    evaluation_uniforms,
    mdm_loss,
    probe_moments,
    probe_table,
    sample_t,
    stratum_counts,
)
from burnish.models.masked_diffusion.objective import mask_chance, nonempty_mask_fields
from burnish.models.masked_diffusion.rates import MIX_UNIFORM, rate_cells

LENGTH, MASK_ID = 5, 9
IDS = torch.tensor([3, 1, 4, 1, 5])
ELIGIBLE = torch.tensor([False, True, True, True, True])
ROWS = 20_000
BASE = torch.tensor([0.0, 0.7, 1.5, 0.4, 2.0], dtype=torch.float64)


def nll(ids: torch.Tensor, row: torch.Tensor | None = None) -> torch.Tensor:
    """A model whose loss at a token grows with what is masked around it."""
    is_masked = (ids == MASK_ID).double()
    return BASE * (0.3 + is_masked.mean(-1, keepdim=True) ** 2 + 0.5 * is_masked.roll(1, -1))


def exact_loss() -> float:
    """The mean over uniform rates and all masks, by enumeration."""
    t = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000
    p = mask_chance(t)
    total = torch.zeros_like(t)
    for bits in itertools.product([False, True], repeat=4):
        mask = torch.tensor([False, *bits])
        loss = nll(IDS.masked_fill(mask, MASK_ID))[mask].sum() / 4
        total += p ** sum(bits) * (1 - p) ** (4 - sum(bits)) * loss / p
    return total.mean().item()


EXACT = exact_loss()


def batch(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return IDS.expand(rows, LENGTH), ELIGIBLE.expand(rows, LENGTH)


def row_losses(noised, row_N):
    return noised.loss(nll(noised.ids_PBL)).row_B


@cache
def probed():
    """One probe for all tests."""
    generator = torch.Generator().manual_seed(1)
    return probe_table(row_losses, *batch(3), MASK_ID, generator, noise=Noise())


@cache
def curve(mix_uniform: float) -> dict:
    rates = PPots(mix_uniform, n_starts=3)
    rates.refit(*probed(), step=7)
    return rates.state()


def fitted(noise: Noise) -> Noise:
    if isinstance(noise.rates, PPots):
        noise.rates.load(curve(noise.rates.mix_uniform))
    return noise


def drawn(noise: Noise, rows: int = ROWS, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    u_B = noise.rate_uniforms(rows, generator)
    u_FBL = noise.mask_uniforms(rows, LENGTH, generator)
    return noise.corrupt(*batch(rows), u_B, u_FBL, MASK_ID)


def estimate(noise: Noise, rows: int = ROWS, of=nll) -> tuple[float, float]:
    """Mean weighted loss and its standard error."""
    noised = drawn(noise, rows)
    found = noised.loss(of(noised.ids_PBL))
    values = found.row_B * noised.weight_B
    assert found.loss.item() == pytest.approx(values.mean().item())
    return values.mean().item(), values.std().item() / math.sqrt(rows)


COMBINATIONS = [
    (rates, masks, strata, delimiters)
    for rates in ("uniform", "p_pots")
    for masks in (("independent", 1), ("independent", 2), ("mirror", 1), ("mirror_deduplicated", 1))
    for strata in (False, True)
    for delimiters in ((), (1,))
]


@pytest.mark.parametrize(("rates", "masks", "strata", "delimiters"), COMBINATIONS)
def test_every_combination_is_unbiased(rates, masks, strata, delimiters):
    kind, passes = masks
    noise = build_noise(
        rates, kind, passes=passes, strata=strata, delimiters=delimiters, delimiter_weight="row"
    )
    mean, error = estimate(fitted(noise))
    assert abs(mean - EXACT) < 3 * error
    assert error < 0.05 * EXACT


@pytest.mark.parametrize("masks", ["independent", "mirror", "mirror_deduplicated"])
@pytest.mark.parametrize("rates", ["uniform", "p_pots"])
def test_isads_weight_by_token_is_unbiased_where_tokens_do_not_see_delimiters(rates, masks):
    noise = fitted(build_noise(rates, masks, delimiters=(1,)))
    mean, error = estimate(noise, of=lambda ids: BASE.expand(ids.shape))
    assert abs(mean - BASE.sum().item() / 4) < 3 * error
    # Where they do see them, more hidden delimiters raise the loss.
    mean, error = estimate(noise)
    assert mean - EXACT > 5 * error


def test_clipped_rates_are_biased_and_the_references_weight_of_delimiters_too():
    mean, error = estimate(build_noise("clipped", options={"low": 0.3, "high": 0.8}))
    assert abs(mean - EXACT) > 5 * error
    noised = drawn(build_noise(delimiters=(1,)))
    ((mask, q),) = noised.passes
    p = mask_chance(noised.t_B)[:, None]
    weighted = torch.where(mask, nll(noised.ids_PBL[0]) * p / q**2, 0.0).sum(1) / 4
    error = weighted.std().item() / math.sqrt(ROWS)
    assert abs(weighted.mean().item() - EXACT) > 5 * error


def test_cut_weights_are_counted():
    noise = fitted(build_noise("p_pots", options={"mix_uniform": 0.0, "max_weight": 0.9}))
    assert 0 < drawn(noise).metrics()["clipped_share"] < 1
    assert drawn(build_noise()).clipped_share == 0


def test_mirror_varies_less_than_two_masks_and_strata_less_than_none():
    def spread(noise):
        noised = drawn(noise)
        return noised.loss(nll(noised.ids_PBL)).row_B.var().item()

    assert spread(build_noise(masks="mirror")) < 0.9 * spread(build_noise(passes=2))
    # Over updates of 16 rows: the loss's mean where only the rate decides.
    means = {}
    for strata in (False, True):
        noise, generator = build_noise(strata=strata), torch.Generator().manual_seed(0)
        means[strata] = torch.stack(
            [noise.rate_uniforms(16, generator).square().mean() for _ in range(500)]
        ).var()
    assert means[True] < 0.2 * means[False]


def test_all_off_is_lladas_loss_exactly():
    noised = drawn(Noise(), rows=64)
    ((mask, chance),) = noised.passes
    generator = torch.Generator().manual_seed(0)
    t = torch.rand(64, generator=generator, dtype=torch.float64)
    u = torch.rand(1, 64, LENGTH, generator=generator, dtype=torch.float64)[0]
    p = (1 - 1e-3) * t + 1e-3
    expected = (u < p[:, None]) & ELIGIBLE
    assert torch.equal(mask, expected)
    assert torch.equal(noised.weight_B, torch.ones(64, dtype=torch.float64))
    values = nll(noised.ids_PBL[0])
    rows = torch.where(expected, values / p[:, None], 0.0).sum(1) / 4
    assert torch.equal(noised.loss(values[None]).row_B, rows)
    public = mdm_loss(values, mask, chance, noised.count_B)
    assert torch.equal(public.row_loss, rows)
    assert torch.equal(public.loss, noised.loss(values[None]).loss)


def test_reductions():
    plain = drawn(build_noise(), rows=50)
    assert torch.equal(
        drawn(build_noise(delimiters=(1,), delta=0.0), rows=50).ids_PBL, plain.ids_PBL
    )
    uniform = fitted(build_noise("p_pots", options={"mix_uniform": 1.0}))
    assert torch.allclose(drawn(uniform, rows=50).t_B, plain.t_B, atol=1e-12)
    assert torch.allclose(drawn(uniform, rows=50).weight_B, plain.weight_B)
    # MIRROR's second mask from its own field is a second independent mask.
    u_FBL = torch.rand(2, 50, LENGTH, dtype=torch.float64)
    chance = mask_chance(plain.t_B)
    two = IndependentMasks(2).passes(u_FBL, chance, batch(50)[1])
    mirror = build_noise(masks="mirror").masks
    other = mirror.passes(1 - u_FBL[1:], chance, batch(50)[1])[1]
    assert torch.equal(two[1].mask_BL, other.mask_BL)


def test_one_stratum_is_standard():
    noise = build_noise(strata=True)
    generator = torch.Generator().manual_seed(3)
    first = torch.rand(1, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    assert stratum_counts(1).count == 1
    assert torch.equal(noise.rate_uniforms(1, generator), first)


@pytest.mark.parametrize("n", [1, 5, 10, 16, 33])
def test_every_stratum_gets_its_share(n):
    noise = build_noise(strata=True)
    strata = stratum_counts(n)
    u = noise.rate_uniforms(n, torch.Generator().manual_seed(n))
    counts = torch.bincount((u * strata.count).long(), minlength=strata.count)
    assert sorted(counts.tolist()) == sorted(
        [strata.per_stratum] * (strata.count - strata.extra)
        + [strata.per_stratum + 1] * strata.extra
    )


def test_strata_lie_on_u_before_the_inverse_distribution_function():
    noise = fitted(build_noise("p_pots", strata=True))
    moved = noise.rate_uniforms(4, torch.Generator().manual_seed(0))
    assert sorted((2 * moved).long().tolist()) == [0, 0, 1, 1]
    assert isinstance(noise.rates, PPots)
    fit = noise.rates.fit
    assert fit is not None
    expected = sample_t(fit.fine_grid, fit.fine_density, moved)
    assert torch.allclose(noise.rates.rates(moved).t, expected.t, atol=1e-14)


def test_state_survives_json_and_draws_the_same_bits():
    noise = fitted(build_noise("p_pots", control="subtract"))
    noised = drawn(noise, rows=20)
    noise.loss(noised, nll(noised.ids_PBL))
    other = build_noise("p_pots", control="subtract")
    other.load(json.loads(json.dumps(noise.state(), allow_nan=False)))
    assert torch.equal(drawn(noise, 20).t_B, drawn(other, 20).t_B)
    assert torch.equal(drawn(noise, 20).weight_B, drawn(other, 20).weight_B)
    assert other.state() == noise.state()
    assert set(noise.state()["rates"]) >= {
        "family",
        "params",
        "mix_uniform",
        "grid_size",
        "probe",
        "kl",
    }


def test_a_probe_is_wanted_at_the_start_and_every_so_many_steps():
    rates = PPots(start=5, refit_every=10)
    assert [rates.wants_probe(step) for step in (0, 4, 5, 6)] == [False, False, True, True]
    rates.refit(np.arange(1, 7) / 7, np.ones((2, 6, 3)), step=5)
    assert [rates.wants_probe(step) for step in (6, 14, 15)] == [False, False, True]
    once = PPots()
    once.refit(np.arange(1, 7) / 7, np.ones((2, 6, 3)), step=0)
    assert not once.wants_probe(10_000)


def test_a_probe_without_losses_falls_back_to_uniform_rates():
    rates = PPots()
    with pytest.warns(RuntimeWarning, match="0 rates have a loss; t is drawn uniformly"):
        rates.refit(np.arange(1, 7) / 7, np.full((2, 6, 3), math.nan))
    u = torch.rand(9, dtype=torch.float64)
    assert torch.allclose(rates.rates(u).t, u)
    again = PPots()
    again.load(json.loads(json.dumps(rates.state(), allow_nan=False)))
    assert torch.equal(again.rates(u).t, rates.rates(u).t)


def test_rows_without_an_answer_have_no_part():
    noise, generator = Noise(), torch.Generator().manual_seed(0)
    ids, eligible = batch(6)
    eligible = eligible.clone()
    eligible[::2] = False
    u_B, u_FBL = noise.rate_uniforms(6, generator), noise.mask_uniforms(6, LENGTH, generator)
    noised = noise.corrupt(ids, eligible, u_B, u_FBL, MASK_ID)
    whole = noised.loss(nll(noised.ids_PBL))
    kept = noise.corrupt(ids[1::2], eligible[1::2], u_B[1::2], u_FBL[:, 1::2], MASK_ID)
    assert whole.loss.item() == pytest.approx(kept.loss(nll(kept.ids_PBL)).loss.item())
    assert torch.equal(whole.row_B[::2], torch.zeros(3, dtype=torch.float64))
    with pytest.raises(ArgumentError, match="no row has an answer"):
        probe_table(row_losses, ids, eligible & False, MASK_ID, generator, noise=Noise())


def test_evaluation_draws_are_stratified_and_fixed():
    u_N, u_FBL = evaluation_uniforms(50, LENGTH, seed=4)
    assert sorted((u_N * 50).long().tolist()) == list(range(50))
    assert torch.equal(evaluation_uniforms(50, LENGTH, seed=4)[1], u_FBL)


@pytest.mark.parametrize("rates", ["uniform", "p_pots"])
def test_weights_of_one_are_never_cut(rates):
    options = {"max_weight": 1.0} if rates == "p_pots" else {}
    noise, generator = build_noise(rates, options=options), torch.Generator().manual_seed(0)
    ids, eligible = batch(4)
    u_B, u_FBL = noise.rate_uniforms(4, generator), noise.mask_uniforms(4, LENGTH, generator)
    assert noise.corrupt(ids, eligible, u_B, u_FBL, MASK_ID).clipped_share == 0.0


@pytest.mark.parametrize("masks", [IndependentMasks(), IndependentMasks(2), MirrorMasks()])
@pytest.mark.parametrize("chance", [0.002, 0.2, 0.45, 0.7, 1.0, (0.05, 0.3, 0.1, 0.4, 0.6)])
def test_masks_that_hide_something_are_drawn_as_often_as_they_should(masks, chance):
    rows = 20_000
    q_BL = torch.tensor(chance, dtype=torch.float64).expand(rows, LENGTH)
    eligible = batch(rows)[1]
    generator = torch.Generator().manual_seed(0)
    u_FBL, chance_B = nonempty_mask_fields(masks, q_BL, eligible, generator)
    assert u_FBL.shape == (masks.fields, rows, LENGTH)
    assert ((u_FBL >= 0) & (u_FBL <= 1)).all()
    hidden = torch.stack([one.mask_BL for one in masks.passes(u_FBL, q_BL, eligible)])
    assert hidden.any(0).any(1).all()
    own = q_BL[0][ELIGIBLE]
    none = (1 - 2 * own).clamp(min=0) if isinstance(masks, MirrorMasks) else (1 - own)
    free = none.prod() ** (1 if isinstance(masks, MirrorMasks) else masks.count)
    assert torch.allclose(chance_B, 1 - free)
    # Over all masks, the empty ones included, every token is masked with its chance in every pass,
    # and two tokens of a pass independently.
    for mask_BL in hidden:
        shown = mask_BL[:, ELIGIBLE].double()
        assert torch.allclose(shown.mean(0) * chance_B[0], own, rtol=0.08, atol=2e-4)
        both = (shown[:, 0] * shown[:, 3]).mean() * chance_B[0]
        assert both.item() == pytest.approx((own[0] * own[3]).item(), rel=0.15, abs=2e-4)


@pytest.mark.parametrize("delimiters", [(), (1,)])
def test_a_probe_finds_the_second_moment_of_every_rate(delimiters):
    noise = Noise(delimiters=frozenset(delimiters))
    generator = torch.Generator().manual_seed(0)
    rows = batch(2)
    found = probe_table(row_losses, *rows, MASK_ID, generator, noise=noise, rates=8, masks=4000)
    assert found.t_grid.tolist() == rate_cells(8).t_T.tolist()
    assert (found.losses > 0).all()
    seen = probe_moments(found.losses, None, chances=found.chances)
    p = mask_chance(found.t_grid)
    q = noise.chances(IDS.expand(8, LENGTH), p).reshape(8, -1).expand(8, LENGTH)[:, 1:]
    first, second = torch.zeros(8, dtype=torch.float64), torch.zeros(8, dtype=torch.float64)
    for bits in itertools.product([False, True], repeat=4):
        mask = torch.tensor(bits)
        chance = torch.where(mask, q, 1 - q).prod(1)
        own = nll(IDS.masked_fill(torch.tensor([False, *bits]), MASK_ID))[1:]
        loss = torch.where(mask, own / q, 0.0).sum(1) / 4
        first += chance * loss
        second += chance * loss.square()
    assert torch.allclose(seen.g, first, rtol=0.05)
    assert torch.allclose(seen.w, second.sqrt(), rtol=0.05)


def test_a_model_without_losses_is_drawn_uniformly_with_a_warning():
    rates, grid = build_noise("p_pots").rates, torch.linspace(0.05, 0.95, 9)
    with pytest.warns(RuntimeWarning, match="every loss is 0; t is drawn uniformly"):
        rates.refit(grid, torch.zeros(3, 9, 4))
    u = torch.rand(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert rates.rates(u).weight.tolist() == pytest.approx([1.0] * 50)


@pytest.mark.parametrize("masks", ["independent", "mirror"])
def test_only_what_is_masked_must_have_a_finite_nll_as_in_mdm_loss(masks):
    noise = build_noise(masks=masks, control="subtract")
    noised = drawn(noise, rows=20)
    nll_PBL = torch.ones(noised.ids_PBL.shape)
    masked_PBL = torch.stack([one.mask_BL for one in noised.passes])
    expected = noised.loss(nll_PBL).loss
    assert torch.equal(noised.loss(nll_PBL.masked_fill(~masked_PBL, math.nan)).loss, expected)
    kept = noise.baseline.state()
    broken = nll_PBL.masked_fill(masked_PBL, math.nan)
    for loss in (noised.loss, lambda nll_PBL: noise.loss(noised, nll_PBL)):
        with pytest.raises(ArgumentError, match=r"nll_PBL\[0\]: .* nan, expected a finite number"):
            loss(broken)
    assert noise.baseline.state() == kept


def test_runs_and_reports_share_one_uniform_part():
    assert PPots().mix_uniform == DiffusionTrain().mix_uniform == MIX_UNIFORM == 0.1
    assert (PPots().loss_max or 0.0) == DiffusionTrain().loss_max
