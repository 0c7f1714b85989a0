"""From a row of any file to the messages and fields of a task.

A *path* names a column (`question`) or walks into one (`reward_model.ground_truth`, `choices.0`);
JSON text inside a column is opened on the way. A *template* is text with paths in braces
(`Question: {question}`); braces that should stay are doubled.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from burnish.boundary import Settings
from burnish.errors import ArgumentError, UserError, did_you_mean
from burnish.records import Content, MediaPart, Message, TextPart
from burnish.tasks.media_columns import (
    PLACE,
    CheckedBlobs,
    by_hash,
    by_reference,
    placed,
    read_media,
)

_MESSAGES = Annotated[tuple[Message, ...], Meta(min_length=1)]


class RowError(Exception):
    """A row that cannot become a task; the message says what was got and expected."""


class Draft(NamedTuple):
    """What a row becomes before it has an id and a side."""

    messages: tuple[Message, ...]
    fields: dict[str, Any]


class Columns(Settings, frozen=True, kw_only=True):
    """Which columns make the prompt and the fields of a task."""

    prompt: str = ""
    """A path, or a template: anything with a brace, or with a place such as `<image>` or `<audio2>`."""
    messages: str = ""
    """Path of a list of chat messages; instead of `prompt`."""
    fields: dict[str, str] = msgspec.field(default_factory=dict)
    """Field name -> path. Rewards bind these names."""
    optional: tuple[str, ...] = ()
    """Fields that may be missing or null."""
    system: str = ""
    """A system message; replaces the row's own."""
    template: str = ""
    """Rewrites the last user message: `{prompt}` is its text, other names are paths."""
    images: str | tuple[str, ...] = ()
    """Path of a column of images, or several: bytes, `{bytes, path}`, paths, `data:` addresses, or
    lists of these. They stand at `<image>` in the prompt, else before it."""
    audio: str | tuple[str, ...] = ()
    """The same for sounds, at `<audio>`."""
    media_folder: str = ""
    """Folder that paths of images and sounds start at and may not leave; that of the file where
    empty."""

    pictures: tuple[str, ...] = ()
    """Fields with images that are no part of the prompt: paths start at the media folder too, and each
    image stands in its field by its hash. Numbers stay what they are."""

    def check(self) -> None:
        if self.prompt and self.messages:
            raise ArgumentError("prompt: got both it and messages, expected exactly one")
        if self.prompt or self.messages:  # else columns are found by their names, and checked then
            self.check_columns()
        for key, template in (("prompt", self.prompt), ("template", self.template)):
            try:
                _template_paths(template)
            except ValueError as error:
                raise ArgumentError(f"{key}: {template!r}: {error}. Double plain braces") from None

    def check_columns(self) -> None:
        if (place := PLACE.search(f"{self.prompt} {self.template}")) and not self.media_paths:
            raise ArgumentError(f"{place[0]} in the prompt, but no column; set images or audio")
        self.check_names("optional", self.optional)

    def check_names(self, setting: str, names: Iterable[str]) -> None:
        for name in names:
            if name not in self.fields:
                known = f"({', '.join(self.fields) or 'none'}).{did_you_mean(name, self.fields)}"
                raise ArgumentError(f"{setting} names '{name}', which is not in fields {known}")

    def paths(self) -> list[str]:
        """Every path that each row must have, once."""
        wanted = [self.messages or self.prompt]
        if not self.messages and _is_template(self.prompt):
            wanted = _template_paths(self.prompt)
        wanted += [path for name, path in self.fields.items() if name not in self.optional]
        wanted += [path for path in _template_paths(self.template) if path != "prompt"]
        wanted += self.media_paths
        return list(dict.fromkeys(wanted))

    @property
    def media_paths(self) -> list[str]:
        both = ([one] if isinstance(one, str) else one for one in (self.images, self.audio))
        return [path for paths in both for path in paths if path]

    def draft(self, row: Mapping[str, Any], folder: Path | None = None) -> Draft:
        """Read one row; paths of media start at `folder`. Raises `RowError`."""
        if self.messages:
            value, has_places = look_up(row, self.messages), bool(self.media_paths)
            messages = read_messages(value, self.messages, folder, has_places=has_places)
        elif _is_template(self.prompt):
            messages = (Message("user", _fill(self.prompt, row)),)
        else:
            messages = (Message("user", _text(look_up(row, self.prompt), self.prompt)),)
        if self.template:
            last = max((k for k, m in enumerate(messages) if m.role == "user"), default=None)
            if last is None:
                raise RowError("no user message, expected one for the template")
            content = _fill(self.template, row, messages[last].content)
            messages = (*messages[:last], Message("user", content), *messages[last + 1 :])
        if self.media_paths:
            messages = self._with_columns(messages, row, folder)
        if not any(m.role == "user" and m.text.strip() for m in messages):
            raise RowError("the prompt is empty, expected text")
        messages = under_system(messages, self.system)
        fields = {name: self._value(row, name, path, folder) for name, path in self.fields.items()}
        return Draft(messages, fields)

    def _value(self, row: Mapping[str, Any], name: str, path: str, folder: Path | None) -> Any:
        if name in self.optional and not has(row, path):
            return None
        value = look_up(row, path)
        if value is None and name not in self.optional:
            raise RowError(f"'{path}' is null, expected a value (or list '{name}' under optional)")
        if name in self.pictures:
            try:
                value = by_reference(value, folder, CheckedBlobs())
            except UserError as error:
                raise RowError(f"'{path}': {error}") from None
        # Dates, decimals and bytes of Parquet become text, so that every field is JSON-able.
        return msgspec.to_builtins(value, str_keys=True)

    def _with_columns(
        self, messages: tuple[Message, ...], row: Mapping[str, Any], folder: Path | None
    ) -> tuple[Message, ...]:
        blobs, media, path = CheckedBlobs(), list[MediaPart](), ""
        try:
            for path in self.media_paths:
                media += read_media(_opened(look_up(row, path)), folder, blobs)
            path = ", ".join(self.media_paths)
            return placed(messages, media)
        except UserError as error:
            raise RowError(f"'{path}': {error}") from None


def under_system(messages: tuple[Message, ...], system: str) -> tuple[Message, ...]:
    """The messages with a system message in the place of their own; as they are where it is empty."""
    rest = messages[1:] if messages[0].role == "system" else messages
    return (Message("system", system), *rest) if system else messages


def missing_columns(columns: Columns, rows: Iterable[Mapping[str, Any]], where: str) -> None:
    """Raise one error that lists every path that no row has."""
    rows = list(rows)
    missing = [path for path in columns.paths() if not any(has(row, path) for row in rows)]
    if not missing or not rows:
        return
    known: dict[str, None] = {}
    for row in rows[:20]:
        for name, value in row.items():
            inner = _opened(value)
            keys = inner if isinstance(inner, dict) else ()
            known |= dict.fromkeys((name, *(f"{name}.{key}" for key in keys)))
    hints = [did_you_mean(path, list(known)).strip() for path in missing]
    listed = ", ".join(
        f"'{path}'" + (f" ({hint[0].lower()}{hint[1:]})" if hint else "")
        for path, hint in zip(missing, hints, strict=True)
    )
    raise UserError(f"{where}: no column {listed}; the file has {', '.join(known)}.")


def look_up(row: Mapping[str, Any], path: str) -> Any:
    """The value at a path; a name with dots of its own wins over walking."""
    if path in row:
        return row[path]
    value: Any = row
    for step in path.split("."):
        value = _opened(value)
        if isinstance(value, Mapping) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            raise RowError(f"no '{path}' in this row")
    return value


def has(row: Mapping[str, Any], path: str) -> bool:
    try:
        look_up(row, path)
    except RowError:
        return False
    return True


def _opened(value: Any) -> Any:
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            return value
    return value


def _text(value: Any, path: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise RowError(f"'{path}' is {type(value).__name__}, expected text")


def read_messages(
    value: Any, path: str, folder: Path | None = None, *, has_places: bool = False
) -> tuple[Message, ...]:
    """Chat messages of a row, also as JSON text; raises `RowError`.

    With `has_places`, a part `{"type": "image"}` stands for the next image of another column.
    """
    turns = _opened(value)
    if isinstance(turns, list):
        # Columnar files write a null for every key that a message does not have.
        turns = [
            {k: v for k, v in turn.items() if v is not None} if isinstance(turn, dict) else turn
            for turn in turns
        ]
    try:
        if isinstance(turns, list):
            turns = [_with_media(turn, folder, has_places) for turn in turns]
        messages: tuple[Message, ...] = msgspec.convert(turns, _MESSAGES)
    except UserError as error:
        raise RowError(f"'{path}': {error}") from None
    except msgspec.ValidationError as error:
        raise RowError(f"'{path}' is not a list of chat messages ({error})") from None
    return messages


def _with_media(turn: Any, folder: Path | None, has_places: bool) -> Any:
    """A turn whose content is parts, its media stored; others as they are.

    Parts are those of OpenAI's protocol, or `{"type": "image", "image": ...}` with a value as a column
    of images has it, as the datasets of vision-language models have them.
    """
    if not isinstance(turn, dict) or not isinstance(turn.get("content"), list):
        return turn
    from burnish.lm.wire import read_content

    blobs, parts = CheckedBlobs(), list[Any]()
    for part in turn["content"]:
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(part, dict):
            part = {name: one for name, one in part.items() if one is not None}
        if kind in ("image", "audio") and "sha256" in part:
            parts += by_hash(read_content([part], blobs), folder, blobs)
        elif kind in ("image", "audio"):
            if kind in part:
                parts += read_media(part[kind], folder, blobs)
            elif has_places:
                parts.append(TextPart(f"<{kind}>"))
            else:
                raise UserError(f"a part of type '{kind}' without its bytes; name the column")
        else:
            parts += read_content([part], blobs)
    return {**turn, "content": tuple(parts)}


def _is_template(prompt: str) -> bool:
    return "{" in prompt or PLACE.search(prompt) is not None


def _template_paths(template: str) -> list[str]:
    paths = []
    for _, path, spec, conversion in string.Formatter().parse(template):
        if path is None:
            continue
        if not path or spec or conversion:
            raise ValueError(f"'{{{path}}}' does not name a column")
        paths.append(path)
    return paths


def _fill(template: str, row: Mapping[str, Any], prompt: Content | None = None) -> Content:
    """Put columns into a template. Values are never read as templates themselves.

    Images and sounds of a prompt stay where they are.
    """
    parts: list[Any] = []
    for literal, path, _, _ in string.Formatter().parse(template):
        parts += [TextPart(literal)] if literal else []
        if path == "prompt" and prompt is not None:
            parts += [TextPart(prompt)] if isinstance(prompt, str) else prompt
        elif path is not None:
            parts.append(TextPart(_text(look_up(row, path), path)))
    return tuple(parts) if isinstance(prompt, tuple) else "".join(part.text for part in parts)
