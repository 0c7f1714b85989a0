"""Tool calls as text: read what a model wrote, and what the reference says.

Two dialects. `blocks` is ToolRL's: a think block, then a tool_call block with one JSON object a
line and/or a response block. `json` is calls alone: one object, a list of them, or an object a
line; `[]` says that no tool is called.

A tag that is only named inside the think block ("no <response> yet") is text, not a block: 13 of
ToolRL's 280 own training answers do that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from burnish.errors import UserError

Dialect = Literal["blocks", "json"]

TAGS = ("think", "tool_call", "response")
DEEPEST = 64
"""Levels of nesting of an argument that are compared."""


class Call(NamedTuple):
    """One call. `accepted` (of references only) lists further right values of an argument;
    `optional` names arguments that may be left out."""

    name: str
    arguments: dict[str, Any]
    accepted: Mapping[str, list[Any]] = {}
    optional: frozenset[str] = frozenset()


class Gold(NamedTuple):
    """What is right: the calls, and the blocks that a response in the block dialect has."""

    calls: list[Call]
    blocks: tuple[str, ...]


class Unreadable(Exception):
    """A text that holds no calls; the message says what was seen."""


def read_calls(text: str, dialect: Dialect) -> list[Call]:
    """The calls of a model's answer; raises `Unreadable` where they cannot be parsed.

    An answer of the block dialect with a response and without a tool_call block has no calls.
    """
    if dialect == "json":
        return [_call(value) for value in _json_values(text)]
    after = _after_think(text)
    lines = block(text, "tool_call", after)
    if lines is not None:
        return [_call(value) for value in _line_values(lines)]
    if "<tool_call>" in text[after:] or not (block(text, "response", after) or "").strip():
        raise Unreadable("no tool_call block and no response")
    return []


def read_gold(gold: Any) -> Gold:
    """The reference from block text, JSON text, one call or a list of calls; else `UserError`.

    A call may have `accepted` (argument -> further right values) and `optional` (arguments that
    may be left out) beside its name and its arguments.
    """
    present = _blocks_in(gold) if isinstance(gold, str) else ()
    try:
        if present:
            text = block(gold, "tool_call", _after_think(gold))
            return Gold([] if text is None else _references(_line_values(text)), present)
        calls = _references(_json_values(gold) if isinstance(gold, str) else _listed(gold))
    except Unreadable as problem:
        raise UserError(
            f"tool calls: the reference (gold) {gold!r:.80} cannot be read ({problem}); expected "
            '<tool_call> or <response> blocks, or [{"name": ..., "arguments": {...}}].'
        ) from None
    return Gold(calls, ("think", "tool_call") if calls else ("think", "response"))


def block(text: str, tag: str, start: int = 0) -> str | None:
    """What stands in the first <tag>...</tag> from `start`; None where there is none."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    begin = text.find(opening, start)
    end = text.find(closing, begin + len(opening)) if begin >= 0 else -1
    return text[begin + len(opening) : end] if end >= 0 else None


def is_formed(text: str, wanted: tuple[str, ...]) -> bool:
    """Whether the text is the wanted blocks, each once and in order, with blanks between at most."""
    text = text.strip()
    after = _after_think(text)
    for tag in TAGS:
        # What the think block names is text; what it closes is a block.
        opened = text.count(f"<{tag}>", after) + (tag == "think" and after > 0)
        if not opened == text.count(f"</{tag}>") == (tag in wanted):
            return False
    for tag in wanted:
        if not text.startswith(f"<{tag}>"):
            return False
        text = text.partition(f"</{tag}>")[2].lstrip()
    return not text


def same(left: Any, right: Any) -> bool:
    """JSON equality: 1 is 1.0, but neither is true nor "1"."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def _after_think(text: str) -> int:
    """Where the think block that opens a text ends; 0 where none opens it."""
    opens = text.lstrip().startswith("<think>")
    end = text.find("</think>") if opens else -1
    return end + len("</think>") if end >= 0 else 0


def _blocks_in(text: str) -> tuple[str, ...]:
    """Tags of the blocks of a reference; none where the text begins as JSON does."""
    if text.lstrip()[:1] in ("[", "{"):
        return ()
    after = _after_think(text)
    starts = {"think": 0, "tool_call": after, "response": after}
    return tuple(tag for tag in TAGS if block(text, tag, starts[tag]) is not None)


def _json_values(text: str) -> list[Any]:
    try:
        return _listed(_parsed(text))
    except Unreadable:
        if "\n" not in text.strip():
            raise
    return _line_values(text)


def _line_values(text: str) -> list[Any]:
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines:
        raise Unreadable("nothing where calls should be")
    return [_parsed(line) for line in lines]


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _parsed(text: str) -> Any:
    try:
        value = json.loads(text, parse_constant=_no_json)
    except RecursionError:
        raise Unreadable("nested too deeply") from None
    except ValueError as error:
        raise Unreadable(f"not JSON: {str(error)[:80]}") from None
    if not _is_shallow(value):
        raise Unreadable("nested too deeply")
    return value


def _call(value: Any) -> Call:
    if not isinstance(value, Mapping):
        raise Unreadable(f"a call is {type(value).__name__}, not an object")
    name = value.get("name")
    arguments = value.get("parameters", value.get("arguments"))
    if not isinstance(name, str) or not isinstance(arguments, Mapping):
        raise Unreadable("a call has no name, or no object of parameters")
    return Call(name, dict(arguments))


def _references(values: list[Any]) -> list[Call]:
    return [_reference(value) for value in values]


def _reference(value: Any) -> Call:
    call = _call(value)
    accepted, optional = value.get("accepted") or {}, value.get("optional") or ()
    if not isinstance(accepted, Mapping) or not all(
        isinstance(values, list | tuple) for values in accepted.values()
    ):
        raise Unreadable("accepted is not an object of lists")
    if not isinstance(optional, list | tuple | frozenset):
        raise Unreadable("optional is not a list of names")
    return call._replace(
        accepted={name: list(values) for name, values in accepted.items()},
        optional=frozenset(optional),
    )


def _is_shallow(value: Any) -> bool:
    level = [value]
    for _ in range(DEEPEST):
        lists = [item for item in level if isinstance(item, list)]
        lists += [list(item.values()) for item in level if isinstance(item, dict)]
        level = [inner for items in lists for inner in items]
        if not level:
            return True
    return False


def _no_json(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
