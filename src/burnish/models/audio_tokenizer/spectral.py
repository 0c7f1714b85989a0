"""Spectra of waveforms: frames, their inverse, and the losses of a reconstruction.

    loss = codec_loss(reconstruction, waveform, sampling_rate=8000, lengths=lengths)
    loss.loss.backward()

Frame k of `spectrum` is centred on samples k hop to (k + 1) hop, so that n samples have n / hop frames
and `waveform` gives them back exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from burnish.arguments import as_list, as_number, as_whole, refused
from burnish.errors import ArgumentError
from burnish.models.blocks.flow import finite
from burnish.tensors import as_lengths, check_shape, torch

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.tensors import Numbers

WINDOWS = (128, 512)
"""Samples, for 8 kHz; 512 and 2048 suit 24 kHz."""
EPS = 1e-5
"""Least magnitude that a logarithm is taken of."""
LARGEST_WINDOW = 65_536


def window_of(size: int, like: Tensor) -> Tensor:
    """Hann's window, of the dtype and device of `like`."""
    return torch.hann_window(size, dtype=like.dtype, device=like.device)


def spectrum(padded_BN: Tensor, size: int, hop: int) -> Tensor:
    """Frames of an already padded signal: (B, (K - 1) hop + size) -> complex (B, K, size / 2 + 1)."""
    frames_BKn = padded_BN.unfold(-1, size, hop) * window_of(size, padded_BN)
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
    window_n = window_of(size, signals_BKn)
    rows, count = signals_BKn.shape[:2]
    windowed_BKn, weights_BKn = signals_BKn * window_n, window_n.square().expand(1, count, size)
    if mask_BK is not None:
        windowed_BKn = torch.where(mask_BK[..., None], windowed_BKn, 0.0)
        weights_BKn = weights_BKn * mask_BK[..., None]
    both = torch.cat((windowed_BKn, weights_BKn)).transpose(1, 2)
    total = (count - 1) * hop + size
    summed = torch.nn.functional.fold(both, (1, total), (1, size), stride=(1, hop))[:, 0, 0]
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


def multi_scale_spectral_loss(
    estimate: Numbers,
    reference: Numbers,
    windows: Sequence[int] = WINDOWS,
    lengths: Numbers | None = None,
    eps: float = EPS,
) -> CodecLoss:
    """L1 of magnitudes and of their logarithms, the mean over window sizes: (B, n) or (n,) -> ().

    Magnitudes are those of Hann windows with a hop of a quarter. `lengths` says how many samples of a
    row count: the rest is padding. Parts are `magnitude` and `log_magnitude` (natural logarithm, of at
    least `eps`).

    >>> import torch
    >>> from burnish.models.audio_tokenizer import multi_scale_spectral_loss
    >>> wave = torch.sin(torch.arange(1000) / 3)
    >>> found = multi_scale_spectral_loss(0.5 * wave, wave)
    >>> sorted(found.parts), float(multi_scale_spectral_loss(wave, wave).loss)
    (['log_magnitude', 'magnitude'], 0.0)
    """
    estimate_Bn, reference_Bn, lengths_B = _pair(estimate, reference, lengths)
    # In float32 a smaller one is 0, and the logarithm of silence infinite.
    eps = as_number("eps", eps, low=torch.finfo(torch.float32).tiny)
    parts = reconstruction_terms(estimate_Bn, reference_Bn, lengths_B, _sizes(windows), eps=eps)
    return CodecLoss(parts["magnitude"] + parts["log_magnitude"], parts)


def codec_loss(
    estimate: Numbers,
    reference: Numbers,
    sampling_rate: int,
    lengths: Numbers | None = None,
    windows: Sequence[int] = WINDOWS,
    mel_weight: float = 15.0,
    wave_weight: float = 10.0,
) -> CodecLoss:
    """Loss of a reconstruction: spectra of several sizes, mel bands and the waveform: (B, n) -> ().

    Parts are those of `multi_scale_spectral_loss`, `mel` (L1 of the decimal logarithm of mel
    magnitudes, the mean over windows) and `wave` (L1 of samples). Weights are DAC's.

    >>> import torch
    >>> from burnish.models.audio_tokenizer import codec_loss
    >>> wave = torch.sin(torch.arange(1000) / 3)
    >>> sorted(codec_loss(0.5 * wave, wave, sampling_rate=8000).parts)
    ['log_magnitude', 'magnitude', 'mel', 'wave']
    """
    estimate_Bn, reference_Bn, lengths_B = _pair(estimate, reference, lengths)
    rate = as_whole("sampling_rate", sampling_rate, low=1, high=10_000_000)
    mel_weight = as_number("mel_weight", mel_weight, low=0)
    wave_weight = as_number("wave_weight", wave_weight, low=0)
    sizes = _sizes(windows)
    parts = reconstruction_terms(estimate_Bn, reference_Bn, lengths_B, sizes, rate=rate)
    return CodecLoss(weighted(parts, mel_weight, wave_weight), parts)


def weighted(parts: Mapping[str, Tensor], mel_weight: float, wave_weight: float) -> Tensor:
    """The sum that `codec_loss` is of its parts."""
    spectral = parts["magnitude"] + parts["log_magnitude"]
    return spectral + mel_weight * parts["mel"] + wave_weight * parts["wave"]


def reconstruction_terms(
    estimate_Bn: Tensor,
    reference_Bn: Tensor,
    lengths_B: Tensor,
    sizes: Sequence[int],
    *,
    rate: int | None = None,
    eps: float = EPS,
) -> dict[str, Tensor]:
    """The parts of a reconstruction's loss; values are not looked at. `mel` and `wave` with a rate."""
    plain, logs, mels = [], [], []
    for size in sizes:
        ours_BKF, frames_B = magnitudes(estimate_Bn, size, lengths_B)
        theirs_BKF, _ = magnitudes(reference_Bn, size, lengths_B)
        plain.append(_mean((ours_BKF - theirs_BKF).abs(), frames_B))
        ratio_BKF = ours_BKF.clamp(min=eps).log() - theirs_BKF.clamp(min=eps).log()
        logs.append(_mean(ratio_BKF.abs(), frames_B))
        if rate is not None:
            filters_FM = mel_filters(rate, size, max(size // 16, 4)).to(estimate_Bn)
            ours_BKM = (ours_BKF @ filters_FM).clamp(min=EPS).log10()
            theirs_BKM = (theirs_BKF @ filters_FM).clamp(min=EPS).log10()
            mels.append(_mean((ours_BKM - theirs_BKM).abs(), frames_B))
    parts = {"magnitude": torch.stack(plain).mean(), "log_magnitude": torch.stack(logs).mean()}
    if mels:
        parts["mel"] = torch.stack(mels).mean()
        parts["wave"] = _mean((estimate_Bn - reference_Bn).abs()[..., None], lengths_B)
    return parts


def magnitudes(signal_Bn: Tensor, size: int, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
    """Magnitudes (B, K, F) with a hop of a quarter window, and how many frames of each row count."""
    hop = max(size // 4, 1)
    count = -(-signal_Bn.shape[1] // hop)
    padded_BN = torch.nn.functional.pad(
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


def _sizes(windows: Sequence[int]) -> list[int]:
    return [
        as_whole("windows", size, low=4, high=LARGEST_WINDOW)
        for size in as_list("windows", windows, least=1)
    ]


def _pair(
    estimate: Numbers, reference: Numbers, lengths: Numbers | None
) -> tuple[Tensor, Tensor, Tensor]:
    estimate_Bn = finite(estimate, "estimate")
    reference_Bn = finite(reference, "reference", estimate_Bn)
    check_shape(reference_Bn, "reference", tuple(estimate_Bn.shape))
    if estimate_Bn.ndim not in (1, 2):
        raise ArgumentError(f"estimate: got shape {tuple(estimate_Bn.shape)}, expected (B, n)")
    if estimate_Bn.ndim == 1:
        estimate_Bn, reference_Bn = estimate_Bn[None], reference_Bn[None]
    count = estimate_Bn.shape[1]
    if lengths is None:
        lengths_B = estimate_Bn.new_full((len(estimate_Bn),), count)
    else:
        lengths_B = as_lengths(lengths, "lengths", estimate_Bn).to(estimate_Bn.dtype)
        if (lengths_B > count).any():
            raise refused("lengths", lengths, f"at most the {count} samples of a row")
    return _zeroed(estimate_Bn, lengths_B), _zeroed(reference_Bn, lengths_B), lengths_B


def _zeroed(signal_Bn: Tensor, lengths_B: Tensor) -> Tensor:
    places_n = torch.arange(signal_Bn.shape[1], device=signal_Bn.device)
    return torch.where(places_n < lengths_B[:, None], signal_Bn, 0.0)


def _mean(values_BKF: Tensor, counts_B: Tensor) -> Tensor:
    """Mean over the first entries of each row; 0 where no row has any."""
    places_K = torch.arange(values_BKF.shape[1], device=values_BKF.device)
    is_counted_BK = places_K < counts_B[:, None]
    total = torch.where(is_counted_BK[..., None], values_BKF, 0.0).sum()
    return total / (is_counted_BK.sum().clamp(min=1) * values_BKF.shape[2])
