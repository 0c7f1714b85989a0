"""From the rows of `run.db` to chunks of the index, a bounded slice at a time.

    chunk = read_chunk(lambda after: read_batch(run, after), columns, behind=0)

All samples of a step (or of an evaluation) are stored in one transaction and lie together, so a
group is whole when its step is, and a chunk ends where a step does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Struct

from burnish.grouping import grouped
from burnish.store.reader import RunReader
from burnish.view.index.columns import MAX_PARTS, ROW, SIGNALS, Array, Columns, signal_of

BATCH = 1024
"""Samples read in one transaction: a few milliseconds, so that the writer's log is never held."""
CHUNK_ROWS = 8192
CHUNK_BYTES = 4 << 20
SEPARATOR = "\0"
"""Between two texts, so that nothing is found across them."""

_SELECT = (
    "SELECT rowid, id, step, split, role, group_key, prompt, response, finish, reward, status, "
    "advantage, keep, response_tokens, reward_tree FROM samples WHERE rowid > ? ORDER BY rowid LIMIT ?"
)


class _Part(Struct, frozen=True, gc=False):
    name: str
    value: float | None = None


class _Tree(Struct, frozen=True, gc=False):
    """The part of a reward tree that is indexed."""

    parts: tuple[_Part, ...] = ()


_TREE = msgspec.json.Decoder(_Tree)


class Sample(Struct, gc=False):
    """A row of `samples`, as far as the index needs it."""

    n: int
    id: str
    step: int
    split: str
    role: str
    group: str
    prompt: str
    response: str
    finish: str
    reward: float | None
    status: str
    advantage: float | None
    keep: int
    length: int
    parts: tuple[_Part, ...]

    @property
    def block(self) -> tuple[int, str]:
        """What was stored in one transaction with it."""
        return self.step, self.split if self.split.startswith("eval:") else ""


def fold(text: str) -> str:
    """A text as it is searched: without upper case."""
    return text.casefold()


def parts_of(tree: str | bytes) -> tuple[_Part, ...]:
    """The direct parts of a reward tree; none where it is damaged."""
    try:
        return _TREE.decode(tree).parts
    except msgspec.MsgspecError:
        return ()


def newest(run: RunReader) -> int:
    ((n,),) = run.query("SELECT coalesce(max(rowid), 0) FROM samples")
    return int(n)


def read_chunk(read: Callable[[int], list[Sample]], columns: Columns, behind: int) -> Chunk | None:
    """The chunk after the sample with rowid `behind`; None where nothing new is stored.

    `read(after)` gives the next batch of samples, in one transaction a batch.
    """
    taken: list[Sample] = []
    size = 0
    for _, block in groupby(_stream(read, behind), key=lambda sample: sample.block):
        whole = list(block)
        taken += whole
        size += sum(len(sample.response) for sample in whole)
        if len(taken) >= CHUNK_ROWS or size >= CHUNK_BYTES:
            break
    return _chunk(taken, columns) if taken else None


def read_batch(run: RunReader, after: int) -> list[Sample]:
    rows = run.query(_SELECT, (after, BATCH))
    return [Sample(*row[:-1], parts_of(row[-1])) for row in rows]  # type: ignore[call-arg]


def _stream(read: Callable[[int], list[Sample]], behind: int) -> Iterator[Sample]:
    while batch := read(behind):
        yield from batch
        behind = batch[-1].n


def _chunk(samples: list[Sample], columns: Columns) -> Chunk:
    rows = np.zeros(len(samples), ROW)
    signals = _signals(samples)
    prompts: dict[str, int] = {}
    for i, s in enumerate(samples):
        rows[i] = (
            s.n,
            s.step,
            columns.code("split", s.split),
            columns.code("role", s.role),
            columns.code("status", s.status),
            columns.code("finish", s.finish),
            s.keep,
            signals[(*s.block, s.group)],
            s.length,
            prompts.setdefault(s.prompt, len(prompts)),
            np.nan if s.reward is None else s.reward,
            np.nan if s.advantage is None else s.advantage,
        )
    answers = _joined([s.response for s in samples])
    parts = _parts(samples, columns)
    return Chunk(rows, parts, samples[-1].id, answers, _joined(list(prompts)))


def _signals(samples: list[Sample]) -> dict[tuple[int, str, str], int]:
    groups = grouped(((*s.block, s.group), s.reward) for s in samples)
    return {key: SIGNALS.index(signal_of(rewards)) for key, rewards in groups.items()}


def _parts(samples: list[Sample], columns: Columns) -> np.ndarray[Any, Any]:
    known = {name: code for code, name in enumerate(columns.snapshot().words["part"])}
    for s in samples:
        for part in s.parts:
            if part.name not in known and len(known) < MAX_PARTS:
                known[part.name] = columns.code("part", part.name)
    matrix = np.full((len(samples), len(known)), np.nan)
    for i, s in enumerate(samples):
        for part in s.parts:
            if part.value is not None and part.name in known:
                matrix[i, known[part.name]] = part.value
    return matrix


def _joined(texts: list[str]) -> Texts:
    """Folded texts end to end, and where each ends behind its separator."""
    folded = [(fold(text) + SEPARATOR).encode("utf-8", "replace") for text in texts]
    ends = np.cumsum([len(text) for text in folded], dtype=np.int64)
    return Texts(np.frombuffer(b"".join(folded), np.uint8), ends)


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
    number: int
    first_row: int
    rows: Array
    parts: Array


def joined(chunks: Sequence[Chunk]) -> Chunk:
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
