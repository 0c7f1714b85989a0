"""Facts from evidence: documents, tables, pictures, recorded facts, a model; one protocol (EVPV).

`EXTRACTORS` names a function for each type of piece. An extractor that fails gives a status and no
facts, and the gate stays open: it is never evidence against anybody.
"""

from __future__ import annotations

import base64
import copy
import csv
import hashlib
import html.parser
import importlib
import io
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import msgspec

from burnish.arguments import as_word
from burnish.errors import ArgumentError, BoundaryError, StoreError, UserError
from burnish.media.images import open_image
from burnish.records import Evidence, ImagePart, Message, Status
from burnish.rewards.checks.texts import sentences
from burnish.rewards.judges.evpv.facts import LONGEST, Fact, read_cell, read_fact
from burnish.rewards.judges.judge_model import JudgeModel
from burnish.rewards.judges.prompting import (
    Question,
    Unreadable,
    as_user,
    fenced,
    fill,
    wording,
)
from burnish.rewards.judges.reading import anything, free_table, read_reply
from burnish.store.blobs import shared_blobs

if TYPE_CHECKING:
    from burnish.rewards.judges.evpv.charts import Word

MOST_FACTS = 200_000
"""Facts of one piece of evidence; what comes after them is counted as unreadable."""
MOST_TEXT = 2_000_000
"""Characters of a document that are read."""
SHOWN = 12_000
"""Characters of a document that a model is shown."""
LISTED = 24
"""Facts that a model is asked for."""
PROMPTS = Path(__file__).parent / "prompts"
_DESCRIPTION = free_table("caption", key_facts=anything, uncertain=anything)
_CLAUSE = re.compile(r"[;\n]")


@dataclass(frozen=True)
class Extraction:
    facts: tuple[Fact, ...] = ()
    unreadable: int = 0
    """Facts that were left out: not finite, too long, no text."""
    status: Status = Status.OK
    """Anything else: the evidence could not be read, and the gate stays open."""
    reason: str = ""
    evidence: tuple[Evidence, ...] = ()
    """Raw replies of a model with what they cost."""

    def __add__(self, other: Extraction) -> Extraction:
        failed = self if self.status is not Status.OK else other
        return Extraction(
            (*self.facts, *other.facts),
            self.unreadable + other.unreadable,
            failed.status,
            failed.reason,
            (*self.evidence, *other.evidence),
        )


EXTRACTORS = {
    "text": "burnish.rewards.judges.evpv.evidence:from_text",
    "table": "burnish.rewards.judges.evpv.evidence:from_table",
    "facts": "burnish.rewards.judges.evpv.evidence:from_recorded",
    "llm": "burnish.rewards.judges.evpv.evidence:from_model",
    "ocr": "burnish.rewards.judges.evpv.charts:from_ocr",
    "vision": "burnish.rewards.judges.evpv.evidence:from_vision",
}
"""A function for each type of piece, imported when one comes; it gets the piece, `judge`, the model that
may be asked, and `about`."""


def pieces_of(given: Any, where: str = "evidence") -> list[dict[str, Any]]:
    """Evidence as a list of pieces with a `type`, told by their keys where they have none.

    >>> [piece["type"] for piece in pieces_of(["Three towers.", {"csv": "a,b"}])]
    ['text', 'table']
    """
    if isinstance(given, str):
        return [{"type": "text", "text": given}]
    if isinstance(given, Mapping):
        if "subject" in given:
            return [{"type": "facts", "facts": [given]}]
        if isinstance(given.get("type"), str):
            return [dict(given)]
        if "key_facts" in given or "facts" in given:
            return [{**given, "type": "facts"}]
        if any(key in given for key in _READERS):
            return [{**given, "type": "table"}]
        if "image" in given or "sha256" in given:
            return [{**given, "type": "ocr"}]
        if "text" in given:
            return [{"type": "text", **given}]
    if isinstance(given, list | tuple):
        if given and all(isinstance(one, Mapping) and "subject" in one for one in given):
            return [{"type": "facts", "facts": list(given)}]
        return [piece for one in given for piece in pieces_of(one, where)]
    raise UserError(
        f"{where}: got {given!r:.80}; expected a text, a list of pieces, or tables such as "
        '{"type": "table", "csv": "..."} or {"key_facts": [...]}'
    )


async def extract_all(
    given: Any,
    *,
    extractor: str = "auto",
    judge: JudgeModel | None = None,
    about: tuple[str, ...] = (),
) -> Extraction:
    """The facts of all pieces of evidence; `extractor` other than "auto" reads every piece."""
    found = Extraction()
    for piece in pieces_of(given):
        name = piece["type"] if extractor == "auto" else extractor
        as_word("type of evidence", name, tuple(EXTRACTORS))
        module, _, function = EXTRACTORS[name].partition(":")
        read = getattr(importlib.import_module(module), function)
        try:
            found = found + await read(piece, judge=judge, about=about)
        except msgspec.ValidationError as error:
            raise UserError(
                f"extractor '{name}' cannot read {reprlib.repr(piece)}: {error}. extractor = 'auto' reads "
                "each piece by its type"
            ) from None
    return found


async def from_text(piece: Mapping[str, Any], **_: Any) -> Extraction:
    """Each sentence of a document, and each of its clauses, as a fact."""
    text = msgspec.convert(piece.get("text"), str)
    parts: dict[str, None] = {}
    for sentence in sentences(text[:MOST_TEXT]):
        for clause in _CLAUSE.split(sentence):
            if (bare := clause.strip()).strip(" .-*•"):
                parts[bare.strip(" -*•")] = None
    return collect(list(parts), "sentence {}", cut=len(text) > MOST_TEXT)


async def from_recorded(piece: Mapping[str, Any], **_: Any) -> Extraction:
    """Facts as somebody recorded them: texts, typed tables, or a caption with key facts.

    `single` = true: labels of a diagram, say, where each subject has one value, so that a claim of
    another one is contradicted even where the two cannot be compared (`x` beside 12).
    """
    given = msgspec.convert(piece.get("facts", piece.get("key_facts")), list[Any])
    return collect(given, "fact {}", is_single=piece.get("single") is True)


def collect(
    given: Sequence[Any], source: str, *, cut: bool = False, is_single: bool = False
) -> Extraction:
    """Facts of a list, without those that cannot be read, which are counted."""
    facts, unreadable = [], int(cut) + max(0, len(given) - MOST_FACTS)
    for number, one in enumerate(given[:MOST_FACTS], start=1):
        if isinstance(one, str) and not one.strip():
            continue
        try:
            facts.append(read_fact(one, source=source.format(number), is_single=is_single))
        except ArgumentError:
            unreadable += 1
    return Extraction(tuple(facts), unreadable)


async def from_model(
    piece: Mapping[str, Any], *, judge: JudgeModel | None, about: tuple[str, ...]
) -> Extraction:
    """Facts that a language model lists; it never sees a solution."""
    if "image" in piece or "sha256" in piece:
        return await from_vision(piece, judge=judge, about=about)
    text = str(piece.get("text") or {key: piece[key] for key in piece if key != "type"})[:SHOWN]
    material = {"evidence": [("evidence", text)]}
    asked = fenced(wording("extract", PROMPTS), material, most=str(LISTED))
    return await ask_facts(judge, asked, about, (text,))


async def from_vision(
    piece: Mapping[str, Any], *, judge: JudgeModel | None, about: tuple[str, ...]
) -> Extraction:
    """Facts that a vision-language model lists of a picture.

    It gets nothing of the question or of a solution: what it lists cannot depend on the answer.
    """
    picture = await anyio.to_thread.run_sync(picture_of, piece)
    if isinstance(picture, str):
        return Extraction(status=Status.PARSE_ERROR, reason=picture)
    text = fill(wording("look", PROMPTS), {"most": str(LISTED)})
    source = f", picture {picture.sha256[:12]}"
    return await ask_facts(judge, as_user(text, (picture.part,)), about, source=source)


async def ask_facts(
    judge: JudgeModel | None,
    messages: tuple[Message, ...],
    about: tuple[str, ...],
    shown: tuple[str, ...] = (),
    source: str = "",
) -> Extraction:
    """The key facts of a model's description; a reply of another form gives a status and no facts."""
    if judge is None:
        raise UserError(
            "extractors 'llm' and 'vision' ask a model; give one with --model or `model`"
        )

    def read(reply: str) -> list[str]:
        found = read_reply(reply, _DESCRIPTION, shown)
        facts = found.get("key_facts")
        if not isinstance(facts, list):
            raise Unreadable("expected key_facts as a list of texts")
        return [one for one in facts if isinstance(one, str)]

    reply = await judge.ask(Question("facts", messages, about), read)
    if reply.verdict is None:
        return Extraction(status=reply.status, reason=reply.reason, evidence=reply.evidence)
    found = collect(reply.verdict[: 4 * LISTED], "fact {} of " + judge.name + source)
    return Extraction(found.facts, found.unreadable, evidence=reply.evidence)


_ROW = re.compile(r"^\s*\|(.*)(?<!\\)\|\s*$")
_BAR = re.compile(r"(?<!\\)\|")
_RULE = re.compile(r"[\s:|-]*")
MOST_CELLS, MOST_SPAN = 1_000_000, 1000
"""Columns or rows that one cell may span."""
MOST_LETTERS = 4 * LONGEST
"""Characters of a cell of a page, blanks between them included."""
UNREADABLE = object()
"""A cell that can be read in two ways: `5<sup>2</sup>`, a power or a footnote."""
_FOOTNOTE, _UNIT = re.compile(r"\[.{1,6}\]|[*†‡§]+"), re.compile(r"\d\s*[a-zA-Z]{1,3}$")
_SKIPPED = frozenset(["script", "style", "template", "del", "s", "strike"])
"""Tags whose text is not shown, or is struck out."""
_INLINE = frozenset([
    "a", "abbr", "b", "bdi", "bdo", "cite", "code", "data", "em", "font", "i", "ins", "kbd",
    "label", "mark", "q", "samp", "small", "span", "strong", "time", "tt", "u", "var", "wbr",
])  # fmt: skip
"""Tags that do not part the letters around them."""
_SPANS = ("colspan", "rowspan")


async def from_table(piece: Mapping[str, Any], **_: Any) -> Extraction:
    """Each cell of a table as a fact about its row and its column.

    `csv`, `markdown` or `html` are texts, `rows` a list of lists with the heads first, `xlsx` a workbook
    in base64 or as bytes.
    """
    kinds = [key for key in _READERS if piece.get(key) is not None]
    if len(kinds) != 1:
        wanted = ", ".join(_READERS)
        raise UserError(
            f"evidence of type table has {kinds or 'no table'}; expected one of {wanted}"
        )
    found = Extraction()
    try:
        kind, read = _READERS[kinds[0]]
        for rows in read(msgspec.convert(piece[kinds[0]], kind)):
            found = found + cell_facts(rows)
    except (ValueError, TypeError, csv.Error, BoundaryError, msgspec.ValidationError) as error:
        reason = f"the table could not be read as {kinds[0]}: {error}"
        return Extraction(status=Status.PARSE_ERROR, reason=reason[:300])
    return found


def cell_facts(rows: Sequence[Sequence[Any]]) -> Extraction:
    """The facts of a table whose first row has the heads and whose first column names the rows.

    >>> [fact.text for fact in cell_facts([["", "Price"], ["Tea", "3.20"]]).facts]
    ['Tea Price = 3.20', 'Tea = 3.20']
    """
    written = [[_cell(one) for one in row] for row in rows]
    written = [row for row in written if row.count("") < len(row)]
    if len(written) < 2:
        return Extraction()
    heads, unreadable = written[0], 0
    facts: list[Fact] = []
    for number, (name, *row) in enumerate(written[1:], start=2):
        for head, cell in zip_longest(heads[1:][: len(row)], row):
            if cell == "":
                continue
            # With one column of values the row's name alone says which one is meant.
            is_only = len(heads) == 2 and bool(name)
            shorts = [False] * bool(head) + [True] * is_only
            if name is None or head is None or cell is None or not shorts:
                unreadable += 1
                continue
            where = f"row {number}, column {head or 2}"
            for short in shorts:
                try:
                    facts.append(read_cell(name, head, cell, short=short, source=where))
                except ArgumentError:
                    unreadable += 1
    return Extraction(tuple(facts), unreadable)


def _cell(value: Any) -> str | None:
    if value is UNREADABLE:
        return None
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)
    return " ".join(str(value)[:LONGEST].split())


Tables = list[list[list[Any]]]


def _from_csv(text: str) -> Tables:
    first = text.partition("\n")[0]
    separator = max(",;\t", key=first.count)
    return [list(csv.reader(io.StringIO(text), delimiter=separator))]


def _from_markdown(text: str) -> Tables:
    rows = [_BAR.split(found[1]) for line in text.splitlines() if (found := _ROW.match(line))]
    told = [row for row in rows if not _RULE.fullmatch("".join(row))]
    if not told:
        raise ValueError("no row between | signs")
    return [[[cell.replace(r"\|", "|").strip(" *`") for cell in row] for row in told]]


class _Cell:
    def __init__(self, attrs: Mapping[str, str | None], *, is_head: bool) -> None:
        self.text, self.raised, self.is_head = "", "", is_head
        self.is_unreadable = False
        # Columns and rows; 0 is all that are left. What is no number is 1, as browsers read it.
        spans = (re.match(r"\s*(\d{1,6})", attrs.get(n) or "1", re.ASCII) for n in _SPANS)
        self.columns, self.rows = (min(int(n[1]), MOST_SPAN) if n else 1 for n in spans)

    def close_raised(self) -> None:
        """Add what was raised or lowered, where it is no mark of a footnote."""
        raised, self.raised = self.raised.strip(), ""
        if not raised or _FOOTNOTE.fullmatch(raised):
            return
        self.is_unreadable |= self.text.rstrip()[-1:].isdigit()
        is_unit = raised in ("2", "3") and _UNIT.search(self.text)
        self.text += f"^{raised}" if is_unit else f" {raised} "

    @property
    def value(self) -> Any:
        return UNREADABLE if self.is_unreadable else " ".join(self.text.split())


class _Tables(html.parser.HTMLParser):
    """Cells of every table of a page; nothing in it is run or fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.pages: list[list[list[_Cell]]] = []
        self._open: list[list[list[_Cell]]] = []
        self._cell: _Cell | None = None
        self._skipped = ""
        self._is_raised = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self._close_cell()
            self.pages.append([])
            self._open.append(self.pages[-1])
        elif self._open and tag in ("tr", "thead", "tbody", "tfoot"):
            self._close_cell()
            if tag == "tr":
                self._open[-1].append([])
        elif self._open and tag in ("td", "th"):
            self._close_cell()
            if not self._open[-1]:
                self._open[-1].append([])
            self._cell = _Cell(dict(attrs), is_head=tag == "th")
            self._open[-1][-1].append(self._cell)
        elif tag in _SKIPPED:
            self._skipped = self._skipped or tag
        elif self._cell is not None and tag in ("sup", "sub"):
            self._is_raised = True
        elif self._cell is not None and tag not in _INLINE:
            self.handle_data(" ")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th", "tr", "thead", "tbody", "tfoot", "table"):
            self._close_cell()
            if tag == "table" and self._open:
                self._open.pop()
        elif tag == self._skipped:
            self._skipped = ""
        elif self._cell is not None and tag in ("sup", "sub"):
            self._cell.close_raised()
            self._is_raised = False
        elif self._cell is not None and tag not in _INLINE:
            self.handle_data(" ")

    def handle_data(self, data: str) -> None:
        if self._cell is None or self._skipped:
            return
        cell = self._cell
        if len(cell.text) + len(cell.raised) + len(data) > MOST_LETTERS:
            cell.is_unreadable = True
        elif self._is_raised:
            cell.raised += data
        else:
            cell.text += data

    def close(self) -> None:
        super().close()
        self._close_cell()

    def _close_cell(self) -> None:
        if self._cell is not None:
            self._cell.close_raised()
        self._cell, self._skipped, self._is_raised = None, "", False


def _from_html(text: str) -> Tables:
    reader = _Tables()
    reader.feed(text[:MOST_TEXT])
    reader.close()
    if not any(row for page in reader.pages for row in page):
        raise ValueError("no <table> with cells")
    return [_joined_heads(_spread(page)) for page in reader.pages]


def _spread(rows: Sequence[Sequence[_Cell]]) -> list[list[_Cell]]:
    """Rows with each cell in every place that it spans."""
    found: list[list[_Cell]] = []
    above: dict[int, tuple[int, _Cell]] = {}
    cells = 0
    for row in rows:
        line: list[_Cell] = []
        below: dict[int, tuple[int, _Cell]] = {}
        own, last = iter(row), max(above, default=-1)
        while True:
            place, columns = len(line), 1
            if place in above:
                height, cell = above[place]
            elif (mine := next(own, None)) is not None:
                height, columns, cell = mine.rows or len(rows), mine.columns or 1, mine
            elif place < last:
                height, cell = 1, _Cell({}, is_head=False)
            else:
                break
            line += [cell] * columns
            if height > 1:
                below |= dict.fromkeys(range(place, place + columns), (height - 1, cell))
        cells += len(line)
        if cells > MOST_CELLS:
            raise ValueError(f"more than {MOST_CELLS:,} cells with their spans")
        found.append(line)
        above = below
    return found


def _joined_heads(rows: Sequence[Sequence[_Cell]]) -> list[list[Any]]:
    """Values of rows; heads above each other are one head, and a row of one wide cell tells nothing."""
    kept = [row for row in rows if row and not (len(row) > 1 and len(set(row)) == 1)]
    is_body = [not all(cell.is_head for cell in row) for row in kept]
    count = is_body.index(True) if True in is_body else 1
    values = [[cell.value for cell in row] for row in kept[max(count, 1) :]]
    heads = [_head(cells) for cells in zip_longest(*kept[: max(count, 1)])]
    return [heads, *values] if kept else []


def _head(cells: Sequence[_Cell | None]) -> Any:
    texts = dict.fromkeys(cell.value for cell in cells if cell is not None)
    return UNREADABLE if UNREADABLE in texts else " ".join(texts)


def _from_xlsx(data: bytes) -> Tables:
    from burnish.tools.spreadsheet import open_workbook

    book = open_workbook(data, values=True)
    return [[list(row) for row in page.iter_rows(values_only=True)] for page in book.worksheets]


_READERS: dict[str, tuple[Any, Callable[[Any], Tables]]] = {
    "csv": (str, _from_csv),
    "markdown": (str, _from_markdown),
    "html": (str, _from_html),
    "rows": (list[list[Any]], lambda rows: [rows]),
    "xlsx": (bytes, _from_xlsx),
}
"""Forms of a table: what they are, and the rows of each table in them."""


# Pictures: bytes, base64 or a data: address, or those of a message. An address is not fetched and a path is
# not opened: evidence is data of a task.

_DATA = re.compile(r"\Adata:[\w/.+-]{0,60}(?:;[\w=.+-]{0,40}){0,4},", re.ASCII)
_BACKGROUND, _BIN = 30, 16
"""Colours this near to the most common one are background; colours are counted in cubes of this side."""


class Picture:
    """An image that has been opened: its bytes, its hash and its pixels."""

    def __init__(self, data: bytes) -> None:
        """Refuse what is no image, or has too many pixels, as `UserError`."""
        import numpy as np

        self.data = data
        self.sha256 = hashlib.sha256(data).hexdigest()
        self.pixels = np.asarray(open_image(data))
        """Rows, columns, red green blue."""
        self.turns = 0
        """Quarter turns to the left since the file."""

    def turned(self, turns: int) -> Picture:
        """The same picture, turned to the left; boxes are still those of the file."""
        import numpy as np

        found = copy.copy(self)
        found.pixels, found.turns = np.rot90(self.pixels, turns), (self.turns + turns) % 4
        return found

    @property
    def part(self) -> ImagePart:
        """The picture as a part of a message; its bytes are in this machine's blobs afterwards."""
        found = shared_blobs().add(self.data)
        assert isinstance(found, ImagePart)
        return found

    def box(self, word: Word) -> str:
        """Where something stands in the picture, as the viewer reads it."""
        height, width = self.pixels.shape[:2]
        left, top, right, bottom = word.left, word.top, word.right, word.bottom
        sides = {
            0: (left, top, right, bottom),
            1: (height - bottom, left, height - top, right),
            2: (width - right, height - bottom, width - left, height - top),
            3: (top, width - right, bottom, width - left),
        }[self.turns]
        return f"picture {self.sha256[:12]}, box {' '.join(str(round(one)) for one in sides)}"

    @cached_property
    def _background(self) -> Any:
        import numpy as np

        pixels = self.pixels[::4, ::4].reshape(-1, 3)
        cubes = (pixels // _BIN).astype(np.int64) @ np.array([256, 16, 1])
        codes, counts = np.unique(cubes, return_counts=True)
        return pixels[cubes == codes[counts.argmax()]].mean(axis=0)

    def colours(
        self, left: float, top: float, right: float, bottom: float
    ) -> list[tuple[tuple[int, int, int], float]]:
        """The colours of a rectangle with their shares, the background left out, most first."""
        import numpy as np

        height, width = self.pixels.shape[:2]
        rows = slice(max(0, int(top)), max(0, min(height, int(bottom) + 1)))
        columns = slice(max(0, int(left)), max(0, min(width, int(right) + 1)))
        patch = self.pixels[rows, columns].reshape(-1, 3).astype(np.int64)
        if not len(patch):
            return []
        shown = patch[np.abs(patch - self._background).sum(axis=1) > _BACKGROUND]
        cubes = (shown // _BIN) @ np.array([256, 16, 1])
        codes, counts = np.unique(cubes, return_counts=True)
        found = []
        for place in counts.argsort()[::-1][:6]:
            red, green, blue = shown[cubes == codes[place]].mean(axis=0)
            found.append(((int(red), int(green), int(blue)), float(counts[place] / len(patch))))
        return found


def picture_of(piece: Mapping[str, Any]) -> Picture | str:
    """The picture of a piece of evidence; where it cannot be opened, one line that says why."""
    try:
        return Picture(_bytes_of(piece))
    except (UserError, StoreError, ValueError) as error:
        return str(error)


def _bytes_of(piece: Mapping[str, Any]) -> bytes:
    inside = piece.get("image")
    piece = inside if isinstance(inside, Mapping) else piece
    given = piece.get("image", piece.get("bytes"))
    if given is None and isinstance(piece.get("sha256"), str):
        return shared_blobs().bytes_of(piece["sha256"])
    if isinstance(given, bytes | bytearray):
        return bytes(given)
    try:
        return base64.b64decode(_DATA.sub("", given, count=1), validate=True)
    except (TypeError, ValueError):
        raise UserError(
            f"a picture as evidence is {reprlib.repr(given):.60}; expected bytes, base64 or a data: address "
            "(another address is not fetched and a path is not opened), or an image column of the task"
        ) from None


def pictures_in(messages: tuple[Message, ...]) -> list[dict[str, Any]]:
    """The pictures of a conversation as pieces of evidence."""
    return [
        {"image": {"sha256": part.sha256}}
        for message in messages
        for part in message.media
        if isinstance(part, ImagePart)
    ]
