"""Workbooks for agents: read and write cells within limits, compare them as SpreadsheetBench does.


Only files in the format of Excel 2007 and later (.xlsx, .xlsm) are read. Macros are never run. A
formula has no value until `burnish.tools.recalculation` has computed it.
"""

from __future__ import annotations

import datetime
import io
import math
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from xml.parsers import expat

from msgspec import Meta

from burnish.arguments import as_path, refused
from burnish.boundary import public
from burnish.errors import ArgumentError, BoundaryError, UserError, first_line
from burnish.tools.archives import ArchiveError, open_archive, unpacked

MOST_CELLS = 200_000
"""Cells of one range."""
LAST_ROW, LAST_COLUMN = 1_048_576, 16_384
"""Of Excel itself."""
OPEN_ROW, OPEN_COLUMN = 1_000, 26
"""Where an open range ends when nobody says how large the sheet is; as in SpreadsheetBench."""

_ENDS = r"\$?([A-Za-z]{0,3})\$?(\d{0,7})"
RANGE = re.compile(rf"{_ENDS}(?::{_ENDS})?")
_START = datetime.datetime(1899, 12, 30)


@public
def column_name(n: Annotated[int, Meta(ge=1, le=2**31)]) -> str:
    """The letters of a column, counted from 1.

    >>> column_name(1), column_name(27), column_name(703)
    ('A', 'AA', 'AAA')
    """
    name = ""
    while n:
        n, rest = divmod(n - 1, 26)
        name = chr(65 + rest) + name
    return name


@public
def column_number(name: Annotated[str, Meta(pattern="^[A-Za-z]{1,6}$")]) -> int:
    """The number of a column, from 1; the inverse of `column_name`."""
    number = 0
    for letter in name.upper():
        number = number * 26 + ord(letter) - 64
    return number


@public
def expand_range(
    text: str,
    max_row: Annotated[int, Meta(ge=1, le=LAST_ROW)] | None = None,
    max_col: Annotated[int, Meta(ge=1, le=LAST_COLUMN)] | None = None,
) -> list[str]:
    """Names of all cells of a range, column by column; open ends stop at `max_row`, `max_col`.

    >>> expand_range("A1:B2")
    ['A1', 'A2', 'B1', 'B2']
    >>> expand_range("C:C", max_row=3)
    ['C1', 'C2', 'C3']

    Ends in the wrong order are exchanged; a range without a cell, or with more than `MOST_CELLS`,
    is refused.
    """
    found = RANGE.fullmatch(text.strip())
    if found is None or not any(found.groups()):
        raise refused("text", text, "a range of cells such as B2, A1:C9, A:C or 2:5")
    last_row, last_col = max_row or OPEN_ROW, max_col or OPEN_COLUMN
    first_col, first_row, second_col, second_row = found.groups()
    if ":" not in text:
        if not (first_col and first_row and int(first_row)):
            raise refused("text", text, "a cell such as B2")
        return [f"{first_col.upper()}{int(first_row)}"]
    left = column_number.plain(first_col) if first_col else 1
    right = column_number.plain(second_col) if second_col else last_col
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
        raise ArgumentError(f"text: {text.strip()} has {count:,} cells, up to {MOST_CELLS:,} go")
    columns = [column_name.plain(number) for number in range(left, right + 1)]
    return [f"{column}{row}" for column in columns for row in range(top, bottom + 1)]


@public
def cells_equal(a: object, b: object) -> bool:
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


MOST_BYTES = 64_000_000
"""Unpacked bytes of one workbook."""
MOST_FILES = 2_000
"""Parts of one workbook."""
MOST_RATIO = 200
"""Unpacked bytes for one packed byte, where a part is larger than a megabyte."""
MOST_HELD = 1_000_000
"""Cells that a workbook holds, empty ones too: openpyxl makes an object of each."""
MOST_ELEMENTS = 8_000_000
"""Elements of all its parts."""
MOST_MERGED = 20_000
"""Cells under merged ranges and links of one sheet."""
MOST_TEXT = 32_767
"""Characters of one cell, as in Excel."""
FAR_ROWS, FAR_COLUMNS = 10_000, 256
"""How far from the used range a cell may be written."""

_RANGE = re.compile(r"\s*\$?([A-Za-z]{1,3})\$?(\d+)\s*:\s*\$?([A-Za-z]{1,3})\$?(\d+)")
_OUTSIDE = re.compile(
    r"\b(?:WEBSERVICE|IMAGE|DDE|RTD|CALL|REGISTER(?:\.ID)?|IMPORT(?:DATA|XML|HTML|FEED|RANGE))\s*\("
    r"|\b(?:file|ftps?|smb|dav|vnd\.[\w.-]{1,60}):|['\[]\s*https?:|['\[]\s*\\\\|\|'"
    r"|\[[^\[\]]*\.xl\w+\s*\]|\[\s*/|'[A-Za-z]:\\",
    re.IGNORECASE,
)
"""What lets a formula reach a file, a server or another program."""


_UNWRITABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
"""What no XML file can hold."""


class SpreadsheetError(BoundaryError):
    """A workbook that cannot be read, written or recalculated; one line says why."""


# --- files


def open_workbook(place: str | Path | bytes, *, values: bool = False) -> Any:
    """An openpyxl workbook, after its size was checked; `values`: results instead of formulas."""
    data = place if isinstance(place, bytes) else read_bytes(as_path("place", place, "a workbook"))
    shown = "the workbook" if isinstance(place, bytes) else str(place)
    refuse_bomb(data, shown)
    openpyxl = _openpyxl()
    try:
        return openpyxl.load_workbook(io.BytesIO(data), data_only=values, keep_links=False)
    # The boundary to a foreign file: openpyxl raises whatever a broken part makes it raise.
    except Exception as error:
        raise SpreadsheetError(f"{shown}: no workbook ({first_line(error)})") from error


def _openpyxl() -> Any:
    try:
        import openpyxl
    except ModuleNotFoundError as error:
        raise UserError("no openpyxl. Run: pip install 'burnish[spreadsheet]'") from error
    return openpyxl


def read_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise SpreadsheetError(f"{path}: cannot be read ({error.strerror or error})") from error
    if len(data) > MOST_BYTES:
        raise SpreadsheetError(f"{path}: larger than {MOST_BYTES:,} bytes; it is not opened")
    return data


def refuse_bomb(data: bytes, shown: str) -> None:
    """Unpack every part within limits; what an archive says of its sizes is not believed.

    A parser that keeps nothing counts what openpyxl would make an object of.
    """
    elements = cells = covered = 0

    def begun(name: str, attributes: dict[str, str]) -> None:
        nonlocal elements, cells, covered
        kind = name.rpartition(":")[2]
        elements += 1
        cells += kind == "c"
        if kind in ("mergeCell", "hyperlink"):
            # openpyxl makes each cell of a range that is merged or linked when it opens.
            found = _RANGE.match(attributes.get("ref", ""))
            left, top, right, bottom = found.groups() if found else ("A", "1", "A", "1")
            columns = abs(column_number.plain(right) - column_number.plain(left)) + 1
            covered += columns * (abs(int(bottom[:9]) - int(top[:9])) + 1)
        if elements > MOST_ELEMENTS or cells > MOST_HELD or covered > MOST_MERGED:
            raise ArchiveError(f"holds more than {MOST_HELD:,} cells ({MOST_MERGED:,} merged)")

    def declared(*_: object) -> None:
        raise ArchiveError("declares entities, which no workbook needs")

    total, name = 0, ""
    try:
        with open_archive(data, most_files=MOST_FILES) as archive:
            for part in archive.infolist():
                name, text = part.filename, unpacked(archive, part, MOST_BYTES - total + 1)
                total += len(text)
                if total > MOST_BYTES or len(text) > max(
                    1_000_000, MOST_RATIO * part.compress_size
                ):
                    raise ArchiveError("unpacks to more than a workbook should")
                parser = expat.ParserCreate()
                parser.StartElementHandler, parser.StartDoctypeDeclHandler = begun, declared
                try:
                    parser.Parse(text, True)
                except expat.ExpatError as error:
                    if name.endswith((".xml", ".rels")):  # what is no XML may be a picture
                        raise ArchiveError(f"is no XML ({error})") from None
    except ArchiveError as error:
        raise SpreadsheetError(f"{shown}: {f'{name} {error}'.strip()}; it is not opened") from error


def formula_cells(book: Any) -> list[Any]:
    """Cells of an openpyxl workbook that hold a formula; empty space costs nothing.

    openpyxl's `iter_rows` makes every cell of the used rectangle: one far cell would be billions.
    """
    cells = (cell for sheet in book.worksheets for cell in list(sheet._cells.values()))
    return [cell for cell in cells if formula_of(cell.value)]


def formula_of(value: Any) -> str:
    """The formula that a cell of an openpyxl workbook holds, and an empty text where it holds none.

    One that fills several cells (an array formula, a table of data) is an object of openpyxl.
    """
    if isinstance(value, str):
        return value if value[:1] == "=" else ""
    if not hasattr(value, "ref"):
        return ""
    text = getattr(value, "text", None) or f"TABLE({value.ref})"
    return text if text[:1] == "=" else f"={text}"


def reaches_outside(formula: str) -> bool:
    """Whether a formula names a file, a server or another program.

    >>> reaches_outside('=WEBSERVICE("http://host/")'), reaches_outside("=SUM(A1:A9)")
    (True, False)
    """
    return _OUTSIDE.search(formula) is not None


def _held(page: Any, name: str) -> Any:
    """The value of a cell; a look at an empty one does not make it."""
    letters, digits = re.fullmatch(r"([A-Z]+)(\d+)", name).groups()  # type: ignore[union-attr]
    cell = page._cells.get((int(digits), column_number(letters)))
    return None if cell is None else cell.value


def _cell_of(page: Any, name: str, value: Any) -> str:
    """The cell that a value may be written to; what a workbook cannot hold is refused."""
    cells = expand_range(name)
    if len(cells) != 1:
        raise refused("cell", name, "the name of one cell, such as B2")
    is_text = isinstance(value, str)
    is_number = isinstance(value, int | float) and abs(value) < 1e300
    is_plain = is_text and len(value) <= MOST_TEXT and not _UNWRITABLE.search(value)
    is_time = isinstance(value, datetime.date | datetime.time | None)
    if not (is_number or is_plain or is_time):
        raise refused(name, value, f"a number, {MOST_TEXT:,} plain characters, a date or None")
    if is_text and value[:1] == "=" and reaches_outside(value):
        raise refused(name, value, "a formula without files, servers or other programs")
    letters, digits = re.fullmatch(r"([A-Z]+)(\d+)", cells[0]).groups()  # type: ignore[union-attr]
    last_row = min(LAST_ROW, page.max_row + FAR_ROWS)
    last_column = min(LAST_COLUMN, page.max_column + FAR_COLUMNS)
    if int(digits) > last_row or column_number(letters) > last_column:
        end = f"{column_name(last_column)}{last_row}"
        raise refused("cell", cells[0], f"one near the used cells, within A1:{end}")
    return cells[0]


class Spreadsheet:
    """One workbook in memory, its cells by name."""

    def __init__(self, place: str | Path | bytes | None = None) -> None:
        if place is None:
            self.book = _openpyxl().Workbook()
            self.book.active.title = "Sheet1"
            self._values = None
        else:
            data = place if isinstance(place, bytes) else read_bytes(as_path("place", place))
            self.book = open_workbook(data)
            self._values = open_workbook(data, values=True)

    @property
    def sheets(self) -> dict[str, str]:
        """The used range of each sheet by its name."""
        return {
            sheet.title: f"A1:{column_name(sheet.max_column)}{sheet.max_row}"
            for sheet in self.book.worksheets
        }

    def read(self, cells: str, sheet: str = "", *, formulas: bool = False) -> dict[str, Any]:
        """Values by cell; a formula without a stored result reads as None unless `formulas`."""
        page = self._sheet(self.book, sheet)
        names = expand_range(cells, max(1, page.max_row), max(1, page.max_column))
        known = None if self._values is None else self._sheet(self._values, page.title)
        found: dict[str, Any] = {}
        for name in names:
            value = _held(page, name)
            formula = formula_of(value)
            if formula:
                value = formula if formulas else None if known is None else _held(known, name)
            found[name] = value
        return found

    def write(self, values: Mapping[str, Any], sheet: str = "") -> None:
        """Set cells, all or none; a text that begins with = is a formula, None empties the cell."""
        page = self._sheet(self.book, sheet)
        known = None if self._values is None else self._sheet(self._values, page.title)
        cells = {name: _cell_of(page, name, value) for name, value in values.items()}
        for name, value in values.items():
            cell = cells[name]
            page[cell].value = value
            if known is not None:
                known[cell].value = None if isinstance(value, str) and value[:1] == "=" else value

    def save(self, path: str | Path) -> None:
        """Write the file whole: a kill on the way leaves the old one."""
        target = as_path("path", path)
        name = ""
        try:
            handle, name = tempfile.mkstemp(suffix=".xlsx", dir=target.parent)
            os.close(handle)
            self.book.save(name)
            os.replace(name, target)
        except OSError as error:
            raise SpreadsheetError(f"{target}: cannot be written ({error})") from error
        finally:
            if name:
                Path(name).unlink(missing_ok=True)

    @staticmethod
    def _sheet(book: Any, name: str) -> Any:
        if not name:
            return book.worksheets[0]
        if name not in book.sheetnames:
            raise UserError(f"no sheet '{name}'; expected one of {', '.join(book.sheetnames)}.")
        return book[name]


# --- the scorer of SpreadsheetBench


class Comparison(NamedTuple):
    """What came of a comparison; `passed` is None where the item itself cannot be scored."""

    passed: bool | None
    message: str = ""
    cells: int = 0
    """Cells that were compared."""


@public
def compare_workbooks(
    gold: str | Path | bytes,
    output: str | Path | bytes,
    answer_position: str,
    answer_sheet: str | None = None,
    *,
    rule: Literal["fixed", "reference"] = "fixed",
) -> Comparison:
    """Whether the cells of `answer_position` hold the same values in both workbooks.

    `rule="fixed"`: a position without a sheet is on `answer_sheet`, or on the sheet of the position
    before it; commas in sheet names and stray quotes are read; an output that cannot be opened
    fails, an item whose own position or gold file is broken has no verdict. `rule="reference"` is
    the published scorer with its quirks: the first sheet always, and an empty range passes.
    """
    try:
        right = open_workbook(gold, values=True)
    except SpreadsheetError as error:
        return Comparison(None, f"gold: {error}")
    try:
        ours = open_workbook(output, values=True)
    except SpreadsheetError as error:
        return Comparison(False, f"output: {error}")
    try:
        if rule == "reference":
            places = _reference_positions(answer_position, right.sheetnames[0])
        else:
            places = _positions(answer_position, answer_sheet or "", right.sheetnames)
    except (ArgumentError, ValueError) as error:
        return Comparison(None, f"answer_position {answer_position!r}: {error}")
    count = 0
    for sheet, cells in places:
        if sheet not in right.sheetnames:
            return Comparison(None, f"gold: no sheet '{sheet}'")
        if sheet not in ours.sheetnames:
            return Comparison(False, f"output: no sheet '{sheet}'")
        expected, got = right[sheet], ours[sheet]
        try:
            names = expand_range(cells, max(1, expected.max_row), max(1, expected.max_column))
        except (ArgumentError, ValueError) as error:
            is_empty = rule == "reference" and RANGE.fullmatch(cells) and ":" in cells
            if not is_empty:  # an empty range of the reference rule passes
                return Comparison(None, f"answer_position {answer_position!r}: {error}")
            names = []
        for name in names:
            count += 1
            if not cells_equal.plain(_held(expected, name), _held(got, name)):
                return Comparison(False, f"{sheet}!{name}: the value differs", count)
    return Comparison(True, "", count)


class _Place(NamedTuple):
    sheet: str
    cells: str


def _reference_positions(text: str, first: str) -> list[_Place]:
    """As published: split at every comma, the first sheet where none is named."""
    places = []
    for part in (piece.strip() for piece in text.split(",")):
        if "!" in part:
            sheet, cells = part.split("!")  # two marks: ValueError, the published scorer crashes
            places.append(_Place(sheet.strip("'"), cells.strip("'")))
        else:
            places.append(_Place(first, part.strip("'")))
    return places


def _positions(text: str, answer_sheet: str, sheets: Iterable[str]) -> list[_Place]:
    """Sheet and range of every position; pieces are joined until one ends with a range."""
    known = list(sheets)
    named = [name.strip().strip("'\"") for name in answer_sheet.split(",")]
    current = answer_sheet if answer_sheet in known else next((n for n in named if n in known), "")
    places: list[_Place] = []
    waiting = ""
    for piece in text.split(","):
        waiting = f"{waiting},{piece}" if waiting else piece
        sheet, mark, cells = waiting.rpartition("!")
        cells = cells.strip().strip("'\"").strip()
        found = RANGE.fullmatch(cells)
        is_cell = found is not None and (":" in cells or (found[1] and found[2]))
        is_open = not mark and waiting.count("'") % 2 == 1  # inside a sheet's name: 'A1, B
        if found is None or not is_cell or is_open:
            continue
        if mark:
            wanted = sheet.strip().strip("'\"").replace("''", "'")
            folded = {name.strip().casefold(): name for name in known}
            current = wanted if wanted in known else folded.get(wanted.strip().casefold(), wanted)
        first_col, first_row, second_col, second_row = found.groups()
        if first_col and first_row and second_row and not second_col:
            cells = f"{first_col}{first_row}:{first_col}{second_row}"  # BD2:308
        places.append(_Place(current or known[0], cells))
        waiting = ""
    if waiting or not places:
        raise ArgumentError(f"expected positions such as 'Sheet1'!A1:B9, got {waiting or text!r}")
    return places
