"""Rows of a benchmark's published files, checked for the columns that its loader needs."""

from __future__ import annotations

import ast
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from burnish.bench.items import Choice, Item, message, responses_of, shuffled
from burnish.errors import UserError, did_you_mean
from burnish.records import MediaPart
from burnish.source import describe
from burnish.tasks.mapping import RowError, read_messages
from burnish.tasks.media_columns import CheckedBlobs, holds_media, placed, read_media
from burnish.tasks.rows import SUFFIXES, read_table

T = TypeVar("T")
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
    files = [path]
    if path.is_dir():
        files = sorted(f for f in path.rglob("*") if f.suffix.lower() in SUFFIXES and f.is_file())
    if not files:
        raise UserError(f"{path}: no data file; expected {bench} as {', '.join(SUFFIXES)}.")
    rows: list[Source] = []
    problems: list[UserError] = []
    for file in files:
        try:
            rows += _shaped(read_sources(file), bench, shapes)
        except UserError as error:
            problems.append(error)
    if problems and not rows:
        raise problems[0]
    for problem in problems:
        logger.warning("left out: %s", problem)
    return rows


def _shaped(rows: list[Source], bench: str, shapes: Sequence[Sequence[str]]) -> list[Source]:
    for row in rows:
        got = row.values
        if any(all(column in got for column in shape) for shape in shapes):
            continue
        nearest = max(shapes, key=lambda shape: sum(column in got for column in shape))
        missing = [column for column in nearest if column not in got]
        near = did_you_mean(missing[0], got)
        raise UserError(
            f"{row.where}: no column {', '.join(missing)}, so this is not {bench}.{near}"
        )
    return rows


def read_each(
    path: Path,
    bench: str,
    shapes: Sequence[Sequence[str]],
    read: Callable[[Source], Iterable[T]],
) -> list[T]:
    """What `read` makes of every row; a row that it cannot read is refused by its place."""
    found: list[T] = []
    for row in read_rows(path, bench, shapes):
        try:
            found += read(row)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(f"{row.where}: no row of {bench}: {describe(error)}.") from error
    return found


def posed(
    id: str, prompt: str, texts: Sequence[str], best: Choice | None, subset: str = "", **more: Any
) -> Item:
    """An item of one question and the responses to it."""
    return Item(id, message(prompt), responses_of(id, texts), best, subset, **more)


def ranked(
    id: str, prompt: str, right: Sequence[str], wrong: Sequence[str], subset: str = "", **more: Any
) -> Item:
    """An item of right and wrong responses, in an order drawn from its id."""
    texts, best, _ = shuffled(id, right, wrong)
    return posed(id, prompt, texts, best, subset, **more)


def words_of(source: Source, *columns: str) -> tuple[str, ...]:
    """The texts of columns that belong together; none where one is empty."""
    found = tuple(str(source.values.get(name) or "") for name in columns)
    return found if all(found) else ()


def label_of(source: Source, column: str, known: Mapping[str, T]) -> T:
    """What a label stands for; one that no one knows is refused."""
    value = source.values.get(column)
    whole = int(value) if isinstance(value, float) and value.is_integer() else value
    for name, meaning in known.items():
        if name.lower() == str(whole).strip().lower():
            return meaning
    raise UserError(f"{source.where}: '{column}' is {value!r:.60}; expected {', '.join(known)}.")


def read_sources(path: Path) -> list[Source]:
    """Every row of a file that was named on the command line; a bad row is refused."""
    table = read_table(path)
    if table.bad:
        raise UserError(f"{path}:{table.bad[0].number}: {table.bad[0].why}.")
    return [Source(path, row.number, row.values) for row in table.rows]


def text_of(source: Source, column: str) -> str:
    value = source.values.get(column)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return _as(str, source, column, value)


def list_of(source: Source, column: str) -> list[Any]:
    return _as(list[Any], source, column, parsed(source, column))


def texts_of(source: Source, column: str) -> list[str]:
    return _as(list[str], source, column, parsed(source, column))


def _as(kind: type[T], source: Source, column: str, value: Any) -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise UserError(f"{source.where}: '{column}' is {value!r:.60}: {error}.") from None


def parsed(source: Source, column: str) -> Any:
    """A column's value; text that is JSON, or a Python literal as some exports write it, is read."""
    value = source.values.get(column)
    if not isinstance(value, str):
        return value
    for read in (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            return read(value)
    return value


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
    if missing := next((column for column in show if column not in known), ""):
        raise UserError(f"{path}: no column '{missing}' to show.{did_you_mean(missing, known)}")
    items = items_of(rows, show)
    twice = [id for id, count in Counter(item.id for item in items).items() if count > 1]
    if twice:
        raise UserError(f"{path}: two rows have the id '{twice[0]}'; each needs its own.")
    return items


def items_of(rows: Sequence[Source], show: Sequence[str] = ()) -> list[Item]:
    folder = rows[0].path.parent if rows else None
    media = [name for name in MEDIA if holds_media((row.values.get(name) for row in rows), folder)]
    return [_item_of(row, show, media) for row in rows]


def _item_of(row: Source, show: Sequence[str], media: Sequence[str]) -> Item:
    values = row.values
    id = str(values["id"]) if values.get("id") is not None else f"row-{row.number}"
    used = {"id", "winner", "subset", "authors", "models"}
    texts, best, authors, columns = _responses(row, id)
    prompt = next((name for name in PROMPTS if values.get(name)), "")
    if not prompt:
        raise _lacks(row, "prompt", f"one of {', '.join(PROMPTS)}")
    used |= {prompt, *media, *columns}
    fields = {k: v for k, v in values.items() if k not in used or k in show}
    folder, parts = row.path.parent, list[MediaPart]()
    try:
        for name in media:
            parts += read_media(values.get(name), folder, CheckedBlobs())
        turns = message(values[prompt]) if isinstance(values[prompt], str) else values[prompt]
        if not isinstance(turns, tuple):
            turns = read_messages(turns, prompt, folder, has_places=bool(parts))
        messages = placed(turns, parts)
    except RowError as error:
        raise UserError(f"{row.where}: {error}.") from None
    except UserError as error:
        raise UserError(f"{row.where}: '{', '.join((*media, prompt))}': {error}.") from None
    return Item(
        id,
        messages,
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
        names = words_of(row, "chosen_model", "rejected_model")
        authors = tuple(names[place] for place in order) if names else ()
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
    raise _lacks(row, "response", "response, responses, a and b, or chosen and rejected")


def _lacks(row: Source, what: str, expected: str) -> UserError:
    got = ", ".join(row.values) or "nothing"
    return UserError(f"{row.where}: no {what}; expected {expected}; got {got}.")


def _winner(row: Source) -> Choice | None:
    return None if row.values.get("winner") is None else label_of(row, "winner", WINNERS)


def _authors(row: Source, count: int) -> tuple[tuple[str, ...], set[str]]:
    for pair in AUTHORS if count == 2 else ():
        if named := words_of(row, *pair):
            return named, set(pair)
    for name in ("authors", "models"):
        listed = row.values.get(name)
        if isinstance(listed, list) and len(listed) == count:
            return tuple(map(str, listed)), {name}
    return (), set()


def _text(row: Source, value: Any, column: str) -> str:
    if isinstance(value, list) and value and isinstance(value[-1], dict):
        value = value[-1]
    if isinstance(value, dict):
        value = value.get("text", value.get("content"))
    if not isinstance(value, str):
        raise UserError(f"{row.where}: '{column}' is {type(value).__name__}; expected text.")
    return value
