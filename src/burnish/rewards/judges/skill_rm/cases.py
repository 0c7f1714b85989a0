"""One thing to judge: a request and its responses under the labels that a judge sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from burnish.records import Response, Task
from burnish.rewards.judges.prompting import mark_for, request_of

LABELS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Case:
    """What is judged, in the order in which it is shown."""

    task: Task
    responses: tuple[Response, ...]

    @classmethod
    def of(cls, task: Task, responses: Sequence[Response]) -> Case:
        return cls(task, tuple(responses))

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(LABELS[: len(self.responses)])

    @property
    def is_pair(self) -> bool:
        return len(self.responses) == 2

    @property
    def request(self) -> str:
        """What was asked: the conversation, no fields."""
        return request_of(self.task)

    @property
    def shown(self) -> tuple[str, ...]:
        """Every text that a judge sees and must not quote as its own verdict."""
        return (self.request, *(response.text for response in self.responses))

    @property
    def mark(self) -> str:
        """A word that no text shown can know in advance: it depends on all of them."""
        return mark_for(*self.shown)

    @property
    def about(self) -> tuple[str, ...]:
        return (self.task.id, *(response.id for response in self.responses))
