"""A language in which every letter has a sound: vowels buzz with formants of their own, consonants hiss.

Two voices speak it, one low and one high.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

RATE = 8000
COUNT = 160
LETTER_S = 0.09
VOICES = {"low": 110.0, "high": 190.0}
FORMANTS = {"a": (750, 1200), "e": (450, 1900), "i": (300, 2300), "o": (450, 850), "u": (320, 700)}
HISSES = {"s": 3200, "f": 2400, "k": 1700, "t": 2900, "m": 350, "n": 600, "l": 900, "r": 1300}


def rows() -> Iterator[dict[str, Any]]:
    """Sound, text and voice; the same ones every time."""
    for number in range(COUNT):
        draw = random.Random(number)
        voice = draw.choice(sorted(VOICES))
        text = " ".join(_word(draw) for _ in range(draw.randint(1, 3))).capitalize() + "."
        yield {"audio": (spoken(text, VOICES[voice]), RATE), "text": text, "voice": voice}


def spoken(text: str, pitch: float) -> NDArray[np.float32]:
    """The sounds of the letters, one behind the other; what is no letter is silent."""
    wave = np.concatenate([_sound(letter, pitch) for letter in text.lower()])
    return (0.6 * wave / np.abs(wave).max()).astype(np.float32)


def _word(draw: random.Random) -> str:
    syllables = (draw.choice(sorted(HISSES)) + draw.choice(sorted(FORMANTS)) for _ in range(2))
    return "".join(syllables)


def _sound(letter: str, pitch: float) -> NDArray[np.float64]:
    place = np.arange(round(RATE * LETTER_S)) / RATE
    fade = np.sin(np.pi * place / LETTER_S) ** 0.5
    if letter in HISSES:
        noise = np.random.default_rng(ord(letter)).normal(size=len(place))
        return 0.4 * fade * noise * np.sin(2 * np.pi * HISSES[letter] * place)
    wave = np.zeros(len(place))
    for harmonic in range(1, int(RATE / 2 / pitch)):
        tone = harmonic * pitch
        height = sum(1 / (1 + ((tone - one) / 90) ** 2) for one in FORMANTS.get(letter, ()))
        wave += height * np.sin(2 * np.pi * tone * place)
    return fade * wave
