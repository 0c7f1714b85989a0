"""Files of JSON lines take every text a record may hold."""

from typing import Any

from msgspec import Struct

from burnish.lm.lines import LineFile, read_lines


class Note(Struct, omit_defaults=True):
    text: str
    more: dict[str, Any] = {}
    parts: tuple[Any, ...] = ()


def test_half_characters_are_written_as_whole_ones(tmp_path):
    """Other records of the file stay as they are, and the file is read back."""
    notes = [Note("a"), Note("b\ud83d", {"\udc00": ["\ud800", 1]}, ("\udfff",)), Note("\U0001f600")]
    with LineFile(tmp_path / "notes.jsonl", Note) as file:
        starts = [file.append(note) for note in notes]
    assert read_lines(tmp_path / "notes.jsonl", Note) == [
        notes[0],
        Note("b\ufffd", {"\ufffd": ["\ufffd", 1]}, ("\ufffd",)),
        notes[2],
    ]
    assert starts == sorted(starts)
