"""The sounds of files, folders and Parquet files, or of a function, one after the other.

A file or a row is one sound. A function (`mine.py:sounds`) takes no argument and yields pairs of samples
and their rate; it must give the same ones every time. What cannot be read is refused by its name.

Recordings with what is said in them are rows of JSONL, CSV, TSV or Parquet files, or dicts of a function.
A sound is a path from the folder of its file, bytes, or Hugging Face's `{bytes, path}`.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from burnish.errors import UserError, first_line
from burnish.media import read_sound, resample, sound_info
from burnish.seeds import digest
from burnish.source import find_function, iterate_user_function, source_text
from burnish.tasks.media_columns import media_bytes
from burnish.tools.search.sources import (
    TABLES,
    SourceFile,
    file_digest,
    find_column,
    known_files,
    parquet_shape,
    table_rows,
)

ENDINGS = (".wav", ".flac", ".ogg", ".oga", ".mp3")
TABLE = ".parquet"
COLUMNS = ("audio", "sound", "wav", "flac", "ogg", "mp3", "bytes")
"""Names of the column of sounds that are looked for where none is given."""
ROWS = 16
"""Rows of a Parquet file that are held at one time: they may hold the bytes of sounds."""
Samples = NDArray[np.float32]


class Clip(NamedTuple):
    """One sound."""

    name: str
    samples: Samples
    text: str = ""
    """What is said in it, where that is known."""
    voice: str = ""
    """Who says it."""


class Sources:
    """What every corpus has: its files, and functions of the user's own."""

    sources: tuple[str, ...]
    column: str
    root: Path

    WHAT: ClassVar[str]
    """What a file is, for messages."""
    READ: ClassVar[tuple[str, ...]]
    """Endings of the files that are read."""

    @property
    def name(self) -> str:
        return ", ".join(Path(source).name for source in self.sources)

    @cached_property
    def files(self) -> tuple[SourceFile, ...]:
        own = [source for source in self.sources if not is_function(source)]
        return tuple(file for source in own for file in self._files_of(source))

    def _files_of(self, source: str) -> list[SourceFile]:
        return known_files(self.root / Path(source).expanduser(), self.READ, self.WHAT)

    @property
    def has_functions(self) -> bool:
        """Whether some of it comes from functions, whose contents the digest does not cover."""
        return any(map(is_function, self.sources))

    def _digest(self, *settings: str) -> str:
        """Changes with the names and contents of files, a function's code, and the settings."""
        parts = list(settings)
        for source in self.sources:
            if is_function(source):
                parts.append(source_text(self._function(source)).decode(errors="replace"))
        for path, name in self.files:
            parts += [name, file_digest(path)]
        return digest(*parts)

    def _function(self, source: str) -> Callable[..., Any]:
        return find_function(source, f"function of {self.WHAT}s", self.root)


@dataclass(frozen=True)
class SoundCorpus(Sources):
    """Where sounds come from: files, folders, Parquet files, or functions.

    >>> import pathlib, tempfile
    >>> from burnish.media import write_sound
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = write_sound(folder / "a.wav", [0.0, 0.5, -0.5, 0.0], 8000)
    >>> [(clip.name, len(clip.samples)) for clip in SoundCorpus((str(folder),), 16000).clips()]
    [('a.wav', 8)]
    """

    sources: tuple[str, ...]
    """Files, folders, or functions `mine.py:sounds`."""
    rate: int
    """Samples a second of the clips."""
    column: str = ""
    """Of the sounds in tables; empty: the first of `COLUMNS`."""
    root: Path = Path()
    """Where relative paths start."""

    WHAT: ClassVar[str] = "sound"
    READ: ClassVar[tuple[str, ...]] = (*ENDINGS, TABLE)

    @property
    def note(self) -> str:
        """What was left out when the clips were read, in one line; empty: nothing."""
        return ""

    @cached_property
    def digest(self) -> str:
        """Changes with the names and contents of files, a function's code, and the rate."""
        return self._digest(self.column, f"{self.rate}")

    @property
    def count(self) -> int:
        tables = [path for path, _ in self.files if path.suffix.lower() == TABLE]
        rows = sum(
            1 for path in tables for _ in table_rows(path, ROWS, [_column(path, self.column)])
        )
        return len(self.files) - len(tables) + rows

    def check(self) -> None:
        """Refuse what is missing: files, the column of a table, a function."""
        for source in self.sources:
            if is_function(source):
                self._function(source)
        for path, _ in self.files:
            self._check_file(path)

    def _check_file(self, path: Path) -> None:
        if path.suffix.lower() == TABLE:
            _column(path, self.column)

    def clips(self) -> Iterator[Clip]:
        for source in self.sources:
            if is_function(source):
                made = iterate_user_function(self._function(source), source)
                for place, given in enumerate(made, 1):
                    yield Clip(f"{Path(source).name}#{place}", self._given(source, place, given))
                continue
            for path, name in self._files_of(source):
                if path.suffix.lower() == TABLE:
                    yield from self._rows(path, name)
                else:
                    yield Clip(name, read_sound(path, rate=self.rate).samples)

    def rates(self, most: int) -> set[int]:
        """Samples a second of the first sounds of files and tables; decoding names what cannot be read."""

        def sounds() -> Iterator[Path | bytes]:
            for path, _ in self.files:
                if path.suffix.lower() != TABLE:
                    yield path
                    continue
                column = _column(path, self.column)
                for row in table_rows(path, ROWS, [column]):
                    if isinstance(content := _bytes_of(row.values[column]), bytes):
                        yield content

        found = set()
        for sound in itertools.islice(sounds(), most):
            with contextlib.suppress(UserError):
                found.add(sound_info(sound).rate)
        return found

    def _rows(self, path: Path, name: str) -> Iterator[Clip]:
        column = _column(path, self.column)
        for row in table_rows(path, ROWS, [column]):
            content = _bytes_of(row.values[column])
            try:
                if not isinstance(content, bytes):
                    raise UserError(f"'{column}' is {type(content).__name__}, no bytes of a sound")
                samples = read_sound(content, rate=self.rate).samples
            except UserError as error:
                raise UserError(f"{path}: row {row.number}: {error}") from None
            yield Clip(f"{name}:{row.number}", samples)

    def _given(self, source: str, place: int, given: Any) -> Samples:
        try:
            samples, rate = given
            found = resample(samples, int(rate), self.rate)
        except Exception as error:  # boundary: what the user's function gave
            raise UserError(f"{source}: sound {place} is no (samples, rate): {error}") from None
        return found if found.ndim == 1 else found.mean(1, dtype=np.float32)


def _bytes_of(value: Any) -> Any:
    return value.get("bytes") if isinstance(value, dict) else value


def is_function(source: str) -> bool:
    """Whether a source is a function, such as `mine.py:sounds`."""
    return ".py:" in source or (":" in source and "/" not in source and "\\" not in source)


def _column(path: Path, asked: str) -> str:
    return _sound_column(path, parquet_shape(path).columns, asked)


def _sound_column(where: str | Path, names: list[str], asked: str) -> str:
    return find_column(where, asked, COLUMNS, names, "sounds", "Set train.column, or --column.")


# --- recordings with their texts


VOICE = "voice"
"""The column of who speaks, where none is named."""
NAMED = 3
"""Rows of each fault that the note names."""
DETAIL = 100
"""Characters of what is wrong with a sound."""
CHARACTERS_A_SECOND = 50
"""Of a text, and as many for an unfinished second; speech has about 15, the fastest under 40."""


class UtteranceRow(NamedTuple):
    """One row before its sound is read."""

    name: str
    sound: Any
    text: Any
    voice: Any
    folder: Path | None
    """Where paths of sounds start; None: the row has none."""


class LeftOut(NamedTuple):
    """A row that cannot be learned from."""

    fault: str
    row: str
    """Its name, and what is wrong with it where the fault alone does not say."""


@dataclass(frozen=True)
class UtteranceCorpus(SoundCorpus):
    """Where recordings with their texts come from: tables, or functions.

    >>> import json, pathlib, tempfile
    >>> from burnish.media import write_sound
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = write_sound(folder / "a.wav", [0.0, 0.5, -0.5, 0.0] * 100, 8000)
    >>> rows = [{"audio": "a.wav", "text": "Room 7!"}, {"audio": "a.wav", "text": ""}]
    >>> _ = (folder / "clips.jsonl").write_text("\\n".join(map(json.dumps, rows)))
    >>> corpus = UtteranceCorpus((str(folder / "clips.jsonl"),), 8000)
    >>> [(clip.text, len(clip.samples)) for clip in corpus.clips()]
    [('room seven!', 400)]
    >>> corpus.note
    'left out 1 of 2 rows: 1 without text (clips.jsonl:2)'
    """

    said: str = "text"
    """Column of what is said."""
    speaker: str = VOICE
    """Column of who says it; a table without `voice` has one voice, any other name has to be there."""
    shortest: int = 1
    """Samples of a clip at the rate; shorter ones are left out."""
    longest: int = 1 << 31
    faults: dict[str, list[str]] = field(default_factory=dict, compare=False)
    """Rows that were left out, by what is wrong with them."""
    seen: list[str] = field(default_factory=list, compare=False)
    """Names of all rows that were read."""

    WHAT: ClassVar[str] = "table"
    READ: ClassVar[tuple[str, ...]] = TABLES

    @property
    def note(self) -> str:
        if not self.faults:
            return ""
        count = sum(map(len, self.faults.values()))
        told = "; ".join(
            f"{len(rows)} {fault} ({', '.join(rows[:NAMED])}{', ...' if len(rows) > NAMED else ''})"
            for fault, rows in self.faults.items()
        )
        return f"left out {count:,} of {len(self.seen):,} rows: {told}"

    @cached_property
    def digest(self) -> str:
        """Changes also with the sounds that rows name by their paths."""
        limits = f"{self.said} {self.speaker} {self.shortest} {self.longest} {CHARACTERS_A_SECOND}"
        parts = [super().digest, limits]
        for file, name in self.files:
            for row in self._file_rows(file, name):
                value = row.sound
                if isinstance(value, dict):
                    value = value.get("path") if value.get("bytes") is None else None
                if not isinstance(value, str) or value[:5].lower() == "data:":
                    continue
                try:
                    path = file.parent / value
                    parts.append(file_digest(path) if path.is_file() else "")
                except (OSError, ValueError, UserError):  # too long, a NUL inside, no permission
                    parts.append("")
        return digest(*parts)

    @property
    def count(self) -> int:
        return sum(1 for path, _ in self.files for _ in table_rows(path, ROWS))

    def _check_file(self, path: Path) -> None:
        first = next(table_rows(path, ROWS), None)
        if first is not None:
            self._columns(path, list(first.values))

    def clips(self) -> Iterator[Clip]:
        """The rows that can be learned from, in the order of the sources; the note says of the others."""
        self.faults.clear()
        self.seen.clear()
        for row in self.rows():
            self.seen.append(row.name)
            found = self._clip(row)
            if isinstance(found, Clip):
                yield found
            else:
                self.faults.setdefault(found.fault, []).append(found.row)

    def rows(self) -> Iterator[UtteranceRow]:
        for source in self.sources:
            if not is_function(source):
                for path, name in self._files_of(source):
                    yield from self._file_rows(path, name)
                continue
            made = iterate_user_function(self._function(source), source)
            for number, given in enumerate(made, 1):
                try:
                    values = dict(given)
                except Exception as error:  # boundary: what the user's function gave
                    raise UserError(f"{source}: row {number} is no dict ({given!r:.40})") from error
                audio = self._columns(source, list(values))
                said, speaker = values.get(self.said), values.get(self.speaker)
                name = f"{Path(source).name}#{number}"
                yield UtteranceRow(name, values.get(audio), said, speaker, None)

    def _file_rows(self, path: Path, name: str) -> Iterator[UtteranceRow]:
        audio = ""
        for number, row in enumerate(table_rows(path, ROWS), 1):
            values = row.values
            audio = audio or self._columns(path, list(values))
            said, speaker = values.get(self.said), values.get(self.speaker)
            yield UtteranceRow(f"{name}:{number}", values.get(audio), said, speaker, path.parent)

    def _columns(self, where: str | Path, names: list[str]) -> str:
        """The column of sounds; refuses rows without it, or without those of texts and voices."""
        find_column(where, self.said, (), names, "texts", "Set train.text.")
        find_column(where, self.speaker, (), [*names, VOICE], "voices", "Set train.voice.")
        return _sound_column(where, names, self.column)

    def _clip(self, row: UtteranceRow) -> Clip | LeftOut:
        # Here: tables are read without torch, which comes with the models.
        from burnish.models.audio_tokenizer.spelling import ALPHABET, spelled

        if row.text is None or (isinstance(row.text, str) and not row.text.strip()):
            return LeftOut("without text", row.name)
        if not isinstance(row.text, str):
            return LeftOut("whose text is none", f"{row.name}: {row.text!r:.40}")
        # Before it is spelled and its sound is read: a whole book in one row costs nothing.
        if too_long := self._too_long(row, len(row.text), self.longest):
            return too_long
        text = spelled(row.text)
        strange = sorted(set(text) - set(ALPHABET))
        if strange or not any(one.isalpha() for one in text):
            why = f"{row.name}: {strange[0]!r}" if strange else f"{row.name}: no letter"
            return LeftOut("that cannot be spelled", why)
        try:
            if row.folder is None and isinstance(row.sound, tuple | list):
                samples = self._given(row.name, 1, row.sound)
            else:
                samples = read_sound(media_bytes(row.sound, row.folder), rate=self.rate).samples
        except UserError as error:
            return LeftOut("unreadable", f"{row.name}: {first_line(error)[:DETAIL]}")
        if len(samples) > self.longest:
            return LeftOut(f"longer than {self.longest / self.rate:g} s", row.name)
        if len(samples) < self.shortest:
            return LeftOut(f"shorter than {self.shortest / self.rate:g} s", row.name)
        if too_long := self._too_long(row, len(text), len(samples)):
            return too_long
        return Clip(row.name, samples, text, "" if row.voice is None else str(row.voice).strip())

    def _too_long(self, row: UtteranceRow, characters: int, samples: int) -> LeftOut | None:
        """Why a text cannot be that of so many samples."""
        seconds = samples / self.rate
        most = int(CHARACTERS_A_SECOND * (1 + seconds))
        if characters <= most:
            return None
        why = f"{row.name}: {characters:,} characters, at most {most:,} in {seconds:,.3g} s"
        return LeftOut("with more text than can be said", why)
