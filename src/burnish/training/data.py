"""What a run reads: its task sets, the cursor into them, and demonstrations as trajectories.

What a step takes of demonstrations follows from the seed and the step alone. With `by`, the values of
another field take turns: a rule that one task in a thousand shows is imitated as often as the common
ones. Held-back demonstrations are measured and never imitated; which ones follows from the questions
alone, so runs of different seeds measure the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from burnish.config.schema import Config
from burnish.errors import UserError, did_you_mean
from burnish.lm.tokenizer import Tokenizer, end_of_turn
from burnish.policy import SFT
from burnish.policy.answer_first import answer_ids
from burnish.records import Author, Message, Span, Task, Trajectory
from burnish.rollouts.base import ANSWER_TOKENS
from burnish.rollouts.session import naming_task
from burnish.seeds import Seeds, derive, digest
from burnish.tasks.base import TaskSet, content_key, epoch_order
from burnish.tasks.config import TaskConfig, build as build_tasks
from burnish.tasks.files import File

PROMPTS_MEASURED = 512
ROUND = 16
"""What a chosen limit of tokens is a multiple of."""
LEAST_ANSWER = 32
"""Tokens: a model that has not learned yet says more than a demonstration of one word."""


@dataclass
class Data:
    config: TaskConfig
    seed: int
    root: Path = Path()
    """Where relative paths start."""
    rewards: tuple[str, ...] = ()
    pictures: tuple[str, ...] = ()
    """Fields of task files with images that are no part of a prompt."""
    strata: dict[str, Mapping[str, tuple[int, ...]]] = field(default_factory=dict, init=False)
    """Positions of the demonstrations, by the field whose values take turns."""
    digests: list[str] = field(default_factory=list, init=False)
    """Of data beside the task sets, such as a corpus of text; count for the fingerprint."""
    _opened: list[tuple[TaskConfig, TaskSet]] = field(default_factory=list, init=False)

    @property
    def tasks(self) -> TaskSet:
        return self.open(self.config)

    def open(self, config: TaskConfig | None = None) -> TaskSet:
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
    max_prompt_tokens: int
    drop_overlong: bool
    position: int = 0
    prepare: Callable[[Sequence[Task]], None] | None = None
    """Begins what can be done for coming tasks beside everything else, such as their images."""
    _ahead: dict[int, Task] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.draw: Callable[[int], Task] = self.tasks.train

    def fits(self, task: Task) -> bool:
        return self.length_of(task) <= self.max_prompt_tokens

    def draw_from(self, draw: Callable[[int], Task]) -> None:
        self.draw = draw
        self._ahead.clear()

    def look_ahead(self, count: int) -> None:
        self.prefetch(count)
        for task in self._coming(count):
            self.length_of(task)

    def prefetch(self, count: int) -> None:
        """Begin to prepare coming tasks, where a model has something to prepare."""
        if self.prepare is not None:
            self.prepare(self._coming(count))

    def _coming(self, count: int) -> list[Task]:
        """Drawn before their turn; what `take` gives does not change."""
        places = range(self.position, self.position + count)
        for position in places:
            if position not in self._ahead:
                self._ahead[position] = self.draw(position)
        return [self._ahead[position] for position in places]

    def peek(self, count: int) -> list[Task]:
        begun = self.position
        try:
            return self.take(count)
        finally:
            self.position = begun

    def take(self, count: int) -> list[Task]:
        taken: list[Task] = []
        refused = 0
        while len(taken) < count:
            task = self._ahead.pop(self.position, None) or self.draw(self.position)
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
        count = min(PROMPTS_MEASURED, tasks.train_size or PROMPTS_MEASURED)
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
    note: str = ""


def measure_prompts(
    tasks: TaskSet, length_of: Callable[[Task], int], limit: int | None, drop_overlong: bool
) -> PromptReport:
    """Measure up to `PROMPTS_MEASURED` training prompts, the whole set where it is smaller.

    Prompts over the limit are refused, unless they are to be dropped; None: there is no limit.
    """
    count = min(PROMPTS_MEASURED, tasks.train_size or PROMPTS_MEASURED)
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


LOOK = 4096


class Experts:
    def __init__(
        self,
        tasks: TaskSet,
        tokenizer: Tokenizer,
        *,
        seed: int = 0,
        field: str = "demonstration",
        by: str = "",
        carry: Sequence[str] = (),
        exclude: Collection[str] = (),
        strata: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        """`by`: the field whose values take turns; a list counts for each of its members.

        `carry` names fields that trajectories keep in their `info`. Questions in `exclude`
        (`content_key`) are never drawn. `strata` are those of other experts with the same tasks and fields, where they are known already.
        """
        for name in (field, *filter(None, (by,)), *carry):
            for fault in missing_field(tasks, name, "experts"):
                raise UserError(fault)
        self.tasks = tasks
        self.tokenizer = tokenizer
        self.seed = seed
        self.field = field
        self.carry = tuple(carry)
        self.end = end_of_turn(tokenizer)
        self.exclude = frozenset(exclude)
        self.held: tuple[Task, ...] = ()
        """Demonstrations that are measured and never drawn."""
        self.strata = strata or self._find(by, tasks.train_size or LOOK)
        # The walks of all strata at once, and the next round of one of them.
        self._order = lru_cache(maxsize=2 * len(self.strata) + 2)(epoch_order.__wrapped__)

    @property
    def counts(self) -> Mapping[str, int]:
        return {name: len(positions) for name, positions in self.strata.items()}

    def take(self, step: int, count: int) -> list[Trajectory]:
        """The demonstrations of one step, the same whenever it is asked for.

        Every stratum has its turn once in as many draws as there are strata, in an order that
        changes, and walks through all its demonstrations before one comes again.
        """
        tasks = self.draw(step, count)
        if self.tokenizer.media is not None:
            coming = (*tasks, *self.draw(step + 1, count))
            self.tokenizer.prefetch(task.messages for task in coming)
        return [self.as_trajectory(task, i) for i, task in enumerate(tasks)]

    def draw(self, step: int, count: int) -> list[Task]:
        names, found = tuple(self.strata), []
        for number in range(step * count, (step + 1) * count):
            turn, place = divmod(number, len(names))
            name = names[self._order(derive(self.seed, "strata"), turn, len(names))[place]]
            positions = self.strata[name]
            lap, place = divmod(turn, len(positions))
            chosen = self._order(derive(self.seed, "stratum", name), lap, len(positions))[place]
            found.append(self.tasks.train(positions[chosen]))
        return found

    def has_answers(self, task: Task) -> bool:
        return bool(text_of(task.fields.get(self.field)))

    def _find(self, by: str, size: int) -> dict[str, tuple[int, ...]]:
        found: dict[str, list[int]] = {}
        for position, task in enumerate(self.tasks.sample(size)):
            if not self.has_answers(task):
                continue
            if self.exclude and content_key(task.messages) in self.exclude:
                continue
            for name in strata_of(task.fields.get(by)) if by else [""]:
                found.setdefault(name, []).append(position)
        if not found:
            raise UserError(
                f"experts: none of the {size} tasks of '{self.tasks.name}' looked at has a text in "
                f"field '{self.field}'; expected the answer to learn from."
            )
        return {name: tuple(found[name]) for name in sorted(found)}

    def keep(self, fits: Callable[[Task], bool]) -> int:
        positions = {place for own in self.strata.values() for place in own}
        bad = {place for place in positions if not fits(self.tasks.train(place))}
        if len(bad) == len(positions):
            raise UserError(
                f"experts: all {len(bad)} demonstrations of '{self.tasks.name}' are longer than the "
                "model reads; expected at least one that fits. Shorten them or take another model."
            )
        kept = {n: tuple(p for p in own if p not in bad) for n, own in self.strata.items()}
        self.strata = {name: own for name, own in kept.items() if own}
        return len(bad)

    def as_trajectory(self, task: Task, draw: int) -> Trajectory:
        text = text_of(task.fields[self.field])
        with naming_task(task):
            spans = answer_spans(self.tokenizer, task.messages, text, self.end)
        return Trajectory(
            id=f"{task.id}.expert{draw}",
            task_id=task.id,
            group=f"expert/{task.id}",
            spans=spans,
            text=text,
            role="expert",
            info={name: task.fields[name] for name in self.carry},
        )


def answer_spans(
    tokenizer: Tokenizer, messages: Sequence[Message], text: str, end: tuple[int, ...]
) -> tuple[Span, ...]:
    """A given answer behind its prompt, as the model would have sampled it: with `end`, trained."""
    place = tokenizer.behind(messages, text)
    ids = (*answer_ids(place, place.text, place.before), *end)
    answer = Span(Author.MODEL, ids, (0.0,) * len(ids), trainable=True)
    return (*tokenizer.render_spans(messages), answer)


def text_of(value: Any) -> str:
    """A demonstration as text; empty where a task has none."""
    return "" if value is None else str(value)


def strata_of(value: Any) -> list[str]:
    """Names of the strata that a task belongs to: one for each different value."""
    values = value if isinstance(value, list | tuple) else [value]
    return sorted({text_of(one) for one in values}) or [""]


def missing_field(tasks: TaskSet, name: str, key: str) -> Iterator[str]:
    if name not in tasks.fields:
        known = ", ".join(sorted(tasks.fields)) or "none"
        hint = did_you_mean(name, tasks.fields)
        yield f"{key}: task set '{tasks.name}' has no field '{name}'; it has {known}.{hint}"


def open_experts(
    config: Config, data: Data, tokenizer: Tokenizer, seeds: Seeds, by: str = ""
) -> Experts:
    """Demonstrations of a run without those held back; with `by`, its values take turns."""
    tasks, term = data.open(config.experts.task), config.policy.imitation
    held = None
    if term is not None and term.schedule == "adaptive":  # no part of a run imitates these
        held = hold_back(tasks, term, config.experts.field)
    found = Experts(
        tasks,
        tokenizer,
        seed=seeds.for_("experts"),
        field=config.experts.field,
        by=by,
        exclude=held.keys if held else (),
        strata=data.strata.get(by),
    )
    # Looking through an endless set takes seconds, and stages look through the same one.
    data.strata[by] = found.strata
    found.held = held.tasks if held else ()
    return found


class HeldBack(NamedTuple):
    tasks: tuple[Task, ...]
    keys: frozenset[str]
    """Their questions (`content_key`)."""


def hold_back(tasks: TaskSet, term: SFT, field: str) -> HeldBack:
    """The demonstrations to measure, the strata of `term.by` in turn, as far as each lasts."""
    chosen = list(_in_turn(_by_stratum(tasks.held_out(LOOK), term.by, field)))
    if not chosen:
        # As long as half of every stratum that a task belongs to is left.
        strata = _by_stratum(tasks.sample(tasks.train_size or LOOK), term.by, field)
        free = {name: len(own) // 2 for name, own in strata.items()}
        homes: dict[str, list[str]] = {}
        for name, own in strata.items():
            for task in own:
                homes.setdefault(task.id, []).append(name)
        for task in _in_turn(strata):
            if all(free[name] > 0 for name in homes[task.id]):
                chosen.append(task)
                for name in homes[task.id]:
                    free[name] -= 1
    if not chosen:
        raise UserError(
            f"the `sft` term's schedule is 'adaptive', and task set '{tasks.name}' has no "
            f"demonstration ('{field}') to hold back: none is held out, and no stratum has two; "
            "expected at least one. Add demonstrations, or set schedule = 'constant'."
        )
    kept = tuple(chosen[: term.held_out])
    return HeldBack(kept, frozenset(content_key(task.messages) for task in kept))


def _by_stratum(tasks: Sequence[Task], by: str, field: str) -> dict[str, list[Task]]:
    """Different questions with a demonstration, by stratum, in an order that no data set has.

    A question that several tasks ask belongs to the strata of all of them, since none of them is
    imitated once it is held back; the one with the first id stands for them.
    """
    copies: dict[str, list[Task]] = {}
    for task in tasks:
        if text_of(task.fields.get(field)):
            copies.setdefault(content_key(task.messages), []).append(task)
    found: dict[str, list[Task]] = {}
    for key in sorted(copies, key=lambda key: derive("held back", key)):
        first = min(copies[key], key=lambda task: task.id)
        values = [task.fields.get(by) for task in copies[key]] if by else [""]
        for name in {name for value in values for name in strata_of(value)}:
            found.setdefault(name, []).append(first)
    return {name: found[name] for name in sorted(found)}


def _in_turn(strata: dict[str, list[Task]]) -> Iterator[Task]:
    seen: set[str] = set()
    for place in range(max(map(len, strata.values()), default=0)):
        for tasks in strata.values():
            if place < len(tasks) and tasks[place].id not in seen:
                seen.add(tasks[place].id)
                yield tasks[place]
