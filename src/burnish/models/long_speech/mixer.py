"""From a script to samples: engines, rooms, background at an exact ratio, in chunks of any size.

Samples of a stretch depend on where it lies, never on how the scene was cut: a sentence is spoken and
put into its room whole, noise is drawn in blocks of one second by number, and levels are measured
over the same blocks. The engine has to say the same for the same line; it is asked again for what the
cache no longer holds.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec

from burnish.arguments import refused, same_length
from burnish.boundary import (
    SOME,
    Count,
    NonNegative,
    Number,
    PositiveInt,
    Seconds,
    Seed,
    public,
    public_method,
)
from burnish.errors import ArgumentError, ModelError
from burnish.models.long_speech.engine import (
    Line,
    Manner,
    SpeechEngine,
    Spoken,
    Timed,
    check_manners,
)
from burnish.models.long_speech.scene import MARK, Scene, Sentence, source_of, spoken_text
from burnish.models.long_speech.timeline import Span, resolve_timeline
from burnish.seeds import derive
from burnish.tensors import as_finite, check_shape, torch

if TYPE_CHECKING:
    from jaxtyping import Bool, Float64
    from torch import Tensor

PEAK = 10 ** (-1 / 20)
"""-1 dBFS."""
SILENCE_S = 0.05
"""What stands for a sentence of which the engine gave nothing."""
LONGEST_H = 24
"""A longer scene is refused before it is mixed: a WAV would not hold it."""
KEPT = 32
"""Sentences that are kept after they were spoken."""


class Fades(NamedTuple):
    """Factors of what ends and of what begins; their squares add up to 1."""

    fade_out: Tensor
    fade_in: Tensor


@public
def noise_gain(
    speech: Float64[Tensor, " T"],
    active: Bool[Tensor, " T"],
    noise: Annotated[Float64[Tensor, " N"], SOME],
    snr_db: Number,
) -> float:
    """The factor of a noise that puts it `snr_db` below the speech.

    The speech's power is its mean square over the active samples, the noise's over all that is
    given of it. 1.0 without active samples, and for a silent noise, which no factor changes.

    >>> noise_gain([1.0, -1.0, 0.0], [1, 1, 0], [0.5, -0.5, 0.5], snr_db=20.0)
    0.2
    """
    heard_T = speech[active]
    if not len(heard_T):
        return 1.0
    return gain_of_powers(
        heard_T.square().mean().item(), noise.square().mean().item(), snr_db=snr_db
    )


def gain_of_powers(speech: float, noise: float, *, snr_db: float) -> float:
    """The factor of a noise of one power that puts it `snr_db` below a speech of another."""
    return math.sqrt(speech / noise) * 10 ** (-snr_db / 20) if noise > 0 else 1.0


@public
def equal_power_fades(n: Count) -> Fades:
    """Factors that fade one sound out and another in at constant power, float64 (n,) each.

    A quarter of a cosine and of a sine over n points, both ends included.

    >>> [[round(one, 4) for one in fade.tolist()] for fade in equal_power_fades(3)]
    [[1.0, 0.7071, 0.0], [0.0, 0.7071, 1.0]]
    """
    angle_N = torch.linspace(0, math.pi / 2, n, dtype=torch.float64)
    return Fades(angle_N.cos(), angle_N.sin())


@public
def room_impulse(
    reverb_s: NonNegative,
    sample_rate: PositiveInt,
    seed: Seed,
) -> Tensor:
    """What a room makes of a click: the click, and a noise that is 60 dB down after `reverb_s`.

    The first sample is 1; the energy of the rest is 6 dB less. Float64, (samples,).

    >>> impulse = room_impulse(0.2, 8000, seed=1)
    >>> len(impulse), impulse[0].item(), round(impulse[1:].square().sum().item(), 4)
    (1601, 1.0, 0.2512)
    """
    generator = torch.Generator().manual_seed(seed)
    count = round(reverb_s * sample_rate)
    tail_T = torch.randn(count, generator=generator, dtype=torch.float64)
    tail_T *= 10 ** (-3 * torch.arange(1, count + 1, dtype=torch.float64) / max(count, 1))
    energy = tail_T.square().sum().item()
    if energy > 0:
        tail_T *= math.sqrt(10 ** (-6.0 / 10) / energy)
    return torch.cat([torch.ones(1, dtype=torch.float64), tail_T])


def convolve(samples: Tensor, impulse: Tensor) -> Tensor:
    """Samples in a room: (n,), (m,) -> (n + m - 1,), by FFT."""
    if len(impulse) == 1 or not len(samples):
        return samples * impulse[0]
    length = len(samples) + len(impulse) - 1
    size = 1 << (length - 1).bit_length()
    spectrum = torch.fft.rfft(samples, size) * torch.fft.rfft(impulse, size)
    wet_T: Tensor = torch.fft.irfft(spectrum, size)
    return wet_T[:length]


def white_noise(seed: int, block: int, size: int) -> Tensor:
    """One block of a background that never ends; each block is drawn by its number."""
    generator = torch.Generator().manual_seed(derive(seed, "background", block))
    return torch.randn(size, generator=generator, dtype=torch.float64)


class _Said(NamedTuple):
    """One sentence as the engine says it, and where in it somebody talks."""

    samples: Tensor
    words: tuple[Timed, ...]
    phonemes: tuple[Timed, ...]
    talk: tuple[tuple[int, int], ...]
    """Stretches in samples from its start; the pauses of marks lie between them."""


class _Sound(NamedTuple):
    """A sound on the timeline, in samples."""

    start: int
    length: int
    """With the echo of the room."""
    samples: Callable[[], Tensor]
    talk: tuple[tuple[int, int], ...] = ()
    """Stretches in samples of the scene in which somebody talks."""


class Mix:
    """A scene as samples: sentences on their timeline, in their room, over a background.

    `manners` says how each sentence is said, `sounds` has samples for events by their captions. The background is so loud that speech is `environment.snr_db`
    above it, both measured while somebody talks, marked pauses left out. If a sample is beyond -1 dBFS,
    the whole scene is made softer.

    >>> from burnish.models.long_speech import Mix, ToneEngine, read_scene
    >>> scene = read_scene({"global": {"speakers": [{"id": "A"}, {"id": "B"}]}, "sentences": [
    ...     {"speaker": "A", "text": "Hello there."},
    ...     {"speaker": "B", "text": "Hi!", "relation": {"type": "overlap", "seconds": 0.1}}]})
    >>> mix = Mix(scene, ToneEngine(), seed=1)
    >>> round(mix.timeline[1]["start"], 3), mix.render().shape
    (1.35, torch.Size([13200]))
    """

    @public_method
    def __init__(
        self,
        scene: Scene,
        engine: SpeechEngine,
        *,
        seed: Seed = 0,
        manners: Sequence[Manner] | None = None,
        sounds: Mapping[str, Float64[Tensor, " _"]] | None = None,
        background: Callable[[int, int, int], Tensor] = white_noise,
    ) -> None:
        self.scene, self.engine, self.seed = scene, engine, seed
        self.sample_rate, count = engine.sample_rate, len(scene.sentences)
        self.manners = check_manners([Manner()] * count if manners is None else manners, scene)
        self.gains = [10 ** (manner.gain_db / 20) for manner in self.manners]
        self.background = background
        self.warnings: list[str] = []
        self.room = room_impulse.plain(
            scene.overall.environment.reverb_s or 0.0, self.sample_rate, derive(self.seed, "room")
        )
        # A sentence is asked for once a pass; passes walk through time, so few are needed at once.
        self._said = functools.lru_cache(maxsize=KEPT)(self._say)
        self._wet = functools.lru_cache(maxsize=KEPT)(self._in_room)
        lengths = [(len(one.samples), one.talk) for one in map(self._said, range(count))]
        self.timeline = place_sentences(scene, [size / self.sample_rate for size, _ in lengths])
        self._speech = [
            self._placed(place, span, *length)
            for place, (span, length) in enumerate(zip(self.timeline, lengths, strict=True))
        ]
        self._events = list(self._event_sounds(sounds or {}))
        ends = [sound.start + sound.length for sound in (*self._speech, *self._events)]
        self.length = max(ends, default=0)
        hours = self.length / self.sample_rate / 3600
        if hours > LONGEST_H:
            raise ArgumentError(f"scene: lasts {hours:.1f} h, expected at most {LONGEST_H}; cut it")
        self._noise_gain, snr_db = 0.0, scene.overall.environment.snr_db
        if snr_db is not None:
            speech = noise = 0.0
            for start, stop in self._blocks():
                active_T = self.active(start, stop)
                speech += self._sum(self._speech, start, stop)[active_T].square().sum().item()
                noise += self._noise(start, stop)[active_T].square().sum().item()
            # Beside silence there is no level to measure, and the scene stays silent.
            self._noise_gain = gain_of_powers(speech, noise, snr_db=snr_db) if speech > 0 else 0.0
        peak = max((self._raw(*block).abs().max().item() for block in self._blocks()), default=0.0)
        self._scale = min(1.0, PEAK / peak) if peak > 0 else 1.0

    def render(self) -> Tensor:
        """All samples, float32."""
        return self.samples(0, self.length)

    @public_method
    def samples(self, start: Count, stop: Count) -> Tensor:
        """The samples from `start` up to `stop`, float32: a stretch of `render()`, bit by bit."""
        if not start <= stop <= self.length:
            raise refused("stop", stop, f"from {start} to {self.length}, and from there on")
        # Scaled to the limit, a sample may round to just above it.
        return (self._raw(start, stop) * self._scale).clamp(-PEAK, PEAK).to(torch.float32)

    @public_method
    def chunks(self, seconds: Seconds) -> Iterator[Tensor]:
        """The scene in stretches of so many seconds; joined they are `render()`."""
        step = max(1, round(seconds * self.sample_rate))
        for start in range(0, self.length, step):
            yield self.samples(start, min(start + step, self.length))

    def spoken(self, place: int) -> Spoken:
        """One sentence as the engine says it, with its pauses, before room and level."""
        said = self._said(place)
        return Spoken(said.samples, said.words, said.phonemes)

    def _say(self, place: int) -> _Said:
        sentence = self.scene.sentences[place]
        (speaker, *_) = (one for one in self.scene.overall.speakers if one.id == sentence.speaker)
        line = Line("", speaker, place, derive(self.seed, "line", place), self.manners[place])
        parts: list[Tensor] = []
        words: list[Timed] = []
        phonemes: list[Timed] = []
        talk: list[tuple[int, int]] = []
        for text, pause_s in _pieces(sentence):
            if text:
                said = self._ask(line._replace(text=text))
                first = sum(map(len, parts))
                at = first / self.sample_rate
                for into, times in ((words, said.words), (phonemes, said.phonemes)):
                    into += [Timed(name, start + at, end + at) for name, start, end in times]
                parts.append(as_finite(said.samples, f"sentences[{place}]"))
                talk.append((first, first + len(parts[-1])))
            parts.append(torch.zeros(round(pause_s * self.sample_rate), dtype=torch.float64))
        samples = torch.cat(parts)
        if not len(samples):
            warning = f"sentences[{place}]: the engine said nothing; {SILENCE_S} s of silence"
            if warning not in self.warnings:
                self.warnings.append(warning)
            samples = torch.zeros(round(SILENCE_S * self.sample_rate), dtype=torch.float64)
        marks = [*MARK.findall(sentence.text), *(mark.strip("[]") for mark in sentence.marks)]
        if any(mark.startswith("trail-off") for mark in marks):
            # Over its last second, or half of a shorter sentence.
            samples = _faded(samples, min(self.sample_rate, len(samples) // 2))
        return _Said(samples, tuple(words), tuple(phonemes), tuple(talk))

    def _ask(self, line: Line) -> Spoken:
        said = self.engine.speak(line)
        said = said if isinstance(said, Spoken) else Spoken(said)
        try:
            samples = as_finite(said.samples, f"sentences[{line.place}]")
            check_shape(samples, f"sentences[{line.place}]", (samples.numel(),))
        except ArgumentError as error:
            raise ModelError(f"the engine spoke what is no sound of one channel; {error}") from None
        return said

    def levelled(self, place: int) -> Tensor:
        """One sentence at its level, before the room: what loudness and pitch are measured on."""
        return self.gains[place] * self._said(place).samples

    def stems(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Speech and background of a stretch apart, float64; events belong to neither."""
        noise_T = self._noise_gain * self._noise(start, stop)
        return self._sum(self._speech, start, stop) * self._scale, noise_T * self._scale

    def active(self, start: int, stop: int) -> Tensor:
        """True where somebody talks, bool (samples,): sentences without their marked pauses."""
        active_T = torch.zeros(stop - start, dtype=torch.bool)
        for first, last in (stretch for sound in self._speech for stretch in sound.talk):
            active_T[max(0, first - start) : max(0, last - start)] = True
        return active_T

    def _placed(
        self, place: int, span: Span, count: int, talk: Sequence[tuple[int, int]]
    ) -> _Sound:
        start = round(span["start"] * self.sample_rate)
        if span["cut"]:
            count = min(count, max(0, round(span["end"] * self.sample_rate) - start))
        samples = functools.partial(self._wet, place, count)
        heard = tuple((start + min(first, count), start + min(last, count)) for first, last in talk)
        return _Sound(start, count + len(self.room) - 1 if count else 0, samples, heard)

    def _in_room(self, place: int, count: int) -> Tensor:
        dry_T = self._said(place).samples
        if count < len(dry_T):
            dry_T = _faded(dry_T[:count], min(count, round(0.03 * self.sample_rate)))
        return self.gains[place] * convolve(dry_T, self.room)

    def _event_sounds(self, sounds: Mapping[str, Tensor]) -> Iterator[_Sound]:
        for place, event in enumerate(self.scene.overall.events):
            what = f"global.events[{place}]"
            if event.caption not in sounds:
                self.warnings.append(f"{what}: no sound for '{event.caption}'; it is left out")
                continue
            samples = sounds[event.caption]
            count = min(len(samples), round(event.duration * self.sample_rate))
            if count < round(event.duration * self.sample_rate):
                self.warnings.append(f"{what}: '{event.caption}' is shorter than its duration")
            loud = samples[:count] * 10 ** (event.gain_db / 20)
            start = round(event.at * self.sample_rate)
            yield _Sound(start, count, loud.detach)

    def _blocks(self) -> Iterator[tuple[int, int]]:
        """Stretches of one second: levels are measured over these, however the scene is cut."""
        for start in range(0, self.length, self.sample_rate):
            yield start, min(start + self.sample_rate, self.length)

    def _raw(self, start: int, stop: int) -> Tensor:
        mixed_T = self._sum([*self._speech, *self._events], start, stop)
        if self._noise_gain:
            mixed_T += self._noise_gain * self._noise(start, stop)
        return mixed_T

    def _sum(self, sounds: Sequence[_Sound], start: int, stop: int) -> Tensor:
        mixed_T = torch.zeros(stop - start, dtype=torch.float64)
        for sound in sounds:
            first, last = max(start, sound.start), min(stop, sound.start + sound.length)
            if first < last:
                part_T = sound.samples()[first - sound.start : last - sound.start]
                mixed_T[first - start : last - start] += part_T
        return mixed_T

    def _noise(self, start: int, stop: int) -> Tensor:
        size = self.sample_rate
        first, drawn = start // size, [torch.zeros(0, dtype=torch.float64)]
        for block in range(first, -(-stop // size)):
            drawn.append(self.background(self.seed, block, size))
        return torch.cat(drawn)[start - first * size : stop - first * size]


def _pieces(sentence: Sentence) -> list[tuple[str, float]]:
    """What is said without a pause, and how long the pause after it is."""
    pieces, text = [], ""
    for place, part in enumerate(MARK.split(sentence.text)):
        # Every second part is the inside of a mark.
        if place % 2 and part.startswith("pause "):
            pieces.append((spoken_text(text), float(part.split()[1])))
            text = ""
        elif not place % 2:
            text += f" {part}"
    # A pause that is listed beside the text has no place in it and stands at its end.
    listed = (mark.strip("[]").split() for mark in sentence.marks)
    return [*pieces, (spoken_text(text), sum(float(one[1]) for one in listed if one[0] == "pause"))]


def _faded(samples: Tensor, count: int) -> Tensor:
    """Samples whose last `count` fade away."""
    kept = len(samples) - count
    return torch.cat([samples[:kept], samples[kept:] * equal_power_fades.plain(count).fade_out])


@public
def place_sentences(scene: Scene, durations: Sequence[NonNegative]) -> list[Span]:
    """When each sentence of a scene is heard, from the seconds that each takes.

    An overlap longer than the sentence that it overlaps is refused: the answer would come first. One
    that a planner wrote, who did not know the length, becomes as long as the sentence.

    >>> from burnish.models.long_speech import place_sentences, read_scene
    >>> scene = read_scene({"global": {"speakers": [{"id": "A"}, {"id": "B"}]}, "sentences": [
    ...     {"speaker": "A", "text": "Hello."}, {"speaker": "B", "text": "Hi!"}]})
    >>> [span["start"] for span in place_sentences(scene, [1.0, 0.5])]
    [0.25, 1.5]
    """
    same_length("durations", durations, len(scene.sentences), "sentences")
    rows: list[Any] = []
    before = 0
    for place, sentence in enumerate(scene.sentences):
        tag = sentence.relation.__struct_config__.tag
        relation = {"type": tag, **msgspec.structs.asdict(sentence.relation)}
        if tag == "overlap" and relation["seconds"] > durations[before]:
            path = f"sentences[{place}].relation.seconds"
            if source_of(scene, path) != "plan":
                raise ArgumentError(
                    f"scene: {path}: got {relation['seconds']:g}, expected at most "
                    f"{durations[before]:g}, the length of sentence {before}"
                )
            relation["seconds"] = durations[before]
        duration = durations[place]
        rows.append({"speaker": sentence.speaker, "duration": duration, "relation": relation})
        if relation["type"] != "with":
            before = place
    return resolve_timeline(rows)
