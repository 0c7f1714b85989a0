"""The cells of a table as facts about their row and column: CSV, Markdown, HTML, rows, a workbook.

    cell_facts([["", "Price"], ["Tea", "3.20"]]).facts[0].text       # 'Tea Price = 3.20'

Nothing in a page is run or fetched, and a workbook is opened by `burnish.tools.spreadsheet`, which
refuses bombs.
"""

from __future__ import annotations

import base64
import binascii
import csv
import html.parser
import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from burnish.errors import ArgumentError, BoundaryError, UserError
from burnish.records import Status
from burnish.rewards.judges.evpv.extracting import MOST_FACTS, MOST_TEXT, TABLES, Extraction
from burnish.rewards.judges.evpv.facts import LONGEST, Fact, read_fact
from burnish.rewards.judges.judge_model import JudgeModel

_ROW = re.compile(r"^\s*\|(.*)\|\s*$")
_RULE = re.compile(r"[\s:|-]*")


async def from_table(
    piece: Mapping[str, Any], *, judge: JudgeModel | None = None, about: tuple[str, ...] = ()
) -> Extraction:
    """Each cell of a table as a fact about its row and its column.

    `csv`, `markdown` or `html` are texts, `rows` a list of lists with the heads first, `xlsx` a workbook
    in base64 or as bytes.
    """
    kinds = [key for key in TABLES if piece.get(key) is not None]
    if len(kinds) != 1:
        raise UserError(
            f"evidence of type table has {', '.join(kinds) or 'no table'}; expected one of "
            f"{', '.join(TABLES)}"
        )
    try:
        pages = _READERS[kinds[0]](piece[kinds[0]])
    except (ValueError, TypeError, csv.Error, BoundaryError) as error:
        reason = f"the table could not be read as {kinds[0]}: {error}"
        return Extraction(status=Status.PARSE_ERROR, reason=reason[:300])
    found = Extraction()
    for rows in pages:
        found = found + cell_facts(rows)
    return found


def cell_facts(rows: Sequence[Sequence[Any]]) -> Extraction:
    """The facts of a table whose first row has the heads and whose first column names the rows.

    >>> [fact.text for fact in cell_facts([["", "Price"], ["Tea", "3.20"]]).facts]
    ['Tea Price = 3.20', 'Tea = 3.20']
    """
    written = [[_cell(one) for one in row] for row in rows]
    written = [row for row in written if any(row)]
    if len(written) < 2:
        return Extraction()
    heads, unreadable = written[0], 0
    facts: list[Fact] = []
    for number, row in enumerate(written[1:], start=2):
        for head, cell in zip(heads[1:], row[1:], strict=False):
            if not cell or len(facts) >= MOST_FACTS:
                unreadable += bool(cell)
                continue
            subjects = [f"{row[0]} {head}".strip()]
            # With one column of values the row's name alone says which one is meant.
            subjects += [row[0]] if len(heads) == 2 and row[0] else []
            for subject in subjects:
                try:
                    fact = read_fact(
                        f"{subject} = {cell}",
                        source=f"row {number}, column {head or 2}",
                        is_single=True,
                    )
                except ArgumentError:
                    unreadable += 1
                else:
                    facts.append(fact)
    return Extraction(tuple(facts), unreadable)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)
    return " ".join(str(value)[:LONGEST].split())


def _from_csv(text: Any) -> list[list[list[Any]]]:
    if not isinstance(text, str):
        raise TypeError("expected a text")
    first = text.partition("\n")[0]
    separator = max(",;\t", key=first.count)
    return [list(csv.reader(io.StringIO(text), delimiter=separator))]


def _from_markdown(text: Any) -> list[list[list[Any]]]:
    if not isinstance(text, str):
        raise TypeError("expected a text")
    rows = [found[1].split("|") for line in text.splitlines() if (found := _ROW.match(line))]
    kept = [
        [cell.strip(" *`") for cell in row] for row in rows if not _RULE.fullmatch("".join(row))
    ]
    if not kept:
        raise ValueError("no row between | signs")
    return [kept]


class _Tables(html.parser.HTMLParser):
    """Rows of every table of a page; nothing in it is run or fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.pages: list[list[list[Any]]] = []
        self._text: list[str] | None = None

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag == "table":
            self.pages.append([])
        elif tag == "tr" and self.pages:
            self.pages[-1].append([])
        elif tag in ("td", "th") and self.pages and self.pages[-1]:
            self._text = []

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th") and self._text is not None and self.pages and self.pages[-1]:
            self.pages[-1][-1].append("".join(self._text))
            self._text = None

    def handle_data(self, data: str) -> None:
        if self._text is not None:
            self._text.append(data)


def _from_html(text: Any) -> list[list[list[Any]]]:
    if not isinstance(text, str):
        raise TypeError("expected a text")
    reader = _Tables()
    reader.feed(text[:MOST_TEXT])
    if not reader.pages:
        raise ValueError("no <table>")
    return reader.pages


def _from_rows(rows: Any) -> list[list[list[Any]]]:
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise TypeError("expected a list of lists")
    return [rows]


def _from_xlsx(data: Any) -> list[list[list[Any]]]:
    from burnish.tools.spreadsheet import open_workbook

    if isinstance(data, str):
        try:
            data = base64.b64decode(data, validate=True)
        except binascii.Error as error:
            raise ValueError(f"no base64: {error}") from None
    if not isinstance(data, bytes):
        raise TypeError("expected bytes or base64")
    book = open_workbook(data, values=True)
    return [[list(row) for row in page.iter_rows(values_only=True)] for page in book.worksheets]


_READERS: dict[str, Callable[[Any], list[list[list[Any]]]]] = {
    "csv": _from_csv,
    "markdown": _from_markdown,
    "html": _from_html,
    "rows": _from_rows,
    "xlsx": _from_xlsx,
}
