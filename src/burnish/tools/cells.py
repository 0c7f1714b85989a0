"""Names, ranges and values of a spreadsheet's cells: pure functions, no file takes part.

expand_range("A1:B2")                  # ["A1", "A2", "B1", "B2"]
cells_equal("3.14159", 3.14)           # SpreadsheetBench's rule
"""

from __future__ import annotations

import datetime
import math
import re
from typing import Any

from burnish.arguments import as_text, as_whole, refused
from burnish.errors import ArgumentError

MOST_CELLS = 200_000
"""Cells of one range."""
LAST_ROW, LAST_COLUMN = 1_048_576, 16_384
"""Of Excel itself."""
OPEN_ROW, OPEN_COLUMN = 1_000, 26
"""Where an open range ends when nobody says how large the sheet is; as in SpreadsheetBench."""

_ENDS = r"\$?([A-Za-z]{0,3})\$?(\d{0,7})"
RANGE = re.compile(rf"{_ENDS}(?::{_ENDS})?")
_START = datetime.datetime(1899, 12, 30)


def column_name(n: int) -> str:
    """The letters of a column, counted from 1.

    >>> column_name(1), column_name(27), column_name(703)
    ('A', 'AA', 'AAA')
    """
    n = as_whole("n", n, low=1, high=2**31)
    name = ""
    while n:
        n, rest = divmod(n - 1, 26)
        name = chr(65 + rest) + name
    return name


def column_number(name: str) -> int:
    """The number of a column, from 1; the inverse of `column_name`."""
    if not re.fullmatch(r"[A-Za-z]{1,6}", as_text("name", name)):
        raise refused("name", name, "the letters of a column")
    number = 0
    for letter in name.upper():
        number = number * 26 + ord(letter) - 64
    return number


def expand_range(text: str, max_row: int | None = None, max_col: int | None = None) -> list[str]:
    """Names of all cells of a range, column by column; open ends stop at `max_row`, `max_col`.

    >>> expand_range("A1:B2")
    ['A1', 'A2', 'B1', 'B2']
    >>> expand_range("C:C", max_row=3)
    ['C1', 'C2', 'C3']

    Ends in the wrong order are exchanged; a range without a cell, or with more than `MOST_CELLS`,
    is refused.
    """
    found = RANGE.fullmatch(as_text("text", text).strip())
    if found is None or not any(found.groups()):
        raise refused("text", text, "a range of cells such as B2, A1:C9, A:C or 2:5")
    last_row = OPEN_ROW if max_row is None else as_whole("max_row", max_row, low=1, high=LAST_ROW)
    last_col = (
        OPEN_COLUMN if max_col is None else as_whole("max_col", max_col, low=1, high=LAST_COLUMN)
    )
    first_col, first_row, second_col, second_row = found.groups()
    if ":" not in text:
        if not (first_col and first_row and int(first_row)):
            raise refused("text", text, "a cell such as B2")
        return [f"{first_col.upper()}{int(first_row)}"]
    left = column_number(first_col) if first_col else 1
    right = column_number(second_col) if second_col else last_col
    top = int(first_row) if first_row else 1
    bottom = int(second_row) if second_row else last_row
    if second_col:
        left, right = sorted((left, right))
    if second_row:
        top, bottom = sorted((top, bottom))
    count = (right - left + 1) * (bottom - top + 1)
    if right < left or bottom < top or top < 1:
        raise refused("text", text, f"a range with a cell in it (to row {last_row}, {last_col})")
    if count > MOST_CELLS:
        raise ArgumentError(
            f"text: {text.strip()} has {count:,} cells, expected up to {MOST_CELLS:,}"
        )
    columns = [column_name(number) for number in range(left, right + 1)]
    return [f"{column}{row}" for column in columns for row in range(top, bottom + 1)]


def cells_equal(a: Any, b: Any) -> bool:
    """Whether two cell values are the same to SpreadsheetBench.

    Numbers and numeric text are rounded to two digits, date-times to whole days, times to minutes;
    an empty text is an empty cell; the kinds must agree. "nan" and "inf" are words, not numbers.

    >>> cells_equal("3.14159", 3.14), cells_equal("", None), cells_equal("a", "b")
    (True, True, False)
    """
    first, second = _comparable("a", a), _comparable("b", b)
    if first in ("", None) and second in ("", None):
        return True
    return type(first) is type(second) and first == second


def _comparable(what: str, value: Any) -> Any:
    if isinstance(value, float) and math.isnan(value):
        raise refused(what, value, "a cell's value")
    if isinstance(value, datetime.time):
        return f"{value.hour:02d}:{value.minute:02d}"
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        value = datetime.datetime(value.year, value.month, value.day)
    if isinstance(value, datetime.datetime):
        delta = value.replace(tzinfo=None) - _START
        return float(round(delta.days + delta.seconds / 86400.0))
    if isinstance(value, int | float | str):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            return value
        return round(number, 2) if math.isfinite(number) else value
    return value
