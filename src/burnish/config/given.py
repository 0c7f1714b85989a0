"""What a person gave, with where each value stands: a TOML file, a mapping, words on a command line.

Values keep their place through all of loading, so that a message can point at the line.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from burnish.errors import UserError
from burnish.texts import flat_key, read_text, read_toml

Place = tuple[str | int, ...]
COMMAND_LINE = "command line"
PYTHON = "Python"
Meaning = Callable[[Sequence[str], Any], Any]
"""What a typed value means, from its key's parts and the value: a path starts at a folder, say."""


@dataclass(frozen=True)
class Origin:
    """Where a value came from."""

    label: str
    """`recipes/grpo.toml:12`, `command line`, `Python` or another name."""
    word: str = ""
    """The word of the command line, or the argument in Python, that gave it."""

    def __str__(self) -> str:
        return f"{self.label}, {self.word!r}" if self.word else self.label


@dataclass
class Given:
    """A value as given: a table or a list of such values, or a plain one."""

    value: Any
    origin: Origin
    replaced: Any = None
    """The value that stood here before the command line changed it; None where there was none."""
    table: dict[str, Given] | None = None
    """The table that stood here before a bare word: `policy.advantage=raw` changes its kind alone."""
    word: Given | None = None
    """The bare word that stood here before one of the table's keys was set."""

    def plain(self) -> Any:
        """The value without its origins."""
        if isinstance(self.value, dict):
            return {key: item.plain() for key, item in self.value.items()}
        if isinstance(self.value, list):
            return [item.plain() for item in self.value]
        return self.value

    def typed(self) -> Iterator[Origin]:
        """Where the command line gave it, or something inside it."""
        if isinstance(self.value, dict | list):
            items = self.value.values() if isinstance(self.value, dict) else self.value
            for item in items:
                yield from item.typed()
        elif self.origin.word:
            yield self.origin

    def latest(self) -> Origin:
        """Its origin; or, where the command line changed something inside it, that word."""
        return next(self.typed(), self.origin)

    def over(self, old: Given) -> Given:
        """The same in place of `old`; a value that is typed twice replaces the one of the file."""
        table = old.value if isinstance(old.value, dict) else old.table
        kept = table if isinstance(self.value, str | int) else None
        replaced = old.replaced if old.origin.word else old.plain()
        return replace(self, replaced=replaced, table=kept or None)


def from_file(path: Path) -> Given:
    """A TOML file, every value with its line."""
    text = read_text(path)
    try:
        data = read_toml(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(_syntax(path, text, error)) from None
    lines = line_numbers(text)

    def origin(place: Place) -> Origin:
        # An entry of a list or of an inline table stands on the line of what holds it.
        known = next((lines[place[:n]] for n in range(len(place), 0, -1) if place[:n] in lines), 0)
        return Origin(f"{path}:{known}" if known else str(path))

    def give(value: Any, place: Place) -> Given:
        if isinstance(value, dict):
            value = {key: give(item, (*place, key)) for key, item in value.items()}
        elif isinstance(value, list):
            value = [give(item, (*place, index)) for index, item in enumerate(value)]
        return Given(value, origin(place))

    return give(data, ())


def from_origins(plain: Any, origins: Mapping[str, str], unset: str, path: str = "") -> Given:
    """A settled config as it was given: values that are defaults (`unset`) are left out."""
    prefix = f"{path}." if path else ""
    if isinstance(plain, dict):
        inner = {k: from_origins(v, origins, unset, prefix + flat_key(k)) for k, v in plain.items()}
        kept = {key: item for key, item in inner.items() if item.origin.label != unset}
        return Given(kept, _outer(kept.values(), origins.get(path, unset)))
    if isinstance(plain, list) and any(isinstance(item, dict) for item in plain):
        items = [from_origins(v, origins, unset, f"{prefix}{i}") for i, v in enumerate(plain)]
        return Given(items, _outer(items, origins.get(path, unset)))
    if isinstance(plain, list):
        plain = [Given(item, Origin(origins.get(path, unset))) for item in plain]
    return Given(plain, Origin(origins.get(path, unset)))


def _outer(items: Iterable[Given], unset: str) -> Origin:
    return next((item.origin for item in items), Origin(unset))


def from_mapping(value: Any, origin: Origin) -> Given:
    """Plain Python values, all from one place."""
    if isinstance(value, Mapping):
        value = {str(key): from_mapping(item, origin) for key, item in value.items()}
    elif isinstance(value, list | tuple):
        value = [from_mapping(item, origin) for item in value]
    return Given(value, origin)


def override(
    root: Given, word: str, meaning: Meaning | None = None, label: str = COMMAND_LINE
) -> None:
    """Apply one `dotted.key=value` to what was given so far."""
    key, sign, text = word.partition("=")
    keys = dotted(key.strip()) if sign else []
    if not keys:
        raise UserError(
            f"{label}: {word!r} is no override; expected dotted.key=value, for example "
            "rollout.samples=8."
        )
    # White space alone is a value: a separator.
    value = _parse(text.strip(), word, label) if text.strip() else text
    put(root, keys, value, Origin(label, word), meaning)


def put(
    root: Given, keys: Sequence[str], parsed: Any, origin: Origin, meaning: Meaning | None
) -> None:
    """Replace the value of one key."""
    value = from_mapping(parsed if meaning is None else meaning(keys, parsed), origin)
    at = root
    for position, part in enumerate(keys):
        last = position == len(keys) - 1
        if isinstance(at.value, list):
            slot: Any = _index(at.value, keys[:position], part, origin)
        else:
            if not isinstance(at.value, dict):
                at.word = replace(at) if isinstance(at.value, str | int) else None
                at.value = dict(at.table or {})
            slot = part
            at.value.setdefault(slot, Given({}, origin))
        if last:
            at.value[slot] = value.over(at.value[slot])
        else:
            at = at.value[slot]


def line_numbers(text: str) -> dict[Place, int]:
    """The line of every key of a valid TOML text, by its path; lists count from 0.

    A statement ends where the parser is first content with the lines since its beginning. Of a long
    one it is asked only behind lines that may end it: a list of thousands of lines is read once.
    """
    lines: dict[Place, int] = {}
    sizes: dict[Place, int] = {}
    table: Place = ()
    held: list[str] = []
    for number, line in enumerate(text.split("\n"), start=1):
        held.append(line)
        if len(held) > 1 and not _MAY_END.search(line):
            continue
        statement = "\n".join(held) + "\n"
        try:
            data = read_toml(statement)
        except tomllib.TOMLDecodeError:
            continue
        first = number - len(held) + 1
        held = []
        if statement.lstrip().startswith("["):
            table = _header(data, sizes)
            lines.setdefault(table, first)
            if isinstance(table[-1], int):
                lines.setdefault(table[:-1], first)
        else:
            for place in _places(data, table):
                lines.setdefault(place, first)
    return lines


_MAY_END = re.compile(r"""(?:[\]}]|"{3}|'{3})\s*(?:\#.*)?$""")


def _header(data: Any, sizes: dict[Place, int]) -> Place:
    """The place that a `[table]` or `[[table]]` line opens; a list stands for its newest entry."""
    keys: list[str] = []
    while isinstance(data, dict) and data:
        key, data = next(iter(data.items()))
        keys.append(key)
    place: Place = ()
    for position, key in enumerate(keys, start=1):
        place = (*place, key)
        if position == len(keys) and isinstance(data, list):
            sizes[place] = sizes.get(place, 0) + 1
        if place in sizes:
            place = (*place, sizes[place] - 1)
    return place


def _places(data: Mapping[str, Any], table: Place) -> Iterator[Place]:
    for key, value in data.items():
        yield (*table, key)
        if isinstance(value, dict):
            yield from _places(value, (*table, key))


def _syntax(path: Path, text: str, error: tomllib.TOMLDecodeError) -> str:
    message = str(error)
    found = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", message)
    if found is None:
        return f"{path}: not valid TOML: {message}."
    line = found[1] or str(text.count("\n") + 1)
    return f"{path}:{line}: not valid TOML: {message[: found.start()]}."


def dotted(key: str) -> list[str]:
    """The parts of a dotted key, by TOML's own rules; none where it is not one."""
    try:
        data: Any = read_toml(f"{key} = 0")
    except tomllib.TOMLDecodeError:
        return []
    parts: list[str] = []
    while isinstance(data, dict) and len(data) == 1:
        part, data = next(iter(data.items()))
        parts.append(part)
    return parts if data == 0 else []


def _parse(text: str, word: str, label: str) -> Any:
    """A TOML value, or else the text itself: `task.kind=arithmetic` needs no quotes."""
    try:
        data = read_toml(f"value = {text}")
    except tomllib.TOMLDecodeError as error:
        if text[:1] in ("[", "{", '"', "'"):
            raise UserError(
                f"{label}: {word!r} holds no valid TOML value: "
                f"{re.sub(r' .at (line|end).*', '', str(error))}. "
                f"A text that begins so needs quotes: {word.partition('=')[0]}='\"...\"'."
            ) from None
        return text
    return data["value"] if len(data) == 1 else text


def _index(items: list[Given], keys: Sequence[str], part: str, origin: Origin) -> int:
    if is_index(part, len(items)):
        return int(part)
    raise UserError(
        f"{origin.label}: {origin.word!r}: {'.'.join(keys)} is a list of {len(items)}; expected an "
        f"index from 0 to {len(items) - 1} instead of {part!r}."
    )


def is_index(text: str, size: int) -> bool:
    """Whether a key is the number of one of `size` entries."""
    return text.isascii() and text.isdigit() and len(text) < 10 and int(text) < size
