"""Distillation: bring the student's next-token distributions to those of a teacher.

The student answers without the teacher's context; both models read the same answer tokens, each
behind its own prompt, and the loss is the mean divergence over the answers' tokens
(`policy/distillation.py`). Answers are the student's own samples (on-policy distillation, arXiv
2306.13649), the teacher's, or given ones. The same model with a system prompt, a policy or a hint
that only the teacher sees is context distillation (arXiv 2112.00861). Both models' logits exist for
one chunk of tokens at a time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from burnish.errors import ModelError
from burnish.lm.head import chunk_tokens
from burnish.policy.auxiliary import kl_estimate
from burnish.policy.distillation import token_divergence
from burnish.records import Finish, Reward, Span, Task, Trajectory
from burnish.rollouts import roll_out
from burnish.tensors import as_logp
from burnish.training.algorithm import (
    Algorithm,
    AlgorithmState,
    HeldOutScores,
    Loss,
    Setup,
    StepReport,
    StepResult,
    stored,
)
from burnish.training.data import Experts, missing_field
from burnish.training.forecast import MEASURED, Keys, Workload
from burnish.training.metrics import held_out_rewards, token_counts
from burnish.training.packing import (
    CausalModel,
    PackedBatch,
    Row,
    make_rows,
    micro_batches,
    pack,
    scatter,
    token_scores,
)
from burnish.training.policy_text import read_policy
from burnish.training.teacher import (
    Teacher,
    TeacherContext,
    behind,
    context_columns,
    count_tokens,
    teacher_prompt,
)

if TYPE_CHECKING:
    from burnish.config.schema import Config, DistilTrain
    from burnish.training.data import Data


class Answers(NamedTuple):
    step: int
    tasks: Sequence[Task]
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
    prefix: tuple[int, ...] = ()
    """Tokens that stand before every row of the teacher's and are not in `teacher`."""


class DistilAlgorithm(Algorithm[Answers, TwoViews]):
    shares_model = True
    samples_prompts = True

    def __init__(self, setup: Setup, settings: DistilTrain) -> None:
        self.setup = setup
        self.settings = settings
        self.tokenizer = setup.trainable.loaded.tokenizer
        self.teacher = Teacher(setup, settings)
        tasks = setup.data.open(settings.task)
        self.experts: Experts | None = None
        if settings.answers == "given":
            self.experts = Experts(
                tasks, self.tokenizer, seed=setup.seeds.for_("distil"), field=settings.field
            )
        self.rollout = setup.config.rollout.build(setup.data.root)
        self.cursor = setup.cursor(tasks)
        self.context = TeacherContext(setup, settings, self.teacher, tasks)

    @classmethod
    def faults(cls, config: Config, settings: DistilTrain, data: Data) -> Iterator[str]:
        tasks = data.open(settings.task)
        context_columns(settings)
        for policy in settings.policies:
            read_policy(data.root / policy)
        teacher_prompt(tasks.train(0), settings)
        if settings.answers == "given":
            yield from missing_field(tasks, settings.field, "train.field")
        for is_wrong, why in _rules(config, settings):
            if is_wrong:
                yield why

    # --- a step

    def batch(self, step: int) -> Answers:
        if self.experts is not None:
            tasks = self.experts.draw(step, self.settings.batch)
            shown = [self.experts.as_trajectory(task, i) for i, task in enumerate(tasks)]
            return self._views(step, tasks, shown)
        known = None if self.setup.stage else self.setup.store.rollouts(step)
        if known is not None:
            # Sampled and trained on before a crash: the same answers again, also where bits differ.
            self.cursor.take(self.settings.batch)
            found = self._views(step, [s.task for s in known], [s.trajectory for s in known])
            return found._replace(is_reread=True)
        began = time.perf_counter()
        tasks = self.cursor.take(self.settings.batch)
        seed = self.setup.seeds.for_("rollout", step)
        groups = self._sample(step, tasks, seed, f"{step}", self.settings.samples)
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
        both = [
            (row, *self.context.row(row, batch.teacher[row.members[0]]))
            for row in make_rows(batch.student, share)
        ]
        # The longer prompt of the two counts for what fits.
        widest = {own.members: (own, other) for own, other, _ in both}
        trained = sum(t.trained_tokens for t in batch.student)
        device = self.setup.trainable.device
        mine = self.setup.world.share(both)
        # Rows behind the same prefix go together.
        for prefix in dict.fromkeys(prefix for _, _, prefix in mine):
            same = [(a, b) for a, b, its in mine if its == prefix]
            sizes = [Row(a.prefix, a.members, max(a.tokens, b.tokens)) for a, b in same]
            for group in micro_batches(sizes, tokens):
                own, other = zip(*(widest[row.members] for row in group), strict=True)
                packed = pack(own, batch.student, device)
                ids = [batch.student[member].id for member in packed.members]
                shown = pack(other, batch.teacher, device)
                yield TwoViews(packed, shown, ids, len(batch.student), trained, prefix)

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
        prompt = max(count_tokens(self.context.spans(0, task)) for task in tasks)
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
            # The mean divergence a token, negative: higher is closer.
            means = (
                -total / t.trained_tokens for t, total in zip(batch.student, sums, strict=True)
            )
            rewards = (Reward("teacher", mean) for mean in means)
            rows = zip(batch.tasks, batch.student, rewards, strict=True)
            store.append_rollouts(step, stored(step, "train", rows))
        self.teacher.follow()
        name = "loss/hard" if self.settings.divergence == "hard" else "kl/teacher"
        metrics = {name: sum(sums) / sum(lengths), **token_counts(lengths)}
        if self.experts is None:
            cut = sum(one.finish is Finish.LENGTH for one in batch.student)
            metrics["length/truncated_share"] = cut / len(batch.student)
        timings = {} if self.experts else {"time/rollout_s": batch.sample_s}
        return StepReport(metrics, timings, is_reread=batch.is_reread)

    def evaluate(self, step: int) -> HeldOutScores | None:
        """The rewards of held-out answers; without rewards, the mean divergence a token on each.

        The answer is the given one, or one that is sampled as those of the steps are.
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
            groups = self._sample("held out", tasks, seed, name, 1)
            shown = [group[0] for group in groups]
        is_fine = [one.trained_tokens > 0 for one in shown]
        tasks, shown = list(compress(tasks, is_fine)), list(compress(shown, is_fine))
        batch = self._views("held out", tasks, shown)
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
        return AlgorithmState({"cursor": self.cursor.position}, self.teacher.tensors())

    def restore(self, state: AlgorithmState) -> None:
        self.cursor.position = int(state.values["cursor"])
        self.teacher.restore(state.tensors)

    # --- answers

    def _sample(
        self, step: int | str, tasks: Sequence[Task], seed: int, name: str, samples: int
    ) -> list[list[Trajectory]]:
        """Answers to each task behind the student's prompt, shared between processes."""
        setup, rollout = self.setup, self.rollout
        sampling = msgspec.structs.replace(setup.config.rollout.sampling, n=samples)
        slots = list(enumerate(tasks))
        mine = setup.world.share(slots)
        if self.settings.answers == "teacher":
            # What the teacher answers in its context, put behind the student's prompts.
            asked = [
                (slot, msgspec.structs.replace(task, messages=self.context.messages(step, task)))
                for slot, task in mine
            ]
            with self.teacher.lm() as lm:
                work = partial(roll_out, asked, lm, sampling, rollout, seed)
                groups = setup.loop.run(work)
            render = self.tokenizer.render_spans
            answers = [
                [behind(render(task.messages), t) for t in group]
                for (_, task), group in zip(mine, groups, strict=True)
            ]
        else:
            setup.ready_sampler()
            answers = setup.loop.run(partial(roll_out, mine, setup.lm, sampling, rollout, seed))
        return [
            [
                msgspec.structs.replace(t, id=f"{name}.{slot}.{i}", group=f"{name}.{slot}")
                for i, t in enumerate(group)
            ]
            for slot, group in enumerate(setup.world.gather(answers, len(slots)))
        ]

    def _views(
        self, step: int | str, tasks: Sequence[Task], shown: Sequence[Trajectory]
    ) -> Answers:
        """The answers beside what the teacher reads: its own prompt, then the very same tokens.

        A step that is a word is no step of the training: an evaluation.
        """
        prompts: dict[str, tuple[Span, ...]] = {}
        views = []
        for task, answer in zip(tasks, shown, strict=True):
            if task.id not in prompts:
                prompts[task.id] = self.context.spans(step, task)
            views.append(behind(prompts[task.id], answer))
            self.context.check_length(task, views[-1])
        return Answers(step if isinstance(step, int) else -1, tasks, shown, views)

    # --- the divergence

    def _divergence(self, model: Any, micro: TwoViews) -> Tensor:
        settings = self.settings
        if settings.divergence == "hard":
            own = token_scores(model, micro.student, settings.temperature)
            return -own.logp_BT * micro.student.trained_BT
        with self.teacher.model(model) as teacher:
            if settings.divergence == "sampled":
                own = token_scores(model, micro.student, settings.temperature)
                with torch.no_grad():
                    other = token_scores(teacher, micro.teacher, settings.temperature)
                return kl_estimate(own.logp_BT, other.logp_BT, "k1+") * micro.student.trained_BT
            with torch.no_grad():
                teacher_ND = self.teacher.hidden(teacher, micro.teacher, micro.prefix)
            hidden_RSD = model(micro.student.inputs)
            student_ND = hidden_RSD.flatten(0, 1).index_select(0, micro.student.source_N)
            vocabulary = self.setup.trainable.module.head_weight.shape[0]
            chunk = chunk_tokens(vocabulary, torch.float32, student_ND.device)
            kl_N = token_divergences(model, student_ND, teacher, teacher_ND, settings, chunk)
        return scatter(kl_N, micro.student)


ALGORITHM = DistilAlgorithm


def _rules(config: Config, settings: DistilTrain) -> Iterator[tuple[bool, str]]:
    """What must not be, and why not."""
    context, answers = (settings.system, settings.template), settings.answers
    yield (
        bool(settings.policies and any(context)),
        "train.policies beside train.system or train.template: teacher and student must "
        "differ by the policy alone. Write the other text into the policy file.",
    )
    names = [Path(policy).name for policy in settings.policies]
    twice = f"train.policies: {names} has a name twice; expected different ones."
    yield len(set(names)) < len(names), twice
    yield (
        settings.is_self and not any((*context, settings.policies)),
        f"train.teacher = '{settings.teacher}' is the model itself, and the teacher sees no "
        "more than the student: there is nothing to learn. Give the teacher a context "
        "(train.policies, train.system or train.template) or another model (train.teacher).",
    )
    # Logits are computed again in the backward pass, when the adapters are on again.
    lora = config.model.lora
    yield (
        settings.is_frozen and lora is not None and "lm_head" in lora.targets,
        f"train.teacher = '{settings.teacher}' with 'lm_head' in model.lora.targets; expected a head "
        "without an adapter, which teacher and student share. Leave it out of the targets.",
    )
    # The sampled estimate needs samples of the very distribution whose divergence it estimates;
    # labels are somebody else's tokens, and one token is no distribution to cut or to clip.
    kind, rollout = settings.divergence, config.rollout
    yield (
        kind == "sampled" and answers != "student",
        f"train.divergence = 'sampled' with answers = '{answers}': it reads the log-prob of "
        "tokens that the student sampled. Take divergence = 'reverse' or 'forward'.",
    )
    cut = rollout.top_k or rollout.top_p < 1 or rollout.min_p
    yield (
        kind == "sampled" and bool(cut or rollout.temperature != settings.temperature),
        "train.divergence = 'sampled' needs samples of the student's whole distribution: set "
        f"rollout.temperature = train.temperature (now {rollout.temperature:g} and "
        f"{settings.temperature:g}), and rollout.top_k = 0, top_p = 1, min_p = 0.",
    )
    yield (
        kind == "hard" and answers == "student",
        "train.divergence = 'hard' with answers = 'student': the student's own tokens as labels "
        "teach nothing. Take answers = 'teacher' or 'given'.",
    )
    yield (
        kind in ("hard", "sampled") and bool(settings.kl_clip or settings.top_k),
        f"train.divergence = '{kind}' with top_k or kl_clip: it compares no "
        "distributions. Take divergence = 'reverse' or 'forward'.",
    )
    yield (
        settings.support != "tail" and not settings.top_k,
        f"train.support = '{settings.support}' without train.top_k: the whole vocabulary has "
        "no tokens outside. Set train.top_k (PolicyAlign's code: 256).",
    )


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
            settings.support,
            settings.renormalise,
            settings.kl_clip,
        )

    pairs = zip(torch.split(student_ND, chunk), torch.split(teacher_ND, chunk), strict=True)
    if len(student_ND) <= chunk or not torch.is_grad_enabled():
        return torch.cat([piece(own, other) for own, other in pairs])
    pieces = [checkpoint(piece, own, other, use_reentrant=False) for own, other in pairs]
    return torch.cat(pieces)
