"""Passages of a folder of texts, or of a JSONL, CSV, TSV or Parquet file; read as a stream.

A document longer than `longest` characters is cut at its paragraphs. Its pieces are `ID#1`, `ID#2`
and so on, so the same source gives the same ids. A document that is short enough keeps its own id.
Nothing is held in memory but one row: `burnish.tasks` reads its files whole.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import hashlib
import io
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from burnish.boundary import Settings
from burnish.errors import UserError, did_you_mean, first_line
from burnish.seeds import digest
from burnish.texts import half_pair
from burnish.tools.search.passages import Passage

TEXTS = (".txt", ".md")
Kind = Literal["jsonl", "csv", "tsv", "parquet"]
KINDS: dict[str, Kind] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
TABLES = tuple(KINDS)
DEEPEST = 200
"""Levels of lists and objects inside each other that a row may have."""
LARGEST_GROUP = 8 << 30
"""Bytes of a row group of a Parquet file, unpacked."""
CELL = 64
"""Bytes that a cell costs beside its text."""
_USUAL = {
    "id": ("id", "_id", "doc_id", "docid", "passage_id", "pid"),
    "title": ("title", "name", "heading"),
    "text": ("text", "contents", "content", "passage", "body", "document"),
}
"""Names of columns that are taken where none is given."""
_PARAGRAPHS = re.compile(r"\n[ \t\r]*\n\s*")
_SENTENCES = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n")
_HEADING = re.compile(r"^#{1,6}[ \t]+(\S.*)$", re.MULTILINE)
LONGEST_CELL = 1 << 28
"""Characters of a CSV cell; a longer one is a quote that was left open."""
# The csv module has one limit for the whole process, 131,072 characters: shorter than many documents.
csv.field_size_limit(max(csv.field_size_limit(), LONGEST_CELL))
_PACKED = {
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "ZIP",
    b"\x28\xb5\x2f\xfd": "Zstandard",
    b"\xfd7zXZ\0": "xz",
}
"""First bytes of compressed files."""
Report = Callable[[str, int, int], None]
"""What is being done, how much of it is done, and how much there is (0: not known)."""


def no_report(what: str, done: int, total: int) -> None:
    """Tell nobody."""


class Source(Settings, frozen=True):
    """A file or folder, and how passages are made of it."""

    path: str
    """A folder of .txt and .md files, or a JSONL, CSV, TSV or Parquet file."""
    text: str = ""
    """Column of the text; the first of text, contents, content, passage, body, document."""
    title: str = ""
    """Column of the title; the first of title, name, heading; none is needed."""
    id: str = ""
    """Column of the id; the first of id, _id, doc_id, docid, passage_id, pid, else the row number."""
    longest: Annotated[int, Meta(ge=40, le=1_000_000)] = 1200
    """Characters of a passage; a longer document is cut at its paragraphs."""


class SourceFile(NamedTuple):
    path: Path
    name: str
    """As ids and messages name it: from the source's folder."""


def source_files(source: Source) -> list[SourceFile]:
    """The files of a source in the order in which they are read."""
    root = Path(source.path).expanduser()
    found, whole = known_files(root, TEXTS + TABLES, "file to search in"), root.resolve()
    for file in found if root.is_dir() else ():
        if not file.path.resolve().is_relative_to(whole):
            raise UserError(f"{file.path}: a link that leads to no file of {root}. Remove it.")
    return found


def known_files(root: Path, endings: Sequence[str], what: str) -> list[SourceFile]:
    """A file, or those of a folder by name, that end so; hidden ones are left out."""
    if not root.exists():
        raise UserError(f"{root}: no such file or folder.")
    files = files_in(root) if root.is_dir() else [SourceFile(root, root.name)]
    found = [file for file in files if file.path.suffix.lower() in endings]
    for file in found:
        if not file.path.is_file():  # a pipe would be waited on for ever
            raise UserError(f"{file.path}: a link to nothing, or no plain file. Remove it.")
    if not found:
        raise UserError(f"{root}: no {what}; expected files that end in {', '.join(endings)}.")
    return found


def files_in(root: Path) -> list[SourceFile]:
    """Every file of a folder that is not hidden, by name; links to folders are not followed."""
    found = []
    for folder, inner, files in os.walk(root):
        inner[:] = [name for name in inner if not name.startswith(".")]
        paths = [Path(folder) / name for name in files if not name.startswith(".")]
        found += [SourceFile(path, path.relative_to(root).as_posix()) for path in paths]
    return sorted(found, key=lambda file: file.name)


def check_unpacked(path: Path, file: IO[bytes]) -> None:
    """Refuse a file that is compressed; it stands at its begin."""
    begin = file.read(8)
    file.seek(0)
    if packed := next((kind for magic, kind in _PACKED.items() if begin.startswith(magic)), ""):
        raise UserError(f"{path}: a {packed} file by its first bytes. Decompress it first.")


def file_digest(path: Path) -> str:
    with _opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tree_digest(path: Path) -> str:
    """Changes with the name and contents of the file, or of every file in the folder.

    Hidden files do not count.
    """
    files = files_in(path) if path.is_dir() else [SourceFile(path, path.name)]
    return digest(*(part for file in files for part in (file.name, file_digest(file.path))))


def read_passages(source: Source, report: Report = no_report) -> Iterator[Passage]:
    """The passages of a source; documents without a word are left out."""
    longest = source.longest
    files = source_files(source)
    sizes = [file.path.stat().st_size for file in files]
    total = sum(sizes)
    seen: set[str] = set()
    done = 0
    for file, size in zip(files, sizes, strict=True):
        for document, share in _documents(file, source, len(files) > 1):
            for passage in cut(document, longest):
                if passage.id in seen:
                    raise UserError(
                        f"{file.name}: two rows have the id '{passage.id}'; name another with id."
                    )
                seen.add(passage.id)
                yield passage
            report("reading", done + int(share * size), total)
        done += size
    report("reading", total, total)


# --- cutting


def cut(document: Passage, longest: int) -> list[Passage]:
    """A document as passages of at most `longest` characters, cut at paragraphs where possible."""
    if not document.text.strip():
        return []
    if len(document.text) <= longest:
        return [document]
    pieces: list[str] = []
    for paragraph in _PARAGRAPHS.split(document.text.strip()):
        for part in [paragraph] if len(paragraph) <= longest else _sentences(paragraph, longest):
            if pieces and len(pieces[-1]) + 2 + len(part) <= longest:
                pieces[-1] += "\n\n" + part
            else:
                pieces.append(part)
    return [
        Passage(f"{document.id}#{number}", piece, document.title)
        for number, piece in enumerate(pieces, start=1)
    ]


def _sentences(paragraph: str, longest: int) -> Iterator[str]:
    """Its sentences joined up to the limit; a sentence beyond it is cut at blanks."""
    held = ""
    for sentence in _SENTENCES.split(paragraph):
        while len(sentence) > longest:
            blank = sentence.rfind(" ", 1, longest + 1)
            place = blank if blank > 0 else longest
            if held:
                yield held
                held = ""
            yield sentence[:place].rstrip()
            sentence = sentence[place:].lstrip()
        if held and len(held) + 1 + len(sentence) > longest:
            yield held
            held = ""
        held = f"{held} {sentence}".strip()
    if held:
        yield held


# --- reading


class BadRow(NamedTuple):
    number: int
    why: str


class SourceRow(NamedTuple):
    number: int
    values: dict[str, Any]
    share: float
    """Of the file that is read with it."""


def _documents(
    file: SourceFile, source: Source, is_one_of_many: bool
) -> Iterator[tuple[Passage, float]]:
    """The documents of a file, and the share of it that is read with each."""
    path = file.path
    if path.suffix.lower() in TEXTS:
        with _opened(path) as opened:
            check_unpacked(path, opened)
            content = opened.read()
        try:
            text = content.decode("utf-8-sig").replace("\r\n", "\n")
        except UnicodeDecodeError as error:
            raise not_utf8(path, content[: error.start].count(b"\n") + 1, error) from None
        heading = _HEADING.search(text) if path.suffix.lower() == ".md" else None
        title = (heading and heading[1].rstrip(" \t#")) or path.stem
        yield Passage(file.name, text, title), 1.0
        return
    columns: dict[str, str] = {}
    for row in table_rows(path):
        values = row.values
        columns = columns or {name: _column(path, source, name, list(values)) for name in _USUAL}
        where = f"{path}:{row.number}"
        text, title = (cell_text(where, columns[k], values) for k in ("text", "title"))
        id_: Any = f"{file.name}:{row.number}" if is_one_of_many else row.number
        if columns["id"] in values:
            id_ = values[columns["id"]]
        if isinstance(id_, bool) or not isinstance(id_, str | int) or id_ == "":
            raise UserError(f"{where}: the id is {id_!r:.40}; expected a text or a whole number.")
        yield Passage(str(id_), text, title), row.share


def _column(path: Path, source: Source, what: str, first: list[str]) -> str:
    """Which column holds the ids, titles or texts, decided by the first row."""
    given, usual = getattr(source, what), _USUAL[what]
    if what != "text" and not given:
        return next((name for name in usual if name in first), "")
    return find_column(path, given, usual, first, f"{what}s", f"Name it (--{what} COLUMN).")


def not_utf8(path: Path, line: int, error: UnicodeDecodeError) -> UserError:
    byte = error.object[error.start]
    return UserError(f"{path}:{line}: not UTF-8 (byte {byte:#04x}); save it as UTF-8.")


def find_column(
    where: str | Path, given: str, usual: Sequence[str], names: Sequence[str], what: str, todo: str
) -> str:
    """The column that was named, or the first usual one; refused where it is not among `names`."""
    for name in (given,) if given else usual:
        if name in names:
            return name
    missing = f"'{given}' of {what}" if given else f"of {what}, such as {', '.join(usual)}"
    has = f"it has {', '.join(names[:8]) or 'none'}.{did_you_mean(given, names)}"
    raise UserError(f"{where}: no column {missing}; {has} {todo}")


def cell_text(where: str, column: str, values: Mapping[str, Any]) -> str:
    """A cell that has to be a text; empty where it is missing."""
    value = values.get(column)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UserError(f"{where}: '{column}' is {value!r:.40}; expected a text.")
    return value


def table_rows(
    path: Path, at_once: int = 1024, columns: list[str] | None = None
) -> Iterator[SourceRow]:
    """The rows of a table as a stream; the first that cannot be read is refused."""
    for row in read_rows(path, KINDS[path.suffix.lower()], at_once=at_once, columns=columns):
        if isinstance(row, BadRow):
            raise UserError(f"{path}:{row.number}: {row.why}.")
        yield row


def read_rows(
    path: Path,
    kind: str,
    content: bytes | None = None,
    *,
    at_once: int = 1024,
    columns: list[str] | None = None,
    most_bytes: int = 0,
) -> Iterator[SourceRow | BadRow]:
    """The rows of a JSONL, CSV, TSV or Parquet file, of which few are in memory.

    `content` are the file's bytes where they are at hand. Of Parquet, whose cells may be packed a
    thousandfold, `at_once` rows are unpacked at a time, of some `columns` or all; with `most_bytes` a
    table is refused that takes more, before the rest of it is read.
    """
    with io.BytesIO(content) if content is not None else _opened(path) as file:
        check_unpacked(path, file)
        if kind == "parquet":
            yield from _parquet_rows(path, file, at_once, columns, most_bytes)
        elif kind == "jsonl":
            yield from _jsonl_rows(path, file)
        else:
            yield from _csv_rows(path, file, "\t" if kind == "tsv" else ",")


def decode_json(text: str | bytes) -> Any:
    """JSON of a depth that can also be stored and read back, far below Python's own limit."""
    try:
        value = msgspec.json.decode(text)
    except RecursionError:
        raise msgspec.DecodeError("nested too deeply") from None
    except msgspec.DecodeError:
        # The decoder calls half a pair truncated, or says nothing of surrogates.
        if half := half_pair(text if isinstance(text, str) else text.decode(errors="replace")):
            raise msgspec.DecodeError(f"{half} is half of a surrogate pair, no character") from None
        raise
    brackets = ("[", "{") if isinstance(text, str) else (b"[", b"{")
    if sum(map(text.count, brackets)) > DEEPEST and _is_deep([value]):  # type: ignore[arg-type]
        raise msgspec.DecodeError(f"nested more than {DEEPEST} levels deep")
    return value


def _is_deep(level: list[Any]) -> bool:
    for _ in range(DEEPEST + 1):
        inner = [value.values() if isinstance(value, dict) else value for value in level]
        level = [item for one in inner for item in one if isinstance(item, dict | list)]
    return bool(level)


def kind_word(value: Any) -> str:
    """What a JSON value is, in words."""
    names = {list: "a list", str: "text", int: "a number", float: "a number", bool: "true/false"}
    return "null" if value is None else names.get(type(value), type(value).__name__)


def _opened(path: Path) -> io.BufferedReader:
    try:
        return path.open("rb")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); expected a file.") from None


def _jsonl_rows(path: Path, file: IO[bytes]) -> Iterator[SourceRow | BadRow]:
    size, read = max(_size(file), 1), 0
    # Cut at newlines alone: str.splitlines would also cut at U+2028 inside a JSON string.
    for number, line in enumerate(file, start=1):
        read += len(line)
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if not line.strip():
            continue
        try:
            value = decode_json(line.decode())
        except UnicodeDecodeError as error:
            raise not_utf8(path, number, error) from None
        except msgspec.DecodeError as error:
            yield BadRow(number, f"not JSON ({error}), expected one object a line")
            continue
        if isinstance(value, dict):
            yield SourceRow(number, value, read / size)
        else:
            yield BadRow(number, f"got {kind_word(value)}, expected an object with named columns")


def _size(file: IO[bytes]) -> int:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    return size


def _csv_rows(path: Path, file: IO[bytes], delimiter: str) -> Iterator[SourceRow | BadRow]:
    size, read = max(_size(file), 1), 0
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    reader = csv.reader(text, delimiter=delimiter)
    try:
        header = next(reader, [])
        if not header or len(set(header)) != len(header):
            raise UserError(f"{path}:1: column names {header}; expected each named once.")
        for cells in reader:
            read += sum(map(len, cells)) + len(cells)
            if len(cells) == len(header):
                values = dict(zip(header, cells, strict=True))
                yield SourceRow(reader.line_num, values, min(read / size, 1.0))
            elif cells:
                why = f"{len(cells)} cells, expected {len(header)} ({', '.join(header)})"
                yield BadRow(reader.line_num, why)
    except csv.Error as error:
        raise UserError(f"{path}:{reader.line_num}: no CSV ({error}); check the quotes.") from None
    except UnicodeDecodeError as error:
        raise not_utf8(path, reader.line_num + 1, error) from None


class ParquetShape(NamedTuple):
    columns: list[str]
    rows: int


def parquet_shape(path: Path) -> ParquetShape:
    """The columns and the number of rows of a Parquet file, which is not read."""
    with _opened(path) as file, _reading_parquet(path, [0]) as parquet:
        check_unpacked(path, file)
        table = parquet.ParquetFile(file, pre_buffer=False)
        return ParquetShape(list(table.schema_arrow.names), int(table.metadata.num_rows))


def _parquet_rows(
    path: Path, file: IO[bytes], at_once: int, columns: list[str] | None, most_bytes: int
) -> Iterator[SourceRow]:
    place = [0]
    with _reading_parquet(path, place) as parquet:
        table, held = parquet.ParquetFile(file, pre_buffer=False), 0
        total = max(table.metadata.num_rows, 1)
        groups = range(table.metadata.num_row_groups)
        largest = max((table.metadata.row_group(n).total_byte_size for n in groups), default=0)
        if largest > LARGEST_GROUP:
            raise UserError(
                f"{path}: a row group of more than {LARGEST_GROUP >> 30} GiB; make it smaller."
            )
        # Without threads: those of its pools may still run when a short command ends, and abort it.
        for batch in table.iter_batches(at_once, columns=columns, use_threads=False):
            held += batch.nbytes + CELL * batch.num_rows * batch.num_columns
            if most_bytes and held > most_bytes:
                raise UserError(f"{path}: more than {most_bytes >> 20:,} MiB unpacked. Split it.")
            for values in batch.to_pylist():
                place[0] += 1
                yield SourceRow(place[0], values, place[0] / total)


@contextlib.contextmanager
def _reading_parquet(path: Path, place: list[int]) -> Iterator[Any]:
    """No error of the library, of its decompressors or of what it makes of values leaves here.

    `place` holds the number of the row that was read last.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError(f"{path}: needs pyarrow. Run: pip install 'burnish[data]'") from None
    try:
        yield pyarrow.parquet
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        if isinstance(error, UserError):
            raise
        why = f"not a readable Parquet file ({first_line(error)})."
        if place[0]:  # a file with a good footer may hold broken pages
            behind = f"behind row {place[0]} ({first_line(error)})"
            why = f"cannot be read {behind}. It is damaged: copy it again."
        raise UserError(f"{path}: {why}") from None
