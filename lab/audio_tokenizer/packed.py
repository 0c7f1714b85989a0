"""All that the GPU study reads, in one small folder: numpy and torch are enough to train from it.

    python -m lab.audio_tokenizer.packed DATA runs/voices.parquet runs/packed
    python -m lab.audio_tokenizer.packed ... --hibari 60 --joe 15       # speech from text too

`sounds.pack` has the sounds; `espeak/`, for speech from text, the library of espeak-ng with English.
Tests have twelve bits a sample at 16 kHz (noise at -74 dB of full scale), second differences, LZMA: half
of PCM. What is trained on is coded by its spectrum: MDCT of 20 ms, square roots in whole numbers, LZMA:
35 dB above its noise in a quarter of PCM, 28 dB in a sixth. The sounds are those that are trained on
(`train`, `digits`; for speech from text `spoken`, and `say`, texts alone) and tested on (`librispeech`,
`ljspeech`, `esc`, and `held`: sentences that are never trained on).
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.audio_tokenizer.parts import Item, read_items

RATE = 16_000
SOUNDS, LIBRARY = "sounds.pack", "espeak"
"""Names in the folder."""
STEP = 16
"""Of 16-bit samples: twelve bits are kept."""
PACKED = "BURNISH_PACKED"
"""Variable of the environment with the file that `train_sounds` reads."""
HELD_DIGITS = 60
"""Digit strings that no generator is trained on."""
HELD = 12
"""Sentences a voice that nothing is trained on."""
ESPEAK = ("en-us+f2", "en-us+Andrea", "en-us+m3", "en-us+paul")
"""Voices of espeak-ng that speak the sentences of `say` before training."""
NEURAL = ("hibari", "piper:joe")
WORDS_A_MINUTE = 150
"""Of espeak's voices: about as fast as the neural ones."""
FRAME = 320
"""Samples between two spectra."""
SCALES = {"train": 45.0, "digits": 45.0, "held": 45.0, "spoken": 16.0}
"""Sets that are coded by their spectra, and how finely."""


def pack(
    file: Path,
    sets: Mapping[str, Sequence[Item]],
    step: int = STEP,
    scales: Mapping[str, float] | None = None,
) -> None:
    """Write sets of sounds; those in `scales` by their spectra, the others sample by sample."""
    scales = scales or {}
    about: list[dict[str, Any]] = []
    bodies: list[bytes] = []
    for name, items in sets.items():
        scale = scales.get(name, 0.0)
        coded = [_spectra(i.samples, scale) if scale else _steps(i.samples, step) for i in items]
        body = np.concatenate(coded) if coded else np.zeros(0, "<i2")
        # High and low bytes apart: the high ones are nearly all alike.
        raw = body.tobytes() if scale else body.view(np.uint8).reshape(-1, 2).T.tobytes()
        sounds = [{"name": i.name, "text": i.text, "size": len(i.samples), "voice": i.labels.get("voice", "")} for i in items]  # fmt: skip
        about.append({"set": name, "scale": scale, "bytes": len(raw), "sounds": sounds})
        bodies.append(raw)
    head = json.dumps({"step": step, "sets": about}).encode()
    packed = lzma.compress(len(head).to_bytes(4, "little") + head + b"".join(bodies), preset=6)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(packed)


def unpack(file: Path) -> dict[str, list[Item]]:
    """The sets of a file that `pack` wrote."""
    content = lzma.decompress(file.read_bytes())
    place = 4 + int.from_bytes(content[:4], "little")
    head = json.loads(content[4:place])
    found: dict[str, list[Item]] = {}
    for about in head["sets"]:
        raw = np.frombuffer(content[place : place + about["bytes"]], np.uint8)
        place += about["bytes"]
        scale, items = about["scale"], []
        if scale:
            spectra, at = raw.view(np.int8).reshape(-1, FRAME), 0
        else:
            body, at = np.ascontiguousarray(raw.reshape(2, -1).T).view("<i2").reshape(-1), 0
        for sound in about["sounds"]:
            size = sound["size"]
            if scale:
                frames = _frames(size)
                samples = _from_spectra(spectra[at : at + frames], size, scale)
                at += frames
            else:
                whole = np.cumsum(np.cumsum(body[at : at + size], dtype=np.int16), dtype=np.int16)
                samples = whole.astype(np.float32) * (head["step"] / 32768)
                at += size
            labels = {"voice": sound["voice"]}
            items.append(Item(sound["name"], samples, sound["text"], labels))
        found[about["set"]] = items
    return found


def _steps(samples: NDArray[Any], step: int) -> NDArray[np.int16]:
    scaled = np.clip(np.rint(samples * 32768 / step), -32768 // step, 32767 // step)
    return np.diff(scaled.astype(np.int16), n=2, prepend=np.zeros(2, np.int16)).astype("<i2")


@lru_cache(maxsize=1)
def _basis() -> NDArray[np.float32]:
    """MDCT with a sine window, (2 FRAME, FRAME)."""
    n, k = np.arange(2 * FRAME)[:, None], np.arange(FRAME)[None]
    waves = np.sqrt(2 / FRAME) * np.cos(np.pi / FRAME * (n + 0.5 + FRAME / 2) * (k + 0.5))
    return np.asarray(waves * np.sin(np.pi * (n + 0.5) / (2 * FRAME)), np.float32)


def _frames(size: int) -> int:
    return -(-size // FRAME) + 1


def _spectra(samples: NDArray[Any], scale: float) -> NDArray[np.int8]:
    frames = _frames(len(samples))
    padded = np.zeros((frames + 1) * FRAME, np.float32)
    padded[FRAME : FRAME + len(samples)] = samples
    both = [padded[:-FRAME].reshape(-1, FRAME), padded[FRAME:].reshape(-1, FRAME)]
    found = np.concatenate(both, axis=1) @ _basis()
    return np.clip(np.rint(np.sign(found) * np.sqrt(np.abs(found)) * scale), -127, 127).astype(np.int8)  # fmt: skip


def _from_spectra(spectra: NDArray[np.int8], size: int, scale: float) -> NDArray[np.float32]:
    roots = spectra.astype(np.float32) / scale
    both = (np.sign(roots) * roots**2) @ _basis().T
    made = np.zeros((len(spectra) + 1) * FRAME, np.float32)
    made[:-FRAME] += both[:, :FRAME].reshape(-1)
    made[FRAME:] += both[:, FRAME:].reshape(-1)
    return np.clip(made[FRAME : FRAME + size], -1, 1)


def train_sounds() -> Iterator[tuple[NDArray[np.float32], int]]:
    """What a tokenizer is trained on, for `train.data`."""
    found = unpack(Path(os.environ[PACKED]))
    for item in (*found["train"], *found["digits"][HELD_DIGITS:], *found.get("spoken", [])):
        yield item.samples, RATE


def read_sets(data: Path, voices: Path, most: int = 0) -> dict[str, list[Item]]:
    """What the tokenizer learns from and is tested on."""
    spoken = read_items(voices, RATE, "flac", "text")
    both = ("sentence", "digits")
    train, digits = ([i for i in spoken if i.labels["kind"] == kind] for kind in both)
    lj = [read_items(data / f"ljspeech_sample/{s}.parquet", RATE, "flac", "text") for s in ("train", "test")]  # fmt: skip
    sets = {
        "train": train,
        "digits": digits,
        "librispeech": read_items(data / "librispeech_sample/train.parquet", RATE, "flac"),
        "ljspeech": [*lj[0], *lj[1]],
        "esc": read_items(data / "esc10_sample/train.parquet", RATE, "flac"),
    }
    return {name: items[: most or len(items)] for name, items in sets.items()}


def speech_sets(books: Path, minutes: Mapping[str, float], seed: int = 1) -> dict[str, list[Item]]:
    """What speech from text is learned from: neural voices for some minutes each, and texts alone."""
    from lab.audio_tokenizer import voices

    texts = sorted(set(voices.read_sentences(books)))
    random.Random(seed).shuffle(texts)
    sets: dict[str, list[Item]] = {"held": [], "spoken": [], "say": []}
    rest = iter(texts)
    for voice in (*NEURAL, *ESPEAK):
        for _ in range(HELD):
            sets["held"].append(_said(voice, next(rest)))
    for voice, wanted in minutes.items():
        spoken = 0.0
        while spoken < 60 * wanted:
            sets["spoken"].append(_said(voice, next(rest)))
            spoken += len(sets["spoken"][-1].samples) / RATE
    # Sentences of the neural voices are said by espeak's too: one text, several voices.
    left = [item.text for item in sets["spoken"]] + list(rest)
    sets["say"] = [Item(str(i), np.zeros(0, np.float32), text) for i, text in enumerate(left)]
    return sets


def pack_espeak(folder: Path) -> None:
    """Copy the library of espeak-ng and what English needs of its data: 3 MB."""
    import espeakng_loader

    data = Path(espeakng_loader.get_data_path())
    target = folder / "espeak-ng-data"
    target.mkdir(parents=True, exist_ok=True)
    shutil.copy(espeakng_loader.get_library_path(), folder / "libespeak-ng.so")
    for name in ("phondata", "phonindex", "phontab", "intonations", "en_dict"):
        shutil.copy(data / name, target / name)
    shutil.copytree(data / "voices/!v", target / "voices/!v", dirs_exist_ok=True)
    shutil.copytree(data / "lang/gmw", target / "lang/gmw", dirs_exist_ok=True)


def _said(voice: str, text: str) -> Item:
    from lab.audio_tokenizer import voices

    line = voices.Line("sentence", voice, text, words_a_minute=WORDS_A_MINUTE)
    return Item(voice, voices.speak(line), text, {"voice": voice})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="folder of the test sounds and of books")
    parser.add_argument("voices", type=Path, help="what lab.audio_tokenizer.voices wrote")
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--most", type=int, default=0, help="sounds of each set; 0: all")
    parser.add_argument("--hibari", type=float, default=0.0, help="minutes for speech from text")
    parser.add_argument("--joe", type=float, default=0.0, help="minutes for speech from text")
    asked = parser.parse_args()
    sets = read_sets(asked.data, asked.voices, asked.most)
    if asked.hibari or asked.joe:
        minutes = {"hibari": asked.hibari, "piper:joe": asked.joe}
        sets |= speech_sets(asked.data / "books/train.parquet", minutes)
        pack_espeak(asked.out / LIBRARY)
    file = asked.out / SOUNDS
    pack(file, sets, scales=SCALES)
    for name, items in sets.items():
        print(f"{name}: {len(items)} sounds, {sum(len(i.samples) for i in items) / RATE:.0f} s")
    print(f"{file}: {file.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
