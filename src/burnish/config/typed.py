"""What the command line did to a table: a kind that it swapped, a rule that it broke."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from burnish.config import shapes
from burnish.config.given import COMMAND_LINE, Given


def swapped(
    given: Given, structs: Sequence[type[Struct]], struct: type[Struct], default: Any
) -> Given:
    """What was given, less what only the old kind knows, where the command line chose another.

    What was typed stays, and so does what neither kind knows: both are told where they are wrong.
    """
    tag = shapes.tag(struct)
    mark = None if tag is None else given.value.get(tag[0])
    if tag is None or mark is None or not mark.origin.word:
        return given
    kinds = [shapes.tag(type(default))] if type(default) in structs else []
    if mark.replaced is not None:
        kinds = [(tag[0], mark.replaced)]
    gone = {key for old in structs if shapes.tag(old) in kinds for key in _keys(old)}
    gone -= _keys(struct)
    kept = {k: item for k, item in given.value.items() if k not in gone or item.latest().word}
    return Given(kept, given.origin)


def blamed(given: Given, message: str) -> str:
    """Where a table breaks its own rule: the key that the message begins with, if that was typed.

    Other words that changed the table are told beside its place: a rule may span several keys.
    """
    named = given.value.get(message.partition(":")[0])
    if named is not None and named.latest().word:
        return str(named.latest())
    words = dict.fromkeys(origin.word for origin in given.typed())
    if not words or given.origin.word:
        return str(given.latest())
    return f"{COMMAND_LINE}, {', '.join(map(repr, words))}, on {given.origin}"


def _keys(struct: type[Struct]) -> set[str]:
    return {field.key for field in shapes.fields(struct)}
