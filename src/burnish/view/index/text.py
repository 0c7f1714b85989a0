"""Where a text occurs: a scan over the folded texts of the index, newest first, within a deadline.

    hits = TextHits("so it is 42", Scope.ANSWERS)
    hits.look(file, snapshot, spans, seconds=0.7)
    hits.mask, hits.share

A scan reads about a gigabyte a second, finds any characters (two letters, punctuation, no words
needed) and its index is no larger than the texts. SQLite's FTS5 with trigrams was measured on 30,000
answers of 350 characters: three times the size, forty times the time to build, as quick where a text
is common, quicker where it is rare, and no search for fewer than three characters. What a deadline
cut short goes on at the next request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from burnish.view.index.build import SEPARATOR, Texts, fold
from burnish.view.index.columns import Array, Flags, Snapshot
from burnish.view.index.index_file import IndexFile

PROBE = 65_536
"""Bytes of a chunk that tell which bytes are frequent."""


class Scope(StrEnum):
    """Where a text is looked for."""

    ALL = "all"
    """In prompts and answers."""
    ANSWERS = "response"
    """In answers."""
    PROMPTS = "prompt"
    """In prompts."""


class ChunkSpan(NamedTuple):
    """The rows of one chunk of the index."""

    number: int
    first: int
    end: int
    prompts: Array
    """The place of each row's prompt among those of the chunk."""


class TextHits:
    """The rows that hold a text, as far as they were looked at. One thread at a time."""

    def __init__(self, text: str, scope: Scope) -> None:
        self._needle = fold(text).replace(SEPARATOR, "").encode("utf-8", "replace")
        self._scope = scope
        self._done: set[int] = set()
        self._share = 0.0
        self._mask: Flags = np.zeros(0, np.bool_)

    def look(
        self, file: IndexFile, rows: Snapshot, spans: Sequence[ChunkSpan], seconds: float
    ) -> None:
        """Go through the chunks that were not looked at yet, newest first, at least one."""
        if len(self._mask) < rows.rows:
            grown = np.zeros(rows.rows, np.bool_)
            grown[: len(self._mask)] = self._mask
            self._mask = grown
        deadline = time.monotonic() + seconds
        left = [span for span in reversed(spans) if span.number not in self._done]
        missing = sum(span.end - span.first for span in left)
        if left:
            with file.reading() as texts:
                for span in left:
                    self._mask[span.first : span.end] = self._in_chunk(texts, span)
                    self._done.add(span.number)
                    missing -= span.end - span.first
                    if time.monotonic() > deadline:
                        break
        self._share = 1.0 - missing / rows.rows if rows.rows else 1.0

    @property
    def mask(self) -> Flags:
        """True at the rows that hold the text; a copy."""
        return self._mask.copy()

    @property
    def share(self) -> float:
        """How much of the rows was looked at, 0 to 1."""
        return self._share

    def _in_chunk(self, texts: Callable[[int, str], Texts], span: ChunkSpan) -> Flags:
        found = np.zeros(span.end - span.first, np.bool_)
        if self._scope is not Scope.PROMPTS:
            found[holding(texts(span.number, "answers"), self._needle)] = True
        if self._scope is not Scope.ANSWERS:
            asked = texts(span.number, "prompts")
            holds = np.zeros(len(asked.ends), np.bool_)
            holds[holding(asked, self._needle)] = True
            found |= holds[span.prompts]
        return found


def holding(texts: Texts, needle: bytes) -> Array:
    """Numbers of the texts that hold the needle; a text may be named several times."""
    text, length = texts.text, len(needle)
    if length == 0 or length > len(text):
        return np.zeros(0, np.int64)
    width = next(w for w in (4, 2, 1) if w <= length)
    first = _rarest(text, needle, width)
    places = _places(text, needle[first : first + width]) - first
    places = places[(places >= 0) & (places <= len(text) - length)]
    for i in range(length):
        if not first <= i < first + width:
            places = places[text[places + i] == needle[i]]
    numbers: Array = np.searchsorted(texts.ends, places, side="right")
    return numbers


def _places(text: Array, word: bytes) -> Array:
    """Where 1, 2 or 4 bytes stand: compared as whole numbers, once for each alignment.

    Several times as quick as a search character by character, and numpy lets other threads work.
    """
    width = len(word)
    found = []
    for shift in range(width):
        count = (len(text) - shift) // width
        numbers = text[shift : shift + count * width].view(f"<u{width}")
        found.append(np.flatnonzero(numbers == int.from_bytes(word, "little")) * width + shift)
    return np.concatenate(found)


def _rarest(text: Array, needle: bytes, width: int) -> int:
    """Where in the needle the bytes begin that are least frequent in the text."""
    frequency = np.bincount(text[:PROBE], minlength=256)
    starts = range(len(needle) - width + 1)
    return min(starts, key=lambda i: int(frequency[list(needle[i : i + width])].min()))
