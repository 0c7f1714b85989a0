"""Pitch, loudness, rate and turns of recorded or rendered speech, without a model.

Pitch is the strongest peak of the normalised autocorrelation in 60 to 500 Hz; loudness is the level
of the frames in which somebody speaks; rate is syllables of the text a second of these frames.

A turn that lies wholly inside another one is a back-channel. Every other turn that changes the speaker
has a gap to the end of what was said before; below 0 the two overlap.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

from burnish.boundary import SOME, Number, public
from burnish.media.sounds import Rate
from burnish.models.long_speech.timeline import overlap_statistics
from burnish.tensors import torch

if TYPE_CHECKING:
    from jaxtyping import Float64
    from torch import Tensor

    Samples = Float64[Tensor, " T"]
    Sound = Annotated[Float64[Tensor, " T"], SOME]


HOP_S, WINDOW_S = 0.01, 0.04
LOWEST_HZ, HIGHEST_HZ = 60.0, 500.0
BATCH = 4096
"""Frames whose pitch is sought at a time."""


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


def _frames(samples_T: Tensor, sample_rate: int) -> Tensor:
    window, hop = round(WINDOW_S * sample_rate), round(HOP_S * sample_rate)
    if len(samples_T) < window:
        samples_T = torch.nn.functional.pad(samples_T, (0, window - len(samples_T)))
    return samples_T.unfold(0, window, hop)


@public
def f0_track(samples: Sound, sample_rate: Rate) -> Tensor:
    """Pitch by frame of 10 ms in Hz, NaN where nothing is voiced, float64 (frames,).

    >>> import math
    >>> tone = [math.sin(2 * math.pi * 200 * t / 8000) for t in range(1600)]
    >>> round(f0_track(tone, 8000).nanmedian().item())
    200
    """
    frames_FW = _frames(samples - samples.mean(), sample_rate)
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


def _powers(samples_T: Tensor, sample_rate: int) -> tuple[Tensor, Tensor]:
    """The power of each frame of 10 ms, and which are not much softer than the loudest, (frames,)."""
    # A constant offset is no sound, but it would count as loudness and as speech.
    level_F = _frames(samples_T - samples_T.mean(), sample_rate).square().mean(-1)
    loud = level_F.quantile(0.95).item() if len(level_F) else 0.0
    return level_F, (level_F > loud * 10 ** (-35.0 / 10)) & (level_F > 1e-10)


@public
def level_db(samples: Samples, sample_rate: Rate) -> float | None:
    """Level of the frames in which somebody speaks, dBFS; None for silence."""
    level_F, active_F = _powers(samples, sample_rate)
    return 10 * math.log10(level_F[active_F].mean().item()) if bool(active_F.any()) else None


@public
def syllables(text: str) -> int:
    """Syllables of English by groups of vowels, at least 1 a word.

    >>> syllables("A table for seven, please.")
    7
    """
    total = 0
    for word in re.findall(r"[a-z']+|[0-9]+", text.lower()):
        groups = len(re.findall(r"[aeiouy]+", word))
        silent = word.endswith("e") and not word.endswith(("le", "ee")) and groups > 1
        total += max(1, groups - silent) if word[0].isalpha() else 2 * len(word) - 1
    return total


@public
def measure_speech(samples: Samples, sample_rate: Rate, text: str = "") -> SpeechMeasure:
    """Pitch, its range, loudness and rate of one sentence; the rate needs its text.

    >>> measure_speech([0.0] * 800, 8000).pitch_hz is None
    True
    """
    level_F, active_F = _powers(samples, sample_rate)
    seconds = active_F.sum().item() * HOP_S
    if not seconds:
        return SpeechMeasure(None, None, None, None, 0.0)
    f0_F = f0_track.plain(samples - samples.mean(), sample_rate)
    voiced = f0_F[~f0_F.isnan()]
    power = level_F[active_F].mean().item()
    pitch = spread = None
    if len(voiced):
        pitch = voiced.median().item()
        low, high = voiced.quantile(0.1).item(), voiced.quantile(0.9).item()
        spread = 12 * math.log2(high / low)
    count = syllables.plain(text)
    rate = count / seconds if count else None
    return SpeechMeasure(pitch, spread, 10 * math.log10(power), rate, seconds)


MEETING_GAPS = (-2.95, -1.76, -1.3, -0.98, -0.74, -0.54, -0.37, -0.23, -0.07, 0.04, 0.14, 0.25, 0.35, 0.46, 0.62, 0.78, 1.01, 1.31, 1.87, 3.95)  # fmt: skip
"""Twenty quantiles of the 9,333 gaps between speakers in the 38 meetings (2.5 %, 7.5 % ...), seconds."""
MEETING_INSIDE = 0.364
"""Share of their turns that lie wholly inside another."""
MEETING_OVERLAP = 0.142
"""Share of their speech in which two or more talk."""


class Turn(NamedTuple):
    """Who speaks from when to when."""

    speaker: str
    start: float
    end: float


Turns = Sequence[tuple[str, Number, Number]]


class TurnTaking(NamedTuple):
    """How a conversation goes."""

    gaps: list[float]
    """At changes of the speaker, seconds; below 0 the two overlap."""
    inside: float
    """Share of turns that lie wholly inside another."""
    overlap: float
    """Share of the speech in which two or more talk."""


class MeetingDistance(NamedTuple):
    """How far a conversation is from real meetings; 0 is like them."""

    gap_s: float | None
    """Mean distance of the gaps' quantiles (Wasserstein), seconds; None without a change of speaker."""
    inside: float
    overlap: float
    """Differences of the shares."""


@public
def turn_taking(turns: Turns) -> TurnTaking:
    """Gaps, back-channels and overlap of turns: speaker, start and end.

    >>> turn_taking([("A", 0.0, 2.0), ("B", 1.5, 3.0), ("A", 2.0, 2.5)]).gaps
    [-0.5]
    """
    read = sorted((Turn(*one) for one in turns), key=lambda t: (t.start, t.end))
    gaps, inside = [], 0
    floor: Turn | None = None
    for turn in read:
        if floor is not None and turn.end <= floor.end:
            inside += turn.speaker != floor.speaker
            continue
        if floor is not None and turn.speaker != floor.speaker:
            gaps.append(turn.start - floor.end)
        floor = turn
    ratio = overlap_statistics.plain([(t.start, t.end) for t in read]).ratio
    return TurnTaking(gaps, inside / len(read) if read else 0.0, ratio)


def quantiles(values: list[float], count: int) -> list[float]:
    """`count` quantiles at (i + 0.5) / count, joined by straight lines."""
    ordered, last = sorted(values), len(values) - 1
    found = []
    for i in range(count):
        place = min(max((i + 0.5) / count * len(ordered) - 0.5, 0.0), float(last))
        low, high = ordered[int(place)], ordered[min(int(place) + 1, last)]
        found.append(low + (place - int(place)) * (high - low))
    return found


@public
def meeting_distance(turns: Turns) -> MeetingDistance:
    """How far the turns are from those of real meetings.

    >>> round(meeting_distance([("A", 0.0, 2.0), ("B", 2.25, 3.0)]).overlap, 3)
    -0.142
    """
    found, gap_s = turn_taking.plain(turns), None
    if found.gaps:
        own = quantiles(found.gaps, len(MEETING_GAPS))
        gap_s = sum(abs(a - b) for a, b in zip(own, MEETING_GAPS, strict=True)) / len(own)
    return MeetingDistance(gap_s, found.inside - MEETING_INSIDE, found.overlap - MEETING_OVERLAP)
