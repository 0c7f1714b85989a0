"""Sounds that are learned from: decoded once to burnish's cache, read by crops; held-out ones in the store.

    sounds = open_sounds(corpus, held_out=0.05)
    sounds.train.crop(clip=3, start=800, length=16000)
    distance_CS, heard = reconstructed(model, sounds.held_out, chosen, strengths, world, device)
    samples = stored_sounds(step, version, heard, "log_spectral_distance", store.blobs)

The samples of all clips lie end to end as float32; a table says where each begins. Which clips are
held out follows from a hash of what is said in them, or of their samples where that is not known, so
equal sentences and equal sounds fall on the same side. A sample of the store holds the sound as its
task and what was made of it as turns; the same sound is kept once, the same weights make the same
bytes. A speech generator also learns from latents, those that the frozen tokenizer gives without
noise: computed once for each tokenizer, they lie end to end too.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
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
from burnish.tasks.sounds import Clip, Samples, SoundCorpus, UtteranceCorpus
from burnish.tools.search.sources import file_digest
from burnish.training.devices import World

if TYPE_CHECKING:
    from burnish.config.schema import CodecSizes, SpeechTrain
    from burnish.config.train_kinds import SoundTrain
    from burnish.models.audio_tokenizer import AudioTokenizerConfig, AudioTokenizerModel

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


LONGEST_S = 10.0
"""Seconds of a held-out clip that are scored."""

ROLE = "codec"
"""Role of these samples; the viewer shows their sounds side by side."""
SPEECH = "speech"
"""The same, of text that was spoken."""
MEANING = "dB from the sound, negative: higher is better"
MOST_SHOWN = 8
"""Sounds of an evaluation that are kept, spread evenly over those that are scored."""


class ReconstructedClip(NamedTuple):
    """One held-out sound and what was made of it."""

    name: str
    clip: int
    """Its place among the held-out sounds."""
    rate: int
    sound_n: NDArray[np.float32]
    made_Sn: NDArray[np.float32]
    """A reconstruction for each strength of noise."""
    strengths: Sequence[float]
    """In standard deviations of the latents; 0 is none."""
    distances: Sequence[float]
    """dB of each reconstruction."""


class SoundSample(NamedTuple):
    """One held-out sound and what was made of it, with words for each."""

    name: str
    clip: int
    rate: int
    sound_n: NDArray[np.float32]
    made: Sequence[tuple[str, NDArray[np.float32]]]
    reward: Reward
    role: str = ROLE


@torch.no_grad()
def reconstructed(
    model: AudioTokenizerModel,
    clips: Clips,
    chosen: Sequence[int],
    strengths: Sequence[float],
    world: World,
    device: torch.device,
) -> tuple[Tensor, list[ReconstructedClip]]:
    """Distance of each chosen clip with noise of each strength on its latents, (C, S), float64.

    And some of them to listen to. Every process takes its share; all get the whole.
    """
    longest = int(LONGEST_S * clips.rate)
    waves = {
        i: torch.from_numpy(clips.crop(chosen[i], 0, longest)).to(device)
        for i in world.share(range(len(chosen)))
    }
    own = {i: _latents(model, wave_n) for i, wave_n in waves.items()}
    every = world.merge(own)
    spread_D = torch.cat([every[i] for i in range(len(chosen))]).std(0, correction=0)
    kept = shown_places(len(chosen))
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
    merged, sounds = world.merge(found), world.merge(made)
    distance_CS = torch.stack([merged[i].cpu() for i in range(len(chosen))])
    heard = [
        ReconstructedClip(
            clips.places[chosen[i]].name,
            chosen[i],
            clips.rate,
            clips.crop(chosen[i], 0, longest),
            sounds[i].cpu().numpy(),
            strengths,
            distance_CS[i].tolist(),
        )
        for i in kept
    ]
    return distance_CS, heard


def _latents(model: AudioTokenizerModel, wave_n: Tensor) -> Tensor:
    """(n,) -> (T, D)."""
    found = model.encode(wave_n).latents
    assert found is not None
    return found[0]


def shown_places(count: int, most: int = MOST_SHOWN) -> list[int]:
    """Which of `count` scored sounds are kept.

    >>> shown_places(3), shown_places(16)
    ([0, 1, 2], [0, 2, 4, 6, 8, 10, 12, 14])
    """
    kept = min(count, most)
    return [place * count // kept for place in range(kept)]


def stored_sounds(
    step: int, version: int, heard: Sequence[ReconstructedClip], measure: str, blobs: Blobs
) -> list[StoredSample]:
    """Samples of the split `eval:held_out`; their value is minus the distance."""
    return stored_samples(step, version, [_in_words(one, measure) for one in heard], blobs)


def _in_words(one: ReconstructedClip, measure: str) -> SoundSample:
    words = [
        f"{'reconstruction' if not strength else f'with noise of {strength:g} sd'}: {distance:.2f} dB"
        for strength, distance in zip(one.strengths, one.distances, strict=True)
    ]
    reward = Reward(measure, -one.distances[0], reason=MEANING)
    made = list(zip(words, one.made_Sn, strict=True))
    return SoundSample(one.name, one.clip, one.rate, one.sound_n, made, reward)


def stored_samples(
    step: int, version: int, sounds: Sequence[SoundSample], blobs: Blobs
) -> list[StoredSample]:
    """Samples of the split `eval:held_out`, in the order of the sounds."""
    return [_stored(step, version, index, one, blobs) for index, one in enumerate(sounds)]


def _stored(step: int, version: int, index: int, one: SoundSample, blobs: Blobs) -> StoredSample:
    turns = [
        Message("assistant", (TextPart(said), _part(made_n, one.rate, blobs)))
        for said, made_n in one.made
    ]
    sound = Message("user", (TextPart(f"{one.name}\n"), _part(one.sound_n, one.rate, blobs)))
    task = Task(f"held-out-sound-{one.clip}", (sound,))
    name = f"eval.{step}.{index}"
    return StoredSample(
        step=step,
        split="eval:held_out",
        index=index,
        task=task,
        trajectory=Trajectory(
            name,
            task.id,
            name,
            (),
            "; ".join(said for said, _ in one.made),
            role=one.role,
            weight_version=version,
            info={"messages": msgspec.to_builtins(turns)},
        ),
        reward=one.reward,
        keep=False,
    )


def _part(samples_n: NDArray[np.float32], rate: int, blobs: Blobs) -> MediaPart:
    return blobs.add(encode_sound(np.clip(samples_n, -1, 1), rate))


ENCODING = "encoding sounds"


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
    from burnish.models.audio_tokenizer.generator import generator_folder

    return generator_folder(place)


# --- fresh models


def tokenizer_config(sizes: CodecSizes) -> AudioTokenizerConfig:
    """The config of an audio tokenizer of these sizes; sizes that do not fit are refused."""
    from burnish.models.audio_tokenizer import AudioTokenizerConfig

    return AudioTokenizerConfig(**_sizes(sizes))


def new_tokenizer_folder(sizes: CodecSizes, seed: int) -> Path:
    """The folder of a fresh audio tokenizer in burnish's cache; the same for the same sizes and seed."""
    from burnish.models.audio_tokenizer import new_tokenizer

    name = digest(f"{seed}", msgspec.json.encode(_sizes(sizes)))

    def build(folder: Path) -> None:
        new_tokenizer(folder, seed=seed, **_sizes(sizes))

    return make_once(f"audio-tokenizer-{name}", build)


def _sizes(sizes: CodecSizes) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(sizes)
    return plain


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
