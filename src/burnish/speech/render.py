"""A script to a sound file: sentences are spoken once and kept, samples are written in chunks.

    done = render_scene(scene, "scene.wav", engine="espeak", seed=1)
    done.timeline, done.alignment, done.warnings

Stopped at any moment, the same call continues: sentences that were spoken lie beside the output until
it is whole (those of an engine without a `version` are spoken again). Chunks of any length give the same file.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from burnish.arguments import as_number, as_path, as_seed, refused
from burnish.errors import ArgumentError, UserError
from burnish.media import read_sound
from burnish.media.sound_writing import KINDS, sound_writer
from burnish.models.long_speech.engine import (
    Capabilities,
    Line,
    SpeechEngine,
    Spoken,
    Timed,
    missing_capabilities,
)
from burnish.models.long_speech.mixer import Mix, white_noise
from burnish.models.long_speech.scene import Scene, scene_warnings
from burnish.models.long_speech.timeline import Span
from burnish.seeds import derive, digest
from burnish.speech.cast import Cast, cast_scene
from burnish.speech.manner import resolve_manners
from burnish.store.lock import WriterLock
from burnish.tensors import as_float64, torch

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.tensors import Numbers

CHUNK_S = 10.0
Progress = Callable[[str, int, int], None]
"""Called with what is done (`speaking`, `writing`), how many, and of how many."""
COLOURS = {
    "pink": "wind sea street traffic crowd crowded cafe café restaurant station park forest market bar party",
    "brown": "engine hum ship train car factory plane storm thunder",
}  # fmt: skip
"""Backgrounds by words of the environment's caption; any other is white noise, as rain and hiss are."""


class Rendering(NamedTuple):
    """What was written, and how it came out."""

    path: Path
    seconds: float
    timeline: list[Span]
    alignment: list[dict[str, Any]]
    """By sentence: speaker, start, end, and the times of words and phonemes where they are known."""
    warnings: list[str]
    voices: dict[str, str]
    mix: Mix


class KeptLines:
    """An engine that writes each line it has spoken into a folder, and reads it from there."""

    def __init__(self, engine: SpeechEngine, folder: Path, spoke: Callable[[], None]) -> None:
        self.engine, self.folder, self.sample_rate = engine, folder, engine.sample_rate
        self.name = getattr(engine, "name", type(engine).__name__)
        self.capabilities = getattr(engine, "capabilities", Capabilities())
        self.capabilities_of = getattr(engine, "capabilities_of", lambda _: self.capabilities)
        self.pitch_reach = getattr(engine, "pitch_reach", None)
        # Without a version, lines that another process kept may be those of an older engine.
        self.version = str(getattr(engine, "version", "")) or uuid.uuid4().hex
        self._spoke, self._damaged = spoke, 0

    @property
    def notes(self) -> list[str]:
        """Those of the engine, and how many kept lines were damaged."""
        notes = list(self.engine.notes) if isinstance(self.engine, Cast) else []
        if self._damaged:
            lines = "kept line was" if self._damaged == 1 else "kept lines were"
            notes.append(f"{self._damaged} {lines} damaged and spoken again")
        return notes

    def speak(self, line: Line) -> Spoken:
        """The line from the folder, or from the engine where none is kept that can be read."""
        voices = getattr(self.engine, "choices", {})
        voice = str(voices.get(line.speaker.id, ""))
        key = digest(repr(line), self.name, self.version, voice, str(self.sample_rate))
        path = self.folder / f"{key}.npz"
        if path.exists():
            kept = _read_line(path)
            if kept is not None:
                return kept
            self._damaged += 1
        said = self.engine.speak(line)
        said = said if isinstance(said, Spoken) else Spoken(said)
        if not self.folder.is_dir():
            return said  # the scene is whole and its lines are no longer kept
        import numpy as np

        times = json.dumps([said.words, said.phonemes])
        part = path.with_suffix(f".{os.getpid()}.part")
        try:
            with part.open("wb") as file:
                np.savez(file, samples=np.asarray(said.samples), times=np.array(times))
            part.replace(path)
        except OSError as error:
            raise UserError(f"{part} cannot be written: {error.strerror or error}") from error
        self._spoke()
        return said


def _read_line(path: Path) -> Spoken | None:
    """A kept line; None if it is damaged."""
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as kept:
            words, phonemes = json.loads(str(kept["times"]))
            samples = torch.from_numpy(kept["samples"])
        times = [tuple(Timed(*one) for one in part) for part in (words, phonemes)]
    except Exception:  # boundary: numpy and zip meet whatever the file holds
        return None
    is_line = samples.ndim == 1 and bool(samples.isfinite().all())
    return Spoken(samples, *times) if is_line else None


def render_scene(
    scene: Scene,
    out: str | Path,
    *,
    engine: str | Path | SpeechEngine = "espeak",
    seed: int = 0,
    chunk_s: float = CHUNK_S,
    sounds: Mapping[str, Numbers] | None = None,
    background: Numbers | None = None,
    progress: Progress | None = None,
) -> Rendering:
    """Speak, mix and write a scene as .wav, .flac or .ogg (Opus).

    `engine` is a name or a folder of `cast_scene`, or an engine of your own; `sounds` has samples for
    events by their captions and `background` some seconds of background to repeat, both at the
    engine's rate.
    """
    if not isinstance(scene, Scene):
        raise refused("scene", scene, "what read_scene returns")
    path = as_path("out", out, "a file that ends in .wav, .flac or .ogg")
    if path.suffix.lower().lstrip(".") not in KINDS:
        raise refused("out", str(path), "a file that ends in .wav, .flac or .ogg")
    seed = as_seed("seed", seed)
    chunk_s = as_number("chunk_s", chunk_s, above=0, high=3600)
    cast = cast_scene(scene, engine, seed) if isinstance(engine, str | Path) else engine
    tell = progress or (lambda *_: None)
    spoken = iter(range(1, 10**9))
    with _parts_of(path) as folder:
        kept = KeptLines(cast, folder, lambda: tell("speaking", next(spoken), len(scene.sentences)))
        mix, warnings = mix_scene(scene, kept, seed=seed, sounds=sounds, background=background)
        with sound_writer(path, mix.sample_rate, ogg="opus") as write:
            for number, samples in enumerate(mix.chunks(chunk_s)):
                write(samples)
                tell("writing", min((number + 1) * round(chunk_s * mix.sample_rate), mix.length), mix.length)  # fmt: skip
        alignment = align_scene(mix)
        shutil.rmtree(folder, ignore_errors=True)
    voices = {
        one: f"{voice.engine} {voice.name}".strip()
        for one, voice in (cast.choices.items() if isinstance(cast, Cast) else ())
    }
    return Rendering(
        path, mix.length / mix.sample_rate, mix.timeline, alignment, warnings, voices, mix
    )


@contextmanager
def _parts_of(path: Path) -> Iterator[Path]:
    """The folder beside a sound for its lines, which one process at a time writes."""
    folder = path.with_name(f".{path.name}.parts")
    busy = f"{path} is being written by {{holder}}; wait for it, or write another file"
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{path} cannot be written: {error.strerror or error}") from None
        lock = WriterLock(folder / "writer.lock", busy)
        if lock.is_in_place:  # else the one before has just finished and removed the folder
            break
        lock.release()
    try:
        yield folder
    finally:
        lock.release()


def mix_scene(
    scene: Scene,
    engine: SpeechEngine,
    *,
    seed: int = 0,
    sounds: Mapping[str, Numbers] | None = None,
    background: Numbers | None = None,
) -> tuple[Mix, list[str]]:
    """The mix of a scene with its captions obeyed, and everything that could not be."""
    found = resolve_manners(scene)
    caption = scene.overall.environment.caption
    noise = repeated(background) if background is not None else background_of(caption)
    mix = Mix(scene, engine, seed=seed, manners=found.manners, sounds=sounds, background=noise)
    return mix, [
        *(engine.notes if isinstance(engine, Cast | KeptLines) else ()),
        *scene_warnings(scene),
        *_unspoken_marks(scene),
        *_unheard_captions(scene),
        *found.warnings,
        *missing_capabilities(scene, found.manners, engine),
        *mix.warnings,
    ]


def _unspoken_marks(scene: Scene) -> list[str]:
    count = sum(
        any(f"[{mark}" in text for mark in ("laugh", "sigh"))
        for one in scene.sentences
        for text in (one.text + " ".join(one.marks),)
    )
    if not count:
        return []
    return [f"no engine here can laugh or sigh: left out in {count} of {len(scene.sentences)} sentences"]  # fmt: skip


def _unheard_captions(scene: Scene) -> list[str]:
    """Captions that nothing here turns into sound."""
    found = []
    if count := sum(bool(one.background) for one in scene.sentences):
        found.append(
            f"the background of single sentences is not rendered: {count} of {len(scene.sentences)} "
            "sentences ask for it; global.environment and global.events are"
        )
    arc = scene.overall.emotion.arc
    if arc and all(one.arousal is None for one in arc):
        found.append("global.emotion.arc: no waypoint has an arousal, so the arc changes nothing")
    place = scene.overall.environment
    if place.caption and place.snr_db is None and place.reverb_s is None:
        found.append(
            f"global.environment.caption: '{place.caption}' is not heard without snr_db or reverb_s; "
            "give one of them, or plan the scene"
        )
    return found


def align_scene(mix: Mix) -> list[dict[str, Any]]:
    """When each sentence, word and phoneme of a mix is heard; what an interruption cut off is not."""
    rows = []
    for place, (sentence, span) in enumerate(zip(mix.scene.sentences, mix.timeline, strict=True)):
        said = mix.spoken(place)

        def heard(times: tuple[Timed, ...], span: Span = span) -> list[dict[str, Any]]:
            return [
                {"w": name, "start": round(span["start"] + start, 4),
                 "end": round(min(span["start"] + end, span["end"]), 4)}
                for name, start, end in times
                if span["start"] + start < span["end"]
            ]  # fmt: skip

        rows.append({
            "sentence": place, "speaker": sentence.speaker, "start": round(span["start"], 4),
            "end": round(span["end"], 4), "cut": span["cut"], "words": heard(said.words),
            "phonemes": heard(said.phonemes),
        })  # fmt: skip
    return rows


def background_of(caption: str) -> Callable[[int, int, int], Tensor]:
    """Noise of the colour that an environment's caption suggests, in blocks by number."""
    words = set(re.findall(r"\w+", caption.lower()))
    colour = next((name for name, known in COLOURS.items() if words & set(known.split())), "")
    if not colour:
        return white_noise
    slope = {"pink": 0.5, "brown": 1.0}[colour]

    def coloured(seed: int, block: int, size: int) -> Tensor:
        spectrum = torch.fft.rfft(white_noise(derive(seed, colour), block, 2 * size))
        # Not below 20 Hz, where nothing is heard and all the power would be; a block has 2 s.
        hertz = (torch.arange(len(spectrum), dtype=torch.float64) / 2).clamp_min(20.0)
        shaped: Tensor = torch.fft.irfft(spectrum * hertz**-slope, 2 * size)
        return shaped / shaped.std().clamp_min(1e-12)

    def noise(seed: int, block: int, size: int) -> Tensor:
        # Neighbours fade into each other at equal power, so that no seam is heard.
        turn = (torch.arange(size, dtype=torch.float64) + 0.5) / size * (math.pi / 2)
        fading, rising = (coloured(seed, one, size) for one in (block, block + 1))
        mixed: Tensor = fading[size:] * turn.cos() + rising[:size] * turn.sin()
        return mixed

    return noise


def repeated(samples: Numbers) -> Callable[[int, int, int], Tensor]:
    """A background that repeats some given samples for ever."""
    loop = as_float64(samples, "background")
    if loop.ndim != 1 or not len(loop) or not bool(loop.isfinite().all()):
        raise refused("background", samples, "one channel of finite samples, at least 1")

    def noise(seed: int, block: int, size: int) -> Tensor:
        places = torch.arange(block * size, (block + 1) * size) % len(loop)
        return loop[places]

    return noise


def load_sounds(named: Mapping[str, str | Path], sample_rate: int) -> dict[str, Any]:
    """Samples of sound files by caption, mono at one rate."""
    loaded: dict[str, Any] = {}
    for caption, file in named.items():
        if not isinstance(file, str | Path):
            raise ArgumentError(f"sounds['{caption}']: got {file!r}, expected a file's path")
        loaded[caption] = read_sound(file, rate=sample_rate).samples
    return loaded
