"""Spectra of waveforms, and what they say of a reconstruction: losses, distances, a discriminator.

Frame k of `spectrum` is centred on samples k hop to (k + 1) hop, so that n samples have n / hop frames
and `waveform` gives them back exactly. The discriminator is DAC's: a small network of 2-D convolutions
for each window size, on the real and imaginary part of the spectrum; hinge loss; the L1 distance of
hidden layers, relative to their size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, NamedTuple

import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor, nn

from burnish.arguments import refused
from burnish.boundary import NonNegative, PositiveInt, public
from burnish.errors import ArgumentError

if TYPE_CHECKING:
    from jaxtyping import Float, Float64

    Signal = Float[Tensor, "B n"] | Float[Tensor, " n"]
    Lengths = Annotated[Float64[Tensor, " B"] | Float64[Tensor, ""], Meta(ge=0)]
    Magnitudes = Annotated[Float[Tensor, "T F"], Meta(ge=0)]

WINDOWS = (128, 512)
"""Samples, for 8 kHz; 512 and 2048 suit 24 kHz."""
EPS = 1e-5
"""Least magnitude that a logarithm is taken of."""
QUIET = 1e-3
"""The same for waveforms; a full-scale tone has a magnitude of about 4."""
Windows = Annotated[Sequence[Annotated[int, Meta(ge=4, le=65_536)]], Meta(min_length=1)]


def spectrum(padded_BN: Tensor, size: int, hop: int) -> Tensor:
    """Frames of an already padded signal: (B, (K - 1) hop + size) -> complex (B, K, size / 2 + 1)."""
    window_n = torch.hann_window(size, dtype=padded_BN.dtype, device=padded_BN.device)
    frames_BKn = padded_BN.unfold(-1, size, hop) * window_n
    frames_BKF: Tensor = torch.fft.rfft(frames_BKn, norm="ortho")
    return frames_BKF


def overlapped(
    frames_BKF: Tensor, size: int, hop: int, mask_BK: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Sum of windowed frames (B, (K - 1) hop + size), and that of squared windows, (1 or B, the same).

    The signal is their ratio; parts of it can be summed one after the other. Frames outside of `mask_BK`
    are left out of both sums.
    """
    signals_BKn = torch.fft.irfft(frames_BKF, n=size, norm="ortho")
    window_n = torch.hann_window(size, dtype=signals_BKn.dtype, device=signals_BKn.device)
    rows, count = signals_BKn.shape[:2]
    windowed_BKn, weights_BKn = signals_BKn * window_n, window_n.square().expand(1, count, size)
    if mask_BK is not None:
        windowed_BKn = torch.where(mask_BK[..., None], windowed_BKn, 0.0)
        weights_BKn = weights_BKn * mask_BK[..., None]
    both = torch.cat((windowed_BKn, weights_BKn)).transpose(1, 2)
    total = (count - 1) * hop + size
    summed = F.fold(both, (1, total), (1, size), stride=(1, hop))[:, 0, 0]
    return summed[:rows], summed[rows:]


def waveform(frames_BKF: Tensor, size: int, hop: int, mask_BK: Tensor | None = None) -> Tensor:
    """Inverse of `spectrum` for a signal padded by (size - hop) / 2 on both sides: -> (B, K hop).

    With `mask_BK` each row is that of its own frames alone, and 0 where it has none.
    """
    signal_BN, weight_BN = overlapped(frames_BKF, size, hop, mask_BK)
    edge = (size - hop) // 2
    kept = slice(edge, edge + frames_BKF.shape[1] * hop)
    signal_BN, weight_BN = signal_BN[:, kept], weight_BN[:, kept]
    if mask_BK is not None:
        weight_BN = weight_BN.masked_fill(weight_BN == 0, 1.0)
    return signal_BN / weight_BN


class CodecLoss(NamedTuple):
    """The weighted sum, and each part before its weight; all keep the gradient."""

    loss: Tensor
    parts: dict[str, Tensor]


@public
def codec_loss(
    estimate: Signal,
    reference: Signal,
    sampling_rate: PositiveInt,
    lengths: Lengths | None = None,
    windows: Windows = WINDOWS,
) -> CodecLoss:
    """Loss of a reconstruction: spectra of several sizes, mel bands and the waveform: (B, n) or (n,) -> ().

    `magnitude` and `log_magnitude` (natural logarithm, of at least `EPS`) are L1 distances of magnitudes of
    Hann windows with a hop of a quarter, `mel` that of the decimal logarithm of mel magnitudes, each the
    mean over windows; `wave` is L1 of samples. Weights are DAC's. `lengths` says how many samples of a row
    count: the rest is padding.

    >>> wave = torch.sin(torch.arange(1000) / 3)
    >>> sorted(codec_loss(0.5 * wave, wave, sampling_rate=8000).parts)
    ['log_magnitude', 'magnitude', 'mel', 'wave']
    """
    estimate_Bn, reference_Bn = (
        one if one.ndim == 2 else one[None] for one in (estimate, reference)
    )
    rows, count = estimate_Bn.shape
    lengths_B = estimate_Bn.new_full((rows,), count) if lengths is None else lengths.expand(rows)
    if (lengths_B > count).any():
        raise refused("lengths", lengths, f"at most the {count} samples of a row")
    lengths_B = lengths_B.to(estimate_Bn)
    estimate_Bn, reference_Bn = (
        _zeroed(one, lengths_B) for one in (estimate_Bn, reference_Bn.to(estimate_Bn))
    )
    parts = reconstruction_terms(estimate_Bn, reference_Bn, lengths_B, windows, sampling_rate)
    return CodecLoss(weighted(parts, mel_weight=15.0, wave_weight=10.0), parts)


def weighted(parts: Mapping[str, Tensor], mel_weight: float, wave_weight: float) -> Tensor:
    """The sum that `codec_loss` is of its parts."""
    spectral = parts["magnitude"] + parts["log_magnitude"]
    return spectral + mel_weight * parts["mel"] + wave_weight * parts["wave"]


def reconstruction_terms(
    estimate_Bn: Tensor,
    reference_Bn: Tensor,
    lengths_B: Tensor,
    sizes: Sequence[int],
    rate: int,
) -> dict[str, Tensor]:
    """The parts of `codec_loss`; values are not looked at."""
    parts: dict[str, list[Tensor]] = {"magnitude": [], "log_magnitude": [], "mel": []}
    for size in sizes:
        ours_BKF, frames_B = magnitudes(estimate_Bn, size, lengths_B)
        theirs_BKF, _ = magnitudes(reference_Bn, size, lengths_B)
        parts["magnitude"].append(_counted_mean((ours_BKF - theirs_BKF).abs(), frames_B))
        ratio_BKF = ours_BKF.clamp(min=EPS).log() - theirs_BKF.clamp(min=EPS).log()
        parts["log_magnitude"].append(_counted_mean(ratio_BKF.abs(), frames_B))
        filters_FM = mel_filters(rate, size, max(size // 16, 4)).to(estimate_Bn)
        ours_BKM = (ours_BKF @ filters_FM).clamp(min=EPS).log10()
        theirs_BKM = (theirs_BKF @ filters_FM).clamp(min=EPS).log10()
        parts["mel"].append(_counted_mean((ours_BKM - theirs_BKM).abs(), frames_B))
    means = {name: torch.stack(found).mean() for name, found in parts.items()}
    apart_Bn1 = (estimate_Bn - reference_Bn).abs()[..., None]
    return means | {"wave": _counted_mean(apart_Bn1, lengths_B)}


def magnitudes(signal_Bn: Tensor, size: int, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
    """Magnitudes (B, K, F) with a hop of a quarter window, and how many frames of each row count."""
    hop = max(size // 4, 1)
    count = -(-signal_Bn.shape[1] // hop)
    padded_BN = F.pad(
        _zeroed(signal_Bn, lengths_B), (size // 2, count * hop - signal_Bn.shape[1] + size)
    )
    frames_BKF = spectrum(padded_BN[:, : (count - 1) * hop + size], size, hop)
    power_BKF = frames_BKF.real.square() + frames_BKF.imag.square()
    # The gradient of the root is infinite at 0, that of silence. NaN is no silence, and stays.
    is_silent_BKF = power_BKF == 0
    root_BKF = torch.where(is_silent_BKF, 1.0, power_BKF).sqrt()
    return torch.where(is_silent_BKF, 0.0, root_BKF), (lengths_B / hop).ceil()


@lru_cache(maxsize=32)
def mel_filters(rate: int, size: int, bands: int) -> Tensor:
    """Triangles of equal width on the mel scale, each of sum 1: (size / 2 + 1, bands), float64."""
    bins_F = torch.linspace(0, rate / 2, size // 2 + 1, dtype=torch.float64)
    highest = 2595 * torch.log10(torch.tensor(1 + rate / 2 / 700, dtype=torch.float64))
    mels_E = torch.linspace(0, 1, bands + 2, dtype=torch.float64) * highest
    edges_E = 700 * (10 ** (mels_E / 2595) - 1)
    low_M, centre_M, high_M = edges_E[:-2], edges_E[1:-1], edges_E[2:]
    rising_FM = (bins_F[:, None] - low_M) / (centre_M - low_M)
    falling_FM = (high_M - bins_F[:, None]) / (high_M - centre_M)
    triangles_FM = torch.minimum(rising_FM, falling_FM).clamp(min=0)
    # A band narrower than the spacing of bins may hold none of them: it takes the nearest.
    nearest_FM = (bins_F[:, None] - centre_M).abs()
    is_nearest_FM = nearest_FM == nearest_FM.amin(0)
    filters_FM = torch.where(triangles_FM.sum(0) > 0, triangles_FM, is_nearest_FM.double())
    return filters_FM / filters_FM.sum(0)


def _zeroed(signal_Bn: Tensor, lengths_B: Tensor) -> Tensor:
    places_n = torch.arange(signal_Bn.shape[1], device=signal_Bn.device)
    return torch.where(places_n < lengths_B[:, None], signal_Bn, 0.0)


def _counted_mean(values_BKF: Tensor, counts_B: Tensor) -> Tensor:
    """Mean over the first entries of each row; 0 where no row has any."""
    places_K = torch.arange(values_BKF.shape[1], device=values_BKF.device)
    is_counted_BK = places_K < counts_B[:, None]
    total = torch.where(is_counted_BK[..., None], values_BKF, 0.0).sum()
    return total / (is_counted_BK.sum().clamp(min=1) * values_BKF.shape[2])


@public
def si_sdr(estimate: Float[Tensor, "*B n"], reference: Float[Tensor, "*B n"]) -> Tensor:
    """Scale-invariant signal-to-distortion ratio in dB, after removal of the mean: (..., n) -> (...).

    `10 log10(|s|^2 / |e - s|^2)`, s being the part of the estimate e along the reference. Infinite
    for a copy, minus infinity for a silent estimate; a silent reference, for which there is no ratio,
    is refused. float64; keeps the gradient.

    >>> round(si_sdr([1.0, -1.0, 2.0, -2.0], [1.0, -1.0, 1.0, -1.0]).item(), 3)
    9.542
    """
    reference_Xn, is_silent_X = _centred(reference.double())
    if is_silent_X.any():
        raise ArgumentError("reference: got a silent signal, expected samples that differ")
    estimate_Xn, is_nothing_X = _centred(estimate.double())
    gain_X1 = (estimate_Xn * reference_Xn).sum(-1, keepdim=True) / reference_Xn.square().sum(
        -1, keepdim=True
    )
    target_Xn = gain_X1 * reference_Xn
    signal_X = target_Xn.square().sum(-1)
    error_X = (estimate_Xn - target_Xn).square().sum(-1)
    error_X = torch.where(is_nothing_X, 1.0, error_X)
    return 10 * (signal_X / error_X).log10()


@public
def log_spectral_distance(a: Magnitudes, b: Magnitudes, eps: NonNegative = EPS) -> Tensor:
    """Mean over frames of the RMS over bins of the difference in dB: magnitudes (T, F), (T, F) -> ().

    The decibels of a magnitude x are `20 log10(x + eps)`.

    >>> log_spectral_distance([[1.0, 10.0]], [[10.0, 1.0]], eps=0.0).item()
    20.0
    """
    if not eps and not (a.all() and b.all()):
        raise ArgumentError("eps: got 0 with a magnitude of 0 in a or b, expected above 0")
    return _decibels_apart(a.double() + eps, b.double() + eps)


def _decibels_apart(a_TF: Tensor, b_TF: Tensor) -> Tensor:
    """Mean over frames of the RMS over bins of the difference; its gradient at 0 is 0."""
    mean_T = (20 * (a_TF.log10() - b_TF.log10())).square().mean(-1)
    return torch.where(mean_T > 0, torch.where(mean_T > 0, mean_T, 1.0).sqrt(), 0.0).mean()


def wave_distance(estimate_n: Tensor, reference_n: Tensor, rate: int) -> Tensor:
    """Log-spectral distance of two waveforms (n,), (n,) -> (), windows of about 32 ms, in dB.

    Magnitudes are those of Hann windows with a hop of a quarter, as in the losses, not below about -70
    dB of full scale: silence of 16 bits and silence of none are alike. A wrong loudness counts.
    """
    size = max(4, 2 ** round(math.log2(0.032 * rate)))
    length_1 = estimate_n.new_full((1,), len(estimate_n))
    ours, theirs = (magnitudes(x[None], size, length_1)[0][0] for x in (estimate_n, reference_n))
    return _decibels_apart(ours + QUIET, theirs + QUIET)


@public
def frechet_distance(
    mu1: Float64[Tensor, " D"],
    cov1: Float64[Tensor, "D D"],
    mu2: Float64[Tensor, " D"],
    cov2: Float64[Tensor, "D D"],
) -> Tensor:
    """`|mu1 - mu2|^2 + tr(cov1 + cov2 - 2 (cov1 cov2)^(1/2))` of two Gaussians: (D,), (D, D) -> ().

    float64; exact for singular covariances too. What is no covariance is refused.

    >>> frechet_distance([0.0], [[4.0]], [3.0], [[1.0]]).item()
    10.0
    """
    for what, found_DD in (("cov1", cov1), ("cov2", cov2)):
        allowed = 1e-6 * max(found_DD.abs().max().item(), 1e-300)
        least = torch.linalg.eigvalsh((found_DD + found_DD.T) / 2).min().item()
        if (found_DD - found_DD.T).abs().max() > allowed or least < -allowed * len(found_DD):
            raise refused(what, f"asymmetric, or eigenvalue {least:.3g}", "a covariance")
    one_DD, two_DD = (cov1 + cov1.T) / 2, (cov2 + cov2.T) / 2
    values_D, vectors_DD = torch.linalg.eigh(one_DD)
    root_DD = (vectors_DD * values_D.clamp(min=0).sqrt()) @ vectors_DD.T
    product_DD = root_DD @ two_DD @ root_DD
    shared = torch.linalg.eigvalsh((product_DD + product_DD.T) / 2).clamp(min=0).sqrt().sum()
    spread = one_DD.trace() + two_DD.trace() - 2 * shared
    distance: Tensor = (mu1 - mu2).square().sum() + spread.clamp(min=0)
    return distance


def _centred(signal_Xn: Tensor) -> tuple[Tensor, Tensor]:
    """The signal without its mean, at a peak of 1, and whether nothing but rounding is left of it."""
    centred_Xn = signal_Xn - signal_Xn.mean(-1, keepdim=True)
    rounding = torch.finfo(signal_Xn.dtype).eps * signal_Xn.shape[-1]
    peak_X = centred_Xn.detach().abs().amax(-1)
    is_silent_X = peak_X <= rounding * signal_Xn.detach().abs().amax(-1)
    scaled_Xn = centred_Xn / torch.where(is_silent_X, 1.0, peak_X)[..., None]
    return torch.where(is_silent_X[..., None], 0.0, scaled_Xn), is_silent_X


class Verdict(NamedTuple):
    """What one network says of a batch."""

    scores: Tensor
    """(B, 1, K, F'): high for sounds, low for reconstructions."""
    features: tuple[Tensor, ...]
    """Hidden layers."""


class SpectralDiscriminator(nn.Module):
    """One network for each window size.

    >>> judge = SpectralDiscriminator(windows=(64,), channels=4)
    >>> [verdict.scores.shape[0] for verdict in judge(torch.zeros(3, 500))]
    [3]
    """

    def __init__(self, windows: Sequence[int], channels: int = 32) -> None:
        super().__init__()
        self.windows = tuple(windows)
        self.networks = nn.ModuleList()
        for _ in self.windows:
            inputs, layers = 2, nn.ModuleList()
            for stride in (1, 2, 2, 2, 1):  # over bins
                conv = nn.Conv2d(inputs, channels, (3, 5), stride=(1, stride), padding=(1, 2))
                layers.append(conv)
                inputs = channels
            layers.append(nn.Conv2d(channels, 1, 3, padding=1))
            self.networks.append(layers)

    def forward(self, samples_Bn: Tensor) -> list[Verdict]:
        """Samples (B, n) to a verdict for each window size."""
        found = []
        for size, network in zip(self.windows, self.networks, strict=True):
            hop = size // 4
            padded = F.pad(samples_Bn, (size // 2, size // 2 + -samples_Bn.shape[1] % hop))
            frames_BKF = spectrum(padded, size, hop)
            x = torch.stack((frames_BKF.real, frames_BKF.imag), dim=1)
            features: list[Tensor] = []
            assert isinstance(network, nn.ModuleList)
            for layer in network[:-1]:
                x = F.leaky_relu(layer(x), 0.1)
                features.append(x)
            found.append(Verdict(network[-1](x), tuple(features)))
        return found


def hinge_loss(real: Sequence[Verdict], fake: Sequence[Verdict]) -> Tensor:
    """Of the discriminator: sounds above 1, reconstructions below -1; mean over networks."""
    pairs = zip(real, fake, strict=True)
    each = [F.relu(1 - a.scores).mean() + F.relu(1 + b.scores).mean() for a, b in pairs]
    return torch.stack(each).mean()


class AdversarialTerms(NamedTuple):
    """Of the tokenizer; both keep the gradient to the reconstruction."""

    verdict: Tensor
    features: Tensor


def adversarial_terms(real: Sequence[Verdict], fake: Sequence[Verdict]) -> AdversarialTerms:
    """Minus the score of reconstructions, and how far their hidden layers are from those of sounds."""
    verdicts = [-two.scores.mean() for two in fake]
    distances = [
        (ours - theirs.detach()).abs().mean() / theirs.detach().abs().mean().clamp(min=1e-6)
        for one, two in zip(real, fake, strict=True)
        for theirs, ours in zip(one.features, two.features, strict=True)
    ]
    return AdversarialTerms(torch.stack(verdicts).mean(), torch.stack(distances).mean())
