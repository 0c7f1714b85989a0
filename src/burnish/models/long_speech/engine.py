"""The protocol of engines: what a line asks for, what an engine can do, and what it says.

    class MyEngine:
        name, sample_rate = "mine", 24_000
        capabilities = Capabilities(rate=True)      # optional: else an engine is asked for nothing
        version = "2"                               # optional: lines outlive an interrupted rendering
        def speak(self, line: Line) -> Spoken: ...  # or samples alone

Loudness is no business of an engine: the mixer brings every sentence to its level.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from burnish.arguments import same_length
from burnish.boundary import Positive, PositiveInt, public, public_method
from burnish.models.long_speech.scene import Scene, Speaker
from burnish.seeds import derive
from burnish.tensors import torch

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.tensors import Numbers


class Manner(NamedTuple):
    """How a sentence is said, in numbers; the defaults are the voice's own."""

    pitch_st: float = 0.0
    """Semitones above the voice's own pitch, -8 to 8."""
    rate: float = 1.0
    """How many times as fast, 0.6 to 1.6."""
    gain_db: float = 0.0
    """How much louder, -12 to 6; the mixer's part."""
    range: float = 1.0
    """How lively the melody is: 0 is a monotone, 2 twice the voice's own."""
    breathiness: float = 0.0
    """0 to 1."""


LIMITS = {
    "pitch_st": (-8.0, 8.0),
    "rate": (0.6, 1.6),
    "gain_db": (-12.0, 6.0),
    "range": (0.0, 2.0),
    "breathiness": (0.0, 1.0),
}
"""Lowest and highest value of each part of a manner."""


class Line(NamedTuple):
    """What an engine is asked to say."""

    text: str
    """Without marks."""
    speaker: Speaker
    place: int
    """Of the sentence in the scene, from 0."""
    seed: int
    manner: Manner = Manner()
    voice: str = ""
    """A voice by the engine's own name for it; empty: the engine chooses."""


class Timed(NamedTuple):
    """A word or a phoneme and when it is heard, in seconds from the start of the sentence."""

    name: str
    start: float
    end: float


class Spoken(NamedTuple):
    """Samples of a line, and times where the engine knows them."""

    samples: Numbers
    words: tuple[Timed, ...] = ()
    phonemes: tuple[Timed, ...] = ()


class Capabilities(NamedTuple):
    """What an engine can do with a line."""

    pitch: bool = False
    rate: bool = False
    range: bool = False
    breathiness: bool = False
    emotion: bool = False
    """Tone beyond pitch, rate and loudness."""
    words: bool = False
    phonemes: bool = False
    pronounce: bool = False
    tokens: bool = False
    """Stress, liaison, duration and pitch of single words."""
    voices: bool = False
    """More than one voice."""


class SpeechEngine(Protocol):
    """Whatever speaks a line: the same samples for the same line, in any order.

    It may have `capabilities`, and, where they differ from speaker to speaker, `capabilities_of(speaker)`
    and `pitch_reach(speaker)`, the semitones from the voice's own that it can speak at.
    """

    @property
    def sample_rate(self) -> int:
        """Samples a second."""

    def speak(self, line: Line) -> Numbers | Spoken:
        """One channel of samples, -1 to 1."""


def check_manners(manners: Sequence[Manner], scene: Scene) -> Sequence[Manner]:
    """A manner for each sentence of a scene."""
    same_length("manners", manners, len(scene.sentences), "sentences")
    return manners


class ToneEngine:
    """An engine for tests: a tone a speaker, a tenth of a second a letter; needs no voice."""

    name, version = "tone", "1"
    capabilities = Capabilities(pitch=True, rate=True, words=True, voices=True)

    @public_method
    def __init__(
        self,
        sample_rate: PositiveInt = 8000,
        second_a_letter: Positive = 0.1,
    ) -> None:
        self.sample_rate, self.second_a_letter = sample_rate, second_a_letter

    def speak(self, line: Line) -> Spoken:
        """A tone as high as the speaker's id and the manner say."""
        letter_s = self.second_a_letter / line.manner.rate
        count = round(len(line.text) * letter_s * self.sample_rate)
        pitch = (100 + derive(line.speaker.id) % 200) * 2 ** (line.manner.pitch_st / 12)
        time_T = torch.arange(count, dtype=torch.float64) / self.sample_rate
        samples: Tensor = 0.3 * torch.sin(2 * math.pi * pitch * time_T)
        words, place = [], 0
        for word in line.text.split():
            start = line.text.index(word, place)
            place = start + len(word)
            words.append(Timed(word, start * letter_s, place * letter_s))
        return Spoken(samples, tuple(words))


@public
def missing_capabilities(
    scene: Scene, manners: Sequence[Manner], engine: SpeechEngine
) -> list[str]:
    """What the scene asks for and the engine cannot do, a line each with how many sentences ask.

    >>> from burnish.models.long_speech import Manner, ToneEngine, missing_capabilities, read_scene
    >>> scene = read_scene({"global": {"speakers": [{"id": "A"}]}, "sentences": [
    ...     {"speaker": "A", "text": "Yes."}]})
    >>> missing_capabilities(scene, [Manner(range=1.5)], ToneEngine())
    ["engine 'tone' cannot change range: 1 of 1 sentences ask for it"]
    """
    can: Capabilities = getattr(engine, "capabilities", Capabilities())
    can_as = getattr(engine, "capabilities_of", lambda speaker: can)
    speakers = {one.id: one for one in scene.overall.speakers}
    default, asked = Manner(), Counter[str]()
    for manner, sentence in zip(check_manners(manners, scene), scene.sentences, strict=True):
        wishes = {
            "pitch": manner.pitch_st != default.pitch_st,
            "rate": manner.rate != default.rate,
            "range": manner.range != default.range,
            "breathiness": manner.breathiness != default.breathiness,
            "emotion": sentence.tone not in ("", "neutral", "normal", "plain"),
            "pronounce": any(one.pronounce for one in sentence.tokens),
            "tokens": any(
                one.stress or one.liaison or one.duration_scale != 1 or one.pitch_shift_st
                for one in sentence.tokens
            ),
        }
        able = can_as(speakers[sentence.speaker])
        asked.update(
            name for name, is_wished in wishes.items() if is_wished and not getattr(able, name)
        )
    who, total = getattr(engine, "name", type(engine).__name__), len(scene.sentences)
    words = {
        "emotion": "express emotion beyond pitch, rate and loudness",
        "pronounce": "take a given pronunciation",
        "tokens": "change single words (stress, liaison, duration, pitch)",
    }
    found = [
        f"engine '{who}' cannot {words.get(name, f'change {name}')}: {count} of {total} sentences ask "
        "for it"
        for name, count in asked.items()
    ]
    reach = getattr(engine, "pitch_reach", None) or (lambda _: (-math.inf, math.inf))
    for name, speaker in speakers.items():
        low, high = reach(speaker)
        pairs = zip(manners, scene.sentences, strict=True)
        own = [manner.pitch_st for manner, sentence in pairs if sentence.speaker == name]
        # Nobody hears a quarter of a semitone.
        if beyond := sum(not low - 0.25 <= pitch <= high + 0.25 for pitch in own):
            found.append(
                f"the voice of {name} reaches {low:+.1f} to {high:+.1f} semitones: {beyond} of "
                f"{len(own)} sentences ask for more and get the nearest"
            )
    if not can.voices and len(speakers) > 1:
        found.append(f"engine '{who}' has one voice: {len(speakers)} speakers sound the same")
    return found
