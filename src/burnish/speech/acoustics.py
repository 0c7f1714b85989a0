"""Pitch, loudness and speaking rate of recorded or rendered speech, without a model.

    f0_track(samples, sample_rate)          # Hz by frame of 10 ms, NaN where nothing is voiced
    measure_speech(samples, sample_rate, text).pitch_hz

Pitch is the strongest peak of the normalised autocorrelation in 60 to 500 Hz; loudness is the level
of the frames in which somebody speaks; rate is syllables of the text a second of these frames.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, NamedTuple

from burnish.arguments import as_number, as_text, as_whole
from burnish.errors import ArgumentError
from burnish.tensors import as_finite, torch

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.tensors import Numbers

HOP_S, WINDOW_S = 0.01, 0.04
LOWEST_HZ, HIGHEST_HZ = 60.0, 500.0
BATCH = 4096
"""Frames whose pitch is sought at a time."""
ACTIVE_DB = -35.0
"""Frames within so many dB of the loudest twentieth count as speech."""


class SpeechMeasure(NamedTuple):
    """What can be measured of one sentence; None where there is nothing to measure."""

    pitch_hz: float | None
    """Median over voiced frames."""
    pitch_range_st: float | None
    """From the 10th to the 90th percentile of voiced frames."""
    loudness_db: float | None
    """Of the frames in which somebody speaks, dBFS."""
    rate: float | None
    """Syllables a second of speech."""
    speech_s: float


def _mono(samples: Numbers) -> Tensor:
    """One channel without its constant offset."""
    samples_T = as_finite(samples, "samples")
    if samples_T.ndim != 1:
        raise ArgumentError(f"samples: got shape {tuple(samples_T.shape)}, expected (samples,)")
    # A constant offset is no sound, but it would count as loudness and as speech.
    return samples_T - samples_T.mean()


def _frames(samples_T: Tensor, sample_rate: int) -> Tensor:
    window, hop = round(WINDOW_S * sample_rate), round(HOP_S * sample_rate)
    if len(samples_T) < window:
        samples_T = torch.nn.functional.pad(samples_T, (0, window - len(samples_T)))
    return samples_T.unfold(0, window, hop)


def f0_track(samples: Numbers, sample_rate: int) -> Tensor:
    """Pitch by frame of 10 ms in Hz, NaN where nothing is voiced, float64 (frames,).

    >>> import math
    >>> from burnish.speech import f0_track
    >>> tone = [math.sin(2 * math.pi * 200 * t / 8000) for t in range(1600)]
    >>> round(f0_track(tone, 8000).nanmedian().item())
    200
    """
    samples_T = _mono(samples)
    if not len(samples_T):
        raise ArgumentError("samples: got none, expected a sound")
    sample_rate = as_whole("sample_rate", sample_rate, low=2000, high=1_000_000)
    frames_FW = _frames(samples_T, sample_rate)
    # Some frames at a time: the spectra of an hour would not fit into memory.
    tracks = [_pitch(some_FW, sample_rate) for some_FW in torch.split(frames_FW, BATCH)]
    f0_F, level_F = (torch.cat(one) for one in zip(*tracks, strict=True))
    return torch.where((level_F > 1e-3 * level_F.max()) & (level_F > 0), f0_F, torch.nan)


def _pitch(frames_FW: Tensor, sample_rate: int) -> tuple[Tensor, Tensor]:
    """Pitch of frames, NaN where they are not periodic, and their power."""
    frames_FW = frames_FW - frames_FW.mean(-1, keepdim=True)
    width = frames_FW.shape[1]
    low, high = math.floor(sample_rate / HIGHEST_HZ), math.ceil(sample_rate / LOWEST_HZ)
    high = min(high, width - 2)
    size = 1 << (2 * width - 1).bit_length()
    spectrum = torch.fft.rfft(frames_FW, size)
    products_FL = torch.fft.irfft(spectrum.abs().square(), size)[:, : high + 2]
    energy_FW = torch.nn.functional.pad(frames_FW.square().cumsum(-1), (1, 0))
    lags = torch.arange(high + 2)
    # Energies of the two stretches that a lag compares, so that long lags are not at a disadvantage.
    head_FL = energy_FW[:, width - lags]
    tail_FL = energy_FW[:, -1:] - energy_FW[:, lags]
    score_FL = products_FL / (head_FL * tail_FL).sqrt().clamp_min(1e-12)
    inner_FL = score_FL[:, low : high + 1]
    best_F = inner_FL.max(-1).values
    # Of peaks nearly as high as the best, the shortest lag: a period, not two.
    is_peak = (inner_FL >= score_FL[:, low - 1 : high]) & (
        inner_FL >= score_FL[:, low + 1 : high + 2]
    )
    is_peak &= inner_FL >= 0.9 * best_F[:, None]
    lag_F = is_peak.to(torch.int8).argmax(-1) + low
    rows = torch.arange(len(lag_F))
    left, middle, right = (score_FL[rows, lag_F + step] for step in (-1, 0, 1))
    bend = (left - 2 * middle + right).clamp_max(-1e-12)
    shift = (0.5 * (left - right) / bend).clamp(-0.5, 0.5)
    f0_F = sample_rate / (lag_F + shift)
    level_F = frames_FW.square().mean(-1)
    return torch.where((best_F > 0.6) & is_peak.any(-1), f0_F, torch.nan), level_F


def active_frames(samples: Numbers, sample_rate: int) -> Tensor:
    """True for frames of 10 ms that are not much softer than the loudest; bool (frames,)."""
    level_F = _frames(_mono(samples), sample_rate).square().mean(-1)
    loud = level_F.quantile(0.95).item() if len(level_F) else 0.0
    return (level_F > loud * 10 ** (ACTIVE_DB / 10)) & (level_F > 1e-10)


def level_db(samples: Numbers, sample_rate: int) -> float | None:
    """Level of the frames in which somebody speaks, dBFS; None for silence."""
    samples_T = _mono(samples)
    sample_rate = as_whole("sample_rate", sample_rate, low=2000, high=1_000_000)
    active_F = active_frames(samples_T, sample_rate)
    if not bool(active_F.any()):
        return None
    return 10 * math.log10(
        _frames(samples_T, sample_rate).square().mean(-1)[active_F].mean().item()
    )


def syllables(text: str) -> int:
    """Syllables of English by groups of vowels, at least 1 a word.

    >>> from burnish.speech import syllables
    >>> syllables("A table for seven, please.")
    7
    """
    total = 0
    for word in re.findall(r"[a-z']+|[0-9]+", as_text("text", text).lower()):
        groups = len(re.findall(r"[aeiouy]+", word))
        silent = word.endswith("e") and not word.endswith(("le", "ee")) and groups > 1
        total += max(1, groups - silent) if word[0].isalpha() else 2 * len(word) - 1
    return total


def measure_speech(samples: Numbers, sample_rate: int, text: str = "") -> SpeechMeasure:
    """Pitch, its range, loudness and rate of one sentence; the rate needs its text.

    >>> from burnish.speech import measure_speech
    >>> measure_speech([0.0] * 800, 8000).pitch_hz is None
    True
    """
    samples_T = _mono(samples)
    sample_rate = as_whole("sample_rate", sample_rate, low=2000, high=1_000_000)
    active_F = active_frames(samples_T, sample_rate)
    seconds = active_F.sum().item() * HOP_S
    if not seconds:
        return SpeechMeasure(None, None, None, None, 0.0)
    f0_F = f0_track(samples_T, sample_rate)
    voiced = f0_F[~f0_F.isnan()]
    power = _frames(samples_T, sample_rate).square().mean(-1)[active_F].mean().item()
    pitch = spread = None
    if len(voiced):
        pitch = voiced.median().item()
        low, high = voiced.quantile(0.1).item(), voiced.quantile(0.9).item()
        spread = 12 * math.log2(high / low)
    count = syllables(text)
    rate = as_number("rate", count / seconds) if count else None
    return SpeechMeasure(pitch, spread, 10 * math.log10(power), rate, seconds)
