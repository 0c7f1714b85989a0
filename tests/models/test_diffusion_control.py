"""Control variates: what is reported, what is trained, and what stays as it was."""

import math

import pytest
import torch

from burnish.errors import ArgumentError
from burnish.models.masked_diffusion import (
    GradientBaseline,
    LossBaseline,
    build_noise,
    ema_control_variate,
)
from burnish.models.masked_diffusion.control import bin_widths, bins_of, smoothed_loss


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


def small_model():
    torch.manual_seed(0)
    return torch.nn.Linear(4, 3)


def gradients(control):
    """Gradients of three steps, and what was reported."""
    model, noise = small_model(), build_noise(control=control)
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
        shift = baseline.shift(rows, t, torch.ones(8))
        weight.grad = None
        rows.mean().backward()
        assert weight.grad is not None
        if step >= 100:
            plain.append(weight.grad.clone())
        baseline.add(shift)
        if step >= 100:
            shifted.append(weight.grad.clone())
    before, after = torch.stack(plain), torch.stack(shifted)
    error = after.std(0) / math.sqrt(len(after))
    assert ((after.mean(0) - 2 * direction).abs() < 3 * error + 1e-12).all()
    assert (after.var(0) < 0.1 * before.var(0)).all()


def test_bins_cover_all_rates_once():
    assert bin_widths(10).sum().item() == pytest.approx(1.0)
    assert bin_widths(3).tolist() == [0.25, 0.5, 0.25]


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
