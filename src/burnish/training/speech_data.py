"""What a speech generator learns from: recordings with their texts, and their latents, in burnish's cache.

    folder = find_tokenizer(settings)                   # a run's newest checkpoint, or a folder
    data = open_speech(settings, tokenizer.config, patch=2)     # data.sounds, data.voices
    latents = open_latents(data.sounds.train, tokenizer, tokenizer_digest(folder))
    latents.clip(3)                                     # (T, D) float32

Latents are those that the frozen tokenizer gives without noise. They are computed once for each tokenizer
and lie end to end, as the sounds do.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from burnish.activity import advance, waiting_for
from burnish.errors import ArgumentError, UserError
from burnish.lm.embedded import make_once
from burnish.seeds import digest
from burnish.store.manifest import is_ours, newest_weights
from burnish.tasks.utterances import UtteranceCorpus
from burnish.tools.search.sources import file_digest
from burnish.training.sound_cache import Clips, Place, Sounds, open_train_and_held_out

if TYPE_CHECKING:
    from burnish.config.schema import SpeechTrain
    from burnish.models.audio_tokenizer import AudioTokenizerConfig, AudioTokenizerModel

ENCODING = "encoding sounds"
LAYOUT = 1
"""Counts changes of what is written here."""


def find_tokenizer(settings: SpeechTrain) -> Path:
    """The folder of the tokenizer's weights."""
    folder = Path(settings.tokenizer).expanduser()
    if not folder.is_dir():
        raise UserError(
            f"{settings.tokenizer}: no such folder; expected the run or folder of an "
            f"audio tokenizer. Train one: burnish train codec run.name={folder.name}"
        )
    return newest_weights(folder) if is_ours(folder) else folder


def tokenizer_digest(folder: Path) -> str:
    """Changes with the sizes and with every weight of a tokenizer."""
    files = (folder / "config.json", *sorted(folder.glob("*.safetensors")))
    return digest(*map(file_digest, files))


@dataclass(frozen=True)
class SpeechData:
    """Recordings with their texts, and the names of who speaks."""

    sounds: Sounds
    voices: Sequence[str]
    """Sorted; empty: one voice without a name."""
    hop: int
    """Samples of a latent."""
    patch: int
    """Latents of a patch."""

    def patches(self, place: Place) -> int:
        """Whole patches of a recording."""
        return -(-place.samples // self.hop) // self.patch

    @cached_property
    def characters_a_patch(self) -> float:
        """The mean pace of the recordings that are trained on."""
        places = self.sounds.train.places
        characters = sum(len(place.text) for place in places)
        return characters / max(sum(map(self.patches, places)), 1)


def speech_corpus(
    settings: SpeechTrain,
    sources: tuple[str, ...],
    root: Path = Path(),
    *,
    rate: int = 16_000,
    shortest: int = 1,
) -> UtteranceCorpus:
    """The rows of some sources at a rate; what is shorter than `shortest` samples is left out."""
    return UtteranceCorpus(
        sources,
        rate,
        settings.column,
        root,
        said=settings.text,
        speaker=settings.voice,
        shortest=shortest,
        longest=round(settings.longest * rate),
    )


def open_speech(settings: SpeechTrain, config: AudioTokenizerConfig, patch: int) -> SpeechData:
    """The recordings that a rooted config names, from the cache or decoded now."""
    hop: int = config.hop_length

    rate: int = config.sampling_rate
    sounds = open_train_and_held_out(
        settings,
        lambda sources: speech_corpus(settings, sources, rate=rate, shortest=hop * patch),
    )
    places = [*sounds.train.places, *sounds.held_out.places]
    voices = sorted({place.voice for place in places})
    if len(voices) > 1 and not voices[0]:
        nameless = [place.name for place in places if not place.voice]
        raise UserError(
            f"{nameless[0]}: has no voice, as {len(nameless):,} of {len(places):,} rows; expected a name "
            f"in the column '{settings.voice}' of every row, or of none. Say which: train.voice"
        )
    if not sounds.train.places:
        raise UserError(
            f"{', '.join(settings.sources)}: all {len(places)} rows are held out. Lower train.held_out, "
            "or add rows."
        )
    return SpeechData(sounds, voices if voices[0] else [], hop, patch)


def new_generator_folder(settings: SpeechTrain, seed: int) -> Path:
    """A fresh generator in burnish's cache: its voices and pace are those of the recordings."""
    from burnish.models.audio_tokenizer import new_generator, open_tokenizer
    from burnish.models.audio_tokenizer.spelling import ALPHABET

    tokenizer = open_tokenizer(find_tokenizer(settings))
    config = tokenizer.config
    sizes: dict[str, Any] = msgspec.to_builtins(settings.sizes)
    data = open_speech(settings, config, settings.sizes.patch)
    is_beside = sizes.pop("beside")
    sizes |= {
        "vocab_size": len(ALPHABET) + 1,
        "alphabet": ALPHABET,
        "voices": list(data.voices),
        "characters_a_patch": round(data.characters_a_patch, 3) if is_beside else 0.0,
        "latent_size": config.latent_size,
        "is_normalised": config.is_normalised,
        "tokenizer_fingerprint": tokenizer.fingerprint(),
    }

    def build(folder: Path) -> None:
        try:
            new_generator(folder, seed=seed, **sizes)
        except ArgumentError as error:
            raise UserError(f"train.sizes.{error}") from None

    return make_once(f"generator-{digest(f'{seed}', msgspec.json.encode(sizes))}", build)


def start_generator(place: Path) -> Path:
    """The generator of a checkpoint, or of a folder that `save_speech_folder` wrote."""
    from burnish.models.audio_tokenizer.speech_folder import generator_folder

    return generator_folder(place)


# --- latents


@dataclass(frozen=True)
class Latents:
    """The latents of one side of the sounds."""

    folder: Path
    size: int
    starts: Sequence[int]
    """First frame of each clip; the last is the end of all."""

    @cached_property
    def _frames(self) -> NDArray[np.float32]:
        found: NDArray[np.float32] = np.memmap(
            self.folder / "latents.f32", dtype="<f4", mode="r", shape=(self.starts[-1], self.size)
        )
        return found

    def clip(self, place: int) -> NDArray[np.float32]:
        """Latents (T, D) of a clip, a copy."""
        return np.array(self._frames[self.starts[place] : self.starts[place + 1]], np.float32)


def open_latents(clips: Clips, tokenizer: AudioTokenizerModel, key: str) -> Latents:
    """The latents of some clips, from the cache or computed now; `key` is that of the tokenizer."""
    hop, size = tokenizer.config.hop_length, tokenizer.config.latent_size
    starts = list(itertools.accumulate((-(-p.samples // hop) for p in clips.places), initial=0))
    side = msgspec.json.encode([place.start for place in clips.places])
    kind = f"{LAYOUT} {sys.byteorder} {tokenizer.device.type}"
    name = digest(clips.folder.name, side, key, kind)

    def build(folder: Path) -> None:
        with waiting_for(ENCODING, "sounds", len(clips.places)):
            _encode(folder / "latents.f32", clips, tokenizer)

    folder = make_once(f"latents-{name}", build)
    wanted, got = 4 * size * starts[-1], (folder / "latents.f32").stat().st_size
    if wanted != got:
        raise UserError(
            f"{folder}: the cached latents are damaged ({got:,} bytes, expected {wanted:,}); remove the "
            "folder."
        )
    return Latents(folder, size, starts)


@torch.no_grad()
def _encode(target: Path, clips: Clips, tokenizer: AudioTokenizerModel) -> None:
    """One by one: what is computed for a clip does not depend on the others."""
    with target.open("wb") as file:
        for number, place in enumerate(clips.places):
            wave_n = torch.from_numpy(clips.crop(number)).to(tokenizer.device)
            latents = tokenizer.encode(wave_n).latents
            assert latents is not None
            latents_TD = latents[0].float().cpu()
            if not bool(latents_TD.isfinite().all()):
                raise UserError(
                    f"{place.name}: its latents hold NaN or infinity; expected numbers. Is the tokenizer "
                    "trained, and the sound within full scale?"
                )
            file.write(np.ascontiguousarray(latents_TD.numpy(), dtype="<f4").tobytes())
            advance(ENCODING)
