"""Expert answers as trajectories: what a model imitates beside, or before, its own attempts.

    experts = Experts(tasks, tokenizer, seed=7, by="rule")
    experts.take(step, 16)

Demonstrations are a field of the tasks. What a step takes follows from the seed and the step
alone, whatever the rollouts of the step are about, so there is nothing to save. With `by`, the
values of another field take turns: a rule that one task in a thousand shows is imitated as often
as the common ones.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

from burnish.errors import UserError, did_you_mean
from burnish.lm.tokenizer import Tokenizer
from burnish.policy.answer_first import answer_ids
from burnish.records import Author, Message, Span, Task, Trajectory
from burnish.seeds import derive
from burnish.tasks.base import TaskSet, content_key, epoch_order

LOOK = 4096
"""Training tasks of an endless set that are looked through for demonstrations."""


class Experts:
    """Draws demonstrations from a task set."""

    def __init__(
        self,
        tasks: TaskSet,
        tokenizer: Tokenizer,
        *,
        seed: int = 0,
        field: str = "demonstration",
        by: str = "",
        carry: Sequence[str] = (),
        max_tokens: int = 0,
        look: int = LOOK,
        exclude: Collection[str] = (),
    ) -> None:
        """`by`: the field whose values take turns; a list counts for each of its members.

        `carry` names fields that trajectories keep in their `info`; `max_tokens` refuses a longer
        prompt and answer, 0 none. Questions in `exclude` (`content_key`) are never drawn.
        """
        for name in (field, *([by] if by else []), *carry):
            if name not in tasks.fields:
                known = ", ".join(sorted(tasks.fields)) or "none"
                raise UserError(
                    f"experts: task set '{tasks.name}' has no field '{name}'; it has {known}."
                    f"{did_you_mean(name, tasks.fields)}"
                )
        self.tasks = tasks
        self.tokenizer = tokenizer
        self.seed = seed
        self.field = field
        self.carry = tuple(carry)
        self.max_tokens = max_tokens
        self.end = end_of_turn(tokenizer)
        self.exclude = frozenset(exclude)
        self.strata = self._find(by, tasks.train_size or look)
        # The walks of all strata at once, and the next round of one of them.
        self._order = lru_cache(maxsize=2 * len(self.strata) + 2)(epoch_order.__wrapped__)

    @property
    def counts(self) -> Mapping[str, int]:
        """Demonstrations of each stratum."""
        return {name: len(positions) for name, positions in self.strata.items()}

    def take(self, step: int, count: int) -> list[Trajectory]:
        """The demonstrations of one step, the same whenever it is asked for.

        Every stratum has its turn once in as many draws as there are strata, in an order that
        changes, and walks through all its demonstrations before one comes again.
        """
        if step < 0 or count < 0:
            raise ValueError(f"take({step}, {count}): expected a step and a count of at least 0")
        return [self._trajectory(step * count + draw, draw) for draw in range(count)]

    def _find(self, by: str, size: int) -> dict[str, tuple[int, ...]]:
        """Positions in the task stream of each stratum, by name and in the order of names."""
        found: dict[str, list[int]] = {}
        for position in range(size):
            task = self.tasks.train(position)
            if not text_of(task.fields.get(self.field)):
                continue
            if self.exclude and content_key(task.messages) in self.exclude:
                continue
            for name in strata_of(task.fields.get(by)) if by else [""]:
                found.setdefault(name, []).append(position)
        if not found:
            raise UserError(
                f"experts: none of the {size} tasks of '{self.tasks.name}' looked at has a text in "
                f"field '{self.field}'; expected the answer to imitate."
            )
        return {name: tuple(found[name]) for name in sorted(found)}

    def _trajectory(self, number: int, draw: int) -> Trajectory:
        names = tuple(self.strata)
        turn, place = divmod(number, len(names))
        name = names[self._order(derive(self.seed, "strata"), turn, len(names))[place]]
        positions = self.strata[name]
        lap, place = divmod(turn, len(positions))
        chosen = self._order(derive(self.seed, "stratum", name), lap, len(positions))[place]
        return self.as_trajectory(self.tasks.train(positions[chosen]), draw)

    def as_trajectory(self, task: Task, draw: int) -> Trajectory:
        """The demonstration of one task; `draw` tells it from others of the same step."""
        text = text_of(task.fields[self.field])
        prompt = self.tokenizer.render_spans(task.messages)
        place = self.tokenizer.behind(task.messages, text)
        answer = answer_ids(place, place.text, place.before)
        ids = (*answer, *self.end)
        size = sum(len(span.token_ids) for span in prompt) + len(ids)
        if self.max_tokens and size > self.max_tokens:
            raise UserError(
                f"experts: task {task.id} of '{self.tasks.name}' has {size} tokens with its "
                f"'{self.field}'; expected at most {self.max_tokens}. Shorten or leave it out."
            )
        return Trajectory(
            id=f"{task.id}.expert{draw}",
            task_id=task.id,
            group=f"expert/{task.id}",
            spans=(*prompt, Span(Author.MODEL, ids, (0.0,) * len(ids), trainable=True)),
            text=text,
            role="expert",
            info={name: task.fields[name] for name in self.carry},
        )


def end_of_turn(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The token that the chat template writes behind an answer; () where a model has none.

    Models may know several end tokens; the template says which of them ends a turn.
    """
    dialogue = [Message("user", "a"), Message("assistant", "b")]
    try:
        ids = tokenizer.render(dialogue, add_generation_prompt=False) if tokenizer.template else []
    except UserError:  # a template for other roles; it cannot say
        ids = []
    written = [token for token in ids if token in tokenizer.eos_ids]
    return tuple(written[-1:]) or tokenizer.eos_ids[:1]


def text_of(value: Any) -> str:
    """A demonstration as text; empty where a task has none."""
    return "" if value is None else str(value)


def strata_of(value: Any) -> list[str]:
    """Names of the strata that a task belongs to: one for each different value."""
    values = value if isinstance(value, list | tuple) else [value]
    return sorted({text_of(one) for one in values}) or [""]
