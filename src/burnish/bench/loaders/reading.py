"""Rows of a benchmark's published files, checked for the columns that its loader needs."""

from __future__ import annotations

import ast
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from burnish.bench.items import Choice, Item, message, responses_of, shuffled
from burnish.errors import UserError, did_you_mean
from burnish.records import MediaPart, Message
from burnish.tasks.mapping import RowError, read_messages
from burnish.tasks.media_columns import CheckedBlobs, holds_media, placed, read_media
from burnish.tasks.rows import SUFFIXES, read_table

logger = logging.getLogger(__name__)


class Source(NamedTuple):
    path: Path
    number: int
    values: dict[str, Any]

    @property
    def where(self) -> str:
        return f"{self.path}:{self.number}"


def read_rows(path: Path, bench: str, shapes: Sequence[Sequence[str]]) -> list[Source]:
    """Every row of a file, or of all files of a folder, each with the columns of one of `shapes`.

    A folder may hold files of other kinds: they are left out, each named in a warning. One that
    holds nothing else is refused.
    """
    if not path.is_dir():
        return _read_file(path, bench, shapes)
    rows: list[Source] = []
    problems: list[UserError] = []
    for file in _files(path, bench):
        try:
            rows += _read_file(file, bench, shapes)
        except UserError as error:
            problems.append(error)
    if not rows and problems:
        raise problems[0]
    for problem in problems:
        logger.warning("left out: %s", problem)
    return rows


def _read_file(path: Path, bench: str, shapes: Sequence[Sequence[str]]) -> list[Source]:
    rows = read_sources(path)
    for row in rows:
        _check(row, bench, shapes)
    return rows


def read_sources(path: Path) -> list[Source]:
    """Every row of a file that was named on the command line; a bad row is refused."""
    if not path.exists():
        near = [one.name for one in path.parent.iterdir()] if path.parent.is_dir() else []
        raise UserError(f"{path}: no such file.{did_you_mean(path.name, near)}")
    table = read_table(path)
    if table.bad:
        raise UserError(f"{path}:{table.bad[0].number}: {table.bad[0].why}.")
    return [Source(path, row.number, row.values) for row in table.rows]


def _files(path: Path, bench: str) -> list[Path]:
    found = sorted(f for f in path.rglob("*") if f.suffix.lower() in SUFFIXES and f.is_file())
    if not found:
        raise UserError(
            f"{path}: no data file in this folder; expected {bench} as {', '.join(SUFFIXES)}."
        )
    return found


def _check(source: Source, bench: str, shapes: Sequence[Sequence[str]]) -> None:
    got = source.values
    if any(all(column in got for column in shape) for shape in shapes):
        return
    nearest = max(shapes, key=lambda shape: sum(column in got for column in shape))
    missing = next(column for column in nearest if column not in got)
    raise UserError(
        f"{source.where}: no column '{missing}', so this is not {bench}; expected "
        f"{', '.join(nearest)}; got {', '.join(got) or 'none'}.{did_you_mean(missing, got)}"
    )


def text_of(source: Source, column: str) -> str:
    """A column that must hold text."""
    value = source.values.get(column)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise UserError(
            f"{source.where}: column '{column}' is {type(value).__name__}; expected text."
        )
    return value


def list_of(source: Source, column: str) -> list[Any]:
    """A column that must hold a list, or the same as JSON text."""
    value = parsed(source, column)
    if not isinstance(value, list):
        raise UserError(
            f"{source.where}: column '{column}' is {type(value).__name__}; expected a list."
        )
    return value


def texts_of(source: Source, column: str) -> list[str]:
    """A column that must hold a list of texts."""
    values = list_of(source, column)
    if not all(isinstance(value, str) for value in values):
        raise UserError(f"{source.where}: column '{column}' holds other things than texts.")
    return values


def parsed(source: Source, column: str) -> Any:
    """A column's value; text that is JSON, or a Python literal as some exports write it, is read."""
    value = source.values.get(column)
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        pass
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise UserError(
            f"{source.where}: column '{column}' is text that is no JSON: {value[:60]!r}."
        ) from None


def unknown_label(source: Source, column: str, got: Any, expected: str) -> UserError:
    """The mistake of a label that no one knows."""
    return UserError(f"{source.where}: column '{column}' is {got!r}; expected {expected}.")


PROMPTS = ("prompt", "messages", "question", "instruction")
MEDIA = ("image", "images", "audio", "audios")
PAIRS = (
    ("a", "b"),
    ("response_a", "response_b"),
    ("response_1", "response_2"),
    ("output_1", "output_2"),
)
AUTHORS = (("model_a", "model_b"), ("author_a", "author_b"), ("generator_1", "generator_2"))
WINNERS: dict[str, Choice] = {
    **dict.fromkeys(("a", "1", "model_a", "response_a"), (0,)),
    **dict.fromkeys(("b", "2", "model_b", "response_b"), (1,)),
    **dict.fromkeys(("tie", "0", "equal"), (0, 1)),
}


def read_items(path: Path, *, show: Sequence[str] = ()) -> list[Item]:
    """Every row of a JSONL, JSON, CSV or Parquet file as an item; a row that is none is refused."""
    rows = read_sources(path)
    known = {column for row in rows for column in row.values}
    for column in show:
        if column not in known:
            raise UserError(
                f"{path}: no column '{column}' to show; it has {', '.join(sorted(known))}."
                f"{did_you_mean(column, known)}"
            )
    items = items_of(rows, show)
    seen: set[str] = set()
    for item in items:
        if item.id in seen:
            raise UserError(f"{path}: two rows have the id '{item.id}'; each needs its own.")
        seen.add(item.id)
    return items


def items_of(rows: Sequence[Source], show: Sequence[str] = ()) -> list[Item]:
    """Rows as items."""
    folder = rows[0].path.parent if rows else None
    media = [name for name in MEDIA if holds_media((row.values.get(name) for row in rows), folder)]
    return [_item_of(row, show, media) for row in rows]


def _item_of(row: Source, show: Sequence[str], media: Sequence[str]) -> Item:
    values = row.values
    id = str(values["id"]) if values.get("id") is not None else f"row-{row.number}"
    used = {"id", "winner", "subset", "authors", "models"}
    texts, best, authors, columns = _responses(row, id)
    used |= columns
    prompt_column = next((name for name in PROMPTS if values.get(name)), None)
    if prompt_column is None:
        got = ", ".join(values) or "nothing"
        raise UserError(f"{row.where}: no prompt; expected one of {', '.join(PROMPTS)}; got {got}.")
    used |= {prompt_column, *media}
    fields = {k: v for k, v in values.items() if k not in used or k in show}
    return Item(
        id,
        _messages(row, prompt_column, media),
        responses_of(id, texts),
        best,
        str(values.get("subset") or ""),
        authors=authors,
        shown={k: v for k, v in fields.items() if k in show},
        hidden={k: v for k, v in fields.items() if k not in show},
    )


def _responses(row: Source, id: str) -> tuple[list[str], Choice | None, tuple[str, ...], set[str]]:
    values = row.values
    if values.get("chosen") is not None and values.get("rejected") is not None:
        good, bad = (_text(row, values[name], name) for name in ("chosen", "rejected"))
        texts, best, order = shuffled(id, [good], [bad])
        names = [str(values.get(name) or "") for name in ("chosen_model", "rejected_model")]
        authors = tuple(names[place] for place in order) if all(names) else ()
        return texts, best, authors, {"chosen", "rejected", "chosen_model", "rejected_model"}
    for pair in PAIRS:
        if all(values.get(name) is not None for name in pair):
            texts = [_text(row, values[name], name) for name in pair]
            authors, taken = _authors(row, 2)
            return texts, _winner(row), authors, {*pair, *taken}
    if isinstance(values.get("responses"), list) and values["responses"]:
        texts = [_text(row, one, "responses") for one in values["responses"]]
        authors, taken = _authors(row, len(texts))
        winner = _winner(row) if len(texts) == 2 else None
        return texts, winner, authors, {"responses", *taken}
    for name in ("response", "completion"):
        if values.get(name) is not None:
            return [_text(row, values[name], name)], None, (), {name}
    raise UserError(
        f"{row.where}: no response; expected response, responses, a and b, or chosen and rejected; "
        f"got {', '.join(values) or 'nothing'}."
    )


def _authors(row: Source, count: int) -> tuple[tuple[str, ...], set[str]]:
    for pair in AUTHORS:
        if count == 2 and all(row.values.get(name) for name in pair):
            return tuple(str(row.values[name]) for name in pair), set(pair)
    for name in ("authors", "models"):
        named = row.values.get(name)
        if isinstance(named, list) and len(named) == count:
            return tuple(str(one) for one in named), {name}
    return (), set()


def _winner(row: Source) -> Choice | None:
    value = row.values.get("winner")
    if value is None:
        return None
    best = WINNERS.get(str(value).strip().lower())
    if best is None:
        raise UserError(f"{row.where}: winner is {value!r}; expected a, b or tie.")
    return best


def _text(row: Source, value: Any, column: str) -> str:
    if isinstance(value, list) and value and isinstance(value[-1], dict):
        value = value[-1]
    if isinstance(value, dict):
        value = value.get("text", value.get("content"))
    if not isinstance(value, str):
        raise UserError(f"{row.where}: '{column}' is {type(value).__name__}; expected text.")
    return value


def _messages(row: Source, column: str, media_columns: Sequence[str]) -> tuple[Message, ...]:
    value, folder = row.values[column], row.path.parent
    media, name = list[MediaPart](), ""
    try:
        for name in media_columns:
            media += read_media(row.values.get(name), folder, CheckedBlobs())
        name = column
        if isinstance(value, str):
            return placed(message(value), media)
        if not isinstance(value, list):
            raise UserError(f"{type(value).__name__}; expected text or a list of messages")
        return placed(read_messages(value, column, folder, has_places=bool(media)), media)
    except RowError as error:
        raise UserError(f"{row.where}: {error}.") from None
    except UserError as error:
        raise UserError(f"{row.where}: '{name}': {error}.") from None
