"""Solutions with a label for each step: read from tasks, rendered, and where their scores are read.

    solution = read_solution(task, SolutionFields())
    rendered = render_solutions(tokenizer, [solution], separator="\\n\\n")

A label is 1 for a right step, 0 for a wrong one and None for one that nobody judged. Labels come
from a list, or from the place of the first wrong step: steps before it are right, what follows it
has no label, and null means that all steps are right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from burnish.bench.first_wrong import labels_of
from burnish.errors import ArgumentError, UserError, did_you_mean
from burnish.lm.step_rows import StepRow, step_row
from burnish.lm.tokenizer import Tokenizer
from burnish.records import Author, Span, Task, Trajectory
from burnish.tasks.base import TaskSet, content_key
from burnish.training.labelled import UnusableRow
from burnish.training.packing import PackedBatch


@dataclass(frozen=True)
class SolutionFields:
    """Which task fields hold a solution and its labels."""

    steps: str = "steps"
    labels: str = "labels"
    first_wrong: str = "first_wrong"


class Solution(NamedTuple):
    """A worked solution of a task."""

    task: Task
    steps: tuple[str, ...]
    labels: tuple[int | None, ...]

    @property
    def is_known(self) -> bool:
        """Whether the labels say which step is the first wrong one, or that there is none."""
        return 0 in self.labels[: self._unlabelled] or self._unlabelled == len(self.labels)

    @property
    def first_wrong(self) -> int | None:
        """Place of the first wrong step; None where there is none."""
        return self.labels.index(0) if 0 in self.labels else None

    @property
    def _unlabelled(self) -> int:
        return self.labels.index(None) if None in self.labels else len(self.labels)


class Rendered(NamedTuple):
    """The solutions of a step as tokens."""

    solutions: Sequence[Solution]
    trajectories: Sequence[Trajectory]
    rows: Sequence[StepRow]
    starts: Sequence[int]
    """Place of each solution's first step among all steps."""
    total: int
    """Steps of all solutions."""
    labelled: int
    """Of them, those with a label."""


class SolutionMicro(NamedTuple):
    """Solutions in one packed batch, and where their steps end; J steps."""

    packed: PackedBatch
    read_J: Tensor
    """Flat place (row * width + column) of each step's last token."""
    places_J: Tensor
    """Place of each step among those of the whole update."""
    label_J: Tensor
    """1, 0, or -1 where there is none."""
    total: int
    """Steps of the whole update."""
    labelled: int
    """Of them, those with a label."""
    names: Sequence[str]
    """Of each step, for the message of a guard."""


def check_solution_fields(tasks: TaskSet, fields: SolutionFields) -> None:
    """Refuse a task set without steps, or without labels of any kind."""
    known = ", ".join(sorted(tasks.fields)) or "none"
    start = f"train.kind = 'process_reward_model': task set '{tasks.name}' has"
    if fields.steps not in tasks.fields:
        raise UserError(
            f"{start} no field '{fields.steps}'; it has {known}. Name the field with the list of "
            f"steps in train.steps.{did_you_mean(fields.steps, tasks.fields)}"
        )
    if not {fields.labels, fields.first_wrong} & tasks.fields:
        raise UserError(
            f"{start} neither a field '{fields.labels}' nor '{fields.first_wrong}'; it has {known}. "
            "Name the field with labels (1, 0 or null a step) in train.labels, or that with the "
            "first wrong step in train.first_wrong."
        )


# --- one solution


def read_solution(task: Task, fields: SolutionFields) -> Solution:
    """The solution in a task's fields; raises `UnusableRow`."""
    steps = task.fields.get(fields.steps)
    if not isinstance(steps, list | tuple) or not steps:
        raise UnusableRow(f"a '{fields.steps}' that is no list of texts with at least one")
    for step in steps:
        if not isinstance(step, str) or not step.strip():
            raise UnusableRow("a step that is empty or no text")
    labels = task.fields.get(fields.labels)
    if labels is None:
        if fields.first_wrong not in task.fields:
            raise UnusableRow(f"neither '{fields.labels}' nor '{fields.first_wrong}'")
        found = _from_first(task.fields[fields.first_wrong], len(steps), fields.first_wrong)
    else:
        found = _from_list(labels, len(steps), fields.labels)
    return Solution(task, tuple(steps), found)


def _from_list(labels: Any, count: int, name: str) -> tuple[int | None, ...]:
    if not isinstance(labels, list | tuple) or len(labels) != count:
        raise UnusableRow(f"a '{name}' that is no list with one label for each step")
    if all(label is None for label in labels):
        raise UnusableRow(f"no label in '{name}'")
    for label in labels:
        # Compared with both, so that NaN and other numbers are refused.
        if label is not None and not (label == 0 or label == 1):
            raise UnusableRow(f"a label in '{name}' that is none of 1, 0 and null")
    return tuple(None if label is None else int(label) for label in labels)


def _from_first(place: Any, count: int, name: str) -> tuple[int | None, ...]:
    try:
        return tuple(labels_of(place, count))
    except ArgumentError:
        why = f"a '{name}' that is neither null nor the place of a step, from 0 on"
        raise UnusableRow(why) from None


# --- tokens and passes


def render_solutions(
    tokenizer: Tokenizer, solutions: Sequence[Solution], separator: str
) -> Rendered:
    """Solutions as trajectories whose trained tokens are those of the steps."""
    rows = [step_row(tokenizer, one.task.messages, one.steps, separator) for one in solutions]
    trajectories = [
        Trajectory(
            id=f"{one.task.id}.steps{number}",
            task_id=one.task.id,
            group=f"solution/{content_key(one.task.messages)}",
            spans=(
                *row.prompt,
                Span(Author.MODEL, row.answer, (0.0,) * len(row.answer), trainable=True),
            ),
            text=separator.join(one.steps),
            role="solution",
        )
        for number, (one, row) in enumerate(zip(solutions, rows, strict=True))
    ]
    starts = [0, *accumulate(len(one.steps) for one in solutions)]
    labelled = sum(label is not None for one in solutions for label in one.labels)
    return Rendered(solutions, trajectories, rows, starts[:-1], starts[-1], labelled)


def solution_micro(rendered: Rendered, packed: PackedBatch, device: torch.device) -> SolutionMicro:
    """A packed batch with the ends, places and labels of its steps."""
    ends: list[int] = []
    places: list[int] = []
    labels: list[int] = []
    names: list[str] = []
    before = 0
    for member in packed.members:
        row, start = rendered.rows[member], rendered.starts[member]
        marks = rendered.solutions[member].labels
        ends += [before + end for end in row.ends]
        places += range(start, start + len(marks))
        labels += [-1 if label is None else label for label in marks]
        names += [f"{rendered.trajectories[member].id}/{k}" for k in range(1, len(marks) + 1)]
        before += len(row.answer)
    table_3J = torch.tensor([ends, places, labels], dtype=torch.int64).to(device)
    read_J = packed.place_N.index_select(0, table_3J[0])
    counts = rendered.total, rendered.labelled
    return SolutionMicro(packed, read_J, table_3J[1], table_3J[2], *counts, names)
