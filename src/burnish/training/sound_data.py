"""Sounds that are learned from: decoded once to burnish's cache, read by crops; held-out ones in the store.

The samples of all clips lie end to end as float32; a table says where each begins. Which clips are
held out follows from a hash of what is said in them, or of their samples where that is not known, so
equal sentences and equal sounds fall on the same side. The latents that a frozen tokenizer gives of
them without noise, for a speech generator, are computed once and lie end to end too.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray
from torch import Tensor

from burnish.activity import advance, waiting_for
from burnish.errors import ArgumentError, UserError
from burnish.lm.embedded import make_once
from burnish.media import encode_sound
from burnish.models.audio_tokenizer.spectral import wave_distance
from burnish.records import MediaPart, Message, Reward, Task, TextPart, Trajectory
from burnish.seeds import derive, digest
from burnish.store import StoredSample
from burnish.store.blobs import Blobs
from burnish.store.manifest import is_ours, newest_weights
from burnish.tasks.sounds import Samples, SoundCorpus, UtteranceCorpus
from burnish.tools.search.sources import file_digest
from burnish.training.algorithm import HELD_OUT, stored
from burnish.training.devices import World
from burnish.training.packed_text import spread_evenly

if TYPE_CHECKING:
    from burnish.config.schema import CodecSizes, SpeechTrain
    from burnish.config.train_kinds import SoundTrain
    from burnish.models.audio_tokenizer import AudioTokenizerConfig, AudioTokenizerModel

READING = "decoding sounds"
Wave = NDArray[np.float32]
LAYOUT = 1
"""Counts changes of what is written here."""


class Place(Struct, frozen=True):
    name: str
    start: int
    samples: int
    is_held_out: bool
    text: str = ""
    voice: str = ""


@dataclass(frozen=True)
class Clips:
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
    train: Clips
    held_out: Clips
    note: str = ""
    """What the corpus left out, in one line."""

    def line(self) -> str:
        t, h = self.train, self.held_out
        return (
            f"{len(t.places):,} clips, {t.seconds / 60:,.1f} minutes at {t.rate:,} Hz; held out "
            f"{len(h.places):,} clips, {h.seconds / 60:,.1f} minutes"
        )


def check_sources(
    settings: SoundTrain, corpus_of: Callable[[tuple[str, ...]], SoundCorpus]
) -> Iterator[str]:
    """Refuse what is missing of the sounds that a config names; their digests."""
    for sources in filter(None, (settings.sources, settings.held_out_sources)):
        corpus = corpus_of(sources)
        corpus.check()
        yield corpus.digest


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

    def build(folder: Path) -> None:
        with waiting_for(READING, "sounds", corpus.count):
            _write(folder, corpus, held_out)

    name = digest(corpus.digest, f"{held_out}", f"{LAYOUT} {sys.byteorder}")
    folder = make_once(f"sounds-{name}", build)
    places = msgspec.json.decode((folder / "clips.json").read_bytes(), type=list[Place])
    _check_size(folder / "samples.f32", sum(p.samples for p in places), "sounds")
    sides = ([p for p in places if p.is_held_out == side] for side in (False, True))
    train, held = (Clips(folder, corpus.rate, side) for side in sides)
    note = folder / "note.txt"
    return Sounds(train, held, note.read_text(encoding="utf-8") if note.exists() else "")


def _check_size(file: Path, numbers: int, what: str) -> None:
    wanted, got = 4 * numbers, file.stat().st_size
    if wanted != got:
        raise UserError(
            f"{file.parent}: the cached {what} are damaged ({got:,} bytes, expected {wanted:,}); "
            "remove the folder."
        )


def _write(folder: Path, corpus: SoundCorpus, share: float) -> None:
    places: list[Place] = []
    start = 0
    with (folder / "samples.f32").open("wb") as file:
        for clip in corpus.clips():
            content = np.ascontiguousarray(clip.samples, dtype="<f4").tobytes()
            file.write(content)
            is_held_out = derive("held out", digest(clip.text or content)) < share * 2**63
            size = len(clip.samples)
            places.append(Place(clip.name, start, size, is_held_out, clip.text, clip.voice))
            start += size
            advance(READING)
    if not places:
        note = f" ({corpus.note})" if corpus.note else ""
        raise UserError(f"{corpus.name}: no sound in it{note}; expected at least one.")
    if corpus.note:
        (folder / "note.txt").write_text(corpus.note, encoding="utf-8")
    (folder / "clips.json").write_bytes(msgspec.json.encode(places))


LONGEST_S = 10.0

DISTANCE = "log_spectral_distance"
MEANING = "dB from the sound, negative: higher is better"
MOST_SHOWN = 8
"""Sounds of an evaluation that are kept, spread evenly over those that are scored."""


class SoundSample(NamedTuple):
    """One held-out sound and what was made of it, with words for each."""

    name: str
    clip: int
    rate: int
    sound_n: Wave
    made: Sequence[tuple[str, Wave]]
    reward: Reward
    role: str = "codec"
    """Of the samples; the viewer shows the sounds of `codec` and `speech` side by side."""


@torch.no_grad()
def reconstructed(
    model: AudioTokenizerModel,
    clips: Clips,
    chosen: Sequence[int],
    strengths: Sequence[float],
    world: World,
    device: torch.device,
) -> tuple[Tensor, list[SoundSample]]:
    """Distance of each chosen clip with noise of each strength on its latents, (C, S), float64.

    And some of them to listen to. Every process takes its share; all get the whole. Strengths are
    in standard deviations of the latents; 0 is none.
    """
    longest = int(LONGEST_S * clips.rate)
    waves = {
        i: torch.from_numpy(clips.crop(chosen[i], 0, longest)).to(device)
        for i in world.share(range(len(chosen)))
    }
    own = {i: latents_of(model, wave_n) for i, wave_n in waves.items()}
    every = world.merge(own)
    spread_D = torch.cat([every[i] for i in range(len(chosen))]).std(0, correction=0)
    kept = spread_evenly(len(chosen), MOST_SHOWN)
    found: dict[int, Tensor] = {}
    made: dict[int, Tensor] = {}
    for i, wave_n in waves.items():
        generator = torch.Generator().manual_seed(derive("perturbation", i))
        noise_TD = torch.randn(own[i].shape, generator=generator).to(own[i])
        noised = (own[i] + strength * spread_D * noise_TD for strength in strengths)
        made_Sn = torch.stack([model.decode(z, num_samples=len(wave_n))[0] for z in noised])
        row = [wave_distance(made_n, wave_n, clips.rate) for made_n in made_Sn]
        found[i] = torch.stack(row).double().cpu()
        if i in kept:
            made[i] = made_Sn.float().cpu()
    distance_CS, sounds = world.stacked(found, len(chosen)).cpu(), world.merge(made)
    heard = [
        reconstruction(
            clips.places[chosen[i]].name,
            chosen[i],
            clips.rate,
            clips.crop(chosen[i], 0, longest),
            zip(strengths, sounds[i].cpu().numpy(), distance_CS[i].tolist(), strict=True),
        )
        for i in kept
    ]
    return distance_CS, heard


def latents_of(model: AudioTokenizerModel, wave_n: Tensor) -> Tensor:
    """(n,) -> (T, D)."""
    found = model.encode(wave_n).latents
    assert found is not None
    return found[0]


def reconstruction(
    name: str, clip: int, rate: int, sound_n: Wave, tried: Iterable[tuple[float, Wave, float]]
) -> SoundSample:
    """A sound and what was made of it: strength of noise, wave and distance, the plain one first."""
    made, distances = [], []
    for strength, made_n, distance in tried:
        what = f"with noise of {strength:g} sd" if strength else "reconstruction"
        made.append((f"{what}: {distance:.2f} dB", made_n))
        distances.append(distance)
    return SoundSample(
        name, clip, rate, sound_n, made, Reward(DISTANCE, -distances[0], reason=MEANING)
    )


def stored_samples(
    step: int, version: int, sounds: Sequence[SoundSample], blobs: Blobs
) -> list[StoredSample]:
    """Each sound is a task, and what was made of it are turns."""

    def part(samples_n: Wave, rate: int) -> MediaPart:
        return blobs.add(encode_sound(np.clip(samples_n, -1, 1), rate))

    rows = []
    for index, one in enumerate(sounds):
        turns = [
            Message("assistant", (TextPart(said), part(made_n, one.rate)))
            for said, made_n in one.made
        ]
        sound = Message("user", (TextPart(f"{one.name}\n"), part(one.sound_n, one.rate)))
        task, name = Task(f"held-out-sound-{one.clip}", (sound,)), f"eval.{step}.{index}"
        trajectory = Trajectory(
            name,
            task.id,
            name,
            (),
            "; ".join(said for said, _ in one.made),
            role=one.role,
            weight_version=version,
            info={"messages": msgspec.to_builtins(turns)},
        )
        rows.append((task, trajectory, one.reward))
    return stored(step, HELD_OUT, rows)


ENCODING = "encoding sounds"
LATENTS = "latents.f32"


def find_tokenizer(settings: SpeechTrain) -> Path:
    folder = Path(settings.tokenizer).expanduser()
    if not folder.is_dir():
        raise UserError(
            f"{settings.tokenizer}: no such folder; expected the run or folder of an audio "
            f"tokenizer. Train one: burnish train codec run.name={folder.name}"
        )
    return newest_weights(folder) if is_ours(folder) else folder


def tokenizer_digest(folder: Path) -> str:
    """Changes with the sizes and with every weight of a tokenizer."""
    files = (folder / "config.json", *sorted(folder.glob("*.safetensors")))
    return digest(*map(file_digest, files))


@dataclass(frozen=True)
class SpeechData:
    sounds: Sounds
    voices: Sequence[str]
    """Sorted; empty: one voice without a name."""
    hop: int
    patch: int

    def patches(self, place: Place) -> int:
        """Whole patches of a recording."""
        return -(-place.samples // self.hop) // self.patch

    @cached_property
    def characters_a_patch(self) -> float:
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
    hop, rate = config.hop_length, config.sampling_rate
    sounds = open_train_and_held_out(
        settings, lambda sources: speech_corpus(settings, sources, rate=rate, shortest=hop * patch)
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


def new_tokenizer_folder(sizes: CodecSizes, seed: int) -> Path:
    """The folder of a fresh audio tokenizer in burnish's cache; the same for the same sizes and seed."""
    from burnish.models.audio_tokenizer import new_tokenizer

    plain: dict[str, Any] = msgspec.to_builtins(sizes)
    name = digest(f"{seed}", msgspec.json.encode(plain))

    def build(folder: Path) -> None:
        new_tokenizer(folder, seed=seed, **plain)

    return make_once(f"audio-tokenizer-{name}", build)


@dataclass(frozen=True)
class Latents:
    folder: Path
    size: int
    starts: Sequence[int]
    """First frame of each clip; the last is the end of all."""

    @cached_property
    def _frames(self) -> NDArray[np.float32]:
        found: NDArray[np.float32] = np.memmap(
            self.folder / LATENTS, dtype="<f4", mode="r", shape=(self.starts[-1], self.size)
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

    @torch.no_grad()
    def build(folder: Path) -> None:
        with (
            waiting_for(ENCODING, "sounds", len(clips.places)),
            (folder / LATENTS).open("wb") as file,
        ):
            # One by one: what is computed for a clip does not depend on the others.
            for number, place in enumerate(clips.places):
                wave_n = torch.from_numpy(clips.crop(number)).to(tokenizer.device)
                latents_TD = latents_of(tokenizer, wave_n).float().cpu()
                if not bool(latents_TD.isfinite().all()):
                    raise UserError(
                        f"{place.name}: its latents hold NaN or infinity; expected numbers. Is the "
                        "tokenizer trained, and the sound within full scale?"
                    )
                file.write(np.ascontiguousarray(latents_TD.numpy(), dtype="<f4").tobytes())
                advance(ENCODING)

    folder = make_once(f"latents-{name}", build)
    _check_size(folder / LATENTS, size * starts[-1], "latents")
    return Latents(folder, size, starts)
