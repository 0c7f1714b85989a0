"""Voices of one's own on a CPU, by the commands that a user types: real speakers say strings of digits.

    python -m lab.audio_tokenizer.own_voices DATA/fsdd --out lab/audio_tokenizer/results

The training clips of the Free Spoken Digit Dataset, three of one speaker behind each other, are the
recordings: 8 kHz, six speakers. `burnish train codec` makes a tokenizer of them, `burnish train speech`
voices on its latents, and the engine of `burnish speak` says strings that were never recorded, in every
voice. Whisper tiny.en listens to the recordings of held-out strings, to these through the latents, and to what the
engine says; a control is the same sound against the text of another string. Ten minutes of two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

import burnish
from burnish.models.audio_tokenizer import open_speech_folder
from burnish.models.long_speech import Line
from burnish.models.long_speech.scene import Speaker
from burnish.numbers import NUMBER_WORDS
from burnish.speech.engines import LatentEngine
from burnish.speech.listeners import transcribe, word_errors
from burnish.store.manifest import newest_weights
from lab.audio_tokenizer.gpu import as_words
from lab.audio_tokenizer.parts import read_items

RATE, DIGITS, PAUSE_S = 8000, 3, 0.08
DATA = "BURNISH_DIGITS"
"""Variable of the environment with the folder of the digits."""
STRINGS = 600


class String(NamedTuple):
    """Digits of one speaker, one behind the other."""

    samples: NDArray[np.float32]
    text: str
    voice: str


def strings(split: str, count: int, seed: int) -> Iterator[String]:
    """Strings of a split's clips; the same ones every time."""
    clips: dict[str, list[Any]] = {}
    for item in read_items(Path(os.environ[DATA]) / f"{split}.parquet", RATE, "wav"):
        clips.setdefault(item.labels["speaker"], []).append(item)
    draw, pause = random.Random(seed), np.zeros(int(PAUSE_S * RATE), np.float32)
    for number in range(count):
        voice = sorted(clips)[number % len(clips)]
        chosen = draw.choices(clips[voice], k=DIGITS)
        parts = [part for item in chosen for part in (item.samples, pause)]
        whole = np.concatenate(parts[:-1])
        words = " ".join(NUMBER_WORDS[int(item.labels["digit"])] for item in chosen)
        yield String(0.7 * whole / np.abs(whole).max(), words.capitalize() + ".", voice)


def rows() -> Iterator[dict[str, Any]]:
    """What is learned from, for `train.data` of both trainings."""
    for one in strings("train", STRINGS, 0):
        yield {"audio": (one.samples, RATE), "text": one.text, "voice": one.voice}


def sounds() -> Iterator[tuple[NDArray[np.float32], int]]:
    for one in strings("train", STRINGS, 0):
        yield one.samples, RATE


def train(runs: Path, codec_steps: int, speech_steps: int) -> Path:
    """Both runs, continued where they were stopped; the folder of the voices."""
    codec = burnish.train(
        "codec",
        f"train.data={__file__}:sounds",
        "train.sizes.hidden_size=160",
        steps=codec_steps,
        name="codec",
        runs=str(runs),
    )
    speech = burnish.train(
        "speech",
        f"train.data={__file__}:rows",
        f"train.tokenizer={codec.folder}",
        "train.sizes.hidden_size=160",
        "train.sizes.head_size=160",
        steps=speech_steps,
        name="speech",
        runs=str(runs),
    )
    return Path(speech.folder)


def measure(folder: Path, count: int) -> list[dict[str, Any]]:
    """Word error rates: recordings, through the latents, spoken, and spoken against another text."""
    held = list(strings("test", count, 1))
    tokenizer, _ = open_speech_folder(newest_weights(folder))
    engine = LatentEngine(folder)
    heard: dict[str, list[str]] = {"recordings": [], "through the latents": [], "spoken": []}
    for place, one in enumerate(held):
        with torch.no_grad():
            latents = tokenizer.encode(torch.from_numpy(one.samples)).latents
            again = tokenizer.decode(latents)[0].clamp(-1, 1)
        line = Line(one.text, Speaker(id=one.voice), place, seed=place, voice=one.voice)
        made = engine.speak(line).samples
        for name, samples in zip(heard, (one.samples, again, made), strict=True):
            heard[name].append(as_words(transcribe(samples, RATE)))
    texts = [one.text for one in held]
    found = [_row(name, texts, said) for name, said in heard.items()]
    return [*found, _row("spoken, another string's text", [*texts[1:], texts[0]], heard["spoken"])]


def _row(name: str, texts: list[str], heard: list[str]) -> dict[str, Any]:
    """No string counts for more wrong words than it has: Whisper may repeat one word a hundred times."""
    counted = [word_errors(text, said) for text, said in zip(texts, heard, strict=True)]
    wrong = sum(min(errors, words) for errors, words in counted)
    return {
        "sound": name,
        "word_error_rate": wrong / sum(words for _, words in counted),
        "strings": len(texts),
        "heard": heard,
    }


def main() -> None:
    """Train, measure, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path, help="folder of the digits: train.parquet, test.parquet")
    parser.add_argument("--runs", type=Path, default=Path("runs/own_voices"))
    parser.add_argument("--out", type=Path, default=Path("lab/audio_tokenizer/results"))
    parser.add_argument("--codec-steps", type=int, default=700)
    parser.add_argument("--speech-steps", type=int, default=1500)
    parser.add_argument("--strings", type=int, default=48)
    asked = parser.parse_args()
    os.environ[DATA] = str(asked.data.absolute())
    folder = train(asked.runs, asked.codec_steps, asked.speech_steps)
    found = measure(folder, asked.strings)
    write(
        asked.out,
        found,
        f"{asked.codec_steps} steps of the tokenizer, {asked.speech_steps} of the voices",
    )


def write(out: Path, found: list[dict[str, Any]], told: str) -> None:
    """The table, and what was heard."""
    out.mkdir(parents=True, exist_ok=True)
    lines = [
        "# Voices of one's own: strings of digits by six real speakers, 8 kHz",
        "",
        f"{told}, on a CPU; word error rates by Whisper tiny.en over {found[0]['strings']} strings of "
        f"{DIGITS} digits that nothing was trained on.",
        "",
        "| sound | word error rate |",
        "|---|---|",
        *(f"| {row['sound']} | {row['word_error_rate']:.3f} |" for row in found),
    ]
    (out / "own_voices.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (out / "own_voices.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
