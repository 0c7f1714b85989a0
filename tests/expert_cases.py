"""Task sets whose tasks carry demonstrations, for the tests of imitation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from burnish.records import Message, Task
from burnish.tasks.base import FiniteTasks


def graded(number: int, **fields: Any) -> Task:
    """Item n has grade n mod 4, and says so."""
    grade = number % 4
    given = {"demonstration": f"{grade}\nrule: r{grade}", "grade": grade, **fields}
    return Task(f"t{number}", (Message("user", f"item {number}: {'abcd'[grade]}?"),), given)


def finite(tasks: Sequence[Task]) -> FiniteTasks:
    fields = frozenset().union(*(task.fields for task in tasks))
    return FiniteTasks("items", fields, "v1", 0, tuple(tasks), ())


@dataclass(frozen=True)
class Endless:
    """Tasks that never run out; every seventh has a rare rule."""

    name: str = "endless"
    fields: frozenset[str] = frozenset({"demonstration", "grade", "rule"})
    fingerprint: str = "v1"
    train_size: int | None = None
    notes: tuple[str, ...] = ()

    def train(self, index: int) -> Task:
        return graded(index, rule="rare" if index % 7 == 6 else "common")

    def held_out(self, limit: int | None = None) -> list[Task]:
        return []

    def sample(self, k: int) -> list[Task]:
        return [self.train(i) for i in range(k)]
