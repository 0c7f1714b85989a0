"""What a teacher reads before an answer: the task in its own context, and a policy's prefix.

    context = TeacherContext(setup, settings, teacher, tasks)
    context.spans(step, task)           # the teacher's prompt as tokens
    behind(spans, answer)               # the very same answer tokens behind it

A context is a system message, a template with fields of the task, or a policy file. The tokens of a
policy stand at the beginning of every prompt; where the teacher can keep their keys, rows begin
behind them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from burnish.errors import UserError
from burnish.records import Message, Span, Task, Trajectory
from burnish.tasks.base import TaskSet
from burnish.tasks.mapping import Columns, RowError
from burnish.texts import counted
from burnish.training.forecast import MEASURED
from burnish.training.packing import Row
from burnish.training.policy_text import (
    PolicyText,
    check_only_policy,
    default_system,
    fit_policy,
    read_policy,
    with_policy,
)
from burnish.training.teacher import Teacher

if TYPE_CHECKING:
    from burnish.config.schema import DistilTrain
    from burnish.training.algorithm import Setup

logger = logging.getLogger(__name__)

LEAST_PREFIX = 32
"""Tokens of a policy from which on its keys are worth keeping."""


class TeacherContext:
    """The prompts of a teacher."""

    def __init__(
        self, setup: Setup, settings: DistilTrain, teacher: Teacher, tasks: TaskSet
    ) -> None:
        self.setup, self.settings, self.teacher = setup, settings, teacher
        self.policies = self._open(tasks)
        self.prefixes = [self._prefix_of(policy) for policy in self.policies]

    def messages(self, step: int | str, task: Task) -> tuple[Message, ...]:
        """The conversation that the teacher answers at a step."""
        return teacher_prompt(task, self.settings, self.policy_of(step, task), self.default)

    def spans(self, step: int | str, task: Task) -> tuple[Span, ...]:
        """The same as tokens."""
        return self._render(task, self.policy_of(step, task))

    def policy_of(self, step: int | str, task: Task) -> PolicyText | None:
        """The policy of a prompt: drawn with a seed of the step."""
        if len(self.policies) < 2:
            return self.policies[0] if self.policies else None
        seed = self.setup.seeds.for_("policy", step, task.id)
        return self.policies[seed % len(self.policies)]

    def check_length(self, task: Task, view: Trajectory) -> None:
        """Refuse a task that the teacher cannot read with its answer."""
        size, limit = len(view.token_ids), self.teacher.loaded.module.longest_row(0)
        if size > limit:
            raise UserError(
                f"distil: the teacher reads {size} tokens of task {task.id} (its context and the "
                f"answer), and its model takes {limit}. Shorten train.policies, train.system or "
                "train.template, or lower rollout.max_tokens."
            )

    def row(self, own: Row, view: Trajectory) -> tuple[Row, tuple[int, ...]]:
        """A row of the student's behind the teacher's prompt, and the beginning of that prompt whose
        keys are reused: it is not in the row."""
        first = next(i for i, span in enumerate(view.spans) if span.trainable)
        prefix = tuple(token for span in view.spans[:first] for token in span.token_ids)
        fits = (one for one in self.prefixes if one and prefix[: len(one)] == one)
        known = next((one for one in fits if len(one) < len(prefix)), ())
        rest = prefix[len(known) :]
        tokens = own.tokens - len(own.prefix) + len(rest)
        media = tuple(part for span in view.spans for part in span.media)
        return Row(rest, own.members, tokens, media), known

    def _render(self, task: Task, policy: PolicyText | None) -> tuple[Span, ...]:
        messages = teacher_prompt(task, self.settings, policy, self.default)
        return self.teacher.tokenizer.render_spans(messages)

    def _open(self, tasks: TaskSet) -> list[PolicyText]:
        """The policies, known to fit and to be all that teacher and student differ by."""
        root, tokenizer = self.setup.data.root, self.teacher.tokenizer
        found = [read_policy(root / path) for path in self.settings.policies]
        self.default = default_system(tokenizer) if found else ""
        room = self.teacher.loaded.module.longest_row(0) - self.setup.config.rollout.max_tokens
        shown = tasks.sample(MEASURED) if found else []

        def length_of(policy: PolicyText) -> int:
            return max(count_tokens(self._render(task, policy)) for task in shown)

        allow = self.settings.allow_truncate
        found = [fit_policy(one, length_of, room, allow_truncate=allow) for one in found]
        for policy in found:
            if policy.cut:
                left = (
                    f"policy {policy.name}: its last {counted(policy.cut, 'item')} left out to fit "
                )
                logger.warning("%sthe teacher's context (train.allow_truncate).", left)
            for task in shown:
                messages = with_policy(task.messages, policy, self.default)
                check_only_policy(tokenizer, task.messages, messages, policy)
        return found

    def _prefix_of(self, policy: PolicyText) -> tuple[int, ...]:
        """The tokens that the teacher reads before any question; () where they cannot be reused."""
        can_reuse = self.teacher.can_reuse(self.teacher.loaded.module)
        if not (self.settings.reuse_prefix and can_reuse and self.settings.divergence != "sampled"):
            return ()
        asked = [
            self.teacher.tokenizer.render(
                with_policy((Message("user", text),), policy, self.default)
            )
            for text in ("a", "Where?")
        ]
        pairs = zip(*asked, strict=False)
        size = next((i for i, (a, b) in enumerate(pairs) if a != b), min(map(len, asked)))
        return tuple(asked[0][:size]) if size >= LEAST_PREFIX else ()


def teacher_prompt(
    task: Task, settings: DistilTrain, policy: PolicyText | None = None, default: str = ""
) -> tuple[Message, ...]:
    """The conversation that the teacher answers: the task's, in the teacher's context.

    `default` is the system message that the template would write itself.
    """
    row = {**task.fields, "messages": msgspec.to_builtins(task.messages)}
    try:
        messages = context_columns(settings).draft(row).messages
    except RowError as error:
        raise UserError(
            f"train.template: {error} (task {task.id}); expected {{prompt}} and fields of the task: "
            f"{', '.join(sorted(task.fields)) or 'it has none'}."
        ) from None
    return messages if policy is None else with_policy(messages, policy, default)


def context_columns(settings: DistilTrain) -> Columns:
    """How a task becomes what the teacher is asked."""
    return Columns(messages="messages", system=settings.system, template=settings.template)


def behind(prompt: tuple[Span, ...], answer: Trajectory) -> Trajectory:
    """The very same answer tokens behind another prompt."""
    is_answer = (i for i, span in enumerate(answer.spans) if span.trainable)
    first = next(is_answer, len(answer.spans))
    return msgspec.structs.replace(answer, spans=(*prompt, *answer.spans[first:]))


def count_tokens(spans: Sequence[Span]) -> int:
    """Tokens of some spans."""
    return sum(len(span.token_ids) for span in spans)
