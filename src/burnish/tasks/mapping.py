"""From a row of any file to the messages and fields of a task.

A *path* names a column (`question`) or walks into one (`reward_model.ground_truth`, `choices.0`);
JSON text inside a column is opened on the way. A *template* is text with paths in braces
(`Question: {question}`); braces that should stay are doubled. Columns of images and sounds are read by
`burnish.tasks.media_columns`.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from burnish.boundary import Settings
from burnish.errors import ArgumentError, UserError, did_you_mean
from burnish.records import Content, MediaPart, Message, TextPart
from burnish.tasks.media_columns import (
    PLACE,
    CheckedBlobs,
    by_hash,
    by_reference,
    check_kind,
    placed,
    read_media,
)


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
                raise ArgumentError(
                    f"{key}: got {template!r}: {error}. Write {{{{ and }}}} for plain braces"
                ) from None

    def check_columns(self) -> None:
        """Refuse names of columns that do not go together."""
        if (place := PLACE.search(f"{self.prompt} {self.template}")) and not self.media_paths:
            setting = "images" if place[1] == "image" else "audio"
            raise ArgumentError(f"{place[0]} in the prompt, but no column; name it with {setting}")
        self.check_names("optional", self.optional)

    def check_names(self, setting: str, names: Iterable[str]) -> None:
        """Refuse a name that is none of the fields."""
        for name in names:
            if name not in self.fields:
                raise ArgumentError(
                    f"{setting} names '{name}', which is not in fields "
                    f"({', '.join(self.fields) or 'none'}).{did_you_mean(name, self.fields)}"
                )

    def paths(self) -> list[str]:
        """Every path that each row must have, once."""
        wanted = [self.messages] if self.messages else _paths_of(self.prompt)
        wanted += [path for name, path in self.fields.items() if name not in self.optional]
        wanted += [path for path in _template_paths(self.template) if path != "prompt"]
        wanted += self.media_paths
        return list(dict.fromkeys(wanted))

    @property
    def media_paths(self) -> list[str]:
        """The columns of images and of sounds."""
        return [*self._paths("images"), *self._paths("audio")]

    def _paths(self, setting: Literal["images", "audio"]) -> list[str]:
        given = self.images if setting == "images" else self.audio
        return [path for path in ([given] if isinstance(given, str) else given) if path]

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
            messages = self._rewritten(messages, row)
        if self.media_paths:
            messages = self._with_columns(messages, row, folder)
        if not any(m.role == "user" and m.text.strip() for m in messages):
            raise RowError("the prompt is empty, expected text")
        if self.system:
            rest = messages[1:] if messages[0].role == "system" else messages
            messages = (Message("system", self.system), *rest)
        return Draft(messages, {name: self._field(row, name, folder) for name in self.fields})

    def _field(self, row: Mapping[str, Any], name: str, folder: Path | None) -> Any:
        path = self.fields[name]
        if name in self.optional and not has(row, path):
            return None
        value = look_up(row, path)
        if value is None and name not in self.optional:
            raise RowError(
                f"'{path}' is null, expected a value (list '{name}' under optional to allow it)"
            )
        if name in self.pictures:
            try:
                value = by_reference(value, folder, CheckedBlobs())
            except UserError as error:
                raise RowError(f"'{path}': {error}") from None
        # Dates, decimals and bytes of Parquet become text, so that every field is JSON-able.
        return msgspec.to_builtins(value, str_keys=True)

    def _rewritten(
        self, messages: tuple[Message, ...], row: Mapping[str, Any]
    ) -> tuple[Message, ...]:
        last = max((k for k, m in enumerate(messages) if m.role == "user"), default=None)
        if last is None:
            raise RowError("no user message, expected one for the template")
        content = _fill_content(self.template, row, messages[last].content)
        return (*messages[:last], Message("user", content), *messages[last + 1 :])

    def _with_columns(
        self, messages: tuple[Message, ...], row: Mapping[str, Any], folder: Path | None
    ) -> tuple[Message, ...]:
        blobs, media, path = CheckedBlobs(), list[MediaPart](), ""
        try:
            settings: tuple[Literal["images", "audio"], ...] = ("images", "audio")
            for setting in settings:
                for path in self._paths(setting):
                    read = read_media(_opened(look_up(row, path)), folder, blobs)
                    check_kind(setting, read)
                    media += read
            path = ", ".join(self.media_paths)
            return placed(messages, media)
        except UserError as error:
            raise RowError(f"'{path}': {error}") from None


def missing_columns(columns: Columns, rows: Iterable[Mapping[str, Any]], where: str) -> None:
    """Raise one error that lists every path that no row has."""
    rows = list(rows)
    missing = [path for path in columns.paths() if not any(has(row, path) for row in rows)]
    if not missing or not rows:
        return
    known = list(dict.fromkeys(name for row in rows[:20] for name in _names(row)))
    listed = ", ".join(f"'{path}'{_hint(path, known)}" for path in missing)
    raise UserError(f"{where}: no column {listed}; the file has {', '.join(known)}.")


def _hint(path: str, known: list[str]) -> str:
    hint = did_you_mean(path, known).strip()
    return f" ({hint[0].lower()}{hint[1:]})" if hint else ""


def look_up(row: Mapping[str, Any], path: str) -> Any:
    """The value at a path; a column whose own name has dots wins over walking."""
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
    """Whether a row has a value or a null at a path."""
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
        messages = msgspec.convert(turns, tuple[Message, ...])
    except UserError as error:
        raise RowError(f"'{path}': {error}") from None
    except msgspec.ValidationError as error:
        raise RowError(
            f"'{path}' is not a list of chat messages ({error}), expected [{{role, content}}, ...]"
        ) from None
    if not messages:
        raise RowError(f"'{path}' is an empty list, expected chat messages")
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
                raise UserError(
                    f"a part of type '{kind}' without its bytes; name the column that has them with "
                    f"{'images' if kind == 'image' else 'audio'}"
                )
        else:
            parts += read_content([part], blobs)
    return {**turn, "content": tuple(parts)}


def _paths_of(prompt: str) -> list[str]:
    return _template_paths(prompt) if _is_template(prompt) else [prompt]


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


def _fill(template: str, row: Mapping[str, Any]) -> str:
    """Put columns into a template. Values are never read as templates themselves."""
    filled = []
    for literal, path, _, _ in string.Formatter().parse(template):
        filled.append(literal)
        if path is not None:
            filled.append(_text(look_up(row, path), path))
    return "".join(filled)


def _fill_content(template: str, row: Mapping[str, Any], prompt: Content) -> Content:
    """The same around a prompt that may hold images and sounds, which stay where they are."""
    if isinstance(prompt, str):
        return _fill(template, {**row, "prompt": prompt})
    parts: list[Any] = []
    for literal, path, _, _ in string.Formatter().parse(template):
        parts += [TextPart(literal)] if literal else []
        if path == "prompt":
            parts += prompt
        elif path is not None:
            parts.append(TextPart(_text(look_up(row, path), path)))
    return tuple(parts)


def _names(row: Mapping[str, Any]) -> list[str]:
    """Columns, with the keys of nested objects as dotted paths."""
    names = []
    for name, value in row.items():
        names.append(name)
        inner = _opened(value)
        if isinstance(inner, dict):
            names += [f"{name}.{key}" for key in inner]
    return names
