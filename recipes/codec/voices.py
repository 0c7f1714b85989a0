"""Small sounds that resemble speech: a buzz with moving formants, hissing between, silence at the ends."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

RATE = 8000
COUNT = 240


def sounds() -> Iterator[tuple[NDArray[np.float32], int]]:
    """Pairs of samples and their rate; the same ones every time."""
    for number in range(COUNT):
        yield utterance(random.Random(number)), RATE


def utterance(draw: random.Random) -> NDArray[np.float32]:
    """One to three syllables of a voice of its own."""
    pitch = draw.uniform(90, 240)
    parts = [np.zeros(draw.randint(200, 600))]
    for _ in range(draw.randint(1, 3)):
        parts.append(_hiss(draw))
        parts.append(_vowel(draw, pitch))
    parts.append(np.zeros(draw.randint(200, 600)))
    wave = np.concatenate(parts)
    return (draw.uniform(0.3, 0.8) * wave / np.abs(wave).max()).astype(np.float32)


def _vowel(draw: random.Random, pitch: float) -> NDArray[np.float64]:
    size = draw.randint(1000, 2400)
    place = np.linspace(0, 1, size)
    tone = pitch * (1 + draw.uniform(-0.2, 0.2) * place)
    phase = 2 * np.pi * np.cumsum(tone) / RATE
    formants = [(draw.uniform(250, 850), 80.0), (draw.uniform(900, 2400), 120.0)]
    moves = [draw.uniform(-0.3, 0.3) for _ in formants]
    wave = np.zeros(size)
    for harmonic in range(1, int(RATE / 2 / (1.2 * pitch))):
        height = sum(
            1 / (1 + ((harmonic * tone - centre * (1 + move * place)) / width) ** 2)
            for (centre, width), move in zip(formants, moves, strict=True)
        )
        wave += height * np.sin(harmonic * phase)
    return wave * np.sin(np.pi * place) ** 0.5


def _hiss(draw: random.Random) -> NDArray[np.float64]:
    size = draw.randint(200, 800)
    noise = np.random.default_rng(draw.getrandbits(32)).normal(size=size)
    return 0.3 * np.diff(noise, append=0.0) * np.hanning(size)
