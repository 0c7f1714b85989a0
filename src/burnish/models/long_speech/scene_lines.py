"""A scene as lines of text that a language model can write: what is fixed, then what was planned.

    text = scene_text(scene)            # [instruct] path = value ... [think] path = value ...
    parse_scene_text(text) == scene     # or refused with the line that is wrong

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
from burnish.models.long_speech.measures import dimension_dropout
from burnish.models.long_speech.scene import (
    Scene,
    checked_scene,
    decoded,
    leaves,
    read_scene,
    source_of,
)

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
            path, value = _read_line(number, line, block)
            if path in values:
                raise _wrong(number, line, f"{path} once")
            if value is not _NOTHING:
                values[path] = value
                if block != "instruct":
                    sources[path] = BLOCKS[block]
    document = _nested(values)
    return checked_scene({**document, "sources": sources}, "text")


_NOTHING = object()


def _wrong(number: int, line: str, expected: str) -> ArgumentError:
    return ArgumentError(f"text: line {number} is {shown(line)}, expected {expected}")


def _read_line(number: int, line: str, block: str) -> tuple[str, Any]:
    match = _LINE.fullmatch(line)
    if match is None or not block:
        raise _wrong(number, line, "[instruct] first" if match else "'path = value'")
    path, value = match.groups()
    if value == BLANK:
        return path, _NOTHING
    try:
        read = decoded(value)
    except ValueError:
        raise _wrong(number, line, f"JSON or {BLANK} after the =") from None
    if isinstance(read, dict | list):
        raise _wrong(number, line, "a text or a number after the =")
    return path, read


def _nested(values: dict[str, Any]) -> dict[str, Any]:
    """Tables and lists from paths."""
    root: dict[str | int, Any] = {}
    for path, value in values.items():
        steps = [name or int(place) for name, place in _STEP.findall(path)]
        table = root
        for step in steps[:-1]:
            table = table.setdefault(step, {})
            if not isinstance(table, dict):
                raise ArgumentError(f"text: {path} is both a value and a part")
        if steps[-1] in table:
            raise ArgumentError(f"text: {path} is both a value and a part")
        table[steps[-1]] = value
    nested: dict[str, Any] = _listed(root, "")
    return nested


def _listed(value: Any, path: str) -> Any:
    if not isinstance(value, dict):
        return value
    if not any(isinstance(key, int) for key in value):
        return {key: _listed(inner, f"{path}.{key}".strip(".")) for key, inner in value.items()}
    if set(value) != set(range(len(value))):
        raise ArgumentError(f"text: {path} has gaps, expected {path}[0], {path}[1] and so on")
    return [_listed(value[place], f"{path}[{place}]") for place in range(len(value))]


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
        *steps, last = [name or int(place) for name, place in _STEP.findall(path)]
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
