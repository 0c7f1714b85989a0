"""The sounds of files, folders and Parquet files, or of a function, one after the other.

    corpus = SoundCorpus(("speech/", "fsdd.parquet"), rate=16000)
    for clip in corpus.clips():             # clip.name, clip.samples: float32, mono, at the rate
    corpus.digest                           # changes with every byte of the corpus

A file or a row is one sound. A function (`mine.py:sounds`) takes no argument and yields pairs of samples
and their rate; it must give the same ones every time. What cannot be read is refused by its name.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from burnish.errors import UserError, did_you_mean, first_line
from burnish.media import read_sound, resample, sound_info
from burnish.seeds import digest
from burnish.source import find_function, iterate_user_function, source_text
from burnish.tools.search.sources import file_digest, parquet_rows

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


@dataclass(frozen=True)
class SoundCorpus:
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
    """What a file is, for messages."""
    READ: ClassVar[tuple[str, ...]] = (*ENDINGS, TABLE)
    """Endings of the files that are read."""

    @property
    def name(self) -> str:
        """For people."""
        return ", ".join(Path(source).name for source in self.sources)

    @property
    def note(self) -> str:
        """What was left out when the clips were read, in one line; empty: nothing."""
        return ""

    @cached_property
    def files(self) -> tuple[tuple[Path, str], ...]:
        """Every file with its name, in the order in which it is read."""
        found: list[tuple[Path, str]] = []
        for source in self.sources:
            if not is_function(source):
                found += self._files_of(source)
        return tuple(found)

    @cached_property
    def digest(self) -> str:
        """Changes with the names and contents of files, a function's code, and the rate."""
        parts = [self.column, f"{self.rate}"]
        for source in self.sources:
            if is_function(source):
                parts.append(source_text(self._function(source)).decode(errors="replace"))
        for path, name in self.files:
            parts += [name, file_digest(path)]
        return digest(*parts)

    @property
    def count(self) -> int:
        """How many sounds there are, those of functions left out."""
        import pyarrow.parquet as pq

        tables = [path for path, _ in self.files if path.suffix.lower() == TABLE]
        rows = sum(int(pq.read_metadata(path).num_rows) for path in tables)
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
        """All sounds, in the order of the sources."""
        for source in self.sources:
            if is_function(source):
                yield from self._generated(source)
                continue
            for path, name in self._files_of(source):
                if path.suffix.lower() == TABLE:
                    yield from self._rows(path, name)
                else:
                    yield Clip(name, read_sound(path, rate=self.rate).samples)

    def rates(self, most: int) -> set[int]:
        """Samples a second of the first sounds of files and tables; decoding names what cannot be read."""
        found = set()
        for sound in itertools.islice(self._sources(), most):
            with contextlib.suppress(UserError):
                found.add(sound_info(sound).rate)
        return found

    def _sources(self) -> Iterator[Path | bytes]:
        for path, _ in self.files:
            if path.suffix.lower() != TABLE:
                yield path
                continue
            column = _column(path, self.column)
            for _, values, _ in parquet_rows(path, ROWS, [column]):
                value = values[column]
                content = value.get("bytes") if isinstance(value, dict) else value
                if isinstance(content, bytes):
                    yield content

    def _files_of(self, source: str) -> list[tuple[Path, str]]:
        return _files(self.root / Path(source).expanduser(), self.WHAT, self.READ)

    def _function(self, source: str) -> Callable[..., Any]:
        return find_function(source, "function of sounds", self.root)

    def _rows(self, path: Path, name: str) -> Iterator[Clip]:
        column = _column(path, self.column)
        for number, values, _ in parquet_rows(path, ROWS, [column]):
            value = values[column]
            content = value.get("bytes") if isinstance(value, dict) else value
            if not isinstance(content, bytes):
                raise UserError(
                    f"{path}: row {number} of column '{column}' holds no bytes of a sound "
                    f"(got {type(value).__name__}); expected those of a wav, flac, ogg or mp3 file"
                )
            try:
                samples = read_sound(content, rate=self.rate).samples
            except UserError as error:
                raise UserError(f"{path}: row {number}: {error}") from None
            yield Clip(f"{name}:{number}", samples)

    def _generated(self, source: str) -> Iterator[Clip]:
        for place, given in enumerate(iterate_user_function(self._function(source), source)):
            yield Clip(f"{Path(source).name}#{place + 1}", self._given(source, place, given))

    def _given(self, source: str, place: int, given: Any) -> Samples:
        try:
            samples, rate = given
            found = resample(samples, int(rate), self.rate)
        except Exception as error:  # boundary: what the user's function gave
            raise UserError(
                f"{source}: sound {place + 1} is no pair of samples and rate ({error}); expected "
                "finite numbers (n,) or (n, channels) and samples a second"
            ) from None
        return found if found.ndim == 1 else found.mean(1, dtype=np.float32)


def is_function(source: str) -> bool:
    """Whether a source is a function, such as `mine.py:sounds`."""
    return ".py:" in source or (":" in source and "/" not in source and "\\" not in source)


def _files(root: Path, what: str, known: tuple[str, ...]) -> list[tuple[Path, str]]:
    """The sounds and tables of a source, by name; hidden ones are left out."""
    if root.is_file():
        if root.suffix.lower() not in known:
            raise UserError(
                f"{root}: not a {what}; expected a folder or a file that ends in {', '.join(known)}."
            )
        return [(root, root.name)]
    if not root.is_dir():
        near = [p.name for p in root.parent.iterdir()] if root.parent.is_dir() else []
        raise UserError(f"{root}: no such file or folder.{did_you_mean(root.name, near)}")
    found = []
    for folder, inner, files in os.walk(root):
        inner[:] = [name for name in inner if not name.startswith(".")]
        paths = [Path(folder) / name for name in files if not name.startswith(".")]
        found += [(p, p.relative_to(root).as_posix()) for p in paths if p.suffix.lower() in known]
    for path, _ in found:
        # A pipe would be waited on for ever.
        if not path.is_file():
            raise UserError(
                f"{path}: a broken link, or no plain file; expected a {what}. Remove it."
            )
    if not found:
        raise UserError(
            f"{root}: no {what} in this folder; expected files that end in {', '.join(known)}."
        )
    return sorted(found, key=lambda pair: pair[1])


def _column(path: Path, asked: str) -> str:
    """The column of sounds of a table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        names = pq.read_schema(path).names
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{path}: cannot be read as Parquet ({first_line(error)}).") from None
    wanted = (asked,) if asked else COLUMNS
    for name in wanted:
        if name in names:
            return name
    expected = f"'{asked}'" if asked else f"one of {', '.join(COLUMNS)}"
    raise UserError(
        f"{path}: no column of sounds; expected {expected}, got {', '.join(names) or 'none'}. "
        "Say which (train.column, --column)."
    )
