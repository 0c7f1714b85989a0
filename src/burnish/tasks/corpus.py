"""The documents of text files, folders, JSONL, CSV and Parquet files, or of a function, as a stream.

Nothing is held but one piece of at most `PIECE` characters, or one row of a table where that is
longer. A function (`mine.py:documents`) takes no argument and yields texts, None for one that is
missing; it must give the same ones every time.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import ClassVar, NamedTuple

from burnish.errors import UserError
from burnish.source import iterate_user_function
from burnish.tasks.sounds import Sources, is_function
from burnish.tools.search.sources import (
    TABLES,
    TEXTS,
    cell_text,
    check_unpacked,
    find_column,
    not_utf8,
    parquet_shape,
    table_rows,
)

PIECE = 1 << 18
"""Characters that are handed out at one time."""
BLOCK = 1 << 20
"""Bytes of a text file that are read at one time."""
PARQUET_ROWS = 64
"""Rows of a Parquet file that are read at one time."""
COLUMNS = ("text", "contents", "content", "body", "document")
"""Names of the column of texts that are looked for where none is given."""


class Piece(NamedTuple):
    """A part of a document; documents without a character have none."""

    text: str
    ends: bool
    """The document ends here."""


Report = Callable[[int], None]
"""Is told how many there were since the last time: bytes of files, or separators."""


def _tell_nobody(count: int) -> None:
    pass


@dataclass(frozen=True)
class Corpus(Sources):
    """Where texts come from: files, folders, or functions.

    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.txt").write_text("one|two")
    >>> list(Corpus((str(folder),), separator="|").documents())
    ['one', 'two']
    """

    sources: tuple[str, ...]
    """Files, folders, or functions `mine.py:documents`."""
    column: str = ""
    """Of the texts in tables; empty: the first of `COLUMNS`."""
    separator: str = ""
    """Between the documents of one text; empty: a text file or a row is one document."""
    root: Path = Path()
    """Where relative paths start."""

    WHAT: ClassVar[str] = "text"
    READ: ClassVar[tuple[str, ...]] = TEXTS + TABLES

    @cached_property
    def digest(self) -> str:
        """Changes with the names and contents of files, a function's code, and the settings."""
        return self._digest(self.column, self.separator)

    @property
    def size(self) -> int:
        return sum(file.path.stat().st_size for file in self.files)

    def pieces(
        self, report: Report = _tell_nobody, on_separators: Report = _tell_nobody
    ) -> Iterator[Piece]:
        """All documents, piece by piece, in the order of the sources.

        `report` is told of bytes that are read, `on_separators` of separators that are found.
        """
        for source in self.sources:
            if is_function(source):
                for number, text in enumerate(self._made(source), 1):
                    whole = cell_text(f"{source}, text {number}", "text", {"text": text})
                    yield from _split(iter([whole]), self.separator, on_separators)
                continue
            for file in self._files_of(source):
                yield from self._file(file.path, report, on_separators)

    def _made(self, source: str) -> Iterator[object]:
        function = self._function(source)

        def called() -> Iterable[object]:
            found = function()
            if isinstance(found, str) or not isinstance(found, Iterable):
                raise UserError(f"{source}: returned {type(found).__name__}, expected texts.")
            return found

        return iterate_user_function(called, source)

    def check(self) -> None:
        """Read the beginning of every file: a table without the column of texts is refused."""
        for file in self.files:
            next(self._file(file.path, _tell_nobody, _tell_nobody), None)

    def unused_separator(self, where: str) -> str:
        """The line for a separator that was not found; `where` says in what."""
        shown = json.dumps(self.separator, ensure_ascii=False)
        return f"{self.name}: train.separator {shown} is {where}."

    def documents(self, on_separators: Report = _tell_nobody) -> Iterator[str]:
        """All documents, each whole."""
        held: list[str] = []
        for piece in self.pieces(on_separators=on_separators):
            held.append(piece.text)
            if piece.ends:
                yield "".join(held)
                held.clear()

    def _file(self, path: Path, report: Report, on_separators: Report) -> Iterator[Piece]:
        try:
            if path.suffix.lower() in TEXTS:
                yield from _split(_blocks(path, report), self.separator, on_separators)
            else:
                for text in _table_texts(path, self.column, report):
                    yield from _split(iter([text]), self.separator, on_separators)
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror or error}).") from None


def _blocks(path: Path, report: Report) -> Iterator[str]:
    decode = codecs.getincrementaldecoder("utf-8")().decode
    lines, read, is_open = 1, 0, True
    with path.open("rb") as file:
        check_unpacked(path, file)
        while is_open:
            block = file.read(BLOCK)
            is_open = bool(block)
            if read == 0:
                block = block.removeprefix(codecs.BOM_UTF8)
            if b"\0" in block:
                line = lines + block[: block.index(b"\0")].count(b"\n")
                raise UserError(f"{path}:{line}: holds a zero byte, so it is no text.")
            try:
                text = decode(block, not is_open)
            except UnicodeDecodeError as error:
                line = lines + error.object[: error.start].count(b"\n")
                raise not_utf8(path, line, error) from None
            read += len(block)
            lines += block.count(b"\n")
            report(len(block))
            yield text


# --- files


def _table_texts(path: Path, column: str, report: Report) -> Iterator[str]:
    """The column of texts of a table; the other columns of a Parquet file are not read."""
    size, told, name = path.stat().st_size, 0, ""
    known = partial(find_column, path, column, COLUMNS, what="texts", todo="Set train.column.")
    if path.suffix.lower() == ".parquet":
        name = known(parquet_shape(path).columns)
    for row in table_rows(path, PARQUET_ROWS, [name] if name else None):
        name = name or known(list(row.values))
        if name not in row.values:
            raise UserError(f"{path}:{row.number}: no column '{name}'; every row needs it.")
        yield cell_text(f"{path}:{row.number}", name, row.values)
        now = int(row.share * size)
        report(now - told)
        told = now


# --- documents


def _split(blocks: Iterator[str], separator: str, on_separators: Report) -> Iterator[Piece]:
    """Documents of a text that comes in blocks; at most a block and a piece are held."""
    held, begun = "", False
    for block in blocks:
        *whole, held = (held + block).split(separator) if separator else [held + block]
        if whole:
            on_separators(len(whole))
        for text in whole:
            yield from _cut(text, begun)
            begun = False
        # What could be the beginning of a separator stays.
        start = 0
        while len(held) - start > PIECE + len(separator):
            place = _place(held, start)
            yield Piece(held[start:place], ends=False)
            start, begun = place, True
        held = held[start:]
    yield from _cut(held, begun)


def _cut(text: str, begun: bool = False) -> Iterator[Piece]:
    """A document, or the rest of one that has `begun`, in pieces."""
    if not text.strip() and not begun:
        return
    start = 0
    while len(text) - start > PIECE:
        place = _place(text, start)
        yield Piece(text[start:place], ends=False)
        start = place
    yield Piece(text[start:], ends=True)


def _place(text: str, start: int) -> int:
    """Where the piece from `start` on ends: before a blank between two words, where no token reaches
    across."""
    place = start + PIECE
    while (place := text.rfind(" ", start + PIECE // 2, place)) > 0:
        if not text[place - 1].isspace() and not text[place + 1].isspace():
            return place
    return start + PIECE
