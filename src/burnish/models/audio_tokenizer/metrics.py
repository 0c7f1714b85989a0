"""How far a reconstruction is from its recording: SI-SDR, log-spectral distance, Frechet distance."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from burnish.arguments import as_number, refused
from burnish.errors import ArgumentError
from burnish.models.audio_tokenizer.spectral import magnitudes
from burnish.models.blocks.flow import finite
from burnish.tensors import as_finite, check_shape, torch

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.tensors import Numbers

EPS_MAGNITUDE = 1e-5
"""Added to a magnitude before its logarithm is taken: -100 dB."""
QUIET = 1e-3
"""The same for waveforms; a full-scale tone has a magnitude of about 4."""
ASYMMETRY = 1e-6
"""By how much a covariance may differ from its transpose, and fall below 0, beside its largest entry."""


def si_sdr(estimate: Numbers, reference: Numbers) -> Tensor:
    """Scale-invariant signal-to-distortion ratio in dB, after removal of the mean: (..., n) -> (...).

    `10 log10(|s|^2 / |e - s|^2)`, s being the part of the estimate e along the reference. Infinite
    for a copy, minus infinity for a silent estimate; a silent reference, for which there is no ratio,
    is refused. float64; keeps the gradient.

    >>> from burnish.models.audio_tokenizer import si_sdr
    >>> round(si_sdr([1.0, -1.0, 2.0, -2.0], [1.0, -1.0, 1.0, -1.0]).item(), 3)
    9.542
    """
    estimate_Xn = finite(estimate, "estimate").double()
    reference_Xn = finite(reference, "reference", estimate_Xn)
    if not estimate_Xn.ndim:
        raise refused("estimate", estimate, "samples (..., n)")
    check_shape(reference_Xn, "reference", tuple(estimate_Xn.shape))
    reference_Xn, is_silent_X = _centred(reference_Xn)
    if is_silent_X.any():
        raise ArgumentError(
            "reference: got a silent signal, expected samples that differ. Leave silent clips out"
        )
    estimate_Xn, is_nothing_X = _centred(estimate_Xn)
    gain_X1 = (estimate_Xn * reference_Xn).sum(-1, keepdim=True) / reference_Xn.square().sum(
        -1, keepdim=True
    )
    target_Xn = gain_X1 * reference_Xn
    signal_X = target_Xn.square().sum(-1)
    error_X = (estimate_Xn - target_Xn).square().sum(-1)
    error_X = torch.where(is_nothing_X, 1.0, error_X)
    return 10 * (signal_X / error_X).log10()


def log_spectral_distance(a: Numbers, b: Numbers, eps: float = EPS_MAGNITUDE) -> Tensor:
    """Mean over frames of the RMS over bins of the difference in dB: magnitudes (T, F), (T, F) -> ().

    The decibels of a magnitude x are `20 log10(x + eps)`.

    >>> from burnish.models.audio_tokenizer import log_spectral_distance
    >>> log_spectral_distance([[1.0, 10.0]], [[10.0, 1.0]], eps=0.0).item()
    20.0
    """
    a_TF, b_TF = finite(a, "a").double(), finite(b, "b").double()
    if a_TF.ndim != 2:
        raise ArgumentError(f"a: got shape {tuple(a_TF.shape)}, expected (T, F)")
    b_TF = b_TF.to(a_TF)
    check_shape(b_TF, "b", tuple(a_TF.shape))
    eps = as_number("eps", eps, low=0)
    for what, values in (("a", a_TF), ("b", b_TF)):
        if (values < 0).any():
            raise refused(what, values.detach().amin().item(), "magnitudes of at least 0")
        if not eps and not values.all():
            raise ArgumentError(f"eps: got 0 with a magnitude of 0 in {what}, expected above 0")
    decibels_TF = 20 * ((a_TF + eps).log10() - (b_TF + eps).log10())
    return _rms(decibels_TF).mean()


def wave_distance(estimate_n: Tensor, reference_n: Tensor, rate: int) -> Tensor:
    """Log-spectral distance of two waveforms (n,), (n,) -> (), windows of about 32 ms, in dB.

    Magnitudes are those of Hann windows with a hop of a quarter, as in the losses, not below about -70
    dB of full scale: silence of 16 bits and silence of none are alike. A wrong loudness counts.
    """
    size = max(4, 2 ** round(math.log2(0.032 * rate)))
    length_1 = estimate_n.new_full((1,), len(estimate_n))
    ours_1KF, _ = magnitudes(estimate_n[None], size, length_1)
    theirs_1KF, _ = magnitudes(reference_n[None], size, length_1)
    decibels = 20 * ((ours_1KF + QUIET).log10() - (theirs_1KF + QUIET).log10())
    return _rms(decibels[0]).mean()


def frechet_distance(mu1: Numbers, cov1: Numbers, mu2: Numbers, cov2: Numbers) -> Tensor:
    """`|mu1 - mu2|^2 + tr(cov1 + cov2 - 2 (cov1 cov2)^(1/2))` of two Gaussians: (D,), (D, D) -> ().

    float64; exact for singular covariances too. What is no covariance is refused.

    >>> from burnish.models.audio_tokenizer import frechet_distance
    >>> frechet_distance([0.0], [[4.0]], [3.0], [[1.0]]).item()
    10.0
    """
    first_D, second_D = as_finite(mu1, "mu1"), as_finite(mu2, "mu2")
    if first_D.ndim != 1 or not len(first_D):
        raise ArgumentError(f"mu1: got shape {tuple(first_D.shape)}, expected (D,)")
    second_D = second_D.to(first_D)
    check_shape(second_D, "mu2", tuple(first_D.shape))
    one_DD = _covariance(cov1, "cov1", first_D)
    two_DD = _covariance(cov2, "cov2", first_D)
    values_D, vectors_DD = torch.linalg.eigh(one_DD)
    root_DD = (vectors_DD * values_D.clamp(min=0).sqrt()) @ vectors_DD.T
    product_DD = root_DD @ two_DD @ root_DD
    shared = torch.linalg.eigvalsh((product_DD + product_DD.T) / 2).clamp(min=0).sqrt().sum()
    spread = one_DD.trace() + two_DD.trace() - 2 * shared
    distance: Tensor = (first_D - second_D).square().sum() + spread.clamp(min=0)
    return distance


def _centred(signal_Xn: Tensor) -> tuple[Tensor, Tensor]:
    """The signal without its mean, at a peak of 1, and whether nothing but rounding is left of it."""
    centred_Xn = signal_Xn - signal_Xn.mean(-1, keepdim=True)
    rounding = torch.finfo(signal_Xn.dtype).eps * signal_Xn.shape[-1]
    peak_X = centred_Xn.detach().abs().amax(-1)
    is_silent_X = peak_X <= rounding * signal_Xn.detach().abs().amax(-1)
    scaled_Xn = centred_Xn / torch.where(is_silent_X, 1.0, peak_X)[..., None]
    return torch.where(is_silent_X[..., None], 0.0, scaled_Xn), is_silent_X


def _rms(values_TF: Tensor) -> Tensor:
    """Root of the mean square of each row; its gradient at 0 is 0."""
    mean_T = values_TF.square().mean(-1)
    return torch.where(mean_T > 0, torch.where(mean_T > 0, mean_T, 1.0).sqrt(), 0.0)


def _covariance(values: Numbers, what: str, mean_D: Tensor) -> Tensor:
    found_DD = as_finite(values, what).to(mean_D)
    check_shape(found_DD, what, (len(mean_D), len(mean_D)))
    allowed = ASYMMETRY * max(found_DD.abs().max().item(), 1e-300)
    if (found_DD - found_DD.T).abs().max() > allowed:
        raise ArgumentError(f"{what}: differs from its transpose, expected a covariance")
    found_DD = (found_DD + found_DD.T) / 2
    least = torch.linalg.eigvalsh(found_DD).min().item()
    if least < -allowed * len(mean_D):
        raise ArgumentError(f"{what}: has the eigenvalue {least:.3g}, expected a covariance")
    return found_DD
