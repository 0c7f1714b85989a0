"""Any file of rows as a finite task set, with a field mapping and a held-out side.

    File(path="train.jsonl", prompt="question", fields={"answer": "reward_model.ground_truth"})

Whatever the split, training and held-out tasks are disjoint by content: equal prompts fall on the
same side of a share, and a training row whose prompt also stands in the held-out file is left out
and counted.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from burnish.errors import UserError, did_you_mean
from burnish.memory import is_kept
from burnish.records import Task
from burnish.seeds import digest
from burnish.tasks.base import FiniteTasks, content_key, is_held_out
from burnish.tasks.mapping import (
    Columns,
    Draft,
    RowError,
    check_columns,
    has,
    look_up,
    missing_columns,
)
from burnish.tasks.rows import BadRow, Format, Row, Table, read_table

SHOWN_BAD_ROWS = 3


class HeldOutFile(Struct, frozen=True, forbid_unknown_fields=True, tag_field="by", tag="file"):
    """Held-out tasks come from a file of their own."""

    path: Annotated[str, Meta(min_length=1)]
    """The file, in the format of the training file."""


class HeldOutShare(Struct, frozen=True, forbid_unknown_fields=True, tag_field="by", tag="share"):
    """A share of the rows, chosen by a hash of the prompt; 0 holds nothing out."""

    share: Annotated[float, Meta(ge=0.0, le=0.9)] = 0.1
    """Share of the rows."""


class HeldOutColumn(Struct, frozen=True, forbid_unknown_fields=True, tag_field="by", tag="column"):
    """Rows whose column has one of these values."""

    column: Annotated[str, Meta(min_length=1)]
    """Path of the column."""
    values: Annotated[tuple[str, ...], Meta(min_length=1)]
    """Values that are held out."""


HeldOut = HeldOutFile | HeldOutShare | HeldOutColumn


class File(
    Columns, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="file"
):
    """Tasks from a JSONL, JSON, CSV, TSV or Parquet file."""

    path: Annotated[str, Meta(min_length=1)]
    """JSONL, JSON, CSV, TSV or Parquet file."""
    name: str = ""
    """The file's stem where empty."""
    format: Format = "auto"
    """By the file's ending where `auto`."""
    id: str = ""
    """Path of a column of unique ids; the row number where empty."""
    labels: tuple[str, ...] | None = None
    """Fields that a judge must not see; all of them where not given."""
    held_out: HeldOut = HeldOutShare()
    """Which rows are never trained on."""
    bad_rows: Literal["refuse", "skip"] = "refuse"
    """What happens to rows that lack a column: stop, or leave them out and count them."""

    def build(self, seed: int, root: Path) -> FiniteTasks:
        """The task set; a relative path starts at `root`."""
        return load_file(self, seed, root)


class Entry(NamedTuple):
    """A usable row."""

    row: Row
    key: str
    task: Task


Finish = Callable[[Draft], Draft]
"""Last word on a row, such as taking the answer out of a worked solution; raises `RowError`."""


def load_file(
    config: File,
    seed: int,
    root: Path,
    finish: Finish = lambda draft: draft,
    labels: tuple[str, ...] = (),
) -> FiniteTasks:
    """Read, map and split; every mistake in the file is reported before the first task is used.

    `labels` names label-bearing fields that `finish` adds.
    """
    path = _place(config.path, root)
    table = None
    if not config.prompt and not config.messages:
        table = read_table(path, config.format)
        config = _mapped_by_name(config, table)
    check_columns(config, str(path))
    labels = (*_labels(config, path), *labels)
    name = config.name or path.stem
    table = table or read_table(path, config.format)
    notes: list[str] = []
    entries = _entries(config, table, name, labels, finish, notes)
    contents = [table.content, *_media_hashes(config, entries)]
    if isinstance(config.held_out, HeldOutFile):
        other = read_table(_place(config.held_out.path, root), config.format)
        held_out = _entries(config, other, f"{name}/held-out", labels, finish, notes)
        contents += [other.content, *_media_hashes(config, held_out)]
        train = entries
    else:
        train, held_out = _split(config.held_out, entries, path)
    _note_repeated(train, held_out, table, notes)
    train = _without_overlap(train, held_out, path, notes)
    return FiniteTasks(
        name=name,
        fields=frozenset(entries[0].task.fields),
        fingerprint=digest(*contents, _settings(config)),
        seed=seed,
        train_tasks=tuple(entry.task for entry in train),
        # By content and not by position, so that a limit is a fair sample of a sorted file.
        held_out_tasks=tuple(e.task for e in sorted(_distinct(held_out), key=lambda e: e.key)),
        notes=tuple(notes),
    )


def _mapped_by_name(config: File, table: Table) -> File:
    """A file whose rows have `prompt` or `messages` needs no mapping: other columns are fields."""
    rows = [row.values for row in table.rows]
    names = list(dict.fromkeys(name for row in rows for name in row))
    source = next((name for name in ("prompt", "messages") if name in names), "")
    if not source:
        known = ", ".join(names[:8]) or "none"
        raise UserError(
            f"{table.path}: no column prompt or messages; the file has {known}. Say which column "
            "is the prompt with task.prompt, and which are fields with task.fields."
        )
    config = _media_by_name(config, rows, names, _media_folder(config, table))
    is_chat = source == "messages" or any(isinstance(row.get(source), list) for row in rows)
    given = {"messages" if is_chat else "prompt": source}
    if config.fields:
        return msgspec.structs.replace(config, **given)
    taken = (source, config.id, *config.media_paths)
    fields = {name: name for name in names if name not in taken}
    gaps = tuple(name for name in fields if any(row.get(name) is None for row in rows))
    optional = (*config.optional, *(name for name in gaps if name not in config.optional))
    return msgspec.structs.replace(config, fields=fields, optional=optional, **given)


def _media_by_name(
    config: File, rows: list[dict[str, Any]], names: list[str], folder: Path | None
) -> File:
    """Columns called image, images or audio that hold such things are no fields, unless named as one."""
    from burnish.tasks.media_columns import holds_media

    found = dict[str, str]()
    named = {*config.pictures, *config.fields, *config.fields.values()}
    for setting, known in (("images", ("images", "image")), ("audio", ("audio", "audios"))):
        for name in known:
            is_free = name in names and name not in named and not getattr(config, setting)
            if is_free and holds_media((row.get(name) for row in rows), folder):
                found.setdefault(setting, name)
    return msgspec.structs.replace(config, **found)


def _place(path: str, root: Path) -> Path:
    """A file from `root`; rows that live in this process have no folder."""
    return Path(path) if is_kept(path) else root / path


def _labels(config: File, path: Path) -> tuple[str, ...]:
    if config.labels is None:
        return tuple(config.fields)
    for label in config.labels:
        if label not in config.fields:
            raise UserError(
                f"{path}: labels names '{label}', which is not in fields "
                f"({', '.join(config.fields) or 'none'}).{did_you_mean(label, config.fields)}"
            )
    return config.labels


def _settings(config: File) -> bytes:
    """The mapping without its paths: moving a file does not make it another dataset."""
    settings = msgspec.to_builtins(config)
    settings.pop("path")
    settings["held_out"].pop("path", None)
    for name in ("images", "audio", "pictures", "media_folder"):
        # A file without media has the fingerprint that it had before there were any; where the
        # media stand does not matter, what they are is hashed with the rows.
        if name == "media_folder" or not settings[name]:
            settings.pop(name)
    return msgspec.json.encode(settings, order="deterministic")


def _entries(
    config: File,
    table: Table,
    name: str,
    labels: tuple[str, ...],
    finish: Finish,
    notes: list[str],
) -> list[Entry]:
    missing_columns(config, (row.values for row in table.rows), str(table.path))
    bad, ids, entries = list(table.bad), dict[str, int](), list[Entry]()
    folder = _media_folder(config, table)
    for row in table.rows:
        try:
            draft = finish(config.draft(row.values, folder))
            row_id = _row_id(config, row, ids)
        except RowError as error:
            bad.append(BadRow(row.number, str(error)))
            continue
        task = Task(
            id=f"{name}/{row_id}",
            messages=draft.messages,
            fields=draft.fields,
            labels=labels,
            source=name,
        )
        entries.append(Entry(row, content_key(draft.messages), task))
    _report_bad(config, table, bad, notes)
    if not entries:
        raise UserError(f"{table.path}: no usable row ({len(bad)} skipped); expected at least one.")
    return entries


def _media_folder(config: File, table: Table) -> Path | None:
    """Where the paths of its images and sounds begin; rows kept in this process have none."""
    return None if is_kept(str(table.path)) else table.path.parent / config.media_folder


def _media_hashes(config: File, entries: list[Entry]) -> list[bytes]:
    """Of the images and sounds, which may stand in files of their own."""
    found = []
    for task in (entry.task for entry in entries):
        found += [part.sha256 for message in task.messages for part in message.media]
        for value in (task.fields.get(name) for name in config.pictures):
            listed = value if isinstance(value, list) else [value]
            found += [one["sha256"] for one in listed if isinstance(one, dict)]
    return [b"".join(map(bytes.fromhex, found))] if found else []


def _row_id(config: File, row: Row, ids: dict[str, int]) -> str:
    row_id = str(look_up(row.values, config.id)) if config.id else str(row.number)
    if row_id in ids:
        raise RowError(f"id '{row_id}' is also that of row {ids[row_id]}, expected unique ids")
    ids[row_id] = row.number
    return row_id


def _report_bad(config: File, table: Table, bad: list[BadRow], notes: list[str]) -> None:
    if not bad:
        return
    first = sorted(bad)[:SHOWN_BAD_ROWS]
    shown = "; ".join(f"{table.path}:{row.number}: {row.why}" for row in first)
    more = f"; and {len(bad) - len(first)} more" if len(bad) > len(first) else ""
    total = len(table.rows) + len(table.bad)
    if config.bad_rows == "refuse":
        raise UserError(f"{shown}{more}. Mend the file, or set task.bad_rows = 'skip'.")
    notes.append(f"{table.path.name}: {len(bad)} of {total} rows skipped ({shown}{more}).")


def _split(
    how: HeldOutShare | HeldOutColumn, entries: list[Entry], path: Path
) -> tuple[list[Entry], list[Entry]]:
    if isinstance(how, HeldOutColumn):
        chosen = _keys_by_column(how, entries, path)
    else:
        chosen = _keys_by_share(how.share, entries, path)
    train = [entry for entry in entries if entry.key not in chosen]
    return train, [entry for entry in entries if entry.key in chosen]


def _keys_by_share(share: float, entries: list[Entry], path: Path) -> set[str]:
    """By hash; a tiny file still gets one prompt on each side."""
    keys = {entry.key for entry in entries}
    if share == 0:
        return set()
    if len(keys) < 2:
        begin = f"{path}: one prompt cannot be split into training and held-out; add rows, or "
        raise UserError(
            f"{begin}set held_out = {{ by = 'share', share = 0 }}.",
            python=f"{begin}give held_out=0.",
        )
    chosen = {key for key in keys if is_held_out(key, share)}
    return (chosen or {min(keys)}) if len(chosen) < len(keys) else chosen - {max(keys)}


def _keys_by_column(how: HeldOutColumn, entries: list[Entry], path: Path) -> set[str]:
    found = [_column_value(entry, how.column) for entry in entries]
    if all(value is None for value in found):
        known = list(entries[0].row.values)
        raise UserError(
            f"{path}: held_out column '{how.column}' is in no row."
            f"{did_you_mean(how.column, known)} The file has {', '.join(known)}."
        )
    chosen = {e.key for e, value in zip(entries, found, strict=True) if value in how.values}
    if not chosen:
        known = sorted({value for value in found if value is not None})
        raise UserError(
            f"{path}: no row has '{how.column}' in {list(how.values)}; it holds "
            f"{', '.join(map(repr, known[:8]))}.{did_you_mean(how.values[0], known)}"
        )
    return chosen


def _column_value(entry: Entry, column: str) -> str | None:
    return str(look_up(entry.row.values, column)) if has(entry.row.values, column) else None


def _without_overlap(
    train: list[Entry], held_out: list[Entry], path: Path, notes: list[str]
) -> list[Entry]:
    shown = {entry.key for entry in held_out}
    kept = [entry for entry in train if entry.key not in shown]
    if not kept:
        raise UserError(
            f"{path}: no training row is left: every row is held out or repeats a held-out prompt; "
            "expected at least one."
        )
    if len(kept) < len(train):
        notes.append(
            f"{path.name}: {len(train) - len(kept)} training rows left out because their prompt "
            "is held out."
        )
    return kept


def _note_repeated(
    train: list[Entry], held_out: list[Entry], table: Table, notes: list[str]
) -> None:
    """Say what becomes of rows that repeat a prompt."""
    trained = len(train) - len({entry.key for entry in train})
    dropped = len(held_out) - len(_distinct(held_out))
    fates = []
    if trained:
        fates.append(f"{trained} in training, where each row is a task of its own")
    if dropped:
        fates.append(f"{dropped} held out, where the first row of a prompt is kept")
    if fates:
        rows = f"{trained + dropped} of {len(train) + len(held_out)} rows repeat a prompt"
        notes.append(f"{table.path.name}: {rows}: {'; '.join(fates)}.")


def _distinct(entries: list[Entry]) -> list[Entry]:
    """One entry a prompt, the first of each."""
    return list({entry.key: entry for entry in reversed(entries)}.values())


def as_text(value: Any, path: str) -> str:
    """A field that must be text; raises `RowError`."""
    if not isinstance(value, str):
        raise RowError(f"'{path}' is {type(value).__name__}, expected text")
    return value
