"""One line for each sample in lists: a few numbers, and the beginning of its texts.

rows_of(run, where="step = ?", values=[3])
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from burnish.store.reader import RunReader
from burnish.store.sample_name import sample_names
from burnish.view.index.build import parts_of

EXCERPT = 300
"""Characters of a text in a list."""
LEAD = 80
"""Characters that stand before what was searched for."""

COLUMNS = (
    "rowid, id, step, split, idx, task_id, group_key, role, finish, reward, status, advantage, "
    "response_tokens, keep, prompt, response, reward_tree"
)
_PLAIN = (
    *("id", "step", "split", "index", "task", "group", "role"),
    *("finish", "reward", "status", "advantage", "length"),
)
"""Fields of a row that are shown as they are stored, in the order of `COLUMNS`."""


class Excerpt(Struct, frozen=True):
    """Part of a text: where it begins, how long the whole is, and where the search hit in it."""

    text: str
    start: int
    of: int
    match: tuple[int, int] | None = None
    """First and behind the last character of the hit, within `text`."""


class SampleRow(Struct, frozen=True, kw_only=True):
    """A sample in a list."""

    id: str
    name: str = ""
    """What people call it, such as `train-3-2-4`."""
    step: int
    split: str
    index: int
    task: str
    group: str
    role: str
    prompt: Excerpt
    response: Excerpt
    finish: str
    reward: float | None
    status: str
    advantage: float | None
    keep: bool
    length: int
    """Tokens that the model wrote."""
    parts: dict[str, float | None]
    """Direct parts of the reward; null where one has no value."""
    signal: str | None = None
    """What its group can teach; null where that is not known yet."""


def rows_by_number(
    run: RunReader, numbers: Sequence[int], text: str = "", signals: Sequence[str] = ()
) -> list[SampleRow]:
    """Samples by their rowids, in that order; `signals` go with them."""
    marks = ", ".join("?" * len(numbers))
    query = f"SELECT {COLUMNS} FROM samples WHERE rowid IN ({marks})"
    found = {row[0]: row for row in run.query(query, numbers)}
    known = dict(zip(numbers, signals, strict=True)) if signals else {}
    return named(run, [row_of(found[n], text, known.get(n)) for n in numbers if n in found])


def named(run: RunReader, rows: Sequence[SampleRow]) -> list[SampleRow]:
    """The rows with their names."""
    names = sample_names(run, ((row.step, row.split, row.index) for row in rows))
    return [replace(row, name=name) for name, row in zip(names, rows, strict=True)]


def row_of(row: Sequence[Any], text: str = "", signal: str | None = None) -> SampleRow:
    """A row of `COLUMNS` as a record."""
    _, *plain, keep, prompt, response, tree = row
    return SampleRow(
        **dict(zip(_PLAIN, plain, strict=True)),
        keep=bool(keep),
        prompt=excerpt(prompt, text),
        response=excerpt(response, text),
        parts={part.name: part.value for part in parts_of(tree)},
        signal=signal,
    )


def excerpt(whole: str, text: str = "") -> Excerpt:
    """The beginning of a text, or the part around what was searched for."""
    # Folding can change a text's length, so the hit is looked for in the text as it is shown.
    hit = re.search(re.escape(text), whole, re.IGNORECASE) if text else None
    if hit is None:
        return Excerpt(whole[:EXCERPT], 0, len(whole))
    start = max(0, hit.start() - LEAD) if hit.end() > EXCERPT else 0
    shown = whole[start : start + EXCERPT]
    match = (hit.start() - start, min(hit.end() - start, len(shown)))
    return Excerpt(shown, start, len(whole), match)
