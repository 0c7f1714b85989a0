"""The protocol of engines: what a line asks for, what an engine can do, and what it says.

    class MyEngine:
        name, sample_rate = "mine", 24_000
        capabilities = Capabilities(rate=True)      # optional: else an engine is asked for nothing
        version = "2"                               # optional: changes where it says a line otherwise
        def speak(self, line: Line) -> Spoken: ...  # or samples alone

Loudness is no business of an engine: the mixer brings every sentence to its level. What a scene asks
for and an engine cannot do is said once a scene by `missing_capabilities`, never dropped in silence.
Lines of an engine with a `version` outlive an interrupted `render_scene`; those of an engine without one
are spoken again, because nothing tells whether it was mended in between.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple, Protocol

from msgspec import Meta

from burnish.arguments import as_number
from burnish.boundary import public, public_method
from burnish.errors import ArgumentError
from burnish.models.long_speech.scene import Scene, Sentence, Speaker
from burnish.seeds import derive
from burnish.tensors import torch

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.tensors import Numbers


NEAR_ST = 0.25
"""Semitones beyond a voice's reach that nobody hears."""


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
    """A manner of finite numbers for each sentence of a scene; the rate has to be above 0."""
    if len(manners) != len(scene.sentences):
        raise ArgumentError(
            f"manners: got {len(manners)}, expected one for each of the {len(scene.sentences)} sentences"
        )
    for place, manner in enumerate(manners):
        for name, value in manner._asdict().items():
            least = 0 if name == "rate" else -math.inf
            as_number(f"manners[{place}].{name}", value, above=least)
    return manners


class ToneEngine:
    """An engine for tests: a tone a speaker, a tenth of a second a letter; needs no voice."""

    name, version = "tone", "1"
    capabilities = Capabilities(pitch=True, rate=True, words=True, voices=True)

    @public_method
    def __init__(
        self,
        sample_rate: Annotated[int, Meta(ge=100, le=192_000)] = 8000,
        second_a_letter: Annotated[float, Meta(gt=0.0, le=10.0)] = 0.1,
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
    given = check_manners(manners, scene)
    can: Capabilities = getattr(engine, "capabilities", Capabilities())
    can_as = getattr(engine, "capabilities_of", lambda speaker: can)
    speakers = {one.id: one for one in scene.overall.speakers}
    asked: dict[str, int] = {}
    for manner, sentence in zip(given, scene.sentences, strict=True):
        able = can_as(speakers[sentence.speaker])
        for name in _wishes(manner, sentence):
            if not getattr(able, name):
                asked[name] = asked.get(name, 0) + 1
    who = getattr(engine, "name", type(engine).__name__)
    words = {
        "emotion": "express emotion beyond pitch, rate and loudness",
        "pronounce": "take a given pronunciation",
        "tokens": "change single words (stress, liaison, duration, pitch)",
    }
    total = len(scene.sentences)
    found = [
        f"engine '{who}' cannot {words.get(name, f'change {name}')}: {count} of {total} sentences ask "
        "for it"
        for name, count in asked.items()
    ]
    found += _beyond_reach(scene, given, engine)
    if not can.voices and len(scene.overall.speakers) > 1:
        found.append(
            f"engine '{who}' has one voice: {len(scene.overall.speakers)} speakers sound the same"
        )
    return found


def _wishes(manner: Manner, sentence: Sentence) -> list[str]:
    """The capabilities that a sentence needs."""
    default, tokens = Manner(), sentence.tokens
    wishes = {
        "pitch": manner.pitch_st != default.pitch_st,
        "rate": manner.rate != default.rate,
        "range": manner.range != default.range,
        "breathiness": manner.breathiness != default.breathiness,
        "emotion": sentence.tone not in ("", "neutral", "normal", "plain"),
        "pronounce": any(one.pronounce for one in tokens),
        "tokens": any(
            one.stress or one.liaison or one.duration_scale != 1 or one.pitch_shift_st
            for one in tokens
        ),
    }
    return [name for name, is_wished in wishes.items() if is_wished]


def _beyond_reach(scene: Scene, manners: Sequence[Manner], engine: SpeechEngine) -> list[str]:
    """A line for each speaker who is asked for a pitch that his voice does not have."""
    reach = getattr(engine, "pitch_reach", None) or (lambda _: (-math.inf, math.inf))
    found = []
    for speaker in scene.overall.speakers:
        low, high = reach(speaker)
        own = [m.pitch_st for m, s in zip(manners, scene.sentences, strict=True) if s.speaker == speaker.id]  # fmt: skip
        beyond = sum(not low - NEAR_ST <= pitch <= high + NEAR_ST for pitch in own)
        if beyond:
            found.append(
                f"the voice of {speaker.id} reaches {low:+.1f} to {high:+.1f} semitones: {beyond} of "
                f"{len(own)} sentences ask for more and get the nearest"
            )
    return found
