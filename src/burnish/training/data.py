"""Task sets of a run, the cursor into them, and prompts that are too long."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from burnish.errors import UserError
from burnish.records import Task
from burnish.rollouts.base import ANSWER_TOKENS
from burnish.seeds import digest
from burnish.tasks.base import TaskSet
from burnish.tasks.config import TaskConfig
from burnish.tasks.config import build as build_tasks
from burnish.tasks.files import File

LOOK = 512
"""Tasks whose prompts are measured before the first step."""
ROUND = 16
"""What a chosen limit of tokens is a multiple of."""
LEAST_ANSWER = 32
"""Tokens: a model that has not learned yet says more than a demonstration of one word."""


@dataclass
class Data:
    """Opens the task sets of a run, each once; all that are opened count for the fingerprint."""

    config: TaskConfig
    seed: int
    root: Path = Path()
    """Where relative paths start."""
    rewards: tuple[str, ...] = ()
    """Names of the run's rewards."""
    pictures: tuple[str, ...] = ()
    """Fields of task files with images that are no part of a prompt."""
    strata: dict[str, Mapping[str, tuple[int, ...]]] = field(default_factory=dict, init=False)
    """Positions of the demonstrations, by the field whose values take turns."""
    digests: list[str] = field(default_factory=list, init=False)
    """Of data beside the task sets, such as a corpus of text; count for the fingerprint."""
    _opened: list[tuple[TaskConfig, TaskSet]] = field(default_factory=list, init=False)

    @property
    def tasks(self) -> TaskSet:
        """The run's own tasks."""
        return self.open(self.config)

    def open(self, config: TaskConfig | None = None) -> TaskSet:
        """The tasks of a config; None: the run's own."""
        config = self.config if config is None else config
        if isinstance(config, File) and self.pictures:
            config = msgspec.structs.replace(config, pictures=(*config.pictures, *self.pictures))
        for known, tasks in self._opened:
            if known == config:
                return tasks
        tasks = build_tasks(config, self.seed, self.root)
        self._opened.append((config, tasks))
        return tasks

    @property
    def fingerprint(self) -> str:
        """Changes when the data changes: the prompts, or the demonstrations."""
        found = [*(tasks.fingerprint for _, tasks in self._opened), *self.digests]
        return found[0] if len(found) == 1 else digest(*found)


@dataclass
class Cursor:
    """Takes tasks in order; its position is all that a resume needs."""

    tasks: TaskSet
    length_of: Callable[[Task], int]
    """Prompt length in tokens."""
    max_prompt_tokens: int
    drop_overlong: bool
    position: int = 0
    prepare: Callable[[Sequence[Task]], None] | None = None
    """Begins what can be done for coming tasks beside everything else, such as their images."""
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
        self.prefetch(count)
        for position in range(self.position, self.position + count):
            if position not in self._ahead:
                self._ahead[position] = self.tasks.train(position)
            self.length_of(self._ahead[position])

    def prefetch(self, count: int) -> None:
        """Draw tasks and begin to prepare them, where a model has something to prepare."""
        if self.prepare is None:
            return
        places = range(self.position, self.position + count)
        for position in places:
            if position not in self._ahead:
                self._ahead[position] = self.tasks.train(position)
        self.prepare([self._ahead[position] for position in places])

    def peek(self, count: int) -> list[Task]:
        """The tasks that `take(count)` would give; nothing moves."""
        begun = self.position
        try:
            return self.take(count)
        finally:
            self.position = begun

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
class AnswerBudget:
    """How many tokens an answer may have, and why."""

    tokens: int
    reason: str
    """Empty where the config says it."""


def answer_budget(
    tasks: TaskSet, field: str, tokens_of: Callable[[str], int], room: int
) -> AnswerBudget:
    """A limit that lets answers to these tasks come to their end.

    Twice the longest demonstration in `field`, where there are some: an answer that is learned is
    about as long. Else `ANSWER_TOKENS`. At most `room`, which the model's context leaves.
    """
    shown = []
    if field in tasks.fields:
        count = min(LOOK, tasks.train_size or LOOK)
        texts = [task.fields.get(field) for task in tasks.sample(count)]
        shown = [tokens_of(str(text)) for text in texts if text not in (None, "")]
    wanted, why = ANSWER_TOKENS, "tasks do not say how long answers are"
    if shown:
        wanted = max(LEAST_ANSWER, ROUND * math.ceil(2 * max(shown) / ROUND))
        why = f"the longest of {len(shown)} demonstrations has {max(shown)}"
    if wanted > room:
        return AnswerBudget(max(room, 1), "what the model's context leaves beside the prompts")
    return AnswerBudget(wanted, why)


@dataclass(frozen=True)
class PromptReport:
    """Prompt lengths of the first tasks, measured before anything is trained."""

    looked_at: int
    longest: int
    overlong: list[tuple[str, int]] = field(default_factory=list)
    """Task id and tokens, longest first."""
    note: str = ""
    """What the lengths do not count, in words."""


def measure_prompts(
    tasks: TaskSet, length_of: Callable[[Task], int], limit: int | None, drop_overlong: bool
) -> PromptReport:
    """Measure up to `LOOK` training prompts, the whole set where it is smaller.

    Prompts over the limit are refused, unless they are to be dropped; None: there is no limit.
    """
    count = LOOK if tasks.train_size is None else min(LOOK, tasks.train_size)
    lengths = [(task.id, length_of(task)) for task in tasks.sample(count)]
    over = sorted((x for x in lengths if limit is not None and x[1] > limit), key=lambda x: -x[1])
    if over and (not drop_overlong or len(over) == tasks.train_size):
        longest = ", ".join(f"{name} ({tokens} tokens)" for name, tokens in over[:3])
        way_out = "" if drop_overlong else " or set rollout.overlong_prompts=drop"
        raise UserError(
            f"{len(over)} of {count} prompts of '{tasks.name}' are longer than {limit} tokens, the "
            f"longest: {longest}. Raise rollout.max_prompt_tokens{way_out}."
        )
    return PromptReport(count, max((n for _, n in lengths), default=0), over)
