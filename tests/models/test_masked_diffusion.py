"""The loss, MIRROR, ISAD, rates and decomposition of masked diffusion: worked numbers and edge cases."""

import math

import numpy as np
import pytest
import torch

from burnish.errors import ArgumentError
from burnish.models.masked_diffusion import (
    GradientBaseline,
    LossBaseline,
    MirrorMasks,
    build_noise,
    decompose_variance,
    ema_control_variate,
    epr_density,
    fit_epr,
    isad_mask_prob,
    mdm_loss,
    mirror_masks,
    optimal_t_density,
    probe_moments,
    sample_t,
    sampler_variance,
    stratum_counts,
    syntax_eligible,
    template_tokens,
    token_nll,
)
from burnish.models.masked_diffusion.control import bin_widths, bins_of, smoothed_loss


def test_mirror_masks_by_hand():
    u = [[0.1, 0.35, 0.6, 0.95], [0.05, 0.5, 0.9, 0.99]]
    found = mirror_masks(u=u, t=[0.3, 0.6], eligible=[[1, 1, 1, 1], [1, 1, 1, 0]], eps=0.1)
    assert found._fields == ("p", "mask_first", "mask_second", "eligible_count")
    # p = 0.9 t + 0.1: 0.37 and 0.64; the second mask is u > 0.63 and u > 0.36.
    assert found.p.tolist() == pytest.approx([0.37, 0.64])
    assert found.mask_first.int().tolist() == [[1, 1, 0, 0], [1, 1, 0, 0]]
    assert found.mask_second.int().tolist() == [[0, 0, 0, 1], [0, 1, 1, 0]]
    assert found.eligible_count.tolist() == [4, 3]


def test_both_masks_are_the_whole_answer_at_rate_one_and_p_is_eps_at_rate_zero():
    u = torch.rand(2, 50, dtype=torch.float64).clamp(1e-9, 1 - 1e-9)
    found = mirror_masks(u, [1.0, 0.0], torch.ones(2, 50))
    assert found.mask_first[0].all()
    assert found.mask_second[0].all()
    assert found.p.tolist() == [1.0, 1e-3]


@pytest.mark.parametrize("p", [0.1, 0.4, 0.5, 0.7, 0.95])
def test_mirror_marginals_covariance_and_variance_ratio(p):
    # A grid over u in the place of draws: integrals up to 1e-5.
    u = (torch.arange(100_000, dtype=torch.float64) + 0.5) / 100_000
    found = mirror_masks(u[:, None], torch.full((len(u),), p), torch.ones(len(u), 1), eps=0.0)
    first, second = (mask[:, 0].double() for mask in (found.mask_first, found.mask_second))
    assert first.mean().item() == pytest.approx(p, abs=2e-5)
    assert second.mean().item() == pytest.approx(p, abs=2e-5)
    covariance = (first * second).mean() - first.mean() * second.mean()
    assert covariance.item() == pytest.approx(-(p**2) if p <= 0.5 else -((1 - p) ** 2), abs=1e-4)
    rho = -p / (1 - p) if p <= 0.5 else -(1 - p) / p
    ratio = ((first + second) / 2).var(correction=0) / first.var(correction=0)
    assert ratio.item() == pytest.approx((1 + rho) / 2, abs=1e-3)
    assert (found.mask_first | found.mask_second).double().mean().item() == pytest.approx(
        min(1.0, 2 * p), abs=2e-5
    )


def test_loss_by_hand():
    nll = [[2.0, 1.0, 4.0], [3.0, 1.0, 9.0], [5.0, 5.0, 5.0]]
    mask = [[1, 0, 1], [0, 0, 0], [0, 0, 0]]
    found = mdm_loss(nll, mask, p=[0.5, 0.2, 0.9], eligible_count=[3, 2, 0], weight=[0.5, 2.0, 7.0])
    assert found._fields == ("loss", "row_loss")
    # (2 + 4) / 0.5 / 3 = 4; the empty row counts with 0, the row without an answer not at all.
    assert found.row_loss.tolist() == [4.0, 0.0, 0.0]
    assert found.loss.item() == 1.0


def test_no_answer_anywhere_is_zero_and_passes_a_gradient_of_zero():
    nll = torch.full((2, 3), 2.0, requires_grad=True)
    found = mdm_loss(nll, torch.zeros(2, 3), [0.5, 0.5], [0, 0])
    found.loss.backward()
    assert found.loss.item() == 0.0
    assert nll.grad is not None
    assert not nll.grad.any()


def test_chances_by_token_and_unmasked_values_that_do_not_count():
    nll = torch.tensor([[2.0, math.inf, 4.0]])
    found = mdm_loss(nll, [[1, 0, 1]], p=[[0.5, 0.1, 0.8]], eligible_count=[3])
    assert found.loss.item() == pytest.approx((2 / 0.5 + 4 / 0.8) / 3)


def test_the_mask_token_is_no_answer():
    logits = torch.tensor([[[1.0, 2.0, 50.0]]])
    assert token_nll(logits, torch.tensor([[0]]), mask_id=2).item() == pytest.approx(
        math.log(1 + math.e), abs=1e-6
    )


def test_isad_by_hand():
    found = isad_mask_prob(p=[0.3, 0.9], is_delimiter=[[0, 1], [1, 0]], delta=0.2)
    assert found._fields == ("q", "weight")
    assert found.q.flatten().tolist() == pytest.approx([0.3, 0.5, 1.0, 0.9])
    assert found.weight.flatten().tolist() == pytest.approx([1 / 0.3, 2.0, 1.0, 1 / 0.9])
    assert isad_mask_prob(0.3, [0, 1], delta=0.0).q.tolist() == [0.3, 0.3]


GRID = np.linspace(0.0, 1.0, 101)
G, V = 1 + GRID**2, 0.5 + np.sin(3 * GRID) ** 2


def test_best_density_has_the_closed_form_and_beats_others():
    best = optimal_t_density(G, V, GRID)
    root = np.sqrt(G**2 + V)
    area = np.trapezoid(root, GRID)
    assert np.allclose(best.numpy(), root / area)
    least = sampler_variance(best, G, V, GRID).item()
    assert least == pytest.approx(area**2 - np.trapezoid(G, GRID) ** 2)
    rng = np.random.default_rng(0)
    for _ in range(200):
        other = rng.uniform(0.05, 1.0, len(GRID))
        other /= np.trapezoid(other, GRID)
        assert sampler_variance(other, G, V, GRID).item() > least
    uniform = sampler_variance(np.ones(101), G, V, GRID).item()
    assert uniform == pytest.approx(np.trapezoid(G**2 + V, GRID) - np.trapezoid(G, GRID) ** 2)


def test_best_density_is_uniform_where_the_second_moment_is_flat():
    assert np.allclose(optimal_t_density(np.cos(GRID), np.sin(GRID) ** 2, GRID), 1.0)


def test_epr_by_hand():
    found = epr_density([0.25], a=2.0, b=3.0, A=0.5, r=1.5, q=2.0, kappa=0.7, m=2.0)
    square = 2 * 0.25**1.5 + 3 * 0.75**2 + (0.5 * math.exp(0.7 * 0.25**2)) ** 2
    assert found.item() == pytest.approx(math.sqrt(square))


@pytest.mark.parametrize(
    "curve", [(0.5, 2.0, 0.3, 1.5, 3.0, 1.2, 2.0), (3.0, 0.1, 0.2, 2.0, 1.0, 0.1, 1.0)]
)
def test_fit_finds_a_curve_of_its_family(curve):
    grid = np.arange(1, 30) / 30
    w = epr_density(grid, *curve)
    found = fit_epr(grid, 7 * w)
    assert np.allclose(found.p, w / np.trapezoid(w, grid), atol=2e-3)
    assert found.kl is not None
    assert found.kl < 1e-6
    assert np.trapezoid(found.p, grid) == pytest.approx(1.0)
    assert (found.fine_grid[0], found.fine_grid[-1]) == (0.0, 1.0)
    assert len(found.fine_grid) >= 257
    assert torch.trapezoid(found.fine_density, found.fine_grid).item() == pytest.approx(1.0)


def test_uniform_share_bounds_weights_and_one_is_uniform():
    grid, w = np.arange(1, 20) / 20, np.exp(8 * np.arange(1, 20) / 20)
    found = fit_epr(grid, w, mix_uniform=0.1)
    _, weight = sample_t(found.fine_grid, found.fine_density, np.linspace(0, 1, 999))
    assert weight.max() <= 10 * (1 + 1e-9)
    assert np.allclose(fit_epr(grid, w, mix_uniform=1.0).fine_density, 1.0)


def test_missing_probes_are_left_out_and_too_few_fall_back_to_uniform_with_a_warning():
    grid = np.arange(1, 12) / 12
    w = 1 + grid
    w[3] = math.nan
    assert np.allclose(fit_epr(grid, w).p, (1 + grid) / np.trapezoid(1 + grid, grid), atol=0.01)
    with pytest.warns(RuntimeWarning, match="0 rates have a loss"):
        found = fit_epr(grid, [None] * 11)
    assert np.allclose(found.p, 12 / 10)
    assert found.params == {}
    assert found.kl is None
    with pytest.warns(RuntimeWarning, match="4 rates have a loss"):
        assert fit_epr(grid[:4], w[4:8]).fallback
    with pytest.raises(ArgumentError, match="integral is 0"):
        fit_epr(grid, np.zeros(11))


def test_draws_and_weights_belong_to_one_density():
    grid, density = [0.0, 0.2, 0.7, 1.0], [0.5, 2.0, 0.0, 3.0]
    u = (np.arange(200_000) + 0.5) / 200_000
    t, weight = sample_t(grid, density, u)
    assert (t.diff() > 0).all()
    # Weighted means are those of uniform t: for any function.
    assert weight.mean().item() == pytest.approx(1.0, abs=2e-3)
    assert (weight * t**2).mean().item() == pytest.approx(1 / 3, abs=2e-3)
    ends = sample_t(grid, density, [0.0, 1.0])
    assert ends.t.tolist() == pytest.approx([0.0, 1.0])


def test_quadratic_inverse_by_hand():
    # p = 2t on [0, 1]: F = t², so t = sqrt(u), weight 1/(2t).
    found = sample_t([0.0, 0.5, 1.0], [0.0, 7.0, 14.0], [0.04, 0.36, 0.81])
    assert found._fields == ("t", "weight")
    assert found.t.tolist() == pytest.approx([0.2, 0.6, 0.9])
    assert found.weight.tolist() == pytest.approx([2.5, 1 / 1.2, 1 / 1.8])


def test_cells_without_mass_are_never_drawn_and_weights_are_cut():
    t, weight = sample_t([0.0, 0.4, 0.5, 1.0], [1.0, 0.0, 0.0, 0.0], [0.5, 1.0])
    assert t.tolist() == pytest.approx([0.4 * (1 - math.sqrt(0.5)), 0.4])
    assert weight[1].item() == 1e6


@pytest.mark.parametrize(
    ("n", "expected"), [(1, (1, 1, 0)), (10, (4, 2, 2)), (16, (4, 4, 0)), (17, (5, 3, 2))]
)
def test_strata(n, expected):
    assert stratum_counts(n) == expected


def test_probe_moments_by_hand():
    losses = [[[1.0, 3.0]], [[5.0, 99.0]]]
    second = probe_moments(losses)  # 99 is cut at 10
    assert second.w.item() == pytest.approx(math.sqrt((1 + 9 + 25 + 100) / 4))
    within = probe_moments(losses, moment="within")
    assert within.w.item() == pytest.approx(math.sqrt((1 + 6.25) / 2 + 4.75**2))
    assert probe_moments([[[1.0, math.nan]], [[3.0, 3.0]]]).g.item() == pytest.approx(7 / 3)


@pytest.mark.parametrize("moment", ["second", "within"])
def test_moments_of_a_table_without_empty_masks_are_those_of_one_with_them(moment):
    # A fourth and a half of the masks of the two rows hide something; the others have loss 0.
    whole = [[[8.0, 0.0, 0.0, 0.0]], [[2.0, 6.0, 0.0, 0.0]]]
    some = [[[8.0, 8.0]], [[2.0, 6.0]]]
    wanted = probe_moments(whole, moment=moment)
    found = probe_moments(some, moment=moment, chances=[[0.25], [0.5]])
    assert found.g.item() == pytest.approx(2.0)
    assert found.v.item() == pytest.approx(wanted.v.item())
    assert found.w.item() == pytest.approx(wanted.w.item())
    with pytest.raises(ArgumentError, match="chances"):
        probe_moments(some, chances=[[0.25], [1.5]])


def test_decomposition_is_exact():
    rng = np.random.default_rng(0)
    table = rng.normal(size=(5, 4, 3)) + rng.normal(size=(5, 1, 1)) + rng.normal(size=(1, 4, 1))
    found = decompose_variance(table)
    assert found._fields == ("A", "B", "C", "total")
    assert found.total.item() == pytest.approx(table.var())
    assert (found.A + found.B + found.C).item() == pytest.approx(table.var())
    assert found.A.item() == pytest.approx(table.var(2).mean())
    assert found.B.item() == pytest.approx(table.mean(2).var(1).mean())
    assert found.C.item() == pytest.approx(table.mean((1, 2)).var())


def test_numbers_at_the_ends_are_masked_at_rate_one():
    u, eligible = [[0.0, 0.5, 1.0, 0.5]], [[1, 1, 1, 0]]
    found = mirror_masks(u, [1.0], eligible)
    assert found.mask_first.tolist() == found.mask_second.tolist() == [[True, True, True, False]]
    drawn = MirrorMasks().passes(
        torch.tensor([u]), torch.ones(1), torch.tensor(eligible, dtype=torch.bool)
    )
    assert all(one.mask_BL.sum() == 3 for one in drawn)
    strict = mirror_masks([[0.5, 0.5]], [0.5], [[1, 1]], eps=0.0)
    assert not strict.mask_first.any()
    assert not strict.mask_second.any()


def test_a_fit_needs_no_gradient_mode():
    grid, costs = [0.1, 0.3, 0.5, 0.7, 0.9], [1.0, 2.0, 3.0, 2.0, 1.0]
    expected = fit_epr(grid, costs, n_starts=2)
    with torch.inference_mode():
        found = fit_epr(torch.tensor(grid), torch.tensor(costs), n_starts=2)
        again = fit_epr(grid, costs, n_starts=2)
    assert again.params == expected.params
    assert found.kl == pytest.approx(expected.kl, abs=1e-6)


SYNTAX = {
    "html": ["<td", ">", "</", "tr", "<table>", "Ġrowspan", '="'],
    "markdown": ["|", "---", "##", "Ċ", "```", "**", ":---:"],
    "json": ["{", '":', "Ġ[", "null", "},", '"'],
    "python": ["def", "Ġreturn", "():", "ĊĠĠĠĠ", "ĠĠĠ", "==", "▁if"],
}
CONTENT = {
    "html": ["Paris", "42", "Ġname", ">Name", "Ċ"],
    "markdown": ["Total", "Ġ12", "Ġ"],
    "json": ["name", "Ġ3", "Ċ"],
    "python": ["total", "Ġ7", "Ġ"],
}


@pytest.mark.parametrize("format", SYNTAX)
def test_tokens_of_a_format(format):
    assert all(syntax_eligible(SYNTAX[format], format)), SYNTAX[format]
    assert not any(syntax_eligible(CONTENT[format], format)), CONTENT[format]


def test_template_tokens_are_those_of_nearly_all_answers():
    answers = [[1, 7, 7, 9], [2, 9, 7], [3, 9]]
    assert template_tokens(answers) == [9]


def test_a_sequence_by_hand():
    baseline = torch.zeros(10, dtype=torch.float64)
    first = ema_control_variate([2.0, 4.0, 9.0], [0.33, 0.34, 1.0], baseline, lr=0.01)
    assert first._fields == ("adjusted_mean", "baseline")
    assert first.adjusted_mean.item() == 5.0
    # round(0.33 * 9) = round(0.34 * 9) = 3: their mean is 3; bin 9 saw 9.
    expected = [0.0] * 10
    expected[3], expected[9] = 0.03, 0.09
    assert first.baseline.tolist() == pytest.approx(expected)
    second = ema_control_variate([2.0, 1.0], [0.33, 0.0], first.baseline, lr=0.01)
    assert second.adjusted_mean.item() == pytest.approx((2 - 0.03 + 1) / 2)
    assert second.baseline[3].item() == pytest.approx(0.99 * 0.03 + 0.01 * 2)
    assert second.baseline[9].item() == pytest.approx(0.09)


def test_halves_go_to_the_even_bin():
    assert bins_of(torch.tensor([0.5, 0.25, 0.75]).double(), 3).tolist() == [1, 0, 2]


def gradients(control):
    """Gradients of three steps, and what was reported."""
    torch.manual_seed(0)
    model, noise = torch.nn.Linear(4, 3), build_noise(control=control)
    found, reported = [], []
    for step in range(3):
        generator = torch.Generator().manual_seed(step)
        ids = torch.randint(4, (5, 6), generator=generator)
        u_B, u_FBL = noise.rate_uniforms(5, generator), noise.mask_uniforms(5, 6, generator)
        noised = noise.corrupt(ids, torch.ones(5, 6, dtype=torch.bool), u_B, u_FBL, 3)
        logits = model(torch.nn.functional.one_hot(noised.ids_PBL[0], 4).float())
        nll = torch.nn.functional.cross_entropy(
            logits.transpose(1, 2), ids.clamp(max=2), reduction="none"
        )
        loss = noise.loss(noised, nll[None])
        model.zero_grad()
        loss.loss.backward()
        found.append(model.weight.grad.clone())
        reported.append(loss.loss.item())
    return found, reported


def test_subtracting_changes_the_report_and_no_gradient_by_a_bit():
    plain, reported = gradients("none")
    same, adjusted = gradients("subtract")
    assert all(torch.equal(a, b) for a, b in zip(plain, same, strict=True))
    assert adjusted[1:] != reported[1:]
    other, _ = gradients("rescale")
    assert not torch.equal(other[2], plain[2])


def test_rescaling_evens_out_bins():
    baseline = LossBaseline("rescale", bins=2, lr=1.0)
    t = torch.tensor([0.0, 1.0]).double()
    assert baseline.adjust(torch.tensor([1.0, 3.0]), t).tolist() == [1.0, 3.0]  # nothing is known
    assert baseline.adjust(torch.tensor([1.0, 3.0]), t).tolist() == pytest.approx([2.0, 2.0])


def test_rescaling_leaves_equal_losses_alone_however_often_a_rate_was_seen():
    baseline = LossBaseline("rescale")
    generator = torch.Generator().manual_seed(0)
    for _ in range(40):
        t = torch.rand(4, generator=generator, dtype=torch.float64)
        assert baseline.adjust(torch.ones(4).double(), t).tolist() == pytest.approx([1.0] * 4)


def test_gradient_baseline_keeps_the_mean_and_lowers_the_variance():
    weight = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    direction = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    baseline = GradientBaseline([weight], bins=11, lr=0.2)
    generator = torch.Generator().manual_seed(0)
    plain, shifted = [], []
    for step in range(600):
        t = torch.rand(8, generator=generator, dtype=torch.float64)
        rows = (4 * t) * (weight @ direction)  # the gradient of a row is 4 t times the direction
        shift = baseline.correction(t, torch.ones(8))
        baseline.learn(baseline.bin_gradients(rows, t), t)
        weight.grad = None
        rows.mean().backward()
        assert weight.grad is not None
        if step >= 100:
            plain.append(weight.grad.clone())
            shifted.append(weight.grad + shift)
    before, after = torch.stack(plain), torch.stack(shifted)
    error = after.std(0) / math.sqrt(len(after))
    assert ((after.mean(0) - 2 * direction).abs() < 3 * error + 1e-12).all()
    assert (after.var(0) < 0.1 * before.var(0)).all()


def test_the_smoothed_loss_by_hand():
    """Three bins, [0, 1/4), [1/4, 3/4), [3/4, 1]; the last was never seen."""
    losses, t, weight = torch.tensor([3.0, 5.0]), torch.tensor([0.5, 1.0]), torch.tensor([2.0, 1.0])
    found = smoothed_loss(losses, t, weight, [4.0, 2.0, None], lr=0.5)
    # mean(2 (3 - 2), 1 (5 - 0)) + 4/4 + 2/2
    assert found.loss == pytest.approx(3.5 + 1.0 + 1.0)
    assert found.baseline == [4.0, 2.5, 5.0]
    first = smoothed_loss(losses, t, weight, [None] * 3)
    assert first == (None, [None, 3.0, 5.0])


def test_the_smoothed_loss_has_no_bias_under_weights_and_bounds():
    """Rates of a density 2t at weight 1/p, and rates between bounds: the mean loss of all of them."""
    u = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    baseline = [9.0, 3.0, None, 1.0, 7.0]
    t = u.sqrt()
    found = smoothed_loss(t.square(), t, 1 / (2 * t), baseline)
    assert found.loss == pytest.approx(1 / 3, abs=0.02)
    t = 0.1 + 0.8 * u
    found = smoothed_loss(t, t, torch.ones_like(t), baseline, low=0.1, high=0.9)
    assert found.loss == pytest.approx(0.5, abs=1e-3)
    assert bin_widths(5, 0.1, 0.9).tolist() == pytest.approx(
        [0.03125, 0.3125, 0.3125, 0.3125, 0.03125]
    )
    assert bin_widths(3).tolist() == [0.25, 0.5, 0.25]


def test_a_loss_that_is_not_finite_is_refused_and_spoils_nothing():
    baseline = LossBaseline("rescale", bins=2)
    baseline.adjust(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 1.0]).double())
    kept = list(baseline.baseline)
    with pytest.raises(ArgumentError, match="losses_B"):
        baseline.adjust(torch.tensor([float("nan")]), torch.tensor([0.2]).double())
    assert baseline.baseline == kept


def test_the_best_coefficient_is_found_as_the_run_goes():
    baseline = LossBaseline(bins=2, lr=0.2)
    plain, adjusted = [], []
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        t = torch.rand(4, generator=generator, dtype=torch.float64)
        losses = 1 + 2 * (t > 0.5).double()
        plain.append(losses.mean())
        adjusted.append(baseline.adjust(losses, t).mean())
    assert torch.stack(adjusted[100:]).var() < 0.2 * torch.stack(plain[100:]).var()
    other = LossBaseline(bins=2, lr=0.2)
    other.load(baseline.state())
    t, losses = torch.tensor([0.2]).double(), torch.tensor([1.0]).double()
    assert torch.equal(other.adjust(losses, t), baseline.adjust(losses, t))
