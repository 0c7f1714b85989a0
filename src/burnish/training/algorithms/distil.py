"""Distillation: bring the student's next-token distributions to those of a teacher.

    train = { kind = "distil", teacher = "models/large" }                        # another model
    train = { kind = "distil", teacher = "start", system = "Answer in one word." }   # a context
    train = { kind = "distil", teacher = "student", template = "{prompt}\\n\\nHint: {hint}" }

The student answers without the teacher's context; both models read the same answer tokens, each
behind its own prompt, and the loss is the mean divergence over the answers' tokens
(`policy/distillation.py`). Answers are the student's own samples (on-policy distillation, arXiv
2306.13649) or given ones. The same model with a system prompt or a hint that only the teacher sees
is context distillation (arXiv 2112.00861); what the context does moves into the weights.

Both models' logits exist for one chunk of tokens at a time, so the whole vocabulary costs no more
memory than a few of its tokens; `top_k` is for comparison with engines that send k of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import compress
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from burnish.errors import ModelError, UserError
from burnish.lm.base import Sampling
from burnish.lm.folder import LoadedModel, load_model
from burnish.lm.head import chunk_tokens
from burnish.lm.tokenizer import odd_token
from burnish.policy.auxiliary import kl_estimate
from burnish.policy.distillation import token_divergence
from burnish.records import Message, Reward, Span, Task, Trajectory
from burnish.rollouts import roll_out
from burnish.store import StoredSample
from burnish.tasks.mapping import Columns, RowError, check_columns
from burnish.tensors import as_logp
from burnish.training.algorithm import (
    Algorithm,
    AlgorithmState,
    HeldOutScores,
    Loss,
    Setup,
    StepReport,
    StepResult,
)
from burnish.training.data import Cursor
from burnish.training.experts import Experts
from burnish.training.forecast import MEASURED, Keys, Workload
from burnish.training.forward import CausalModel, token_scores
from burnish.training.metrics import held_out_rewards, token_counts
from burnish.training.packing import PackedBatch, Row, make_rows, micro_batches, pack, scatter

if TYPE_CHECKING:
    from burnish.config.schema import Config, DistilTrain
    from burnish.training.data import Data


class Answers(NamedTuple):
    """The answers of a step, as the student wrote or was given them and as the teacher reads them."""

    step: int
    tasks: Sequence[Task]
    """The task of each answer."""
    student: Sequence[Trajectory]
    teacher: Sequence[Trajectory]
    is_reread: bool = False
    sample_s: float = 0.0


class TwoViews(NamedTuple):
    """The same answer tokens behind two prompts; token n is the same one in both."""

    student: PackedBatch
    teacher: PackedBatch
    ids: Sequence[str]
    answers: int
    """Of the whole update."""
    tokens: int
    """Trained tokens of the whole update."""


class DistilAlgorithm(Algorithm[Answers, TwoViews]):
    """Minimises the divergence to a teacher on the tokens of answers."""

    samples_prompts = True

    def __init__(self, setup: Setup, settings: DistilTrain) -> None:
        self.setup = setup
        self.settings = settings
        self.tokenizer = setup.trainable.loaded.tokenizer
        self.teacher = _load_teacher(setup, settings)
        tasks = setup.data.open(settings.task)
        self.experts: Experts | None = None
        if settings.answers == "given":
            self.experts = Experts(
                tasks, self.tokenizer, seed=setup.seeds.for_("distil"), field=settings.field
            )
        rollout = setup.config.rollout
        self.rollout = rollout.build(setup.data.root)
        self.cursor = Cursor(
            tasks,
            setup.length_of,
            rollout.max_prompt_tokens,
            rollout.overlong_prompts == "drop",
        )

    @classmethod
    def check(cls, config: Config, settings: DistilTrain, data: Data) -> None:
        tasks = data.open(settings.task)
        check_columns(_context(settings), "train.template")
        if settings.is_self and not (settings.system or settings.template):
            raise UserError(
                f"train.teacher = '{settings.teacher}' is the model itself, and the teacher sees no "
                "more than the student: there is nothing to learn. Give the teacher a context "
                "(train.system or train.template) or another model (train.teacher)."
            )
        teacher_prompt(tasks.train(0), settings)
        if settings.answers == "given" and settings.field not in tasks.fields:
            known = ", ".join(sorted(tasks.fields)) or "none"
            raise UserError(
                f"train.answers = 'given': task set '{tasks.name}' has no field "
                f"'{settings.field}'; it has {known}. Name the answers' field in train.field."
            )
        lora = config.model.lora
        if settings.teacher == "start" and lora is not None and "lm_head" in lora.targets:
            # Logits are computed again in the backward pass, when the adapters are on again.
            raise UserError(
                "train.teacher = 'start' with 'lm_head' in model.lora.targets; expected a head "
                "without an adapter, which teacher and student share. Leave it out of the targets."
            )
        _check_sampled(config, settings)

    # --- a step

    def batch(self, step: int) -> Answers:
        if self.experts is not None:
            tasks = self.experts.draw(step, self.settings.batch)
            shown = [self.experts.as_trajectory(task, i) for i, task in enumerate(tasks)]
            return self._views(step, tasks, shown)
        stored = None if self.setup.stage else self.setup.store.rollouts(step)
        if stored is not None:
            # Sampled and trained on before a crash: the same answers again, also where bits differ.
            self.cursor.take(self.settings.batch)
            found = self._views(step, [s.task for s in stored], [s.trajectory for s in stored])
            return found._replace(is_reread=True)
        began = time.perf_counter()
        tasks = self.cursor.take(self.settings.batch)
        seed = self.setup.seeds.for_("rollout", step)
        groups = self._sample(tasks, seed, f"{step}", self._sampling(self.settings.samples))
        pairs = zip(tasks, groups, strict=True)
        each = [(task, t) for task, group in pairs for t in group if t.trained_tokens]
        if not each:
            raise ModelError(
                f"distil: no rollout of step {step + 1} has a sampled token; the first failed: "
                f"{groups[0][0].status.value}, {groups[0][0].reason}"
            )
        found = self._views(step, [task for task, _ in each], [t for _, t in each])
        return found._replace(sample_s=time.perf_counter() - began)

    def micro_batches(self, batch: Answers, tokens: int) -> Iterator[TwoViews]:
        share = self.setup.batches.share_prompts
        share = share and getattr(self.setup.trainable.module, "packs", True)
        both = [self._two_rows(batch, row) for row in make_rows(batch.student, share)]
        # The longer prompt of the two counts for what fits.
        widest = {own.members: (own, other) for own, other in both}
        sizes = [Row(a.prefix, a.members, max(a.tokens, b.tokens)) for a, b in both]
        trained = sum(t.trained_tokens for t in batch.student)
        device = self.setup.trainable.device
        for group in micro_batches(self.setup.world.share(sizes), tokens):
            own, other = zip(*(widest[row.members] for row in group), strict=True)
            packed = pack(own, batch.student, device)
            ids = [batch.student[member].id for member in packed.members]
            shown = pack(other, batch.teacher, device)
            yield TwoViews(packed, shown, ids, len(batch.student), trained)

    def loss(self, model: Any, micro: TwoViews) -> Loss:
        kl_BT = self._divergence(model, micro)
        rows_B = kl_BT.detach().double().sum(1)
        places_B = torch.tensor(micro.student.members, device=rows_B.device)
        size = torch.zeros(micro.answers, dtype=torch.float64, device=rows_B.device)
        return Loss(
            total=kl_BT.sum() / micro.tokens,
            ids=micro.ids,
            rows={"divergence": kl_BT.detach()},
            sums={"kl": size.index_put((places_B,), rows_B)},
        )

    def workload(self) -> Workload:
        settings, rollout = self.settings, self.setup.config.rollout
        if self.experts is not None:
            tasks = self.experts.draw(0, min(settings.batch, MEASURED))
            shown = [self.experts.as_trajectory(task, i) for i, task in enumerate(tasks)]
            answer = max(one.trained_tokens for one in shown)
        else:
            tasks, answer = self.cursor.tasks.sample(MEASURED), rollout.max_tokens
        prompt = max(_length(self._teacher_spans(task)) for task in tasks)
        samples = 1 if self.experts else settings.samples
        is_sampled, has_copy = self.experts is None, settings.teacher != "student"
        sampled = ("train.samples", "rollout.max_tokens") if is_sampled else ("", "")
        keys = Keys("train.batch", *sampled, "train.teacher=student")
        return Workload(settings.batch, samples, prompt, answer, is_sampled, has_copy, keys=keys)

    def finish(self, step: int, batch: Answers, result: StepResult) -> StepReport:
        lengths = [t.trained_tokens for t in batch.student]
        sums = result.sums["kl"].tolist()
        store = self.setup.store
        # Steps of a stage have the numbers of the main training's; its samples are not kept.
        if self.setup.world.is_main and not self.setup.stage and store.rollouts(step) is None:
            store.append_rollouts(step, _samples(step, batch, sums))
        metrics = {"kl/teacher": sum(sums) / sum(lengths), **token_counts(lengths)}
        timings = {} if self.experts else {"time/rollout_s": batch.sample_s}
        return StepReport(metrics, timings, is_reread=batch.is_reread)

    def evaluate(self, step: int) -> HeldOutScores | None:
        """The rewards of held-out answers; without rewards, the mean divergence a token on each.

        The answer is the given one, or one that the student samples.
        """
        if self.setup.scorer is not None:
            return held_out_rewards(self.setup, step)
        tasks = self.cursor.tasks.held_out(self.setup.config.evaluation.prompts)
        if self.experts is not None:
            tasks = [task for task in tasks if self.experts.has_answers(task)]
        if not tasks:
            return None
        if self.experts is not None:
            shown = [self.experts.as_trajectory(task, i) for i, task in enumerate(tasks)]
        else:
            seed, name = self.setup.seeds.for_("held out"), f"eval.{step}"
            shown = [group[0] for group in self._sample(tasks, seed, name, self._sampling(1))]
        is_fine = [one.trained_tokens > 0 for one in shown]
        tasks, shown = list(compress(tasks, is_fine)), list(compress(shown, is_fine))
        batch = self._views(step, tasks, shown)
        batches, module = self.setup.batches, self.setup.trainable.module

        def work() -> Tensor:
            sums = torch.zeros(len(tasks), dtype=torch.float64, device=batches.device)
            for micro in self.micro_batches(batch, batches.tokens):
                rows_B = self._divergence(module, micro).double().sum(1)
                sums[list(micro.student.members)] = rows_B
            return sums

        with torch.no_grad():
            sums = batches.within_memory(work)
        self.setup.world.add([sums])
        found = (total / t.trained_tokens for total, t in zip(sums.tolist(), shown, strict=True))
        return HeldOutScores([next(found) if fine else None for fine in is_fine], measure="loss")

    # --- resume

    def state(self) -> AlgorithmState:
        return AlgorithmState({"cursor": self.cursor.position})

    def restore(self, state: AlgorithmState) -> None:
        self.cursor.position = int(state.values["cursor"])

    # --- answers

    def _sampling(self, samples: int) -> Sampling:
        return msgspec.structs.replace(self.setup.config.rollout.sampling, n=samples)

    def _sample(
        self, tasks: Sequence[Task], seed: int, name: str, sampling: Sampling
    ) -> list[list[Trajectory]]:
        """The student's answers to each task, shared between processes."""
        slots = list(enumerate(tasks))
        mine = self.setup.world.share(slots)
        self.setup.ready_sampler()
        work = partial(roll_out, mine, self.setup.lm, sampling, self.rollout, seed)
        groups = self.setup.world.gather(self.setup.loop.run(work), len(slots))
        return [
            [
                msgspec.structs.replace(t, id=f"{name}.{slot}.{i}", group=f"{name}.{slot}")
                for i, t in enumerate(group)
            ]
            for slot, group in enumerate(groups)
        ]

    def _views(self, step: int, tasks: Sequence[Task], shown: Sequence[Trajectory]) -> Answers:
        """The answers beside what the teacher reads: its own prompt, then the very same tokens."""
        prompts: dict[str, tuple[Span, ...]] = {}
        views = []
        for task, answer in zip(tasks, shown, strict=True):
            if task.id not in prompts:
                prompts[task.id] = self._teacher_spans(task)
            first = next(i for i, span in enumerate(answer.spans) if span.trainable)
            spans = (*prompts[task.id], *answer.spans[first:])
            views.append(msgspec.structs.replace(answer, spans=spans))
            self._check_length(task, views[-1])
        return Answers(step, tasks, shown, views)

    def _teacher_spans(self, task: Task) -> tuple[Span, ...]:
        tokenizer = self.teacher.tokenizer if self.teacher else self.tokenizer
        return tokenizer.render_spans(teacher_prompt(task, self.settings))

    def _check_length(self, task: Task, view: Trajectory) -> None:
        loaded = self.teacher or self.setup.trainable.loaded
        size, limit = len(view.token_ids), loaded.module.longest_row(0)
        if size > limit:
            raise UserError(
                f"distil: the teacher reads {size} tokens of task {task.id} (its context and the "
                f"answer), and its model takes {limit}. Shorten train.system or train.template, or "
                "lower rollout.max_tokens."
            )

    def _two_rows(self, batch: Answers, own: Row) -> tuple[Row, Row]:
        """A row of the student's answers and the same answers behind the teacher's prompt."""
        spans = batch.teacher[own.members[0]].spans
        first = next(i for i, span in enumerate(spans) if span.trainable)
        prefix = tuple(token for span in spans[:first] for token in span.token_ids)
        return own, Row(prefix, own.members, own.tokens - len(own.prefix) + len(prefix))

    # --- the divergence

    def _divergence(self, model: Any, micro: TwoViews) -> Tensor:
        """Of each answer token, (B, T); 0 where there is none."""
        settings = self.settings
        with self._teacher_model(model) as teacher:
            if settings.divergence == "sampled":
                own = token_scores(model, micro.student, settings.temperature)
                with torch.no_grad():
                    other = token_scores(teacher, micro.teacher, settings.temperature)
                return kl_estimate(own.logp_BT, other.logp_BT, "k1+") * micro.student.trained_BT
            with torch.no_grad():
                teacher_ND = _hidden(teacher, micro.teacher)
            student_ND = _hidden(model, micro.student)
            vocabulary = self.setup.trainable.module.head_weight.shape[0]
            chunk = chunk_tokens(vocabulary, torch.float32, student_ND.device)
            kl_N = token_divergences(model, student_ND, teacher, teacher_ND, settings, chunk)
        return scatter(kl_N, micro.student)

    def _teacher_model(self, model: Any) -> Any:
        if self.teacher is not None:
            return nullcontext(self.teacher.module)
        if self.settings.teacher == "student":
            return nullcontext(model)
        return self.setup.trainable.reference()


ALGORITHM = DistilAlgorithm


def token_divergences(
    student: CausalModel,
    student_ND: Tensor,
    teacher: CausalModel,
    teacher_ND: Tensor,
    settings: DistilTrain,
    chunk: int,
) -> Tensor:
    """The divergence of each token from both models' final hidden states: (N, D) each -> (N,).

    Logits live for `chunk` tokens at a time and are computed again in the backward pass.
    """

    def piece(own_ND: Tensor, other_ND: Tensor) -> Tensor:
        with torch.no_grad():
            other_NV = as_logp(teacher.logits(other_ND))
        own_NV = as_logp(student.logits(own_ND))
        # Models of one family may pad the same vocabulary to different sizes.
        size = min(own_NV.shape[-1], other_NV.shape[-1])
        return token_divergence(
            own_NV[:, :size],
            other_NV[:, :size],
            settings.divergence,
            settings.temperature,
            settings.top_k,
        )

    pairs = zip(torch.split(student_ND, chunk), torch.split(teacher_ND, chunk), strict=True)
    if len(student_ND) <= chunk or not torch.is_grad_enabled():
        return torch.cat([piece(own, other) for own, other in pairs])
    pieces = [checkpoint(piece, own, other, use_reentrant=False) for own, other in pairs]
    return torch.cat(pieces)


def teacher_prompt(task: Task, settings: DistilTrain) -> tuple[Message, ...]:
    """The conversation that the teacher answers: the task's, in the teacher's context."""
    row = {**task.fields, "messages": msgspec.to_builtins(task.messages)}
    try:
        return _context(settings).draft(row).messages
    except RowError as error:
        raise UserError(
            f"train.template: {error} (task {task.id}); expected {{prompt}} and fields of the task: "
            f"{', '.join(sorted(task.fields)) or 'it has none'}."
        ) from None


def _context(settings: DistilTrain) -> Columns:
    return Columns(messages="messages", system=settings.system, template=settings.template)


def _load_teacher(setup: Setup, settings: DistilTrain) -> LoadedModel | None:
    """Another model as the teacher; None where it is the student's own."""
    own = setup.trainable.loaded
    if settings.teacher == "start":
        setup.trainable.freeze_reference()
    if settings.is_self:
        return None
    teacher = load_model(settings.teacher, dtype=own.dtype, device=own.device)
    teacher.module.requires_grad_(False)
    odd = odd_token(own.tokenizer, teacher.tokenizer)
    if odd is not None:
        there, here = (one.backend.token_to_id(odd) for one in (teacher.tokenizer, own.tokenizer))
        raise UserError(
            f"train.teacher = '{settings.teacher}' has another vocabulary than '{own.name}': token "
            f"{odd!r} is {there} there and {here} here. Distributions over "
            "different tokens cannot be compared; take a teacher of the same family."
        )
    return teacher


def _check_sampled(config: Config, settings: DistilTrain) -> None:
    """The sampled estimate needs samples of the very distribution whose divergence it estimates."""
    if settings.divergence != "sampled":
        return
    rollout = config.rollout
    if settings.answers != "student" or settings.top_k:
        got = "answers = 'given'" if settings.answers != "student" else "top_k"
        raise UserError(
            f"train.divergence = 'sampled' with {got}: it reads the log-prob of tokens that the "
            "student sampled and no others. Take divergence = 'reverse' or 'forward'."
        )
    cut = rollout.top_k or rollout.top_p < 1 or rollout.min_p
    if cut or rollout.temperature != settings.temperature:
        raise UserError(
            "train.divergence = 'sampled' needs samples of the student's whole distribution: set "
            f"rollout.temperature = train.temperature (now {rollout.temperature:g} and "
            f"{settings.temperature:g}), and rollout.top_k = 0, top_p = 1, min_p = 0."
        )


def _length(spans: Sequence[Span]) -> int:
    return sum(len(span.token_ids) for span in spans)


def _hidden(model: CausalModel, packed: PackedBatch) -> Tensor:
    """The state that predicts each trained token, (N, D)."""
    hidden_RSD = model(packed.inputs)
    return hidden_RSD.flatten(0, 1).index_select(0, packed.source_N)


def _samples(step: int, batch: Answers, sums: Sequence[float]) -> list[StoredSample]:
    """Each answer; its reward is the mean divergence a token, negative: higher is closer."""
    return [
        StoredSample(
            step=step,
            split="train",
            index=i,
            task=task,
            trajectory=answer,
            reward=Reward("teacher", -total / answer.trained_tokens),
        )
        for i, (task, answer, total) in enumerate(
            zip(batch.tasks, batch.student, sums, strict=True)
        )
    ]
