"""The script of a scene in three levels: Global, Sentence and Token.

Every dimension is a caption in plain words, because real states are compound ("laughing through
tears"; arXiv 2603.19798). `sources` says by path which leaves the planner filled in; all others are
the user's and stay as they are. Field names and ranges are our own: the paper has no file format.

    scene = read_scene({"global": {...}, "sentences": [...]})   # or JSON text; refused in one line
    scene_problems(document)                                    # all that is wrong, a line each
    write_scene(scene)                                          # JSON; read_scene gives it back
    scene_schema()                                              # JSON schema, for agents and editors
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta, Struct, field

from burnish.arguments import refused, shown
from burnish.boundary import Share, public
from burnish.errors import ArgumentError, did_you_mean

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
    found = list(_misfits(table, _shape(), ""))
    if not found:
        found = [*_contradictions(msgspec.convert(table, Scene)), *_empty_arc(table)]
    return found


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


@functools.cache
def _shape() -> msgspec.inspect.Type:
    """The types of a scene; msgspec works them out anew at every call, which takes milliseconds."""
    return msgspec.inspect.type_info(Scene)


_SURROGATE = re.compile(r"[\ud800-\udfff]")
"""Half of a character: no file and no engine can take it."""
_WORDS = {
    "`float`": "a number",
    "`int`": "a whole number",
    "`str`": "a text",
    "`array`": "a list",
    "`object`": "a table",
    " | null": "",
}


def _misfits(value: Any, kind: msgspec.inspect.Type, path: str) -> Iterator[str]:
    """What has the wrong type, range or name; goes on after the first, which msgspec does not."""
    match kind:
        case msgspec.inspect.StructType():
            yield from _misfits_of_table(value, kind, path)
        case msgspec.inspect.UnionType(types=types) if any(
            isinstance(one, msgspec.inspect.StructType) for one in types
        ):
            tags = {
                str(one.tag): one for one in cast("tuple[msgspec.inspect.StructType, ...]", types)
            }
            tag = value.get("type") if isinstance(value, Mapping) else None
            if isinstance(tag, str) and tag in tags:
                yield from _misfits_of_table(value, tags[tag], path)
            else:
                hint = did_you_mean(tag, tags) if isinstance(tag, str) else ""
                got = shown(value if tag is None else tag)
                yield f"{path}.type: got {got}, expected {', '.join(tags)}.{hint}"
        case msgspec.inspect.VarTupleType(item_type=inner) if isinstance(value, list | tuple):
            for place, one in enumerate(value):
                yield from _misfits(one, inner, f"{path}[{place}]")
        case msgspec.inspect.DictType(value_type=inner) if isinstance(value, Mapping):
            for key, one in value.items():
                if isinstance(key, str) and _SURROGATE.search(key):
                    yield f"{path}: got the key {shown(key)}, expected whole characters"
                else:
                    yield from _misfits(one, inner, f"{path}['{key}']")
        case _:
            yield from _misfits_of_leaf(value, kind, path)


def _misfits_of_table(value: Any, kind: msgspec.inspect.StructType, path: str) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield f"{path}: got {shown(value)}, expected a table"
        return
    known = {one.encode_name: one for one in kind.fields}
    for key, inner in value.items():
        name = str(key)
        if _SURROGATE.search(name):
            name = shown(name)
        where = f"{path}.{name}" if path else name
        if key in known:
            yield from _misfits(inner, known[key].type, where)
        elif key != kind.tag_field:
            yield f"{where}: unknown, expected {', '.join(known)}.{did_you_mean(name, known)}"
    for name, one in known.items():
        if one.required and name not in value:
            yield f"{path + '.' if path else ''}{name}: missing"


def _misfits_of_leaf(value: Any, kind: msgspec.inspect.Type, path: str) -> Iterator[str]:
    if isinstance(value, float) and not math.isfinite(value):
        yield f"{path}: got {value}, expected a finite number"
        return
    if isinstance(value, str) and _SURROGATE.search(value):
        yield f"{path}: got {shown(value)}, expected whole characters"
        return
    if isinstance(kind, msgspec.inspect.LiteralType):
        if value not in kind.values or isinstance(value, bool):
            yield f"{path}: got {shown(value)}, expected {', '.join(map(str, kind.values))}"
        return
    try:
        msgspec.convert(value, _leaf_type(kind))
    except msgspec.ValidationError as error:
        said = str(error).partition(", got ")[0].partition(" - at ")[0]
        for code, word in _WORDS.items():
            said = said.replace(code, word)
        said = said.removeprefix("Expected ")
        yield f"{path}: got {shown(value)}, expected {said}"


def _leaf_type(kind: msgspec.inspect.Type) -> Any:
    """The type that a description came of; of leaves only."""
    match kind:
        case msgspec.inspect.FloatType(ge=ge, gt=gt, le=le):
            low = Meta(gt=gt) if ge is None else Meta(ge=ge)
            return Annotated[float, low, Meta(le=le)]
        case msgspec.inspect.IntType(ge=ge):
            return Annotated[int, Meta(ge=ge)]
        case msgspec.inspect.StrType(min_length=least, max_length=most):
            return Annotated[str, Meta(min_length=least, max_length=most)]
        case msgspec.inspect.UnionType(types=types):
            (inner,) = (one for one in types if not isinstance(one, msgspec.inspect.NoneType))
            return _leaf_type(inner) | None
        case msgspec.inspect.DictType():
            return dict
        case _:
            return list


def _empty_arc(table: dict[str, Any]) -> Iterator[str]:
    emotion = table["global"].get("emotion", {})
    if "arc" in emotion and not emotion["arc"]:
        yield "global.emotion.arc: got no waypoint; leave it out or give at least one"


def _contradictions(scene: Scene) -> Iterator[str]:
    """What each part allows and the whole does not."""
    speakers = scene.overall.speakers
    seen: dict[str, Speaker] = {}
    for place, speaker in enumerate(speakers):
        if speaker.id in seen:
            other = " with another voice" if seen[speaker.id].voice != speaker.voice else ""
            yield f"global.speakers[{place}].id: '{speaker.id}' is there twice{other}"
        seen.setdefault(speaker.id, speaker)
    arc = scene.overall.emotion.arc
    for place in range(1, len(arc)):
        if arc[place].at < arc[place - 1].at:
            yield (
                f"global.emotion.arc[{place}].at: got {arc[place].at:g} after "
                f"{arc[place - 1].at:g}, expected waypoints in order"
            )
    if not scene.sentences:
        yield "sentences: got none, expected at least 1"
    before: int | None = None
    for place, sentence in enumerate(scene.sentences):
        path = f"sentences[{place}]"
        if sentence.speaker not in seen:
            hint = did_you_mean(sentence.speaker, seen)
            yield (
                f"{path}.speaker: got '{sentence.speaker}', expected a speaker of the scene: "
                f"{', '.join(seen) or 'none is listed'}{'.' + hint if hint else ''}"
            )
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
    marks = [(f"{path}.text", one) for one in MARK.findall(text)]
    for place, given in enumerate(sentence.marks):
        match = MARK.fullmatch(given)
        if match is None:
            yield f"{path}.marks[{place}]: got {shown(given)}, expected a mark such as [laugh]"
        else:
            marks.append((f"{path}.marks[{place}]", match[1]))
    for where, mark in marks:
        word, _, rest = mark.partition(" ")
        if not mark.strip():
            yield f"{where}: got '[{mark}]', expected a mark such as [laugh]"
        if word == "pause" and not _is_pause(rest):
            yield f"{where}: got '[{mark}]', expected seconds from 0 to 60 such as [pause 0.4]"
    words = len(spoken_text(text).split())
    for place, token in enumerate(sentence.tokens):
        if token.word >= words:
            yield f"{path}.tokens[{place}].word: got {token.word}, expected below {words} (words of the text)"


def _is_pause(text: str) -> bool:
    return re.fullmatch(r"[0-9]{1,2}(\.[0-9]+)?", text) is not None and float(text) <= 60


def _relation_problems(
    sentences: tuple[Sentence, ...], place: int, before: int | None
) -> Iterator[str]:
    sentence, path = sentences[place], f"sentences[{place}].relation"
    relation = sentence.relation
    if isinstance(relation, After):
        return
    kind = type(relation).__name__.lower()
    if before is None:
        yield f"{path}.type: got {kind}, expected after: no sentence stands before the first"
        return
    if isinstance(relation, Overlap) and not relation.seconds:
        return
    other = before
    if isinstance(relation, With):
        if relation.ref >= place:
            yield f"{path}.ref: got {relation.ref}, expected an earlier sentence than {place}"
            return
        other = relation.ref
    if sentences[other].speaker == sentence.speaker:
        yield (
            f"{path}: got {kind} of sentence {other}, expected another speaker than "
            f"'{sentence.speaker}', who cannot talk over himself"
        )
