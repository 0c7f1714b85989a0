"""A chunk of the index: samples that were indexed together, and how several become one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from burnish.view.index.columns import Array


class Texts(NamedTuple):
    """Folded texts end to end; text i lies before `ends[i]`."""

    text: Array
    """Bytes, as numbers."""
    ends: Array


class Chunk(NamedTuple):
    """Samples that were indexed together."""

    rows: Array
    """Of type `ROW`; `prompt` counts the chunk's own prompts."""
    parts: Array
    last_id: str
    answers: Texts
    prompts: Texts


class StoredChunk(NamedTuple):
    """A chunk without its texts."""

    number: int
    first_row: int
    rows: Array
    parts: Array


def joined(chunks: Sequence[Chunk]) -> Chunk:
    """Several chunks as one."""
    rows = np.concatenate([chunk.rows for chunk in chunks])
    counts = np.cumsum([0, *(len(chunk.prompts.ends) for chunk in chunks[:-1])])
    rows["prompt"] += np.repeat(counts, [len(chunk.rows) for chunk in chunks]).astype(np.int32)
    parts = np.full((len(rows), max(chunk.parts.shape[1] for chunk in chunks)), np.nan)
    start = 0
    for chunk in chunks:
        parts[start : start + len(chunk.rows), : chunk.parts.shape[1]] = chunk.parts
        start += len(chunk.rows)
    answers = _end_to_end([chunk.answers for chunk in chunks])
    prompts = _end_to_end([chunk.prompts for chunk in chunks])
    return Chunk(rows, parts, chunks[-1].last_id, answers, prompts)


def _end_to_end(texts: Sequence[Texts]) -> Texts:
    starts = np.cumsum([0, *(len(one.text) for one in texts[:-1])])
    ends = [one.ends + start for one, start in zip(texts, starts, strict=True)]
    return Texts(np.concatenate([one.text for one in texts]), np.concatenate(ends))
