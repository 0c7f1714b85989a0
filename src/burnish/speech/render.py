"""A script to a sound file, and to a picture of its timeline: a lane a speaker, overlaps, the arc above.

Sentences are spoken once and kept, samples are written in chunks. Stopped at any moment, the same call
continues: sentences that were spoken lie beside the output until it is whole (those of an engine without
a `version` are spoken again). Chunks of any length give the same file.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from burnish.arguments import refused
from burnish.boundary import SOME, Seconds, Seed, public
from burnish.errors import UserError
from burnish.media import read_sound
from burnish.media.sound_writing import KINDS, sound_writer
from burnish.models.long_speech.engine import (
    Line,
    SpeechEngine,
    Spoken,
    Timed,
    missing_capabilities,
)
from burnish.models.long_speech.mixer import Mix, white_noise
from burnish.models.long_speech.scene import Scene, scene_warnings, spoken_text
from burnish.models.long_speech.timeline import Span
from burnish.seeds import derive, digest
from burnish.speech.cast import Cast, cast_scene
from burnish.speech.manner import arousal_of, resolve_manners
from burnish.store.durable import WriterLock
from burnish.tensors import torch

if TYPE_CHECKING:
    from jaxtyping import Float64
    from torch import Tensor

    Loop = Annotated[Float64[Tensor, " N"], SOME]
    Sounds = Mapping[str, Float64[Tensor, " _"]]

Progress = Callable[[str, int, int], None]
"""Called with what is done (`speaking`, `writing`), how many, and of how many."""
COLOURS = {
    "pink": "wind sea street traffic crowd crowded cafe café restaurant station park forest market bar party",
    "brown": "engine hum ship train car factory plane storm thunder",
}  # fmt: skip
"""Backgrounds by words of the environment's caption; any other is white noise, as rain and hiss are."""

WIDTH, LEFT, LANE, TOP = 1200, 110, 46, 84
LANES = ("#3b6ea5", "#c8553d", "#4f8a5b", "#8d6cab", "#b8860b", "#4a7c86")
GREY, INK, PALE = "#c9ccd1", "#22262b", "#f2f0ea"


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
        # Without a version, lines that another process kept may be those of an older engine.
        self.version = str(getattr(engine, "version", "")) or uuid.uuid4().hex
        self._spoke, self._damaged = spoke, 0

    def __getattr__(self, name: str) -> Any:
        """What the engine has beside its voice: `capabilities`, `pitch_reach`."""
        return getattr(self.engine, name)

    @property
    def notes(self) -> list[str]:
        """Those of the engine, and how many kept lines were damaged."""
        notes = list(self.engine.notes) if isinstance(self.engine, Cast) else []
        if self._damaged:
            notes.append(f"kept lines that were damaged and spoken again: {self._damaged}")
        return notes

    def speak(self, line: Line) -> Spoken:
        """The line from the folder, or from the engine where none is kept that can be read."""
        voices = getattr(self.engine, "choices", {})
        voice = str(voices.get(line.speaker.id, ""))
        key = digest(repr(line), self.name, self.version, voice, str(self.sample_rate))
        path = self.folder / f"{key}.npz"
        import numpy as np

        if path.exists():
            try:
                with np.load(path, allow_pickle=False) as kept:
                    times = json.loads(str(kept["times"]))
                    samples = torch.from_numpy(kept["samples"])
                if samples.ndim == 1 and bool(samples.isfinite().all()):
                    return Spoken(samples, *(tuple(Timed(*one) for one in part) for part in times))
            except Exception:  # boundary: numpy and zip meet whatever the file holds
                pass
            self._damaged += 1
        said = self.engine.speak(line)
        said = said if isinstance(said, Spoken) else Spoken(said)
        if not self.folder.is_dir():
            return said  # the scene is whole and its lines are no longer kept
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


@public
def render_scene(
    scene: Scene,
    out: Path,
    *,
    engine: str | Path | SpeechEngine = "espeak",
    seed: Seed = 0,
    chunk_s: Seconds = 10.0,
    sounds: Sounds | None = None,
    background: Loop | None = None,
    progress: Progress | None = None,
) -> Rendering:
    """Speak, mix and write a scene as .wav, .flac or .ogg (Opus).

    `engine` is a name or a folder of `cast_scene`, or an engine of your own; `sounds` has samples for
    events by their captions and `background` some seconds of background to repeat, both at the
    engine's rate.
    """
    if out.suffix.lower().lstrip(".") not in KINDS:
        raise refused("out", str(out), "a file that ends in .wav, .flac or .ogg")
    cast = cast_scene(scene, engine, seed) if isinstance(engine, str | Path) else engine
    tell = progress or (lambda *_: None)
    spoken = iter(range(1, 10**9))
    with _parts_of(out) as folder:
        kept = KeptLines(cast, folder, lambda: tell("speaking", next(spoken), len(scene.sentences)))
        mix, warnings = mix_scene.plain(
            scene, kept, seed=seed, sounds=sounds, background=background
        )
        with sound_writer(out, mix.sample_rate, ogg="opus") as write:
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
        out, mix.length / mix.sample_rate, mix.timeline, alignment, warnings, voices, mix
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


@public
def mix_scene(
    scene: Scene,
    engine: SpeechEngine,
    *,
    seed: Seed = 0,
    sounds: Sounds | None = None,
    background: Loop | None = None,
) -> tuple[Mix, list[str]]:
    """The mix of a scene with its captions obeyed, and everything that could not be."""
    found = resolve_manners(scene)
    caption = scene.overall.environment.caption
    noise = repeated(background) if background is not None else background_of(caption)
    mix = Mix(scene, engine, seed=seed, manners=found.manners, sounds=sounds, background=noise)
    return mix, [
        *(engine.notes if isinstance(engine, Cast | KeptLines) else ()),
        *scene_warnings(scene),
        *_unheard(scene),
        *found.warnings,
        *missing_capabilities(scene, found.manners, engine),
        *mix.warnings,
    ]


def _unheard(scene: Scene) -> list[str]:
    """Marks and captions that nothing here turns into sound."""
    texts = [one.text + " ".join(one.marks) for one in scene.sentences]
    marked = sum("[laugh" in text or "[sigh" in text for text in texts)
    hummed = sum(bool(one.background) for one in scene.sentences)
    arc, place = scene.overall.emotion.arc, scene.overall.environment
    total = len(scene.sentences)
    notes = {
        f"no engine here can laugh or sigh: left out in {marked} of {total} sentences": marked,
        f"the background of single sentences is not rendered: {hummed} of {total} sentences ask for "
        "it; global.environment and global.events are": hummed,
        "global.emotion.arc: no waypoint has an arousal, so the arc changes nothing": arc
        and all(one.arousal is None for one in arc),
        f"global.environment.caption: '{place.caption}' is not heard without snr_db or reverb_s; "
        "give one of them, or plan the scene": place.caption
        and place.snr_db is None
        and place.reverb_s is None,
    }
    return [note for note, is_so in notes.items() if is_so]


def align_scene(mix: Mix) -> list[dict[str, Any]]:
    """When each sentence, word and phoneme of a mix is heard; what an interruption cut off is not."""

    def heard(times: tuple[Timed, ...], start: float, end: float) -> list[dict[str, Any]]:
        shifted = [(name, start + first, start + last) for name, first, last in times]
        return [
            {"w": name, "start": round(first, 4), "end": round(min(last, end), 4)}
            for name, first, last in shifted
            if first < end
        ]

    rows = []
    for place, (sentence, span) in enumerate(zip(mix.scene.sentences, mix.timeline, strict=True)):
        said, start, end = mix.spoken(place), span["start"], span["end"]
        rows.append({
            "sentence": place, "speaker": sentence.speaker, "start": round(start, 4),
            "end": round(end, 4), "cut": span["cut"], "words": heard(said.words, start, end),
            "phonemes": heard(said.phonemes, start, end),
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


def repeated(loop: Tensor) -> Callable[[int, int, int], Tensor]:
    """A background that repeats some given samples for ever."""

    def noise(seed: int, block: int, size: int) -> Tensor:
        places = torch.arange(block * size, (block + 1) * size) % len(loop)
        return loop[places]

    return noise


def load_sounds(named: Mapping[str, str | Path], sample_rate: int) -> dict[str, Any]:
    """Samples of sound files by caption, mono at one rate."""
    return {caption: read_sound(file, rate=sample_rate).samples for caption, file in named.items()}


def _box(x: float, y: float, x2: float, y2: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{x2 - x:.1f}" height="{y2 - y:.1f}" fill="{colour}" fill-opacity="0.92"/>'  # fmt: skip


def _stroke(x: float, y: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="1.5"/>'  # fmt: skip


def _text(x: float, y: float, said: str, colour: str = INK, size: int = 11) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}">{escape(said)}</text>'


@public
def timeline_svg(scene: Scene, timeline: Sequence[Span]) -> str:
    """The picture as SVG text."""
    speakers = [one.id for one in scene.overall.speakers]
    length = max((span["end"] for span in timeline), default=0.0) or 1.0
    scale = (WIDTH - LEFT - 20) / length
    bottom = TOP + LANE * len(speakers)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 34}" font-family="sans-serif">',
        _box(0, 0, WIDTH, bottom + 34, PALE),
    ]  # fmt: skip
    steps = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)
    step = next((one for one in steps if length / one <= 14), 10**6)
    for second in range(0, int(length) + 1, step):
        x = LEFT + second * scale
        parts.append(_stroke(x, TOP - 8, x, bottom, GREY))
        parts.append(_text(x, bottom + 18, f"{second // 60}:{second % 60:02d}"))
    lanes = {
        name: (TOP + LANE * lane, LANES[lane % len(LANES)]) for lane, name in enumerate(speakers)
    }
    for name, (y, colour) in lanes.items():
        parts.append(_text(10, y + 25, spoken_text(name)[:14], colour, 13))
    for sentence, span in zip(scene.sentences, timeline, strict=True):
        y, colour = lanes[sentence.speaker]
        x, x2 = LEFT + span["start"] * scale, LEFT + span["end"] * scale
        parts.append(_box(x, y + 6, max(x2, x + 1), y + LANE - 8, colour))
        room = int((x2 - x) / 6.2) - 1
        if room > 3:
            words = spoken_text(sentence.text)
            said = words if len(words) <= room else words[: room - 1] + "…"
            parts.append(_text(x + 3, y + 26, said, "#ffffff"))
        if span["cut"]:
            parts.append(_stroke(x2, y + 2, x2, y + LANE - 4, "#d00000"))
    parts += _together(timeline, scale)
    if arousal := arousal_of(scene):
        points = sorted(
            (LEFT + (s["start"] + s["end"]) / 2 * scale, TOP - 16 - 52 * a)
            for s, a in zip(timeline, arousal, strict=True)
        )
        parts.append(_text(10, TOP - 36, "arousal"))
        parts += [_stroke(*first, *second, INK) for first, second in pairwise(points)]
    return "\n".join([*parts, "</svg>\n"])


def _together(timeline: Sequence[Span], scale: float) -> Iterator[str]:
    """Where two or more talk."""
    changes = sorted([(s["start"], 1) for s in timeline] + [(s["end"], -1) for s in timeline])
    talking, since = 0, 0.0
    for moment, change in changes:
        if talking >= 2 > talking + change and moment > since:
            yield _box(LEFT + since * scale, TOP - 8, LEFT + moment * scale, TOP - 4, "#d00000")
        talking += change
        since = moment if talking == 2 and change > 0 else since


@public
def write_timeline(target: Path, scene: Scene, timeline: Sequence[Span]) -> Path:
    """Write the picture as an .svg file."""
    if target.suffix.lower() != ".svg":
        raise refused("target", str(target), "a file that ends in .svg")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(timeline_svg.plain(scene, timeline), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror or error}") from None
    return target
