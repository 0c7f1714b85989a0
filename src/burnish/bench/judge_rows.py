"""Your own rows as items to judge: a prompt with one response, two, or several.

    items = read_items(Path("answers.jsonl"))      # {"prompt": ..., "a": ..., "b": ...}

| columns                                     | what is judged                                |
|---------------------------------------------|-----------------------------------------------|
| `response` or `completion`                  | one response                                  |
| `responses`                                 | a list of them                                |
| `a`, `b` (or response_a/_b, _1/_2, output_) | a pair; `winner` is its label, where given    |
| `chosen`, `rejected`                        | a pair whose label is known                   |

The prompt is `prompt`, `messages`, `question` or `instruction`; images and sounds of the columns
`image`, `images` or `audio` belong to it, and paths of them start at the file's folder. Every other
column is hidden from judges unless it is named in `show`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from burnish.bench.items import Choice, Item, message, responses_of, shuffled
from burnish.bench.loaders.reading import Source, read_sources
from burnish.errors import UserError, did_you_mean
from burnish.records import MediaPart, Message
from burnish.tasks.mapping import RowError, read_messages
from burnish.tasks.media_columns import CheckedBlobs, holds_media, placed, read_media

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
    """Texts, label, authors, and the columns that they came from."""
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
    """A text; of a list of messages the last one's."""
    if isinstance(value, list) and value and isinstance(value[-1], dict):
        value = value[-1]
    if isinstance(value, dict):
        value = value.get("text", value.get("content"))
    if not isinstance(value, str):
        raise UserError(f"{row.where}: '{column}' is {type(value).__name__}; expected text.")
    return value


def _messages(row: Source, column: str, media_columns: Sequence[str]) -> tuple[Message, ...]:
    """The prompt, with its images and sounds where they stand."""
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
