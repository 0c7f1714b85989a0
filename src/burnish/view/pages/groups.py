"""The groups of a step, one group side by side, and the same prompt across steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from burnish.grouping import grouped
from burnish.records import Message, Reward, Task
from burnish.store import StoredSample
from burnish.store.database import OF_TASK
from burnish.store.reader import RunReader
from burnish.store.sample_name import EVAL, shown_step
from burnish.view.index.columns import Signal, signal_of
from burnish.view.pages.runs import NotFound, open_run
from burnish.view.pages.search import COLUMNS, Excerpt, SampleRow, named, row_of

MEMBERS = 128
"""Answers of one group that are shown whole."""
TEXT = 200_000
"""Characters of one answer; a longer one is cut."""


class GroupLine(Struct, frozen=True, kw_only=True):
    key: str
    split: str
    role: str
    task: str
    prompt: Excerpt
    size: int
    signal: Signal
    mean: float | None
    """Of the rewards that have a value."""
    samples: list[SampleRow]


class SplitLine(Struct, frozen=True):
    """A split that belongs to a step as people count, and the step under which it is stored."""

    split: str
    step: int


class GroupsPage(Struct, frozen=True, kw_only=True):
    """Groups of a step in the order they were stored; `next` goes into `after`."""

    step: int
    number: int
    """The step as people count; 0 for an evaluation before training."""
    groups: list[GroupLine]
    total: int
    signals: dict[str, int]
    """How many groups of the step can teach what, whatever is shown."""
    splits: list[SplitLine]
    next: int | None
    metrics: dict[str, float | None]
    """Every number of the step."""
    previous_step: int | None
    next_step: int | None


class Member(Struct, frozen=True, kw_only=True):
    id: str
    name: str
    """What people call it, such as `train-3-2-4`."""
    index: int
    response: str
    is_cut: bool
    reward: Reward
    advantage: float | None
    keep: bool
    finish: str
    length: int


class GroupPage(Struct, frozen=True, kw_only=True):
    step: int
    key: str
    number: int
    """Its place in the step, from 1."""
    split: str
    role: str
    task: Task
    signal: Signal
    mean: float | None
    members: list[Member]
    size: int
    previous: str | None
    """Key of the group before it in the step."""
    next: str | None


class PromptStep(Struct, frozen=True):
    step: int
    split: str
    mean: float | None
    signal: Signal
    samples: list[SampleRow]


class PromptPage(Struct, frozen=True):
    """The same prompt across steps, newest first; `next` goes into `before`."""

    task: str
    messages: tuple[Message, ...]
    fields: dict[str, Any]
    steps: list[PromptStep]
    total: int
    """Samples of this prompt, over all pages."""
    next: int | None


def groups_page(
    folder: Path, step: int, split: str, signal: str, after: int, limit: int
) -> GroupsPage:
    """The groups of a step; `after` is how many were shown before."""
    with open_run(folder) as run:
        rows = _of_step(run, step, split)
        if not rows:
            raise _no_samples(run, step, split)
        stored = run.query("SELECT name, value FROM metrics WHERE step = ?", (step,))
        metrics: dict[str, float | None] = dict(stored)
        around = _around(run, step, split)
        number = step if split.startswith(EVAL) else step + 1
        # What was sampled in a step, and the evaluations that followed it.
        splits = (
            "SELECT DISTINCT split, step FROM samples WHERE (step = ? AND split NOT LIKE 'eval:%') "
            "OR (step = ? AND split LIKE 'eval:%') ORDER BY step, split"
        )
        known = [SplitLine(*row) for row in run.query(splits, (number - 1, number))]
    groups = _grouped(rows)
    signals = {str(s): 0 for s in Signal}
    for line in groups:
        signals[line.signal] += 1
    fitting = [line for line in groups if not signal or line.signal == signal]
    shown = fitting[after : after + limit]
    return GroupsPage(
        step=step,
        number=number,
        groups=shown,
        total=len(fitting),
        signals=signals,
        splits=known,
        next=after + limit if after + limit < len(fitting) else None,
        metrics=metrics,
        previous_step=around[0],
        next_step=around[1],
    )


def group_page(folder: Path, step: int, key: str, split: str) -> GroupPage:
    """One group whole: the answers in the order of their rewards, best first.

    Without a split a group that was partly put aside (`dropped`) is shown with all its answers.
    """
    with open_run(folder) as run:
        samples = list(run.samples(step=step, split=split or None, group=key, limit=MEMBERS))
        if not samples:
            which = f", split '{split}'" if split else ""
            shown = shown_step(step, split)
            raise NotFound(f"run '{run.name}' has no group '{key}' in step {shown}{which}.")
        is_eval = samples[0].split.startswith("eval:")
        where = "step = ? AND (split LIKE 'eval:%') = ?"
        keys = f"SELECT DISTINCT group_key FROM samples WHERE {where} ORDER BY rowid"
        known = [row[0] for row in run.query(keys, (step, is_eval))]
        query = f"SELECT count(*) FROM samples WHERE {where} AND group_key = ?"
        ((size,),) = run.query(query, (step, is_eval, key))
        names = run.names(samples)
    place = known.index(key)
    rewards = [sample.reward.value for sample in samples]
    return GroupPage(
        step=step,
        key=key,
        number=place + 1,
        split=samples[0].split,
        role=samples[0].trajectory.role,
        task=samples[0].task,
        signal=signal_of(rewards),
        mean=_mean(rewards),
        members=sorted(map(_member, samples, names), key=_best_first),
        size=size,
        previous=known[place - 1] if place else None,
        next=known[place + 1] if place + 1 < len(known) else None,
    )


def prompt_page(folder: Path, task: str, split: str, before: int | None, limit: int) -> PromptPage:
    """The answers to one prompt, step by step, newest first."""
    with open_run(folder) as run:
        asked = [OF_TASK, *(["split = ?"] if split else [])]
        values: list[Any] = [task, *([split] if split else [])]
        where = " AND ".join(asked)
        ((total,),) = run.query(f"SELECT count(*) FROM samples WHERE {where}", values)
        if not total:
            raise NotFound(f"run '{run.name}' has no sample of the task '{task}'.")
        if before is not None:
            where, values = f"{where} AND step < ?", [*values, before]
        query = f"SELECT DISTINCT step FROM samples WHERE {where} ORDER BY step DESC LIMIT ?"
        steps = [row[0] for row in run.query(query, [*values, limit + 1])]
        shown = steps[:limit]
        rows = _of_task(run, where, values, shown)
        query = f"SELECT task FROM samples WHERE {OF_TASK} ORDER BY step DESC LIMIT 1"
        ((encoded,),) = run.query(query, (task,))
    whole = msgspec.json.decode(encoded, type=Task)
    return PromptPage(
        task,
        whole.messages,
        whole.fields,
        _by_step(rows),
        total,
        shown[-1] if len(steps) > limit else None,
    )


def _of_step(run: RunReader, step: int, split: str) -> list[SampleRow]:
    """All samples of a step; without a split, its rollouts."""
    if split:
        where, values = "step = ? AND split = ?", [step, split]
    else:
        where, values = "step = ? AND split NOT LIKE 'eval:%'", [step]
    query = f"SELECT {COLUMNS} FROM samples WHERE {where} ORDER BY rowid"
    return named(run, [row_of(row) for row in run.query(query, values)])


def _of_task(
    run: RunReader, where: str, values: list[Any], steps: Sequence[int]
) -> list[SampleRow]:
    if not steps:
        return []
    query = f"SELECT {COLUMNS} FROM samples WHERE {where} AND step >= ? ORDER BY step DESC, rowid"
    return named(run, [row_of(row) for row in run.query(query, [*values, steps[-1]])])


def _grouped(rows: Sequence[SampleRow]) -> list[GroupLine]:
    groups: dict[tuple[str, str], list[SampleRow]] = {}
    for row in rows:
        # A group whose answers were partly dropped is one group still.
        part = row.split if row.split.startswith("eval:") else ""
        groups.setdefault((part, row.group), []).append(row)
    return [_group_line(members) for members in groups.values()]


def _group_line(members: list[SampleRow]) -> GroupLine:
    first = members[0]
    rewards = [row.reward for row in members]
    signal = signal_of(rewards)
    return GroupLine(
        key=first.group,
        split=first.split,
        role=first.role,
        task=first.task,
        prompt=first.prompt,
        size=len(members),
        signal=signal,
        mean=_mean(rewards),
        samples=[msgspec.structs.replace(row, signal=str(signal)) for row in members],
    )


def _by_step(rows: Sequence[SampleRow]) -> list[PromptStep]:
    steps = grouped(((row.step, row.split), row) for row in rows)
    return [
        PromptStep(
            step,
            split,
            _mean([row.reward for row in members]),
            signal_of([row.reward for row in members]),
            members,
        )
        for (step, split), members in steps.items()
    ]


def _member(sample: StoredSample, name: str) -> Member:
    text = sample.trajectory.text
    return Member(
        id=sample.id,
        name=name,
        index=sample.index,
        response=text[:TEXT],
        is_cut=len(text) > TEXT,
        reward=sample.reward,
        advantage=sample.advantage,
        keep=sample.keep,
        finish=sample.trajectory.finish.value,
        length=sum(len(s.token_ids) for s in sample.trajectory.spans if s.author == "model"),
    )


def _best_first(member: Member) -> tuple[bool, float, int]:
    value = member.reward.value
    return (value is None, -(value or 0.0), member.index)


def _mean(rewards: Sequence[float | None]) -> float | None:
    values = [value for value in rewards if value is not None]
    return sum(value / len(values) for value in values) if values else None


def _around(run: RunReader, step: int, split: str) -> tuple[int | None, int | None]:
    """The stored steps before and after this one; of an evaluation, those of its name."""
    table, name = "rollouts", []
    if split.startswith(EVAL):
        table, name = "(SELECT step FROM evaluations WHERE name = ?)", [split.removeprefix(EVAL)]
    query = (
        f"SELECT (SELECT max(step) FROM {table} WHERE step < ?), "
        f"(SELECT min(step) FROM {table} WHERE step > ?)"
    )
    ((before, after),) = run.query(query, (*name, step, *name, step))
    return before, after


def _no_samples(run: RunReader, step: int, split: str) -> NotFound:
    ((first, last),) = run.query("SELECT min(step), max(step) FROM rollouts")
    has = "it has no steps yet" if first is None else f"it has steps {first + 1} to {last + 1}"
    which = f" in split '{split}'" if split else ""
    shown = shown_step(step, split)
    return NotFound(f"run '{run.name}' has no samples of step {shown}{which}; {has}.")
