"""A run's samples as columns of numbers: read in chunks, filtered, sorted and cut into pages.

    chunk = read_chunk(lambda after: read_batch(run, after), columns, behind=0)

    rows = columns.snapshot()
    mask = chosen(rows, Filter(status=("ok",), reward=Range(0.5, None)))
    page(rows.numbers("reward"), rows.column("n"), mask, after=None, limit=50, descending=True)

A million rows are about 60 MB and a filter over them takes a few milliseconds, so that counts are
exact and every order can be paged through.

All samples of a step (or of an evaluation) are stored in one transaction and lie together, so a
group is whole when its step is, and a chunk ends where a step does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import groupby
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct

from burnish.numbers import grouped
from burnish.store.reader import RunReader
from burnish.store.sample_name import EVAL

Array = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]

ROW = np.dtype(
    [
        ("n", "<i8"),
        ("step", "<i4"),
        ("split", "<u2"),
        ("role", "<u2"),
        ("status", "u1"),
        ("finish", "u1"),
        ("keep", "u1"),
        ("signal", "u1"),
        ("length", "<i4"),
        ("prompt", "<i4"),
        ("reward", "<f8"),
        ("advantage", "<f8"),
    ]
)
"""What is kept of each sample; `n` is its rowid in `run.db`, words are codes, missing is NaN.

`prompt` is the place of its prompt among those of its chunk: a number for the chunk alone."""

COLUMNS = tuple(name for name in ROW.names or () if name != "prompt")

MAX_PARTS = 24
"""Reward parts that get a column. A judge that invents criteria may have thousands of names."""


class Signal(StrEnum):
    """What a group of answers can teach."""

    MIXED = "mixed"
    """At least two of its rewards differ."""
    EQUAL = "equal"
    """It has two rewards or more, all the same."""
    NONE = "none"
    """It has fewer than two rewards: nothing to compare."""


SIGNALS = tuple(Signal)


class Range(NamedTuple):
    """From `low` to `high`, both included; None is no limit."""

    low: float | None = None
    high: float | None = None


class Filter(NamedTuple):
    """Which samples are asked for; several words of one kind mean any of them."""

    split: tuple[str, ...] = ()
    role: tuple[str, ...] = ()
    status: tuple[str, ...] = ()
    finish: tuple[str, ...] = ()
    signal: tuple[str, ...] = ()
    keep: bool | None = None
    step: Range = Range()
    """As people count: see `shown_steps`."""
    reward: Range = Range()
    length: Range = Range()
    advantage: Range = Range()
    part: str = ""
    part_range: Range = Range()


class Position(NamedTuple):
    """The last row of a page: its value in the order asked for (None where missing), and its n."""

    value: float | None
    n: int


class Snapshot(NamedTuple):
    """The rows as they are now; rows that come later leave it as it is."""

    columns: Mapping[str, Array]
    parts: Array
    """Shape (rows, parts), NaN where a sample has no such part or it has no value."""
    words: Mapping[str, Sequence[str]]
    """The words behind the codes of `split`, `role`, `status`, `finish`, `signal`, `part`."""

    @property
    def rows(self) -> int:
        return len(self.columns["n"])

    def column(self, name: str) -> Array:
        return self.columns[name]

    def part(self, name: str) -> Array:
        column: Array = self.parts[:, self.words["part"].index(name)]
        return column


class Columns:
    """Columns that grow. One thread appends; any thread takes a snapshot."""

    def __init__(self, room: int = 1024) -> None:
        self._rows = 0
        self._columns = {name: np.zeros(room, ROW[name]) for name in COLUMNS}
        self._parts = np.full((room, 0), np.nan)
        self._words: dict[str, list[str]] = {
            "split": [],
            "role": [],
            "status": [],
            "finish": [],
            "signal": [str(signal) for signal in SIGNALS],
            "part": [],
        }
        self._now = self._take()

    def snapshot(self) -> Snapshot:
        return self._now

    def code(self, kind: str, word: str) -> int:
        """The number of a word, given to it where it is new."""
        words = self._words[kind]
        if word not in words:
            words.append(word)
        return words.index(word)

    def words(self) -> dict[str, tuple[str, ...]]:
        """The words behind the codes, by kind, with those that no row has yet."""
        return {kind: tuple(words) for kind, words in self._words.items()}

    def reserve(self, rows: int) -> None:
        """Make room for so many rows at once."""
        self._make_room(rows, len(self._words["part"]))

    def append(self, rows: Array, parts: Array) -> None:
        """More rows; `parts` may have fewer columns than there are names by now."""
        start, end = self._rows, self._rows + len(rows)
        self._make_room(end, len(self._words["part"]))
        for name, column in self._columns.items():
            column[start:end] = rows[name]
        self._parts[start:end, : parts.shape[1]] = parts
        self._parts[start:end, parts.shape[1] :] = np.nan
        self._rows = end
        self._now = self._take()

    def _take(self) -> Snapshot:
        return Snapshot(
            {name: column[: self._rows] for name, column in self._columns.items()},
            self._parts[: self._rows],
            self.words(),
        )

    def _make_room(self, rows: int, parts: int) -> None:
        """New arrays where the old are full: a snapshot keeps the ones it was made of."""
        room = len(self._columns["n"])
        wider = parts > self._parts.shape[1]
        if rows <= room and not wider:
            return
        room = max(rows, room + room // 4) if rows > room else room
        for name, column in self._columns.items():
            grown = np.zeros(room, column.dtype)
            grown[: self._rows] = column[: self._rows]
            self._columns[name] = grown
        spread = np.full((room, parts), np.nan)
        spread[: self._rows, : self._parts.shape[1]] = self._parts[: self._rows]
        self._parts = spread


def chosen(rows: Snapshot, wanted: Filter) -> Flags:
    """True at the rows that fit the filter; a range never holds a missing value."""
    mask: Flags = np.ones(rows.rows, np.bool_)
    for kind in ("split", "role", "status", "finish", "signal"):
        words: tuple[str, ...] = getattr(wanted, kind)
        if words:
            codes = [i for i, word in enumerate(rows.words[kind]) if word in words]
            mask &= np.isin(rows.column(kind), codes)
    if wanted.keep is not None:
        mask &= rows.column("keep") == int(wanted.keep)
    if wanted.step != Range():
        _narrow(mask, shown_steps(rows), wanted.step)
    for name in ("reward", "length", "advantage"):
        _narrow(mask, rows.column(name), getattr(wanted, name))
    if wanted.part:
        if wanted.part not in rows.words["part"]:
            mask[:] = False
        else:
            values = rows.part(wanted.part)
            mask &= ~np.isnan(values)
            _narrow(mask, values, wanted.part_range)
    return mask


def shown_steps(rows: Snapshot) -> Array:
    """Each row's step as people count: training from 1, an evaluation by the steps before it."""
    evaluations = [i for i, word in enumerate(rows.words["split"]) if word.startswith(EVAL)]
    steps: Array = rows.column("step") + ~np.isin(rows.column("split"), evaluations)
    return steps


def _narrow(mask: Flags, values: Array, limits: Range) -> None:
    if limits.low is not None:
        mask &= values >= limits.low
    if limits.high is not None:
        mask &= values <= limits.high


def page(
    values: Array,
    n: Array,
    mask: Flags,
    *,
    after: Position | None,
    limit: int,
    descending: bool,
) -> list[int]:
    """Positions of the next `limit` rows behind `after`, in the order of their values.

    Rows of one value come oldest first, or newest first where the order descends; rows without a
    value come last either way.
    """
    sign = -1 if descending else 1
    candidates = np.flatnonzero(mask)
    keys = sign * values[candidates].astype(np.float64)
    marks = sign * n[candidates]
    missing = np.isnan(keys)
    if after is not None:
        behind = marks > sign * after.n
        if after.value is None:
            missing &= behind
            keys[:] = np.nan
        else:
            last = sign * after.value
            kept = (keys > last) | ((keys == last) & behind)
            keys[~kept] = np.nan
    present = np.flatnonzero(~np.isnan(keys))
    taken = _smallest(keys, marks, present, limit)
    if len(taken) < limit:
        rest = np.flatnonzero(missing)
        rest = rest[np.argsort(marks[rest], kind="stable")][: limit - len(taken)]
        taken = np.concatenate([taken, rest])
    found: list[int] = candidates[taken].tolist()
    return found


def _smallest(keys: Array, marks: Array, present: Array, limit: int) -> Array:
    """The `limit` rows with the smallest (key, mark), in order, without sorting all of them."""
    if len(present) > limit:
        border = np.partition(keys[present], limit - 1)[limit - 1]
        below = present[keys[present] < border]
        level = present[keys[present] == border]
        short = limit - len(below)
        if len(level) > short:
            level = level[np.argpartition(marks[level], short - 1)[:short]]
        present = np.concatenate([below, level])
    ordered: Array = present[np.lexsort((marks[present], keys[present]))]
    return ordered


def signal_of(rewards: Sequence[float | None]) -> Signal:
    """What a group with these rewards can teach; by their range, as training does."""
    values = [value for value in rewards if value is not None]
    if len(values) < 2:
        return Signal.NONE
    return Signal.MIXED if max(values) > min(values) else Signal.EQUAL


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

    def stream(after: int) -> Iterator[Sample]:
        while batch := read(after):
            yield from batch
            after = batch[-1].n

    taken: list[Sample] = []
    size = 0
    for _, block in groupby(stream(behind), key=lambda sample: sample.block):
        whole = list(block)
        taken += whole
        size += sum(len(sample.response) for sample in whole)
        if len(taken) >= CHUNK_ROWS or size >= CHUNK_BYTES:
            break
    return _chunk(taken, columns) if taken else None


def read_batch(run: RunReader, after: int) -> list[Sample]:
    rows = run.query(_SELECT, (after, BATCH))
    return [Sample(*row[:-1], parts_of(row[-1])) for row in rows]  # type: ignore[call-arg]


def _chunk(samples: list[Sample], columns: Columns) -> Chunk:
    groups = grouped(((*s.block, s.group), s.reward) for s in samples)
    signals = {key: SIGNALS.index(signal_of(rewards)) for key, rewards in groups.items()}
    rows = np.zeros(len(samples), ROW)
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
    known = {name: code for code, name in enumerate(columns.snapshot().words["part"])}
    for part in (part for s in samples for part in s.parts):
        if part.name not in known and len(known) < MAX_PARTS:
            known[part.name] = columns.code("part", part.name)
    parts = np.full((len(samples), len(known)), np.nan)
    for i, s in enumerate(samples):
        for part in s.parts:
            if part.value is not None and part.name in known:
                parts[i, known[part.name]] = part.value
    answers = _folded([s.response for s in samples])
    return Chunk(rows, parts, samples[-1].id, answers, _folded(list(prompts)))


def _folded(texts: list[str]) -> Texts:
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
