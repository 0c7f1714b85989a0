"""The script of a scene in three levels: Global, Sentence and Token.

Every dimension is a caption in plain words, because real states are compound ("laughing through
tears"; arXiv 2603.19798). `sources` says by path which leaves the planner filled in; all others are
the user's and stay as they are. Field names and ranges are our own: the paper has no file format.
"""

from __future__ import annotations

import functools
import re
import typing
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

from burnish.arguments import refused, shown
from burnish.boundary import Call, Count, Share, public, reader
from burnish.errors import ArgumentError, did_you_mean

Seconds = Annotated[float, Meta(ge=0.0, le=86_400.0)]
Decibel = Annotated[float, Meta(ge=-100.0, le=100.0)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
Source = Literal["user", "plan", "default"]
MARKS = ("laugh", "sigh", "pause", "trail-off")
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ufffe\uffff\ud800-\udfff]")
"""What no engine can say and no picture can show; a NUL would end the text."""
MARK = re.compile(r"\[([^\[\]]*)\]")
_GOOD_MARK = re.compile(
    r"\[(?:pause (?:[0-5]?[0-9](?:\.[0-9]+)?|60(?:\.0+)?)|(?!pause[ \]])\s*[^\s\[\]][^\[\]]*)\]"
)


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
    arc: Annotated[tuple[Waypoint, ...], Meta(min_length=1)] = ()


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

    ref: Count
    offset: Seconds = 0.0


class Token(Part, frozen=True, kw_only=True):
    """How one word of a sentence is said."""

    word: Count
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
    sentences: Annotated[tuple[Sentence, ...], Meta(min_length=1)]
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


@public
def read_scene(document: str | Mapping[str, object] | bytes) -> Scene:
    """A scene from JSON text or a dict, checked; everything that is wrong is told in one line.

    >>> scene = read_scene({
    ...     "global": {"speakers": [{"id": "A", "voice": "an old sailor"}]},
    ...     "sentences": [{"speaker": "A", "text": "Land!", "volume": "shouted"}],
    ... })
    >>> scene.sentences[0].volume
    'shouted'
    """
    return checked_scene(_table(document), "document")


def checked_scene(table: dict[str, Any], what: str) -> Scene:
    """The scene of a table; `what` is the argument that it came in."""
    if problems := scene_problems.plain(table):
        count = "" if len(problems) == 1 else f"{len(problems)} problems: "
        more = f"; and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise ArgumentError(f"{what}: {count}{'; '.join(problems[:5])}{more}")
    scene = msgspec.convert(table, Scene)
    planned = {path: source for path, source in scene.sources.items() if source != "user"}
    return msgspec.structs.replace(scene, sources=planned)


@public
def write_scene(scene: Scene) -> str:
    """A scene as JSON text that `read_scene` gives back; what is at its default is left out.

    >>> scene = read_scene({"global": {"speakers": [{"id": "A"}]}, "sentences": [
    ...     {"speaker": "A", "text": "Yes."}]})
    >>> read_scene(write_scene(scene)) == scene
    True
    """
    return msgspec.json.format(msgspec.json.encode(scene), indent=2).decode()


def scene_schema() -> dict[str, Any]:
    """JSON schema of a scene, as an agent or an editor needs it.

    >>> scene_schema()["$ref"]
    '#/$defs/Scene'
    """
    return msgspec.json.schema(Scene)


@public
def scene_problems(document: str | Mapping[str, object] | bytes) -> list[str]:
    """Everything that keeps a document from being a scene, a line each with its path.

    >>> scene_problems({"global": {"speakers": [{"id": "A"}]}, "sentences": [
    ...     {"speaker": "B", "text": "Hm.", "relation": {"type": "overlap", "seconds": 1}}]})[0]
    "sentences[0].speaker: got 'B', expected a speaker of the scene: A"
    """
    table = _table(document)
    if found := list(_misfits(table, Scene, "")):
        return found
    scene = msgspec.convert(table, Scene)
    try:
        msgspec.json.encode(scene)
    except UnicodeError as error:  # half a character: no file takes it
        return [f"expected whole characters; {str(error)!a}"]
    return list(_contradictions(scene))


@public
def scene_warnings(scene: Scene) -> list[str]:
    """What a scene asks for that no engine knows: marks of other names.

    >>> scene_warnings(read_scene({"global": {"speakers": [{"id": "A"}]}, "sentences": [
    ...     {"speaker": "A", "text": "Oh [gasp] no."}]}))
    ["sentences[0]: mark 'gasp' is not known and is left out; known: laugh, sigh, pause, trail-off"]
    """
    return [
        f"sentences[{place}]: mark '{word}' is not known and is left out; known: {', '.join(MARKS)}"
        for place, sentence in enumerate(scene.sentences)
        for mark in (*MARK.findall(sentence.text), *(one.strip("[]") for one in sentence.marks))
        if (word := mark.split(" ")[0]) not in MARKS
    ]


def _table(document: Any) -> dict[str, Any]:
    if isinstance(document, str | bytes):
        try:
            document = decoded(document)
        except ValueError as error:
            raise ArgumentError(f"document: expected a scene as JSON; {error}") from None
    if not isinstance(document, Mapping):
        raise refused("document", document, "a scene: a dict or JSON text")
    return dict(document)


def decoded(text: str | bytes) -> Any:
    """JSON as plain values; a ValueError of one line for anything else, too deep nesting included."""
    try:
        return msgspec.json.decode(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ValueError(" ".join(str(error).split())) from None


_reader = functools.cache(reader)
_fields = functools.cache(msgspec.structs.fields)


def _misfits(value: Any, kind: Any, path: str) -> Iterator[str]:
    """What has the wrong type, range or name; goes on after the first, which msgspec does not."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated and typing.get_origin(inner[0]) is tuple:
        if isinstance(value, list | tuple) and not value:
            yield f"{path}: got none, expected at least 1"
        origin, inner = tuple, typing.get_args(inner[0])
    tags = {one.__struct_config__.tag: one for one in inner if hasattr(one, "__struct_config__")}
    if origin is tuple and isinstance(value, list | tuple):
        for place, one in enumerate(value):
            yield from _misfits(one, inner[0], f"{path}[{place}]")
    elif origin is dict and isinstance(value, Mapping):
        for key, one in value.items():
            yield from _misfits(one, inner[1], f"{path}[{key!r}]")
    elif origin is tuple or (not tags and not hasattr(kind, "__struct_config__")):
        try:
            _reader(kind)(path, value, Call())
        except ArgumentError as error:
            yield str(error)
    elif not isinstance(value, Mapping):
        yield f"{path}: got {shown(value)}, expected a table"
    elif tags and value.get("type") not in tags:
        tag = str(value.get("type"))
        yield f"{path}.type: got {shown(tag)}, expected {', '.join(tags)}.{did_you_mean(tag, tags)}"
    else:
        known = {one.encode_name: one for one in _fields(tags[value["type"]] if tags else kind)}
        start = f"{path}." if path else ""
        for key, one in value.items():
            if key in known:
                yield from _misfits(one, known[key].type, f"{start}{key}")
            elif not tags or key != "type":
                hint = did_you_mean(str(key), known)
                yield f"{start}{shown(key)[1:-1]}: unknown, expected {', '.join(known)}.{hint}"
        for name, field_ in known.items():
            if field_.required and name not in value:
                yield f"{start}{name}: missing"


def _contradictions(scene: Scene) -> Iterator[str]:
    """What each part allows and the whole does not."""
    speakers = scene.overall.speakers
    seen: dict[str, Speaker] = {}
    for place, speaker in enumerate(speakers):
        if speaker.id in seen:
            other = " with another voice" if seen[speaker.id].voice != speaker.voice else ""
            yield f"global.speakers[{place}].id: '{speaker.id}' is there twice{other}"
        seen.setdefault(speaker.id, speaker)
    for place, (first, second) in enumerate(pairwise(scene.overall.emotion.arc), start=1):
        if second.at < first.at:
            yield (
                f"global.emotion.arc[{place}].at: got {second.at:g} after {first.at:g}, expected "
                "waypoints in order"
            )
    before: int | None = None
    for place, sentence in enumerate(scene.sentences):
        path = f"sentences[{place}]"
        if sentence.speaker not in seen:
            hint = did_you_mean(sentence.speaker, seen)
            names = ", ".join(seen) or "none is listed"
            yield f"{path}.speaker: got '{sentence.speaker}', expected a speaker of the scene: {names}{'.' + hint if hint else ''}"
        yield from _text_problems(sentence, path)
        yield from _relation_problems(scene.sentences, place, before)
        if not isinstance(sentence.relation, With):
            before = place
    known = {name for name, _ in leaves(msgspec.structs.replace(scene, sources={}))}
    for path in scene.sources:
        if path not in known:
            yield f"sources['{path}']: no leaf of the scene has this path"


def _text_problems(sentence: Sentence, path: str) -> Iterator[str]:
    text = sentence.text
    if not text.strip():
        yield f"{path}.text: got {shown(text)}, expected words or a mark"
    if any(sign in MARK.sub("", text) for sign in "[]"):
        yield f"{path}.text: a bracket is not closed or not opened; marks look like [pause 0.4]"
    marks = [(f"{path}.text", one[0]) for one in MARK.finditer(text)]
    marks += [(f"{path}.marks[{place}]", one) for place, one in enumerate(sentence.marks)]
    for where, mark in marks:
        if not _GOOD_MARK.fullmatch(mark):
            yield f"{where}: got {shown(mark)}, expected a mark such as [laugh] or, up to 60 s, [pause 0.4]"
    words = len(spoken_text(text).split())
    for place, token in enumerate(sentence.tokens):
        if token.word >= words:
            yield f"{path}.tokens[{place}].word: got {token.word}, expected below {words} (words of the text)"


def _relation_problems(
    sentences: tuple[Sentence, ...], place: int, before: int | None
) -> Iterator[str]:
    speaker, relation, path = (
        sentences[place].speaker,
        sentences[place].relation,
        f"sentences[{place}].relation",
    )
    if isinstance(relation, After):
        return
    kind = type(relation).__name__.lower()
    other = relation.ref if isinstance(relation, With) else before
    if other is None:
        yield f"{path}.type: got {kind}, expected after: no sentence stands before the first"
    elif other >= place:
        yield f"{path}.ref: got {other}, expected an earlier sentence than {place}"
    elif sentences[other].speaker == speaker and getattr(relation, "seconds", True):
        yield f"{path}: got {kind} of sentence {other}; '{speaker}' cannot talk over himself"
