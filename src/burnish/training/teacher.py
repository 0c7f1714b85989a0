"""The model that a student is distilled from: its weights, its prefix, what it reads and samples.

It reads the task in a context of its own: a system message, a template with fields of the task, or a
policy. The tokens of a policy stand at the beginning of every prompt. Where the teacher can keep their
keys and values, these are computed once for weights that stay, once a step for weights that move.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import Tensor

from burnish.errors import UserError
from burnish.lm.decoder import Decoder
from burnish.lm.folder import LoadedModel, check_causal, load_model
from burnish.lm.local import LocalLM
from burnish.lm.model_input import ModelInput
from burnish.lm.tokenizer import Tokenizer, odd_token
from burnish.records import Message, Span, Task, Trajectory
from burnish.tasks.base import TaskSet
from burnish.tasks.mapping import Columns, RowError
from burnish.texts import counted
from burnish.training.forecast import MEASURED
from burnish.training.packing import CausalModel, PackedBatch, Row
from burnish.training.policy_text import (
    PolicyText,
    check_only_policy,
    default_system,
    fit_policy,
    read_policy,
    with_policy,
)
from burnish.training.trainable import model_of

if TYPE_CHECKING:
    from burnish.config.schema import DistilTrain
    from burnish.training.algorithm import Setup

Keys = Sequence[tuple[Tensor, Tensor]]
"""Keys and values of each layer, (1, Hkv, P, Dh)."""


class Teacher:
    """Gives the teacher's module, follows the student where it is an average of it."""

    def __init__(self, setup: Setup, settings: DistilTrain) -> None:
        self.setup = setup
        self.settings = settings
        own = setup.trainable.loaded
        self.other: LoadedModel | None = None
        if not settings.is_self:
            self.other = load_model(model_of(settings.teacher), dtype=own.dtype, device=own.device)
            check_causal(self.other, "train.teacher")
            self.other.module.requires_grad_(False)
            what = f"train.teacher = '{settings.teacher}'"
            check_vocabulary(
                own, self.other.tokenizer, what, "Distributions are compared token by token"
            )
        self.average: Average | None = None
        if settings.is_frozen:
            setup.trainable.freeze_reference()
        elif settings.teacher == "ema":
            self.average = Average(setup.trainable.module, settings.decay)
        self._prefixes: dict[tuple[int, ...], tuple[int, Keys]] = {}
        self._lms: dict[int, LocalLM] = {}

    @property
    def loaded(self) -> LoadedModel:
        return self.other or self.setup.trainable.loaded

    @contextmanager
    def model(self, student: Any) -> Iterator[Any]:
        if self.other is not None:
            yield self.other.module
        elif self.average is not None:
            yield self.average.module
        elif self.settings.teacher == "student":
            yield student
        else:
            with self.setup.trainable.reference() as frozen:
                yield frozen

    @contextmanager
    def lm(self) -> Iterator[LocalLM]:
        own = self.setup.trainable.module
        with self.model(own) as module:
            if module is own:
                yield self.setup.local
                return
            if id(module) not in self._lms:
                loaded = dataclasses.replace(self.loaded, module=module)
                self._lms[id(module)] = LocalLM(loaded)
            yield self._lms[id(module)]

    def follow(self) -> None:
        if self.average is not None:
            with self.setup.trainable.whole():
                self.average.follow(self.setup.trainable.module)

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps: the average in full precision."""
        return {} if self.average is None else {f"ema.{k}": v for k, v in self.average.wide.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        if self.average is not None:
            self.average.load({k.removeprefix("ema."): v for k, v in tensors.items()})

    def hidden(self, module: CausalModel, packed: PackedBatch, prefix: tuple[int, ...]) -> Tensor:
        """The state that predicts each trained token of rows behind a prefix, (N, D)."""
        if not prefix:
            hidden_RSD = module(packed.inputs)
        else:
            assert isinstance(module, Decoder)
            # Those of another or a frozen model stay.
            is_fixed = self.other is not None or self.settings.is_frozen
            version = 0 if is_fixed else self.setup.weight_version
            known = self._prefixes.get(prefix)
            if known is None or known[0] != version:
                known = self._prefixes[prefix] = (version, prefix_keys(module, prefix))
            hidden_RSD = behind_prefix(module, packed, known[1])
        return hidden_RSD.flatten(0, 1).index_select(0, packed.source_N)


def check_vocabulary(own: LoadedModel, other: Tokenizer, what: str, why: str) -> None:
    """Refuse a model that reads other tokens than the one under training."""
    odd = odd_token(own.tokenizer, other)
    if odd is not None:
        there, here = (one.backend.token_to_id(odd) for one in (other, own.tokenizer))
        raise UserError(
            f"{what} has another vocabulary than '{own.name}': token {odd!r} is {there} there and "
            f"{here} here. {why}; take a model of the same family."
        )


class Average:
    """A copy of a model whose weights are the exponential average of the model's.

    Kept in at least float32: a step moves a weight by less than bfloat16 can tell apart. With
    adapters, their factors are averaged.
    """

    def __init__(self, module: Any, decay: float) -> None:
        self.decay = decay
        self.names = [name for name, p in module.named_parameters() if p.requires_grad]
        self.module = copy.deepcopy(module)
        self.module.requires_grad_(False)
        own = dict(self.module.named_parameters())
        self.wide = {
            name: own[name].detach().to(torch.promote_types(own[name].dtype, torch.float32)).clone()
            for name in self.names
        }

    @torch.no_grad()
    def follow(self, student: Any) -> None:
        """decay * teacher + (1 - decay) * student, as `policy.ema`; buffers are copied."""
        theirs = dict(student.named_parameters())
        for name, wide in self.wide.items():
            wide.mul_(self.decay).add_((1 - self.decay) * theirs[name].to(wide))
        buffers = dict(student.named_buffers())
        for name, buffer in self.module.named_buffers():
            buffer.copy_(buffers[name])
        self.load(self.wide)

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        own = dict(self.module.named_parameters())
        for name, wide in self.wide.items():
            wide.copy_(tensors[name])
            own[name].copy_(wide)


@torch.no_grad()
def prefix_keys(module: Decoder, prefix: Sequence[int]) -> Keys:
    found: dict[int, tuple[Tensor, Tensor]] = {}

    def keep(index: int, key: Tensor, value: Tensor) -> None:
        found[index] = (key.clone(), value.clone())

    ids_1P = torch.tensor([list(prefix)], device=module.head_weight.device)
    positions_1P = torch.arange(len(prefix), device=ids_1P.device).unsqueeze(0)
    module(ModelInput(ids_1P, positions_1P), keep)
    return [found[index] for index in range(len(found))]


@torch.no_grad()
def behind_prefix(module: Decoder, packed: PackedBatch, keys: Keys) -> Tensor:
    """Final hidden states of rows that continue a prefix, (R, S, D)."""
    rows, size = packed.ids_RS.shape
    length = keys[0][0].shape[2]
    own_RSS = packed.mask_RSS
    if own_RSS is None:
        causal_SS = torch.ones(size, size, dtype=torch.bool, device=packed.ids_RS.device).tril()
        own_RSS = causal_SS.expand(rows, size, size)
    mask_RSK = torch.cat([own_RSS.new_ones(rows, size, length), own_RSS], dim=-1)

    def join(index: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        before = (part.expand(rows, *part.shape[1:]) for part in keys[index])
        first_key, first_value = before
        return torch.cat([first_key, key], dim=2), torch.cat([first_value, value], dim=2)

    hidden: Tensor = module(ModelInput(packed.ids_RS, packed.positions_RS + length, mask_RSK), join)
    return hidden


logger = logging.getLogger(__name__)

LEAST_PREFIX = 32
"""Tokens of a policy from which on its keys are worth keeping."""


class TeacherContext:
    def __init__(
        self, setup: Setup, settings: DistilTrain, teacher: Teacher, tasks: TaskSet
    ) -> None:
        self.setup, self.settings, self.teacher = setup, settings, teacher
        self.policies = self._open(tasks)
        self.prefixes = [self._prefix_of(policy) for policy in self.policies]

    def messages(self, step: int | str, task: Task) -> tuple[Message, ...]:
        return teacher_prompt(task, self.settings, self.policy_of(step, task), self.default)

    def spans(self, step: int | str, task: Task) -> tuple[Span, ...]:
        return self.teacher.loaded.tokenizer.render_spans(self.messages(step, task))

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

    def _open(self, tasks: TaskSet) -> list[PolicyText]:
        root, tokenizer = self.setup.data.root, self.teacher.loaded.tokenizer
        found = [read_policy(root / path) for path in self.settings.policies]
        self.default = default_system(tokenizer) if found else ""
        room = self.teacher.loaded.module.longest_row(0) - self.setup.config.rollout.max_tokens
        shown = tasks.sample(MEASURED) if found else []

        def length_of(policy: PolicyText) -> int:
            asked = (teacher_prompt(task, self.settings, policy, self.default) for task in shown)
            return max(count_tokens(tokenizer.render_spans(one)) for one in asked)

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
        module, tokenizer = self.teacher.loaded.module, self.teacher.loaded.tokenizer
        can_reuse = isinstance(module, Decoder) and module.architecture.sliding_window is None
        if not can_reuse or self.settings.divergence == "sampled":
            return ()
        asked = [
            tokenizer.render(with_policy((Message("user", text),), policy, self.default))
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
    return Columns(messages="messages", system=settings.system, template=settings.template)


def behind(prompt: tuple[Span, ...], answer: Trajectory) -> Trajectory:
    """The very same answer tokens behind another prompt."""
    is_answer = (i for i, span in enumerate(answer.spans) if span.trainable)
    first = next(is_answer, len(answer.spans))
    return msgspec.structs.replace(answer, spans=(*prompt, *answer.spans[first:]))


def count_tokens(spans: Sequence[Span]) -> int:
    return sum(len(span.token_ids) for span in spans)
