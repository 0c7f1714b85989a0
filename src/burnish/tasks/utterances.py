"""Recordings with what is said in them: rows of sound, text and voice, one after the other.

    corpus = UtteranceCorpus(("clips.jsonl",), rate=16000)
    for clip in corpus.clips():             # clip.samples, clip.text: spelled, clip.voice
    corpus.note                             # "left out 2 of 90 rows: 1 without text (clips.jsonl:4), ..."

Rows are those of JSONL, CSV, TSV or Parquet files. A sound is a path from the folder of its file, bytes, or
Hugging Face's `{bytes, path}`. A function (`mine.py:rows`) takes no argument and yields such rows as dicts,
whose sound may be a pair of samples and rate; it must give the same ones every time. A row that cannot be
learned from is left out, and the note counts and names it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from burnish.errors import UserError, did_you_mean, first_line
from burnish.media import read_sound
from burnish.seeds import digest
from burnish.source import describe, iterate_user_function
from burnish.tasks.media_columns import media_bytes
from burnish.tasks.sounds import COLUMNS, ROWS, Clip, Samples, SoundCorpus, is_function
from burnish.tools.search.sources import TABLES, csv_rows, file_digest, jsonl_rows, parquet_rows

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
            paths = map(_path_of, self._file_rows(file, name))
            parts += [_digest_of(one) for one in paths if one is not None]
        return digest(*parts)

    @property
    def count(self) -> int:
        """How many rows there are, those of functions left out."""
        return sum(1 for path, _ in self.files for _ in _table_rows(path))

    def _check_file(self, path: Path) -> None:
        first = next(_table_rows(path), None)
        if first is not None:
            self._columns(path, list(first))

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
        """Every row as it stands there."""
        for source in self.sources:
            if is_function(source):
                yield from self._called_rows(source)
                continue
            for path, name in self._files_of(source):
                yield from self._file_rows(path, name)

    def _file_rows(self, path: Path, name: str) -> Iterator[UtteranceRow]:
        audio = ""
        for number, values in enumerate(_table_rows(path), 1):
            audio = audio or self._columns(path, list(values))
            yield self._row(f"{name}:{number}", values, audio, path.parent)

    def _called_rows(self, source: str) -> Iterator[UtteranceRow]:
        for number, values in enumerate(iterate_user_function(self._function(source), source), 1):
            if not isinstance(values, Mapping):
                raise UserError(
                    f"{source}: row {number} is {type(values).__name__}; expected a dict with audio "
                    f"and {self.said}"
                )
            try:
                audio = self._columns(source, list(values))
                row = self._row(f"{Path(source).name}#{number}", values, audio, None)
            except UserError:
                raise
            except Exception as error:  # boundary: what the user's function gave
                raise UserError(f"{source}: row {number}: raised {describe(error)}") from error
            yield row

    def _row(
        self, name: str, values: Mapping[str, Any], audio: str, folder: Path | None
    ) -> UtteranceRow:
        said, speaker = values.get(self.said), values.get(self.speaker)
        return UtteranceRow(name, values.get(audio), said, speaker, folder)

    def _columns(self, where: str | Path, names: list[str]) -> str:
        """The column of sounds; refuses rows without it, or without that of texts."""
        wanted = (self.column,) if self.column else COLUMNS
        audio = next((name for name in wanted if name in names), "")
        has = ", ".join(names[:8]) or "none"
        if not audio:
            raise UserError(
                f"{where}: no column of sounds; expected {' or '.join(wanted)}, got {has}. Say which: "
                "train.column"
            )
        if self.said not in names:
            raise UserError(
                f"{where}: no column '{self.said}' of texts; got {has}."
                f"{did_you_mean(self.said, names)} Say which: train.text"
            )
        if self.speaker not in (VOICE, *names):
            raise UserError(
                f"{where}: no column '{self.speaker}' of voices; got {has}."
                f"{did_you_mean(self.speaker, names)} Say which: train.voice"
            )
        return audio

    def _clip(self, row: UtteranceRow) -> Clip | LeftOut:
        """The row's clip, or why it is left out."""
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
            samples = self._samples(row)
        except UserError as error:
            return LeftOut("unreadable", f"{row.name}: {first_line(error)[:DETAIL]}")
        if len(samples) > self.longest:
            return LeftOut(f"longer than {self.longest / self.rate:g} s", row.name)
        if len(samples) < self.shortest:
            return LeftOut(f"shorter than {self.shortest / self.rate:g} s", row.name)
        if too_long := self._too_long(row, len(text), len(samples)):
            return too_long
        voice = "" if row.voice is None else str(row.voice).strip()
        return Clip(row.name, samples, text, voice)

    def _too_long(self, row: UtteranceRow, characters: int, samples: int) -> LeftOut | None:
        """Why a text cannot be that of so many samples."""
        seconds = samples / self.rate
        most = int(CHARACTERS_A_SECOND * (1 + seconds))
        if characters <= most:
            return None
        why = f"{row.name}: {characters:,} characters, at most {most:,} in {seconds:,.3g} s"
        return LeftOut("with more text than can be said", why)

    def _samples(self, row: UtteranceRow) -> Samples:
        if row.folder is None and isinstance(row.sound, tuple | list):
            return self._given(row.name, 0, row.sound)
        return read_sound(media_bytes(row.sound, row.folder), rate=self.rate).samples


def _table_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    """The rows of a table."""
    kind = path.suffix.lower()
    if kind == ".parquet":
        rows = parquet_rows(path, ROWS)
    else:
        rows = csv_rows(path) if kind in (".csv", ".tsv") else jsonl_rows(path)
    for row in rows:
        yield row.values


def _path_of(row: UtteranceRow) -> Path | None:
    """The file that a row names; None for one with bytes."""
    value = row.sound
    if isinstance(value, dict):
        value = value.get("path") if value.get("bytes") is None else None
    if row.folder is None or not isinstance(value, str) or value[:5].lower() == "data:":
        return None
    return row.folder / value


def _digest_of(path: Path) -> str:
    """That of a file; empty for a path that nothing can be read from."""
    try:
        return file_digest(path) if path.is_file() else ""
    except (OSError, ValueError, UserError):  # too long, a NUL inside, no permission
        return ""
