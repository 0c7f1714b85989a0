"""The pure part of prompt optimisation: one task under another prompt, two prompts on the same tasks.

compare_marks([0, 0, 1], [1, 0, 1])        # means, change with an interval, p, pairs left out
with_system_prompt(task, "Be brief.")
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from burnish.arguments import as_list, as_numbers, as_text, refused, same_length
from burnish.bench.statistics import Estimate, paired_difference, sign_flip
from burnish.records import Message, Task


class Paired(Struct, frozen=True):
    """Two prompts on the same tasks."""

    before: float
    after: float
    difference: Estimate
    p: float
    """Two-sided, of a sign-flip test over the pairs."""
    dropped: int
    """Pairs without a value on either side."""
    lost: int
    """Answers that had a value before and have none after."""

    def is_better(self, level: float) -> bool:
        """Whether the second is better at a level, and could be scored wherever the first was."""
        return self.difference.value > 0 and self.p <= level and self.lost == 0


def compare_marks(before: Sequence[float | None], after: Sequence[float | None]) -> Paired | None:
    """The paired comparison of two lists of marks; None where no pair has two values.

    >>> found = compare_marks([0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1])
    >>> found.difference.value, found.p
    (1.0, 0.03125)
    >>> compare_marks([1, 0], [1, 0]).p
    1.0
    """
    first, second = _marks("before", before), _marks("after", after)
    same_length("after", second, len(first), "marks before")
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    if not pairs:
        return None
    old, new = [a for a, _ in pairs], [b for _, b in pairs]
    lost = sum(a is not None and b is None for a, b in zip(first, second, strict=True))
    return Paired(
        math.fsum(old) / len(old),
        math.fsum(new) / len(new),
        paired_difference(old, new),
        sign_flip([b - a for a, b in pairs]),
        len(first) - len(pairs),
        lost,
    )


def _marks(what: str, marks: Sequence[float | None]) -> list[float | None]:
    given = as_list(what, marks)
    numbers = iter(as_numbers(what, [mark for mark in given if mark is not None]))
    return [None if mark is None else next(numbers) for mark in given]


def system_prompt(tasks: Sequence[Task]) -> str:
    """The system prompt that all tasks share; empty where they have none or several.

    >>> system_prompt([Task("t", (Message("system", "Be brief."), Message("user", "q")))])
    'Be brief.'
    """
    for task in as_list("tasks", tasks):
        _check_task("tasks", task)
    found = {
        task.messages[0].text if task.messages and task.messages[0].role == "system" else ""
        for task in tasks
    }
    return found.pop().strip() if len(found) == 1 else ""


def with_system_prompt(task: Task, prompt: str) -> Task:
    """The task under another system prompt; under none where it is empty.

    >>> task = Task("t", (Message("system", "old"), Message("user", "q")))
    >>> [m.content for m in with_system_prompt(task, "new").messages]
    ['new', 'q']
    """
    _check_task("task", task)
    as_text("prompt", prompt)
    rest = (
        task.messages[1:] if task.messages and task.messages[0].role == "system" else task.messages
    )
    first = (Message("system", prompt),) if prompt else ()
    return msgspec.structs.replace(task, messages=(*first, *rest))


def _check_task(what: str, task: object) -> None:
    if not isinstance(task, Task):
        raise refused(what, task, "Task records")
