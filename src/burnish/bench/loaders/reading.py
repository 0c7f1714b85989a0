"""Rows of a benchmark's published files, checked for the columns that its loader needs."""

from __future__ import annotations

import ast
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from burnish.errors import UserError, did_you_mean
from burnish.tasks.rows import SUFFIXES, read_table

logger = logging.getLogger(__name__)


class Source(NamedTuple):
    """One row and the file that it stands in."""

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
