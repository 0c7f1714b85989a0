"""The script of a scene in three levels: Global, Sentence and Token.

Every dimension is a caption in plain words, because real states are compound ("laughing through
tears"; arXiv 2603.19798). `sources` says by path which leaves the planner filled in; all others are
the user's and stay as they are. Field names and ranges are our own: the paper has no file format.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Seconds = Annotated[float, Meta(ge=0.0, le=86_400.0)]
Decibel = Annotated[float, Meta(ge=-100.0, le=100.0)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
Source = Literal["user", "plan", "default"]
MARKS = ("laugh", "sigh", "pause", "trail-off")
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ufffe\uffff\ud800-\udfff]")
"""What no engine can say and no picture can show; a NUL would end the text."""
MARK = re.compile(r"\[([^\[\]]*)\]")


class Part(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of a scene; only what differs from its default is written."""


class Speaker(Part, frozen=True, kw_only=True):
    """One voice, described."""

    id: Name
    gender: str = ""
    age: str = ""
    persona: str = ""
    voice: str = ""


class Waypoint(Part, frozen=True, kw_only=True):
    """How the scene feels at one place of it: 0 is its start, 1 its end."""

    at: Share
    caption: str = ""
    arousal: Share | None = None
    valence: Annotated[float, Meta(ge=-1.0, le=1.0)] | None = None


class Emotion(Part, frozen=True, kw_only=True):
    """Tone of the whole and how it changes."""

    tone: str = ""
    arc: tuple[Waypoint, ...] = ()


class Environment(Part, frozen=True, kw_only=True):
    """Where the scene is heard."""

    caption: str = ""
    snr_db: Decibel | None = None
    """How far the speech is above the background; None: no background."""
    reverb_s: Annotated[float, Meta(ge=0.0, le=10.0)] | None = None
    """After how many seconds an echo is 60 dB down; None: no room."""


class Event(Part, frozen=True, kw_only=True):
    """A sound that is no speech."""

    caption: Name
    at: Seconds
    duration: Annotated[float, Meta(gt=0.0, le=86_400.0)]
    gain_db: Decibel = 0.0


class Global(Part, frozen=True, kw_only=True):
    """What holds for the whole scene."""

    format: str = ""
    style_tags: tuple[str, ...] = ()
    synopsis: str = ""
    speakers: tuple[Speaker, ...] = ()
    emotion: Emotion = Emotion()
    environment: Environment = Environment()
    events: tuple[Event, ...] = ()


class After(Part, frozen=True, kw_only=True, tag_field="type", tag="after"):
    """Starts after the sentence before."""

    gap: Seconds = 0.25


class Overlap(Part, frozen=True, kw_only=True, tag_field="type", tag="overlap"):
    """Starts before the sentence before has ended."""

    seconds: Seconds


class Interrupt(Part, frozen=True, kw_only=True, tag_field="type", tag="interrupt"):
    """Cuts the sentence before, at this share of it."""

    at: Share


class With(Part, frozen=True, kw_only=True, tag_field="type", tag="with"):
    """A back-channel to an earlier sentence, so many seconds after its start."""

    ref: Annotated[int, Meta(ge=0)]
    offset: Seconds = 0.0


class Token(Part, frozen=True, kw_only=True):
    """How one word of a sentence is said."""

    word: Annotated[int, Meta(ge=0)]
    """Counted from 0, without marks."""
    stress: str = ""
    pronounce: str = ""
    liaison: str = ""
    duration_scale: Annotated[float, Meta(ge=0.1, le=10.0)] = 1.0
    pitch_shift_st: Annotated[float, Meta(ge=-24.0, le=24.0)] = 0.0


class Sentence(Part, frozen=True, kw_only=True):
    """What one speaker says without a break."""

    speaker: Name
    text: str
    """May have marks: `Well [pause 0.4] no.`"""
    tone: str = ""
    intonation: str = ""
    pace: str = ""
    volume: str = ""
    intent: str = ""
    background: str = ""
    relation: After | Overlap | Interrupt | With = After()
    marks: tuple[str, ...] = ()
    tokens: tuple[Token, ...] = ()


class Scene(Part, frozen=True, kw_only=True):
    """A whole script."""

    version: Literal[1] = 1
    overall: Global = field(name="global")
    sentences: tuple[Sentence, ...]
    sources: dict[str, Source] = {}
    """Who wrote a leaf, by its path (`sentences[0].tone`); the user, where nothing is said."""


def spoken_text(text: str) -> str:
    """What is said of a text: without its marks and control characters."""
    return " ".join(CONTROL.sub(" ", MARK.sub(" ", text)).split())


def source_of(scene: Scene, path: str) -> Source:
    """Who wrote a leaf."""
    return scene.sources.get(path, "user")


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of a scene, or of nested dicts and lists, with its path, in order.

    Of a scene also those at their defaults: `sentences[0].relation.gap`, 0.25.
    """
    if isinstance(value, Struct):
        config = value.__struct_config__
        tag = {} if config.tag is None else {str(config.tag_field): config.tag}
        names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        value = tag | {name: getattr(value, own) for name, own in names}
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for place, inner in enumerate(value):
            yield from leaves(inner, f"{path}[{place}]")
    else:
        yield path, value
