"""The data cursor: one integer into a task set, and what to do with prompts that are too long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from burnish.errors import UserError
from burnish.records import Task
from burnish.tasks.base import TaskSet

LOOK = 512
"""Tasks whose prompts are measured before the first step."""


@dataclass
class Cursor:
    """Takes tasks in order; its position is all that a resume needs."""

    tasks: TaskSet
    length_of: Callable[[Task], int]
    """Prompt length in tokens."""
    max_prompt_tokens: int
    drop_overlong: bool
    position: int = 0
    _ahead: dict[int, Task] = field(default_factory=dict, init=False)
    """Tasks drawn before their turn, by position."""

    def fits(self, task: Task) -> bool:
        """Whether the prompt is within the limit."""
        return self.length_of(task) <= self.max_prompt_tokens

    def draw_from(self, tasks: TaskSet) -> None:
        """Go on with other tasks at the same position."""
        self.tasks = tasks
        self._ahead.clear()

    def look_ahead(self, count: int) -> None:
        """Draw and measure tasks while a GPU is busy; what `take` gives does not change."""
        for position in range(self.position, self.position + count):
            if position not in self._ahead:
                self._ahead[position] = self.tasks.train(position)
                self.length_of(self._ahead[position])

    def take(self, count: int) -> list[Task]:
        """The next `count` tasks that fit."""
        taken: list[Task] = []
        refused = 0
        while len(taken) < count:
            task = self._ahead.pop(self.position, None) or self.tasks.train(self.position)
            self.position += 1
            if self.fits(task):
                taken.append(task)
                continue
            refused += 1
            if not self.drop_overlong or refused > 10_000:
                raise UserError(
                    f"task {task.id} of '{self.tasks.name}' has a prompt of "
                    f"{self.length_of(task)} tokens; expected at most {self.max_prompt_tokens}. "
                    "Raise rollout.max_prompt_tokens or set rollout.overlong_prompts=drop."
                )
        return taken


@dataclass(frozen=True)
class PromptReport:
    """Prompt lengths of the first tasks, measured before anything is trained."""

    looked_at: int
    longest: int
    overlong: list[tuple[str, int]] = field(default_factory=list)
    """Task id and tokens, longest first."""


def measure_prompts(
    tasks: TaskSet, length_of: Callable[[Task], int], limit: int, drop_overlong: bool
) -> PromptReport:
    """Measure up to `LOOK` training prompts, the whole set where it is smaller.

    Prompts over the limit are a mistake here and now, unless they are to be dropped.
    """
    count = min(LOOK, tasks.train_size or LOOK)
    lengths = [(task.id, length_of(task)) for task in map(tasks.train, range(count))]
    over = sorted((x for x in lengths if x[1] > limit), key=lambda x: -x[1])
    if over and (not drop_overlong or len(over) == tasks.train_size):
        longest = ", ".join(f"{name} ({tokens} tokens)" for name, tokens in over[:3])
        way_out = "" if drop_overlong else " or set rollout.overlong_prompts=drop"
        raise UserError(
            f"{len(over)} of {count} prompts of '{tasks.name}' are longer than {limit} tokens, the "
            f"longest: {longest}. Raise rollout.max_prompt_tokens{way_out}."
        )
    return PromptReport(count, max(n for _, n in lengths), over)
