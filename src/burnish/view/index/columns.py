"""A run's samples as columns of numbers: filtered, sorted and cut into pages.

    rows = columns.snapshot()
    mask = chosen(rows, Filter(status=("ok",), reward=Range(0.5, None)))
    page(rows.numbers("reward"), rows.column("n"), mask, after=None, limit=50, descending=True)

A million rows are about 60 MB and a filter over them takes a few milliseconds, so that counts are
exact and every order can be paged through. Pure numbers: nothing here reads a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

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

    @property
    def is_open(self) -> bool:
        return self.low is None and self.high is None


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
    if not wanted.step.is_open:
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
