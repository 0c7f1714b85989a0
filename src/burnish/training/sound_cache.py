"""Sounds at one rate on disk, for an audio tokenizer to be trained on: decoded once, read by crops.

    sounds = open_sounds(corpus, held_out=0.05)
    sounds.train.crop(clip=3, start=800, length=16000)

The samples of all clips lie end to end as float32 in burnish's cache; a table says where each begins.
Which clips are held out follows from a hash of what is said in them, or of their samples where that is
not known, so equal sentences and equal sounds fall on the same side.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from burnish.activity import advance, waiting_for
from burnish.errors import UserError
from burnish.lm.embedded import make_once
from burnish.seeds import derive, digest
from burnish.tasks.sounds import Clip, Samples, SoundCorpus

if TYPE_CHECKING:
    from burnish.config.train_kinds import SoundTrain

READING = "decoding sounds"
LAYOUT = 1
"""Counts changes of what is written here."""


class Place(Struct, frozen=True):
    """Where a clip lies in its file."""

    name: str
    start: int
    samples: int
    is_held_out: bool
    text: str = ""
    voice: str = ""


@dataclass(frozen=True)
class Clips:
    """One side of the sounds."""

    folder: Path
    rate: int
    places: Sequence[Place]

    @cached_property
    def _samples(self) -> NDArray[np.float32]:
        return np.memmap(self.folder / "samples.f32", dtype="<f4", mode="r")

    @property
    def seconds(self) -> float:
        return sum(place.samples for place in self.places) / self.rate

    def crop(self, clip: int, start: int = 0, length: int | None = None) -> Samples:
        """At most `length` samples of a clip, a copy."""
        place = self.places[clip]
        stop = place.samples if length is None else min(start + length, place.samples)
        return np.array(self._samples[place.start + start : place.start + stop], dtype=np.float32)


@dataclass(frozen=True)
class Sounds:
    """What is trained on, and what is held out."""

    train: Clips
    held_out: Clips
    note: str = ""
    """What the corpus left out, in one line."""

    def line(self) -> str:
        """For people."""
        t, h = self.train, self.held_out
        return (
            f"{len(t.places):,} clips, {t.seconds / 60:,.1f} minutes at {t.rate:,} Hz; held out "
            f"{len(h.places):,} clips, {h.seconds / 60:,.1f} minutes"
        )


def check_sources(
    settings: SoundTrain, corpus_of: Callable[[tuple[str, ...]], SoundCorpus]
) -> list[str]:
    """Refuse what is missing of the sounds that a config names; their digests."""
    sources = filter(None, (settings.sources, settings.held_out_sources))
    corpora = [corpus_of(one) for one in sources]
    for corpus in corpora:
        corpus.check()
    return [corpus.digest for corpus in corpora]


def open_train_and_held_out(
    settings: SoundTrain, corpus_of: Callable[[tuple[str, ...]], SoundCorpus]
) -> Sounds:
    """The sounds that a config names; held out is a share of them, or what `held_out_data` names."""
    apart = settings.held_out_sources
    sounds = open_sounds(corpus_of(settings.sources), held_out=0.0 if apart else settings.held_out)
    if not apart:
        return sounds
    held = open_sounds(corpus_of(apart), held_out=0.0)
    note = "; held-out data: ".join(filter(None, (sounds.note, held.note)))
    return Sounds(sounds.train, held.train, note)


def open_sounds(corpus: SoundCorpus, *, held_out: float) -> Sounds:
    """The sounds of a corpus, from the cache or decoded now."""
    name = digest(corpus.digest, f"{held_out}", f"{LAYOUT} {sys.byteorder}")

    def build(folder: Path) -> None:
        with waiting_for(READING, "sounds", corpus.count):
            _write(folder, corpus, held_out)

    folder = make_once(f"sounds-{name}", build)
    places = msgspec.json.decode((folder / "clips.json").read_bytes(), type=list[Place])
    sides = ([p for p in places if p.is_held_out == side] for side in (False, True))
    train, held = (Clips(folder, corpus.rate, side) for side in sides)
    wanted, got = 4 * sum(p.samples for p in places), (folder / "samples.f32").stat().st_size
    if wanted != got:
        raise UserError(
            f"{folder}: the cached sounds are damaged ({got:,} bytes, expected {wanted:,}); remove "
            "the folder."
        )
    note = folder / "note.txt"
    return Sounds(train, held, note.read_text(encoding="utf-8") if note.exists() else "")


def _write(folder: Path, corpus: SoundCorpus, share: float) -> None:
    places: list[Place] = []
    start = 0
    with (folder / "samples.f32").open("wb") as file:
        for clip in corpus.clips():
            content = np.ascontiguousarray(clip.samples, dtype="<f4")
            file.write(content.tobytes())
            is_held_out = _is_held_out(clip, share)
            said = clip.text, clip.voice
            places.append(Place(clip.name, start, len(content), is_held_out, *said))
            start += len(content)
            advance(READING)
    if not places:
        note = f" ({corpus.note})" if corpus.note else ""
        raise UserError(f"{corpus.name}: no sound in it{note}; expected at least one.")
    if corpus.note:
        (folder / "note.txt").write_text(corpus.note, encoding="utf-8")
    (folder / "clips.json").write_bytes(msgspec.json.encode(places))


def _is_held_out(clip: Clip, share: float) -> bool:
    key = digest(clip.text or np.ascontiguousarray(clip.samples, dtype="<f4").tobytes())
    return derive("held out", key) < share * 2**63
