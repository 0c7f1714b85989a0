"""How loud things are beside each other: noise at a signal-to-noise ratio, fades, and rooms."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from burnish.arguments import LARGEST_COUNT, as_number, as_seed, as_whole
from burnish.errors import ArgumentError
from burnish.tensors import as_finite, as_mask, torch

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.tensors import Numbers

LARGEST_DB = 300.0


class Fades(NamedTuple):
    """Factors of what ends and of what begins; their squares add up to 1."""

    fade_out: Tensor
    fade_in: Tensor


def noise_gain(speech: Numbers, active: Numbers, noise: Numbers, snr_db: float) -> float:
    """The factor of a noise that puts it `snr_db` below the speech.

    The speech's power is its mean square over the active samples, the noise's over all that is
    given of it. 1.0 without active samples, and for a silent noise, which no factor changes.

    >>> from burnish.models.long_speech import noise_gain
    >>> noise_gain([1.0, -1.0, 0.0], [1, 1, 0], [0.5, -0.5, 0.5], snr_db=20.0)
    0.2
    """
    speech_T, noise_N = as_finite(speech, "speech"), as_finite(noise, "noise")
    for what, values in (("speech", speech_T), ("noise", noise_N)):
        if values.ndim != 1:
            raise ArgumentError(f"{what}: got shape {tuple(values.shape)}, expected (samples,)")
    if not len(noise_N):
        raise ArgumentError("noise: got no sample, expected at least 1")
    active_T = as_mask(active, "active", tuple(speech_T.shape))
    snr_db = as_number("snr_db", snr_db, low=-LARGEST_DB, high=LARGEST_DB)
    heard_T = speech_T[active_T]
    if not len(heard_T):
        return 1.0
    return gain_of_powers(
        heard_T.square().mean().item(), noise_N.square().mean().item(), snr_db=snr_db
    )


def gain_of_powers(speech: float, noise: float, *, snr_db: float) -> float:
    """The factor of a noise of one power that puts it `snr_db` below a speech of another."""
    return math.sqrt(speech / noise) * 10 ** (-snr_db / 20) if noise > 0 else 1.0


def equal_power_fades(n: int) -> Fades:
    """Factors that fade one sound out and another in at constant power, float64 (n,) each.

    A quarter of a cosine and of a sine over n points, both ends included.

    >>> from burnish.models.long_speech import equal_power_fades
    >>> [[round(one, 4) for one in fade.tolist()] for fade in equal_power_fades(3)]
    [[1.0, 0.7071, 0.0], [0.0, 0.7071, 1.0]]
    """
    n = as_whole("n", n, low=0, high=LARGEST_COUNT)
    angle_N = torch.linspace(0, math.pi / 2, n, dtype=torch.float64)
    return Fades(angle_N.cos(), angle_N.sin())


def room_impulse(reverb_s: float, sample_rate: int, seed: int, wet_db: float = -6.0) -> Tensor:
    """What a room makes of a click: the click, and a noise that is 60 dB down after `reverb_s`.

    The first sample is 1; the energy of the rest is `wet_db` beside it. Float64, (samples,).

    >>> from burnish.models.long_speech import room_impulse
    >>> impulse = room_impulse(0.2, 8000, seed=1)
    >>> len(impulse), impulse[0].item(), round(impulse[1:].square().sum().item(), 4)
    (1601, 1.0, 0.2512)
    """
    reverb_s = as_number("reverb_s", reverb_s, low=0, high=10)
    sample_rate = as_whole("sample_rate", sample_rate, low=1, high=1_000_000)
    wet_db = as_number("wet_db", wet_db, low=-300, high=100)
    generator = torch.Generator().manual_seed(as_seed("seed", seed))
    count = round(reverb_s * sample_rate)
    tail_T = torch.randn(count, generator=generator, dtype=torch.float64)
    tail_T *= 10 ** (-3 * torch.arange(1, count + 1, dtype=torch.float64) / max(count, 1))
    energy = tail_T.square().sum().item()
    if energy > 0:
        tail_T *= math.sqrt(10 ** (wet_db / 10) / energy)
    return torch.cat([torch.ones(1, dtype=torch.float64), tail_T])


def convolve(samples: Tensor, impulse: Tensor) -> Tensor:
    """Samples in a room: (n,), (m,) -> (n + m - 1,), by FFT."""
    if len(impulse) == 1 or not len(samples):
        return samples * impulse[0] if len(samples) else samples
    length = len(samples) + len(impulse) - 1
    size = 1 << (length - 1).bit_length()
    spectrum = torch.fft.rfft(samples, size) * torch.fft.rfft(impulse, size)
    wet_T: Tensor = torch.fft.irfft(spectrum, size)
    return wet_T[:length]
