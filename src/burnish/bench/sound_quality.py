"""How good a reconstructed sound is: distances of spectra, PESQ, STOI, words, voices, and whole sets.

lsd: log-spectral distance (dB, windows of 32 ms). si_sdr: signal-to-distortion ratio (dB). mcd:
mel-cepstral distortion (dB, 13 coefficients without the first). pesq and stoi: their packages. wer:
Whisper tiny.en against the text, or against what it hears in the original. voice: cosine of
Resemblyzer's encoder. frechet: Gaussians of the frames of Whisper's encoder, over a set of sounds.

What cannot be measured has no value and a status that says why; it is never a number. PESQ, STOI and
voice need somebody who speaks in the original, which Silero looks for where it is installed.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from burnish.arguments import refused
from burnish.errors import UserError
from burnish.source import describe
from burnish.tensors import as_finite, torch

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from burnish.tensors import Numbers

LISTENERS = 16_000
"""Samples a second that PESQ's wide band, Whisper and Resemblyzer take."""
PESQ_S = 20
"""Longer sounds are cut into pieces of at most so many seconds for PESQ, which is their mean."""
COEFFICIENTS = 13
BANDS = 40
LEAST_S = 0.1
"""Of a sound that anything is measured on."""


class Figure(NamedTuple):
    value: float | None
    status: str = "ok"
    """Why there is no value, in words."""


FIGURES = ("lsd", "si_sdr", "mcd", "pesq", "stoi", "wer", "voice")
"""Of one pair of sounds."""
OF_SPECTRA = ("lsd", "mcd")
"""Those that silence has, too."""


def measure_sound(
    estimate: Numbers,
    reference: Numbers,
    rate: int,
    *,
    text: str = "",
    figures: Sequence[str] = FIGURES,
) -> dict[str, Figure]:
    """The figures of a reconstruction (n,) beside its original (n,).

    >>> import numpy as np
    >>> wave = np.sin(np.arange(4000) / 5)
    >>> found = measure_sound(0.5 * wave.round(1), wave, 8000, figures=["lsd", "si_sdr"])
    >>> round(found["lsd"].value), round(found["si_sdr"].value)
    (16, 28)
    """
    ours_n, theirs_n = _sound(estimate, "estimate"), _sound(reference, "reference")
    if len(ours_n) != len(theirs_n):
        raise refused("estimate", estimate, f"{len(theirs_n)} samples, as the reference has")
    found = {}
    for name in figures:
        why = ""
        if len(ours_n) < LEAST_S * rate:
            why = f"shorter than {LEAST_S:g} s"
        elif name not in OF_SPECTRA and _is_silent(theirs_n):
            why = "the original is silent"
        # What is heard of silence is no word, which is an error rate.
        elif name not in (*OF_SPECTRA, "wer") and _is_silent(ours_n):
            why = "the copy is silent"
        if why:
            found[name] = Figure(None, why)
            continue
        try:
            value = _MEASURES[name](ours_n, theirs_n, rate, text)
        except (Unmeasured, UserError) as reason:
            found[name] = Figure(None, str(reason))
        else:
            is_number = math.isfinite(value)
            found[name] = Figure(value) if is_number else Figure(None, f"came out as {value}")
    return found


class Unmeasured(Exception):
    """Why a sound cannot be measured."""


def _asked(package: Callable[..., Any], *args: Any) -> Any:
    try:
        return package(*args)
    except UserError:
        raise
    except Exception as error:  # boundary: measuring packages raise whatever they like
        raise Unmeasured(describe(error)) from error


def _package(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise Unmeasured(f"needs {name}. Run: pip install 'burnish[listen]'") from None


def _check_speech(theirs_n: Tensor, rate: int) -> None:
    from burnish.speech.listeners import SILENCE, speech_probabilities

    try:
        heard = _asked(speech_probabilities, theirs_n, rate)
    except UserError:  # no detector is installed
        return
    if float(heard.max()) < SILENCE:
        raise Unmeasured("nobody speaks in the original")


def _is_silent(samples_n: Tensor) -> bool:
    return float(samples_n.max()) == float(samples_n.min())


def _distance(ours_n: Tensor, theirs_n: Tensor, rate: int, text: str) -> float:
    from burnish.models.audio_tokenizer.spectral import wave_distance

    return float(wave_distance(ours_n, theirs_n, rate))


def _distortion(ours_n: Tensor, theirs_n: Tensor, rate: int, text: str) -> float:
    from burnish.models.audio_tokenizer import si_sdr

    return float(si_sdr(ours_n, theirs_n))


def _mcd(ours_n: Tensor, theirs_n: Tensor, rate: int, text: str) -> float:
    difference_KC = cepstra(ours_n, rate) - cepstra(theirs_n, rate)
    per_frame_K = (2 * difference_KC.square().sum(-1)).sqrt()
    return float(10 / math.log(10) * per_frame_K.mean())


def cepstra(samples_n: Tensor, rate: int) -> Tensor:
    """Mel cepstra of windows of 32 ms without the first coefficient: (n,) -> (K, 12), float64."""
    from burnish.models.audio_tokenizer.spectral import magnitudes, mel_filters

    size = max(64, 2 ** round(math.log2(0.032 * rate)))
    wave_1n = samples_n.double()[None]
    found_1KF, _ = magnitudes(wave_1n, size, wave_1n.new_full((1,), len(samples_n)))
    logs_KM = (found_1KF[0] @ mel_filters(rate, size, BANDS)).clamp(min=1e-3).log()
    place_M = (torch.arange(BANDS, dtype=torch.float64) + 0.5) * math.pi / BANDS
    order_C = torch.arange(1, COEFFICIENTS, dtype=torch.float64)
    # log |X| = sum of c cos: then the distortion is about the RMS difference of smooth spectra in dB.
    return logs_KM @ torch.cos(place_M[:, None] * order_C) * (2 / BANDS)


def _pesq(ours_n: Tensor, theirs_n: Tensor, rate: int, text: str) -> float:
    pesq = _package("pesq")
    is_narrow = rate < LISTENERS
    target = 8000 if is_narrow else LISTENERS
    ours, theirs = _at(ours_n, rate, target), _at(theirs_n, rate, target)
    if len(theirs) < target // 4:
        raise Unmeasured("shorter than 0.25 s")
    _check_speech(theirs_n, rate)
    # The package has room for 50 utterances and ends the process where there are more.
    count = -(-len(theirs) // (PESQ_S * target))
    pieces = zip(np.array_split(theirs, count), np.array_split(ours, count), strict=True)
    found = []
    for piece, copy in pieces:
        try:
            found.append(_asked(pesq.pesq, target, piece, copy, "nb" if is_narrow else "wb"))
        except Unmeasured as reason:
            if not isinstance(reason.__cause__, pesq.NoUtterancesError):
                raise
    if not found:
        raise Unmeasured("nobody speaks in it")
    return float(np.mean(found))


def _stoi(ours_n: Tensor, theirs_n: Tensor, rate: int, text: str) -> float:
    import warnings

    pystoi = _package("pystoi")
    _check_speech(theirs_n, rate)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        both = theirs_n.double().numpy(), ours_n.double().numpy()
        found = float(_asked(pystoi.stoi, *both, rate))
    # It answers 1e-5 where too little sound is left.
    if any("Not enough" in str(one.message) for one in said):
        raise Unmeasured("too little speech in it")
    return found


def _wer(ours_n: Tensor, theirs_n: Tensor, rate: int, text: str) -> float:
    from burnish.speech.listeners import transcribe, word_errors

    wanted = text or _asked(transcribe, theirs_n, rate)
    errors, words = word_errors(wanted, _asked(transcribe, ours_n, rate))
    if not words:
        raise Unmeasured("no words in the original")
    return errors / words


def _voice(ours_n: Tensor, theirs_n: Tensor, rate: int, text: str) -> float:
    from burnish.speech.listeners import embed_voice

    _check_speech(theirs_n, rate)
    ours_E, theirs_E = (_asked(embed_voice, one, rate) for one in (ours_n, theirs_n))
    return float(ours_E @ theirs_E)


_MEASURES: dict[str, Callable[[Tensor, Tensor, int, str], float]] = {
    "lsd": _distance,
    "si_sdr": _distortion,
    "mcd": _mcd,
    "pesq": _pesq,
    "stoi": _stoi,
    "wer": _wer,
    "voice": _voice,
}


def frechet_of(estimates: Iterable[Numbers], references: Iterable[Numbers], rate: int) -> Figure:
    """Frechet distance of two sets of sounds, on the frames of Whisper tiny.en's encoder (384 numbers)."""
    from burnish.models.audio_tokenizer import frechet_distance
    from burnish.speech.listeners import whisper_frames

    gaussians = []
    for what, side in (("estimates", estimates), ("references", references)):
        sounds = [_sound(one, f"{what}[{place}]") for place, one in enumerate(side)]
        try:
            frames = [_asked(whisper_frames, one, rate) for one in sounds]
        except (Unmeasured, UserError) as reason:
            return Figure(None, str(reason))
        if sum(map(len, frames)) < 2:
            return Figure(None, "fewer than two frames of sound")
        both_KE = torch.cat(frames)
        gaussians += [both_KE.mean(0), both_KE.T.cov()]
    return Figure(float(frechet_distance(*gaussians)))


def _sound(values: Numbers, what: str) -> Tensor:
    samples_n = as_finite(values, what).to(torch.float32).cpu()
    if samples_n.ndim != 1 or not len(samples_n):
        raise refused(what, samples_n, "samples (n,)")
    return samples_n


def _at(samples_n: Tensor, rate: int, target: int) -> NDArray[Any]:
    from burnish.media import resample

    return samples_n.numpy() if rate == target else resample(samples_n.numpy(), rate, target)
