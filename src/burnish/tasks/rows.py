"""Rows of a JSONL, JSON, CSV, TSV or Parquet file, each with the place it came from."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from burnish.errors import UserError, did_you_mean, first_line
from burnish.memory import is_kept, recall
from burnish.texts import half_pair

Format = Literal["auto", "jsonl", "json", "csv", "tsv", "parquet"]

SUFFIXES: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}


DEEPEST = 200
"""Levels of lists and objects inside each other that a row may have."""


class Row(NamedTuple):
    """One readable row."""

    number: int
    """Line in a text file, position from 1 elsewhere."""
    values: dict[str, Any]


class BadRow(NamedTuple):
    """One row that cannot be used, and why."""

    number: int
    why: str


class Table(NamedTuple):
    """A file as read: good rows, bad rows, and the bytes that its fingerprint is made of."""

    path: Path
    content: bytes
    rows: list[Row]
    bad: list[BadRow]


def read_table(path: Path, format_: Format = "auto") -> Table:
    """Read a file of rows; a row that cannot be parsed is collected, not raised."""
    kind = _format_of(path) if format_ == "auto" else format_
    content = _content(path)
    if not content.strip():
        raise UserError(f"{path}: the file is empty; expected at least one row of {kind}.")
    rows, bad = _READERS[kind](path, content)
    if not rows and not bad:
        raise UserError(f"{path}: no rows; expected at least one.")
    return Table(path, content, rows, bad)


def _format_of(path: Path) -> Format:
    suffix = path.suffix.lower()
    if path.is_dir():
        inside = sorted(one.name for one in path.iterdir() if one.suffix.lower() in SUFFIXES)
        such = f", such as {path / inside[0]}" if inside else ""
        raise UserError(
            f"{path}: a folder; expected one file of rows ({', '.join(SUFFIXES)}){such}."
        )
    if suffix not in SUFFIXES:
        raise UserError(
            f"{path}: cannot tell the format from '{path.suffix}'; expected one of "
            f"{', '.join(SUFFIXES)}.{did_you_mean(suffix, SUFFIXES)} Or set format."
        )
    return SUFFIXES[suffix]


def _content(path: Path) -> bytes:
    if is_kept(str(path)):
        content: bytes = recall(str(path))
        return content
    try:
        return path.read_bytes()
    except FileNotFoundError:
        siblings = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        raise UserError(
            f"{path}: no such file.{did_you_mean(path.name, siblings)} "
            "Paths are relative to the file that names them."
        ) from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); expected a file.") from None


def _text(path: Path, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UserError(
            f"{path}:{line}: not UTF-8 (byte {content[error.start]:#04x}); save the file as UTF-8."
        ) from None


def _object(number: int, value: Any) -> Row | BadRow:
    if isinstance(value, dict):
        return Row(number, value)
    return BadRow(number, f"got {_kind(value)}, expected an object with named columns")


def _kind(value: Any) -> str:
    names = {list: "a list", str: "text", int: "a number", float: "a number", bool: "true/false"}
    return "null" if value is None else names.get(type(value), type(value).__name__)


def _sorted_out(read: list[Row | BadRow]) -> tuple[list[Row], list[BadRow]]:
    good = [row for row in read if isinstance(row, Row)]
    return good, [row for row in read if isinstance(row, BadRow)]


def _decoded(text: str) -> Any:
    """JSON of a depth that can also be stored and read back, far below Python's own limit."""
    try:
        value = msgspec.json.decode(text)
    except RecursionError:
        raise msgspec.DecodeError("nested too deeply") from None
    except msgspec.DecodeError:
        if half := half_pair(text):
            # The decoder calls this truncated, or says nothing of surrogates.
            raise msgspec.DecodeError(
                f"{half} is half of a surrogate pair, which is no character"
            ) from None
        raise
    if text.count("[") + text.count("{") > DEEPEST and _is_deep([value]):
        raise msgspec.DecodeError(f"nested more than {DEEPEST} levels deep")
    return value


def _is_deep(level: list[Any]) -> bool:
    for _ in range(DEEPEST + 1):
        inner = [value.values() if isinstance(value, dict) else value for value in level]
        level = [item for one in inner for item in one if isinstance(item, dict | list)]
        if not level:
            return False
    return True


def _read_jsonl(path: Path, content: bytes) -> tuple[list[Row], list[BadRow]]:
    read: list[Row | BadRow] = []
    # Split on newlines alone: str.splitlines would also cut at U+2028 inside a JSON string.
    for number, line in enumerate(_text(path, content).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            read.append(_object(number, _decoded(line)))
        except msgspec.DecodeError as error:
            read.append(BadRow(number, f"not JSON ({error}), expected one object a line"))
    return _sorted_out(read)


def _read_json(path: Path, content: bytes) -> tuple[list[Row], list[BadRow]]:
    try:
        value = _decoded(_text(path, content))
    except msgspec.DecodeError as error:
        raise UserError(
            f"{path}: not JSON ({error}); expected one array of objects. "
            "One object a line is format = 'jsonl'."
        ) from None
    if not isinstance(value, list):
        raise UserError(f"{path}: got {_kind(value)}, expected one array of objects.")
    return _sorted_out([_object(number, item) for number, item in enumerate(value, start=1)])


def _read_separated(path: Path, content: bytes, delimiter: str) -> tuple[list[Row], list[BadRow]]:
    reader = csv.reader(io.StringIO(_text(path, content), newline=""), delimiter=delimiter)
    read: list[Row | BadRow] = []
    try:
        header = next(reader)
        if len(set(header)) != len(header) or not all(name.strip() for name in header):
            raise UserError(f"{path}:1: column names {header}; expected each named once.")
        for cells in reader:
            if len(cells) == len(header):
                read.append(Row(reader.line_num, dict(zip(header, cells, strict=True))))
            elif cells:
                why = f"{len(cells)} cells, expected {len(header)} ({', '.join(header)})"
                read.append(BadRow(reader.line_num, why))
    except csv.Error as error:
        raise UserError(
            f"{path}:{reader.line_num}: not readable as CSV ({error}); check the quotes, or "
            "save the data as JSONL."
        ) from None
    return _sorted_out(read)


def _read_csv(path: Path, content: bytes) -> tuple[list[Row], list[BadRow]]:
    return _read_separated(path, content, ",")


def _read_tsv(path: Path, content: bytes) -> tuple[list[Row], list[BadRow]]:
    return _read_separated(path, content, "\t")


def _read_parquet(path: Path, content: bytes) -> tuple[list[Row], list[BadRow]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError(
            f"{path}: reading Parquet needs pyarrow. Run: pip install 'burnish[data]'"
        ) from None
    try:
        # Without threads: those of its pools may still run when a short command ends, and abort it.
        file = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(content), pre_buffer=False)
        table = file.read(use_threads=False)
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{path}: not a readable Parquet file ({first_line(error)}).") from None
    return [Row(number, row) for number, row in enumerate(table.to_pylist(), start=1)], []


_READERS: dict[str, Callable[[Path, bytes], tuple[list[Row], list[BadRow]]]] = {
    "jsonl": _read_jsonl,
    "json": _read_json,
    "csv": _read_csv,
    "tsv": _read_tsv,
    "parquet": _read_parquet,
}
