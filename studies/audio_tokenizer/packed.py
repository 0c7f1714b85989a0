"""Sounds in one small file that numpy alone reads, for a machine without sound libraries.

    python -m studies.audio_tokenizer.packed ../shared/data runs/voices.parquet .carry/codec.pack

Twelve bits a sample at 16 kHz (noise at -74 dB of full scale), second differences, LZMA: half of PCM. The
file has what the GPU study trains on (`train`, `digits`) and is tested on (`librispeech`, `ljspeech`, `esc`).
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from studies.audio_tokenizer.parts import Item, read_items

RATE = 16_000
STEP = 16
"""Of 16-bit samples: twelve bits are kept."""
PACKED = "BURNISH_PACKED"
"""Variable of the environment with the file that `train_sounds` reads."""
HELD_DIGITS = 60
"""Digit strings that no generator is trained on."""


def pack(file: Path, sets: Mapping[str, Sequence[Item]], step: int = STEP) -> None:
    """Write sets of sounds."""
    about: list[dict[str, Any]] = []
    parts: list[NDArray[np.int16]] = []
    for name, items in sets.items():
        for item in items:
            scaled = np.clip(np.rint(item.samples * 32768 / step), -32768 // step, 32767 // step)
            whole = scaled.astype(np.int16)
            parts.append(np.diff(whole, n=2, prepend=np.zeros(2, np.int16)))
            about.append({"set": name, "name": item.name, "text": item.text, "size": len(whole)})
    head = json.dumps({"step": step, "sounds": about}).encode()
    body = np.concatenate(parts).astype("<i2")
    # High and low bytes apart: the high ones are nearly all alike.
    split = body.view(np.uint8).reshape(-1, 2).T.tobytes()
    packed = lzma.compress(len(head).to_bytes(4, "little") + head + split, preset=3)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(packed)


def unpack(file: Path) -> dict[str, list[Item]]:
    """The sets of a file that `pack` wrote."""
    content = lzma.decompress(file.read_bytes())
    size = int.from_bytes(content[:4], "little")
    head = json.loads(content[4 : 4 + size])
    split = np.frombuffer(content[4 + size :], np.uint8).reshape(2, -1)
    body = np.ascontiguousarray(split.T).view("<i2")[:, 0]
    found: dict[str, list[Item]] = {}
    place = 0
    for about in head["sounds"]:
        part = body[place : place + about["size"]]
        place += about["size"]
        whole = np.cumsum(np.cumsum(part, dtype=np.int16), dtype=np.int16)
        samples = whole.astype(np.float32) * (head["step"] / 32768)
        found.setdefault(about["set"], []).append(Item(about["name"], samples, about["text"]))
    return found


def train_sounds() -> Iterator[tuple[NDArray[np.float32], int]]:
    """What a tokenizer is trained on, for `train.data`."""
    found = unpack(Path(os.environ[PACKED]))
    for item in (*found["train"], *found["digits"][HELD_DIGITS:]):
        yield item.samples, RATE


def read_sets(data: Path, voices: Path, most: int = 0) -> dict[str, list[Item]]:
    """What goes into the file of the study."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="folder of the shared data")
    parser.add_argument("voices", type=Path, help="what studies.audio_tokenizer.voices wrote")
    parser.add_argument("out", type=Path)
    parser.add_argument("--most", type=int, default=0, help="sounds of each set; 0: all")
    asked = parser.parse_args()
    sets = read_sets(asked.data, asked.voices, asked.most)
    pack(asked.out, sets)
    for name, items in sets.items():
        print(f"{name}: {len(items)} sounds, {sum(len(i.samples) for i in items) / RATE:.0f} s")
    print(f"{asked.out}: {asked.out.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
