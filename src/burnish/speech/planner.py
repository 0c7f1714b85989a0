"""Fill in what the user left open: the rule planner, and texts that become scripts.

Scripts are TOML or JSON in the schema of scenes, or any text (names with colons become speakers, prose a
narrator); the first two may also have `sounds` (caption of an event to a sound file) and `background` (a
sound file that is repeated), by paths from their folder. Rules read the text: its punctuation, its words of
emotion, its length. Nothing that the user wrote is touched. `lively` lets people talk as in real meetings:
how they follow each other is drawn from the quantiles of 38 meetings of the AMI corpus.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from burnish.boundary import Seed, Settings, public
from burnish.errors import ArgumentError, UserError
from burnish.models.long_speech.scene import (
    MARK,
    Scene,
    Sentence,
    checked_scene,
    leaves,
    spoken_text,
    write_scene,
)
from burnish.models.long_speech.scene_lines import parse_scene_text, scene_text
from burnish.seeds import Seeds
from burnish.speech.acoustics import MEETING_GAPS
from burnish.speech.manner import read_caption

NARRATOR = "Narrator"
_SPEAKER = re.compile(
    r"^\s*+([^\W\d_a-z][\w.'’-]{0,30}(?: [\w.'’-]{1,30}){0,3})\s*+([(\[][^()\[\]]{1,200}[)\]]\s*+)?:"
    r"\s*+(.*)$"
)
"""A name of at most four words, perhaps a direction in brackets, a colon, and what is said."""
_IS_MARK = r"(?:laugh|sigh|trail-off)\b|pause (?:[0-5]?[0-9](?:\.[0-9]+)?|60(?:\.0+)?)\]"
"""After a bracket: a mark. Of pauses only those with seconds; `[pause for effect]` is a direction."""
_BARE_PAUSE = re.compile(r"\[pause\]", re.IGNORECASE)
_DIRECTION = re.compile(
    rf"(?<!\S)\[(?!{_IS_MARK})(?=[^\[\]]*[^\W\d_])[^\[\]]{{1,1000}}\]"
    r"|\([^()]{1,1000}\)|(?<!\w)\*[^*]{1,1000}\*(?!\w)|(?<!\w)_[^_]{1,1000}_(?!\w)"
)
"""What may be a stage direction: words in square brackets that are no mark, round ones, italics."""
_NO_MARK = re.compile(rf"\[(?!{_IS_MARK})([^\[\]]*)\]")
_DIRECTION_LINE = re.compile(
    r"\s*+(?:\([^()]*\)|\[[^\[\]]*\]|(?P<italics>\*++[^*]+\*++|_++[^_]+_++))[.\s]*+"
)
_PERSONAL = re.compile(r"\b(?:I|me|my|we|us|our|you|your|thou|thee|thy|oh?)\b", re.IGNORECASE)
"""A line in italics with such a word is a letter or a song, which is spoken."""
_NAME_LINE = re.compile(r"\s*+([A-Z][A-Z'’-]+(?: [A-Z][A-Z'’-]*){0,3})\.?\s*+")
"""A name in capitals on a line of its own, as plays are printed."""
_HEADING = re.compile(r"(?:ACT|SCENE|CHAPTER|PART|BOOK|THE|END)\b")
_CUT = re.compile(r"(?<=[.!?…])([\"'”’)]*)\s+(?=[\"'“‘(\[]|[^\W_a-z])")
_ABBREVIATED = re.compile(r"(?:^|[\s(\"'“‘])(?:Mr|Mrs|Ms|Dr|St|Prof|[A-HJ-Z])\.$")
"""Words of a stage direction that may say how somebody speaks: "very quietly"; longer ones say what happens."""
_HIGH = {
    "angry": "hate damn fury furious rage traitor villain liar shame murder curse dare enough",
    "afraid": "help fear afraid danger run hide terrible horror",
    "excited": "wow great amazing wonderful fantastic victory win won incredible love yes hurrah",
}
_LOW = {
    "sad": "sorry died dead death lost alone goodbye grief tears weep cry sad regret",
    "calm": "peace quiet slowly rest sleep gently well perhaps maybe indeed thank please",
}
_FEELING = {
    word: (name, level)
    for groups, level in ((_HIGH, 0.8), (_LOW, 0.25))
    for name, words in groups.items()
    for word in words.split()
}


@public
def draft_scene(text: str) -> Scene:
    """A script from any text: `NAME: words` lines, a play with names on lines of their own, or prose.

    Prose gets one narrator. Long speeches are cut into sentences, so that a plan has places to act.

    In a dialogue, a paragraph without a name is the narrator's, unless the name before it stands on a line
    of its own: then it goes on with the speech. Stage
    directions are not spoken: words `[in square brackets]`, `Ann (aside): ...`, a line `(of its own)` or
    in italics, and between two sentences what is in round brackets or in `*italics of lower case*`. One
    of up to three words that names a manner, `(quietly)`, is the tone of what follows in that speech.
    `[pause]` is a pause of 0.4 s.

    >>> scene = draft_scene("Ann: Are you there?\\nBob: Yes. Come in!")
    >>> [(one.speaker, one.text) for one in scene.sentences]
    [('Ann', 'Are you there?'), ('Bob', 'Yes.'), ('Bob', 'Come in!')]
    >>> scene = draft_scene("Ann (softly): Hush. (She listens.) Hear that?\\n\\nA door creaks.")
    >>> [(one.speaker, one.text, one.tone) for one in scene.sentences]
    [('Ann', 'Hush.', 'softly'), ('Ann', 'Hear that?', 'softly'), ('Narrator', 'A door creaks.', '')]
    """
    return drafted(text).scene


class Drafted(NamedTuple):
    """A script from a text, and what of the text is not spoken."""

    scene: Scene
    directions: list[str]


def drafted(text: str) -> Drafted:
    """`draft_scene`, with the stage directions that it leaves out."""
    directions: list[str] = []
    rows = [
        {"speaker": speaker, "text": sentence} | ({"tone": tone} if tone else {})
        for speaker, tone, said in _turns(text, directions)
        for sentence in _sentences(said)
    ]
    if not rows:
        raise UserError("text: nothing to say; expected text, or lines such as 'Ann: Hello.'")
    speakers = list(dict.fromkeys(row["speaker"] for row in rows))
    table = {"global": {"speakers": [{"id": one} for one in speakers]}, "sentences": rows}
    return Drafted(checked_scene(table, "text"), directions)


def _turns(text: str, directions: list[str]) -> Iterator[tuple[str, str, str]]:
    """Who speaks, in which tone, and what; stage directions go to the list."""
    lines = _BARE_PAUSE.sub("[pause 0.4]", text).replace("\r\n", "\n").split("\n")
    # Names in capitals on lines of their own, one of them more than once, as `NAME:`.
    above = ["", *lines]
    alone = [_NAME_LINE.fullmatch(line) for line in lines]
    names = [
        match[1] if match and not before.strip() and not _HEADING.match(match[1]) else ""
        for before, match in zip(above, alone, strict=False)
    ]
    known = [name for name in names if name]
    if len(set(known)) < len(known):
        lines = [f"{name}:" if name else line for name, line in zip(names, lines, strict=True)]
    found = [_SPEAKER.match(line) for line in lines]
    if not _is_dialogue(lines, [match[1] for match in found if match]):
        yield NARRATOR, "", " ".join(lines)
        return
    speaker, said, is_paragraph, stands_alone = NARRATOR, "", False, False
    for line, match in zip(lines, found, strict=True):
        ends = is_paragraph and line.strip() and spoken_text(said) and not stands_alone
        is_other = match is not None or ends
        if match is not None:
            stands_alone = not match[3].strip()
        if is_other:
            yield from _directed(speaker, said, directions)
            speaker, said = (
                (match[1], f"{match[2] or ''} {match[3]}") if match else (NARRATOR, line)
            )
        elif _is_direction(line):
            directions.append(line.strip())
        else:
            said += f" {line}"
        is_paragraph = not line.strip()
    yield from _directed(speaker, said, directions)


def _is_dialogue(lines: list[str], names: list[str]) -> bool:
    """A colon in prose names nobody: a name speaks twice, or half of the paragraphs begin with one."""
    if len(set(names)) < len(names):
        return True
    kept = [line for line in lines if not _is_direction(line)]
    first = [line for before, line in zip(["", *kept], kept, strict=False) if not before.strip()]
    begun = [_SPEAKER.match(line) is not None for line in first if line.strip()]
    return bool(names) and 2 * sum(begun) >= len(begun)


def _is_direction(line: str) -> bool:
    """Whether a line is a stage direction of its own."""
    found = _DIRECTION_LINE.fullmatch(line)
    return found is not None and not _PERSONAL.search(found["italics"] or "")


def _directed(speaker: str, said: str, directions: list[str]) -> Iterator[tuple[str, str, str]]:
    """A speech without its stage directions, cut where one of them changes the tone."""
    said = " ".join(said.split())
    tone, start = "", 0
    spoken: list[str] = []
    end = ""  # of what is spoken
    for match in _DIRECTION.finditer(said):
        spoken.append(said[start : match.start()])
        end = (end + spoken[-1]).rstrip(" \"'”’")[-1:]
        start = match.start()
        sign, inner = match[0][0], match[0].strip(" ()[]*_.,:;!")
        # Italics stress a word where they begin as a sentence does, or stand in one: "*You* did it."
        goes_on = said[match.end() :].lstrip()[:1].islower()
        is_stress = sign in "*_" and (goes_on or not inner[:1].islower())
        if sign != "[" and (is_stress or end not in ("", *".!?…]")):
            continue
        start = match.end()
        directions.append(match[0])
        manner = read_caption.plain(inner if len(inner.split()) <= 3 else "")
        if manner.add or manner.fixed:
            yield speaker, tone, "".join(spoken)
            tone, spoken = inner, []
    yield speaker, tone, "".join([*spoken, said[start:]])


def _sentences(said: str) -> list[str]:
    """Sentences; square brackets that are no mark become round ones, which are spoken."""
    said = _NO_MARK.sub(r"(\1)", " ".join(said.split()))
    if any(sign in MARK.sub("", said) for sign in "[]"):
        said = said.translate(str.maketrans("[]", "()"))
    pieces = [*_CUT.split(said), ""]
    joined: list[str] = []
    for text, closing in zip(pieces[::2], pieces[1::2], strict=True):
        part = text + closing
        if joined and _ABBREVIATED.search(joined[-1]):
            joined[-1] += f" {part}"
        elif part.strip():
            joined.append(part)
    return joined


@public
def plan_scene(scene: Scene, *, seed: Seed = 0, lively: bool = False) -> Scene:
    """A scene with its open captions filled in by rules; what the user wrote stays as it is.

    >>> plan_scene(draft_scene("Ann: Run! Run for your life!")).sentences[0].tone
    'afraid'
    """
    rng = Seeds(seed).rng("plan")
    read = [_read_sentence(one) for one in scene.sentences]
    arousals = [arousal for arousal, _ in read]
    sources: dict[str, Any] = dict(scene.sources)
    table: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(scene, sources={}))

    def fill(place: dict[str, Any], path: str, key: str, value: Any) -> None:
        if key not in place and f"{path}.{key}" not in sources and value not in ("", None):
            place[key] = value
            for leaf, _ in leaves(value, f"{path}.{key}"):
                sources[leaf] = "plan"

    emotion = table["global"].setdefault("emotion", {})
    fill(emotion, "global.emotion", "arc", _arc(arousals))
    if environment := table["global"].get("environment"):
        words = re.findall(r"\w+", environment.get("caption", "").lower())
        rooms = [ROOMS[word] for word in words if word in ROOMS]
        noises = [NOISE[word] for word in words if word in NOISE]
        fill(environment, "global.environment", "reverb_s", max(rooms, default=None))
        fill(environment, "global.environment", "snr_db", min(noises, default=None))
    mean = sum(arousals) / len(arousals)
    fill(emotion, "global.emotion", "tone", "excited" if mean > 0.6 else "calm" if mean < 0.4 else "neutral")  # fmt: skip
    before = 0
    for place, (_, captions) in enumerate(read):
        row, path = table["sentences"][place], f"sentences[{place}]"
        for key, value in captions.items():
            fill(row, path, key, value)
        if lively and place and "relation" not in row and f"{path}.relation.gap" not in sources:
            relation = _relation(scene.sentences, place, before, rng)
            if relation is not None:
                row["relation"] = relation
                for leaf, _ in leaves(relation, f"{path}.relation"):
                    sources[leaf] = "plan"
        if row.get("relation", {}).get("type") != "with":
            before = place
    table["sources"] = sources
    return checked_scene(table, "plan")


ROOMS = {
    "cathedral": 4.0, "church": 2.5, "cave": 2.5, "hall": 1.5, "theatre": 1.2, "station": 1.4,
    "bathroom": 0.8, "kitchen": 0.5, "office": 0.4, "room": 0.4, "studio": 0.15, "corridor": 0.9,
    "tunnel": 2.0, "cafe": 0.6, "café": 0.6, "restaurant": 0.6, "warehouse": 1.8,
}  # fmt: skip
"""Seconds of echo by words of an environment's caption."""
NOISE = {
    "noisy": 8.0, "loud": 6.0, "busy": 10.0, "crowded": 8.0, "street": 12.0, "traffic": 10.0,
    "cafe": 14.0, "café": 14.0, "restaurant": 14.0, "rain": 15.0, "storm": 6.0, "wind": 12.0,
    "sea": 14.0, "train": 10.0, "station": 10.0, "factory": 5.0, "office": 25.0, "forest": 20.0,
    "park": 20.0, "market": 8.0,
}  # fmt: skip
"""How far speech stands above the background by words of an environment's caption, dB."""


def _read_sentence(sentence: Sentence) -> tuple[float, dict[str, str]]:
    """How excited a sentence is by its words and signs, 0 to 1, and its captions."""
    text = spoken_text(sentence.text)
    words = re.findall(r"[a-z']+", text.lower())
    feelings = [_FEELING[word] for word in words if word in _FEELING]
    level = sum(one for _, one in feelings) / len(feelings) if feelings else 0.45
    level += 0.15 * min(text.count("!"), 2) - 0.1 * ("..." in text or "…" in text)
    capitals = [word for word in text.split() if len(word) > 2 and word.isupper()]
    arousal = round(min(1.0, max(0.0, level + 0.1 * bool(capitals))), 3)
    asks, shouts = text.endswith("?"), "!" in text
    is_high, is_low, names = arousal > 0.75, arousal < 0.3, [name for name, _ in feelings]
    neutral = "tense" if shouts else "curious" if asks else "neutral"
    return arousal, {
        "tone": max(names, key=names.count) if names else neutral,
        "intonation": "rising" if asks else "lively" if shouts else "falling" if len(words) > 20 else "level",
        "pace": "slow" if is_low else "fast" if is_high else "medium",
        "volume": "loud" if is_high else "soft" if is_low else "normal",
        "intent": "ask" if asks else "warn" if shouts and arousal > 0.7 else "state",
    }  # fmt: skip


def _arc(arousals: list[float]) -> list[dict[str, float]]:
    """Up to five waypoints: means of equal stretches of the scene."""
    count = min(5, len(arousals))
    if count == 1:
        return [{"at": 0.0, "arousal": arousals[0]}]
    points = []
    for i in range(count):
        centre = i * (len(arousals) - 1) / (count - 1)
        near = sorted(range(len(arousals)), key=lambda place: abs(place - centre))
        chosen = near[: max(1, len(arousals) // count)]
        value = sum(arousals[place] for place in chosen) / len(chosen)
        points.append({"at": round(i / (count - 1), 4), "arousal": round(value, 3)})
    return points


def _relation(
    sentences: tuple[Sentence, ...], place: int, before: int, rng: Any
) -> dict[str, Any] | None:
    """How a sentence follows, drawn as people in meetings do; None: nothing is changed."""
    sentence, previous = sentences[place], sentences[before]
    low = rng.randrange(len(MEETING_GAPS) - 1)
    gap = MEETING_GAPS[low] + rng.random() * (MEETING_GAPS[low + 1] - MEETING_GAPS[low])
    chance = rng.random()
    if sentence.speaker == previous.speaker:
        return {"type": "after", "gap": round(abs(gap) / 3, 2)}
    words, words_before = len(sentence.text.split()), len(previous.text.split())
    if words <= 3 and words_before >= 12 and chance < 5 * 0.1:
        return {"type": "with", "ref": before, "offset": round(0.1 * words_before, 2)}
    if sentence.text.rstrip().endswith("!") and words_before >= 6 and chance < 0.35:
        return {"type": "interrupt", "at": round(0.6 + 0.3 * rng.random(), 2)}
    if gap < 0:
        # A word takes a third of a second; never over more than half of the sentence before.
        return {"type": "overlap", "seconds": round(min(-gap, 0.15 * words_before), 2)}
    return {"type": "after", "gap": round(gap, 2)}


LARGEST_BYTES = 4_000_000


class Script(NamedTuple):
    """A scene and the sound files that it names."""

    scene: Scene
    sounds: dict[str, Path]
    background: Path | None
    is_draft: bool
    """True if it was made from text that is no script: a planner has to fill it in."""
    directions: Sequence[str] = ()
    """Stage directions of a text, which are not spoken."""


class NamedSounds(Settings, frozen=True):
    """The sound files of a script: of events by their captions, and one that is repeated."""

    sounds: dict[str, str] = msgspec.field(default_factory=dict)
    background: str | None = None


@public
def read_script(file: Path) -> Script:
    """The script of a file; everything that is wrong with it is told in one line."""
    try:
        if file.stat().st_size > LARGEST_BYTES:
            raise UserError(f"{file} has over {LARGEST_BYTES:,} bytes; cut the text into scenes")
        text = file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{file} is no text in UTF-8; expected a script or a text") from None
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}") from None
    if "\0" in text:
        raise UserError(f"{file} holds binary data; expected a script or a text")
    kind = file.suffix.lower()
    try:
        if kind in (".toml", ".json"):
            table = tomllib.loads(text) if kind == ".toml" else json.loads(text)
            named = NamedSounds(table.pop("sounds", {}), table.pop("background", None))
            sounds = {caption: file.parent / one for caption, one in named.sounds.items()}
            background = None if named.background is None else file.parent / named.background
            return Script(checked_scene(table, "script"), sounds, background, False)
        if text.lstrip().startswith("[instruct]"):
            return Script(parse_scene_text.plain(text), {}, None, False)
        draft = drafted(text)
        return Script(draft.scene, {}, None, True, draft.directions)
    # No table, a list in its place, a number of over 4,300 digits, or no scene.
    except (ArgumentError, ValueError, RecursionError, AttributeError, TypeError) as error:
        raise UserError(f"{file}: no script; {error}") from None


def write_script(script: Script, file: Path) -> str:
    """The text of a script for a file: `.txt` in lines or `.json`; sounds by paths from its folder.

    A `.txt` has no room for sounds, and is refused where there are any.
    """
    has_sounds, kind = bool(script.sounds or script.background), file.suffix.lower()
    if kind not in (".json", ".txt") or (kind == ".txt" and has_sounds):
        raise UserError(f"{file}: expected a .json, or, without sounds of its own, a .txt")
    if kind == ".txt":
        return scene_text(script.scene)

    def seen_from(sound: Path) -> str:
        return os.path.relpath(sound.resolve(), file.resolve().parent)

    table = json.loads(write_scene(script.scene))
    if script.sounds:
        table["sounds"] = {name: seen_from(one) for name, one in script.sounds.items()}
    if script.background is not None:
        table["background"] = seen_from(script.background)
    return json.dumps(table, indent=2, ensure_ascii=False)
