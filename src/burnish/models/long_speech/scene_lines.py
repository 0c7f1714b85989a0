"""A scene as lines of text that a language model can write: what is fixed, then what was planned.

A dimension that nobody filled in stands there as `<blank>`: the same symbol that dimension dropout
leaves, so that a planner sees in training what it sees in use.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from burnish.arguments import shown
from burnish.boundary import Share, public
from burnish.errors import ArgumentError
from burnish.models.long_speech.scene import (
    Scene,
    checked_scene,
    decoded,
    leaves,
    read_scene,
    source_of,
)
from burnish.models.long_speech.timeline import dimension_dropout

BLANK = "<blank>"
BLOCKS = {"instruct": "user", "think": "plan", "default": "default"}
"""Blocks of the text, and who wrote their leaves."""
_SLOT = re.compile(
    r"global\.emotion\.tone|sentences\[\d+\]\.(tone|intonation|pace|volume|intent|background)"
)
"""Captions that a planner fills in."""
_STEP = re.compile(r"([a-z_]+)|\[(0|[1-9][0-9]{0,5})\]")
_LINE = re.compile(r"([a-z_]+(?:\.[a-z_]+|\[(?:0|[1-9][0-9]{0,5})\])*) = (.+)")


@public
def scene_text(scene: Scene) -> str:
    """A scene as text: a line `path = value` a leaf, in blocks by who wrote it.

    Values are JSON; what is at its default and was written by nobody is left out, but for captions
    that a planner fills in: those are `<blank>`.

    >>> print(scene_text(read_scene({"global": {"speakers": [{"id": "A"}]}, "sentences": [
    ...     {"speaker": "A", "text": "Yes.", "tone": "tired"}],
    ...     "sources": {"sentences[0].tone": "plan"}})).split("[think]")[0])
    [instruct]
    global.speakers[0].id = "A"
    sentences[0].speaker = "A"
    sentences[0].text = "Yes."
    sentences[0].relation.type = "after"
    <BLANKLINE>
    """
    bare = msgspec.structs.replace(scene, sources={})
    written = dict(leaves(msgspec.to_builtins(bare)))
    blocks: dict[str, list[str]] = {name: [] for name in BLOCKS}
    names = {source: name for name, source in BLOCKS.items()}
    for path, value in leaves(bare):
        # A relation is named even at its default: its gap may have a source of its own.
        if path in written or path in scene.sources or path.endswith(".relation.type"):
            line = f"{path} = {msgspec.json.encode(value).decode()}"
            blocks[names[source_of(scene, path)]].append(line)
        elif _SLOT.fullmatch(path):
            blocks["think"].append(f"{path} = {BLANK}")
    return "".join(
        f"[{name}]\n" + "".join(f"{line}\n" for line in lines)
        for name, lines in blocks.items()
        if lines or name != "default"
    )


@public
def parse_scene_text(text: str) -> Scene:
    """The scene of a text as `scene_text` writes it; anything else is refused with its line.

    >>> parse_scene_text('''[instruct]
    ... global.speakers[0].id = "A"
    ... sentences[0].speaker = "A"
    ... sentences[0].text = "Yes."
    ... [think]
    ... sentences[0].tone = <blank>''').sentences[0].text
    'Yes.'
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    block = ""
    # Not splitlines: a caption may hold other breaks than \n, which JSON leaves as they are.
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.strip()
        if line.startswith("["):
            block = line.strip("[]")
            if block not in BLOCKS or line != f"[{block}]":
                raise _wrong(number, line, f"[{'], ['.join(BLOCKS)}]")
        elif line:
            if not block:
                raise _wrong(number, line, "[instruct] first")
            path, value = read_line(number, line)
            if path in values:
                raise _wrong(number, line, f"{path} once")
            values[path] = value
            if block != "instruct" and value is not NOTHING:
                sources[path] = BLOCKS[block]
    root: dict[Any, Any] = {}
    for path, value in values.items():
        if value is not NOTHING:
            *steps, last = _steps(path)
            table = root
            for step in steps:
                table = table.setdefault(step, {})
                if not isinstance(table, dict):
                    raise ArgumentError(f"text: {path} is both a value and a part")
            table[last] = value
    return checked_scene({**_listed(root), "sources": sources}, "text")


def _wrong(number: int, line: str, expected: str) -> ArgumentError:
    return ArgumentError(f"text: line {number} is {shown(line)}, expected {expected}")


NOTHING = object()
"""The value of a blank."""


def read_line(number: int, line: str) -> tuple[str, Any]:
    """Path and value of a line `path = value`."""
    match = _LINE.fullmatch(line)
    if match is None:
        raise _wrong(number, line, "'path = value'")
    try:
        read = NOTHING if match[2] == BLANK else decoded(match[2])
    except ValueError:
        read = []
    if isinstance(read, dict | list):
        raise _wrong(number, line, f"a text or a number in JSON, or {BLANK}, after the =")
    return match[1], read


def _steps(path: str) -> list[str | int]:
    return [name or int(place) for name, place in _STEP.findall(path)]


def _listed(value: Any) -> Any:
    """Dicts whose keys are 0, 1, 2 ... as lists."""
    if not isinstance(value, dict):
        return value
    if 0 in value and set(value) == set(range(len(value))):
        return [_listed(value[place]) for place in range(len(value))]
    return {key: _listed(inner) for key, inner in value.items()}


@public
def drop_dimensions(scene: Scene, u: Sequence[Share], p: Share) -> Scene:
    """A scene with some of its planned captions blanked: those with `u < p` (dimension dropout).

    `u` has a uniform number for each caption that a planner wrote, in the order of the text
    (`planned_captions`). What the user wrote is never dropped.

    >>> scene = read_scene({"global": {"speakers": [{"id": "A"}]}, "sentences": [
    ...     {"speaker": "A", "text": "Yes.", "tone": "tired", "pace": "slow"}],
    ...     "sources": {"sentences[0].tone": "plan"}})
    >>> [(one.tone, one.pace) for one in drop_dimensions(scene, [0.2], 1.0).sentences]
    [('', 'slow')]
    """
    document = msgspec.to_builtins(scene)
    for path in dimension_dropout.plain(planned_captions.plain(scene), u, p):
        table = document
        *steps, last = _steps(path)
        for step in steps:
            table = table[step]
        table.pop(last, None)
        document["sources"].pop(path)
    return read_scene.plain(document)


@public
def planned_captions(scene: Scene) -> list[str]:
    """Paths of the captions that a planner wrote, in the order of the text.

    >>> planned_captions(read_scene({"global": {"speakers": [{"id": "A"}]}, "sentences": [
    ...     {"speaker": "A", "text": "Yes.", "tone": "tired"}],
    ...     "sources": {"sentences[0].tone": "plan"}}))
    ['sentences[0].tone']
    """
    return [path for path, _ in leaves(scene) if _SLOT.fullmatch(path) and path in scene.sources]
