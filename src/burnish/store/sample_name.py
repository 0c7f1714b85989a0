"""One short name for a sample, the same in the terminal, in Python, in files and in the viewer.

`train-3-2-4` is step 3, prompt 2 of that step, answer 4 to it, all counted from 1; `3-2-4` means the
same. Other splits are named likewise: `dropped-3-1-2`, `greedy-3-1-1`. An evaluation is counted by
the steps made before it: `held_out-8-5-1`, and `held_out-start-5-1` before the first one.

The store's own key (`2/train/11`: step, split and index from 0) and a trajectory's id stay valid
wherever a name is asked for. A bare `3.2.4` would be a trajectory's id, and a bare `3-2-4` in a
spreadsheet a date; hence the split in front.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

TRAIN = "train"
EVAL = "eval:"
START = "start"
EXAMPLES = "train-3-2-4 (step 3, prompt 2, answer 4) or held_out-start-1-1"
_OWN = (TRAIN, "dropped", "greedy")
"""Splits that are no evaluation; an evaluation of such a name keeps its `eval:`."""
_NAME = re.compile(
    r"(?:(?P<split>.+)-)?(?P<step>start|\d{1,9})-(?P<group>\d{1,9})-(?P<answer>\d{1,9})"
)

_ROLLOUT_ID = re.compile(
    r"(?P<step>\d{1,9})\.(?P<group>\d{1,9})(?:\.(?P<split>greedy))?\.(?P<answer>\d{1,9})"
)
"""A trajectory's id in training, counted from 0."""
_HELD_OUT_ID = re.compile(r"eval\.(?P<step>\d{1,9})\.(?P<group>\d{1,9})")


class Place(NamedTuple):
    """Where a sample stands in the store: step and index count from 0."""

    step: int
    split: str
    idx: int


class Readable(Protocol):
    """What names are looked up in: a run that answers SQL."""

    def query(self, sql: str, values: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        """The rows of a SELECT."""
        ...


def shown_step(step: int, split: str = TRAIN) -> str:
    """A stored step as people count: the first training step is 1, an evaluation before it `start`.

    >>> shown_step(0), shown_step(0, "eval:held_out"), shown_step(8, "eval:held_out")
    ('1', 'start', '8')
    """
    if not split.startswith(EVAL):
        return str(step + 1)
    return str(step) if step else START


def sample_names(run: Readable, places: Iterable[tuple[int, str, int]]) -> Iterator[str]:
    """The names of samples that the run has, in the order given."""

    @lru_cache(64)
    def of_step(step: int, split: str) -> dict[int, str]:
        return _names(run, step, split)

    for step, split, index in places:
        yield of_step(step, split)[index]


def names_of_keys(run: Readable, keys: Iterable[str]) -> list[str]:
    """The names of samples by the store's keys."""
    query = "SELECT step, split, idx FROM samples WHERE id = ?"
    found = [row for key in keys for row in run.query(query, (key,))]
    return list(sample_names(run, [(step, split, index) for step, split, index in found]))


def names_of_ids(run: Readable, ids: Sequence[str], step: int) -> list[str]:
    """The names of a step's samples by their trajectories' ids, for a message.

    One that is not stored, or not yet, is named by its place in the step; an id that tells no place
    stays as it is.
    """
    query = "SELECT trajectory_id, split, idx FROM samples WHERE step = ?"
    stored = {own: (step, split, index) for own, split, index in run.query(query, (step,))}
    found = dict(zip(stored, sample_names(run, stored.values()), strict=True))
    return [found.get(one) or _name_by_place(one) for one in ids]


def _name_by_place(trajectory_id: str) -> str:
    """What a sample would be called if all of its step were stored.

    >>> _name_by_place("2.1.3"), _name_by_place("2.1.greedy.0"), _name_by_place("eval.0.4")
    ('train-3-2-4', 'greedy-3-2-1', 'held_out-start-5-1')
    """
    if found := _ROLLOUT_ID.fullmatch(trajectory_id):
        step, group, answer = (int(found[name]) + 1 for name in ("step", "group", "answer"))
        return f"{found['split'] or TRAIN}-{step}-{group}-{answer}"
    if found := _HELD_OUT_ID.fullmatch(trajectory_id):
        return f"held_out-{shown_step(int(found['step']), EVAL)}-{int(found['group']) + 1}-1"
    return trajectory_id


def renamed(line: str, names: Mapping[str, str]) -> str:
    """The line with whole ids replaced by names.

    >>> renamed("sample 0.0.1; not 0.0.11", {"0.0.1": "train-1-1-2"})
    'sample train-1-1-2; not 0.0.11'
    """
    return _whole(names).sub(lambda found: names[found[0]], line) if names else line


def ids_in(line: str, ids: Iterable[str]) -> tuple[str, ...]:
    """Those of the ids that the line names.

    >>> ids_in("sample 0.0.11;", ["0.0.1", "0.0.11"])
    ('0.0.11',)
    """
    known = tuple(ids)
    return tuple(dict.fromkeys(_whole(known).findall(line))) if known else ()


def _whole(ids: Iterable[str]) -> re.Pattern[str]:
    either = "|".join(map(re.escape, ids))
    return re.compile(rf"(?<![\w./-])(?:{either})(?![\w/-]|\.\w)")


def find_place(run: Readable, name: str) -> Place | None:
    """Where the sample of this name stands; None where the run has none, or it is no such name."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    number = 0 if found["step"] == START else int(found["step"])
    word = found["split"] or TRAIN
    is_whole = word in _OWN or word.startswith(EVAL)
    for split in [word] if is_whole else [f"{EVAL}{word}", word]:
        is_eval = split.startswith(EVAL)
        if found["step"] == START and not is_eval:
            continue
        step = number if is_eval else number - 1
        for index, own in _names(run, step, split).items():
            if own.rsplit("-", 2)[1:] == [found["group"], found["answer"]]:
                return Place(step, split, index)
    return None


def _names(run: Readable, step: int, split: str) -> dict[int, str]:
    """The name of each sample of a step by its index: groups are counted as they first appear."""
    query = "SELECT idx, group_key FROM samples WHERE step = ? AND split = ? ORDER BY idx"
    word = split.removeprefix(EVAL)
    start = split if word in _OWN else word
    answers: dict[str, int] = {}
    groups: dict[str, int] = {}
    names = {}
    for index, key in run.query(query, (step, split)):
        group = groups.setdefault(key, len(groups) + 1)
        answers[key] = answers.get(key, 0) + 1
        names[index] = f"{start}-{shown_step(step, split)}-{group}-{answers[key]}"
    return names
