"""Odd arguments of the functions for masked diffusion and SiameseNorm: one line each, never a number."""

from __future__ import annotations

import math

import pytest
import torch

from burnish.errors import ArgumentError
from burnish.models.masked_diffusion import (
    MirrorMasks,
    fit_epr,
    isad_mask_prob,
    mdm_loss,
    mirror_masks,
    sampler_variance,
)
from burnish.models.siamesenorm import siamese_block, siamese_paper, siamese_trunk

EYE = torch.eye(2)


def test_delimiters_of_three_axes_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"is_delimiter: got shape \(1, 1, 2\)"):
        isad_mask_prob([0.5], [[[0, 1]]])


def test_chances_without_an_inverse_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"is beyond torch\.float64"):
        mdm_loss([[1.0]], [[1]], [1e-320], [1])
    with pytest.raises(ArgumentError, match="chances whose inverse"):
        isad_mask_prob([1e-320], [[0, 1]])


def test_a_density_that_is_not_normalised_is_refused() -> None:
    with pytest.raises(ArgumentError, match="its trapezoid integral over t_grid is 2, expected 1"):
        sampler_variance([2.0, 2.0], [1.0, 1.0], [1.0, 1.0], [0.0, 1.0])
    assert sampler_variance([1.0005, 1.0], [1.0, 1.0], [1.0, 1.0], [0.0, 1.0]) > 0


def test_both_masks_are_the_whole_answer_at_rate_one() -> None:
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


def test_a_fit_needs_no_gradient_mode() -> None:
    grid, costs = [0.1, 0.3, 0.5, 0.7, 0.9], [1.0, 2.0, 3.0, 2.0, 1.0]
    expected = fit_epr(grid, costs, n_starts=2)
    with torch.inference_mode():
        found = fit_epr(torch.tensor(grid), torch.tensor(costs), n_starts=2)
        again = fit_epr(grid, costs, n_starts=2)
    assert again.params == expected.params
    assert found.kl == pytest.approx(expected.kl, abs=1e-6)


def test_streams_whose_squares_overflow_are_refused() -> None:
    large = torch.tensor([[3e38, 1.0]])
    with pytest.raises(ArgumentError, match="X: has numbers beyond 1e\\+18"):
        siamese_block(large, large, EYE, EYE)
    with pytest.raises(ArgumentError, match="H: has numbers beyond"):
        siamese_trunk(large, [EYE, EYE])
    fine = torch.tensor([[1e18, 1.0]])
    assert siamese_block(fine, fine, EYE, EYE).X.isfinite().all()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_sublayer_that_gives_no_number_is_refused(value: float) -> None:
    with pytest.raises(ArgumentError, match="first gave: "):
        siamese_block([[1.0, 2.0]], [[1.0, 2.0]], lambda z: z * value, EYE)


def test_odd_places_and_sublayers_are_refused() -> None:
    with pytest.raises(ArgumentError, match="block_index: got 1e\\+308"):
        siamese_block([[1.0, 2.0]], [[1.0, 2.0]], EYE, EYE, block_index=1e308)  # type: ignore[arg-type]
    for odd in (torch.tensor(1.0), torch.tensor(1.0).numpy()):
        with pytest.raises(ArgumentError, match="sublayers: got"):
            siamese_paper([[1.0, 2.0]], odd)


@pytest.mark.parametrize(
    ("odd", "kind"),
    [(EYE.to_sparse(), "sparse"), (EYE.to("meta"), "meta")],
    ids=["sparse", "meta"],
)
def test_tensors_without_readable_numbers_are_refused(odd: torch.Tensor, kind: str) -> None:
    with pytest.raises(ArgumentError, match=f"token_nll: got a {kind} tensor, expected a dense"):
        mdm_loss(odd, EYE, [0.5, 0.5], [1, 1])
    with pytest.raises(ArgumentError, match=f"mask: got a {kind} tensor"):
        mdm_loss(EYE, odd, [0.5, 0.5], [1, 1])
    with pytest.raises(ArgumentError, match=f"X: got a {kind} tensor"):
        siamese_block(odd, EYE, EYE, EYE)
