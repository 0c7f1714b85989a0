"""The usable labelled rows of a task set, drawn prompt by prompt: pairs of answers, solutions.

    rows = LabelledSet(tasks, read, what="pairs", bad="drop", setting="train.bad_pairs", seed=7)
    rows.draw(step, 32)

Rows of one prompt are drawn together, unless `together` is false. What a step draws follows from the seed and the step alone.
Rows that cannot be used are refused in one line, or left out in one line.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Generic, TypeVar

from burnish.errors import UserError
from burnish.records import Task
from burnish.tasks.base import TaskSet, content_key, epoch_order

logger = logging.getLogger(__name__)

TEMPLATE_TOKENS = 64
"""What a chat template may add to a turn, at most; texts far below the limit are not measured."""
LOOK = 4096
"""Training tasks of an endless set that are looked through."""
SHOWN = 3
"""Bad rows that a message names."""

RowT = TypeVar("RowT")


class UnusableRow(Exception):
    """A row that cannot be used; the text says why, for all rows of its kind."""


class LabelledSet(Generic[RowT]):
    """The usable rows of a task set."""

    def __init__(
        self,
        tasks: TaskSet,
        read: Callable[[Task], RowT],
        *,
        what: str,
        bad: str,
        setting: str,
        seed: int = 0,
        keeps: Callable[[RowT], bool] = lambda row: True,
        fits: Callable[[RowT], bool] = lambda row: True,
        max_tokens: int = 0,
        together: bool = True,
        look: int = LOOK,
    ) -> None:
        """`read` raises `UnusableRow`; `keeps` leaves rows out without a word.

        `fits` says whether a row is within `max_tokens`, which only a message names here. `what`
        rows are called and `setting`, the key that drops bad ones, are for messages too. With
        `together`, an epoch has the rows of one prompt side by side. `look`: tasks of an endless set
        that are looked through, and drawn again and again.
        """
        self.tasks, self.read, self.seed = tasks, read, seed
        self._what, self._bad, self._setting = what, bad, setting
        self._keeps, self._fits, self._max_tokens = keeps, fits, max_tokens
        size = tasks.train_size or look
        shown = tasks.sample(size)
        kept = self._usable(shown)
        if not kept:
            raise UserError(
                f"task set '{tasks.name}': none of the {size} tasks looked at is a usable "
                f"{what.removesuffix('s')}; expected at least one. See which fields a row gives with "
                "burnish try, and raise train.max_tokens where they are too long."
            )
        groups: dict[str, list[int]] = {}
        for position in kept:
            key = content_key(shown[position].messages) if together else str(position)
            groups.setdefault(key, []).append(position)
        self._groups = tuple(tuple(group) for group in groups.values())
        self.size = len(kept)
        """Rows of one epoch."""
        self._lap = lru_cache(maxsize=2)(self._order)

    def draw(self, step: int, count: int) -> list[RowT]:
        """The rows of one step, the same whenever it is asked for."""
        found = []
        for number in range(step * count, (step + 1) * count):
            lap, place = divmod(number, self.size)
            found.append(self.read(self.tasks.train(self._lap(lap)[place])))
        return found

    def first(self, count: int) -> list[RowT]:
        """Some training rows, in the order in which the first epoch draws them."""
        order = self._lap(0)[:count]
        return [self.read(self.tasks.train(position)) for position in order]

    def held_out(self, limit: int) -> list[RowT]:
        """Rows that training never sees."""
        tasks = self.tasks.held_out(limit)
        return [self.read(tasks[place]) for place in self._usable(tasks)]

    def _order(self, lap: int) -> tuple[int, ...]:
        """Positions of one epoch: prompts in another order each time, their rows side by side."""
        order = epoch_order(self.seed, lap, len(self._groups))
        return tuple(position for place in order for position in self._groups[place])

    def _usable(self, tasks: Sequence[Task]) -> list[int]:
        """Places of the tasks that can be used; the others are refused or dropped in one line."""
        kept: list[int] = []
        bad: list[tuple[str, str]] = []
        for place, task in enumerate(tasks):
            try:
                row = self.read(task)
                if not self._keeps(row):
                    continue
                if not self._fits(row):
                    raise UnusableRow(f"more than {self._max_tokens} tokens")
            except UnusableRow as why:
                bad.append((task.id, str(why)))
                continue
            kept.append(place)
        if bad:
            self._report(bad, len(tasks))
        return kept

    def _report(self, bad: Sequence[tuple[str, str]], looked_at: int) -> None:
        kinds = Counter(why for _, why in bad)
        shown = "; ".join(f"{count} with {why}" for why, count in kinds.most_common(SHOWN))
        first = ", ".join(name for name, _ in bad[:SHOWN])
        line = (
            f"task set '{self.tasks.name}': {len(bad)} of {looked_at} {self._what} cannot be used: "
            f"{shown} (first: {first})"
        )
        if self._bad == "refuse":
            raise UserError(f"{line}. Mend the data, or set {self._setting} = 'drop'.")
        logger.warning("%s; they are left out.", line)
