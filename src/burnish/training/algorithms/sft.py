"""Supervised fine-tuning: raise the likelihood of demonstrations.

`train = { kind = "sft" }` is a run of its own; in `[[stages]]` it is a warm start; the `sft` term of
a policy recipe is the same loss beside the policy's. The loss of an update is the mean negative
log-prob over all its tokens, end token included; however the batch is cut, the gradient is that of
the whole. With `Teaching` the first token is distilled instead (a teacher's probabilities of C
labels): `mean NLL(tokens > 0) + beta T^2 KL(teacher_T || student_T)` at token 0.

Without a run folder, for a notebook:

    optimiser = MasterAdamW(trainable.module.named_parameters(), Optimiser())
    for done in fine_tune(trainable, experts, optimiser, steps=100, batch=32, rate=lambda _: 1e-5):
        ...                                  # done.loss
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from burnish.config.schema import Config
from burnish.config.schema import SftTrain as SftSettings
from burnish.errors import UserError
from burnish.lm.tokenizer import Tokenizer
from burnish.policy import SFT
from burnish.policy.answer_first import answer_kd
from burnish.policy.auxiliary import masked_nll
from burnish.policy.balance import BalanceState, adapted_coefficient
from burnish.records import Trajectory
from burnish.seeds import Seeds
from burnish.training.algorithm import (
    Algorithm,
    HeldOutScores,
    Loss,
    Setup,
    StepReport,
    StepResult,
)
from burnish.training.data import (
    Data,
    Experts,
    find_demonstrations,
    held_back,
    open_experts,
    text_of,
)
from burnish.training.devices import World
from burnish.training.forecast import MEASURED, Workload, measured
from burnish.training.guards import check_rows
from burnish.training.metrics import held_out_rewards, token_counts
from burnish.training.optimiser import MasterAdamW
from burnish.training.packing import PackedBatch, token_scores
from burnish.training.trainable import Trainable
from burnish.training.update import MicroBatcher, Updater

TEACHER = "teacher_probabilities"
"""Field of a demonstration's `info` with the teacher's probability of each label."""
LEAST_TARGET = 1e-6
"""Nats a token; a start model that is certain of every demonstration is held at this."""

Rate = Callable[[int], float]
"""Learning rate of a step, counted from 0."""


@dataclass(frozen=True)
class Teaching:
    label_ids: tuple[int, ...]
    """Vocabulary items of the C labels; `label_tokens` finds them."""
    temperature: float = 2.0
    beta: float = 1.0
    """Weight of the first token's loss beside the likelihood of the rest."""
    field: str = TEACHER


class Shown(NamedTuple):
    packed: PackedBatch
    members: list[Trajectory]
    tokens: int
    """Imitated tokens of the whole update."""
    size: int
    """Demonstrations of the whole update."""

    @property
    def ids(self) -> list[str]:
        return [one.id for one in self.members]


def show(
    batches: MicroBatcher, batch: Sequence[Trajectory], budget: int | None = None, skipped: int = 0
) -> Iterator[Shown]:
    """Demonstrations in micro-batches; `skipped` first tokens of each are not imitated."""
    if not batch:
        raise ValueError("batch: got no demonstration, expected at least one")
    tokens = sum(one.trained_tokens - skipped for one in batch)
    for packed in batches.split(batch, tokens=budget):
        yield Shown(packed, [batch[i] for i in packed.members], tokens, len(batch))


class Demonstrations(Algorithm[list[Trajectory], Shown]):
    def __init__(
        self, experts: Experts, batches: MicroBatcher, size: int, teaching: Teaching | None = None
    ) -> None:
        self.experts, self.batches, self.size, self.teaching = experts, batches, size, teaching

    def batch(self, step: int) -> list[Trajectory]:
        return self.experts.take(step, self.size)

    def micro_batches(self, batch: list[Trajectory], tokens: int) -> Iterator[Shown]:
        return show(self.batches, batch, tokens, skipped=self.teaching is not None)

    def loss(self, model: Any, micro: Shown) -> Loss:
        if self.teaching is not None:
            return _taught(model, micro, self.teaching)
        logp_BT = token_scores(model, micro.packed, 1.0).logp_BT
        nll = masked_nll(logp_BT, micro.packed.trained_BT, tokens=micro.tokens)
        return Loss(nll, micro.ids, rows={"logprobs": logp_BT.detach()})


class SftAlgorithm(Demonstrations):
    samples_answers = False

    def __init__(self, setup: Setup, settings: SftSettings) -> None:
        tokenizer = setup.trainable.loaded.tokenizer
        experts = open_experts(setup.config, setup.data, tokenizer, setup.seeds, settings.by)
        super().__init__(experts, setup.batches, settings.batch)
        self.setup = setup

    @classmethod
    def check(cls, config: Config, settings: SftSettings, data: Data) -> None:
        tasks = find_demonstrations(config, data, "sft")
        if settings.by and settings.by not in tasks.fields:
            known = ", ".join(sorted(tasks.fields))
            raise UserError(
                f"train.by is '{settings.by}', a field that task set '{tasks.name}' does not have; "
                f"expected one of {known}."
            )

    def workload(self) -> Workload:
        shown = self.experts.take(0, min(self.size, MEASURED))
        return measured(self.size, shown)

    def finish(self, step: int, batch: list[Trajectory], result: StepResult) -> StepReport:
        return StepReport(token_counts([one.trained_tokens for one in batch]))

    def evaluate(self, step: int) -> HeldOutScores | None:
        """The rewards of held-out answers; without rewards, the loss of held-out demonstrations."""
        if self.setup.scorer is not None:
            return held_out_rewards(self.setup, step)
        field = self.experts.field
        tasks = self.experts.tasks.held_out(self.setup.config.evaluation.prompts)
        known = [task for task in tasks if text_of(task.fields.get(field))]
        shown = [self.experts.as_trajectory(task, i) for i, task in enumerate(known)]
        return HeldOutScores(nll_of(self.batches, shown, step), "loss") if shown else None


ALGORITHM = SftAlgorithm


class SupervisedStep(NamedTuple):
    step: int
    loss: float
    tokens: int
    """Tokens whose likelihood was raised."""
    rate: float
    gradient_norm: float
    answer_loss: float = 0.0
    """The part of `loss` that distils the first token."""


def fine_tune(
    trainable: Trainable,
    experts: Experts,
    optimiser: MasterAdamW,
    *,
    steps: int,
    batch: int,
    rate: Rate,
    teaching: Teaching | None = None,
    tokens: int = 0,
    world: World | None = None,
) -> Iterator[SupervisedStep]:
    """Imitate expert answers, step by step, in this process and without a run folder.

    With `teaching` the experts must carry the teacher's probabilities (`carry=(teaching.field,)`).
    `tokens` bounds one pass, 0 for what fits. The same call gives the same weights.
    """
    batches = MicroBatcher(trainable.module, trainable.device, world or World(), tokens=tokens)
    algorithm = Demonstrations(experts, batches, batch, teaching)
    updater = Updater(algorithm, optimiser, batches)
    for step in range(steps):
        shown = algorithm.batch(step)
        found = updater.run(step, shown, rate(step))
        imitated = sum(one.trained_tokens - (teaching is not None) for one in shown)
        answer = found.losses.get("answer", 0.0)
        total = found.losses["total"]
        yield SupervisedStep(step, total, imitated, rate(step), found.gradient_norm, answer)


# --- the first token, distilled


def _taught(model: Any, micro: Shown, teaching: Teaching) -> Loss:
    packed = micro.packed
    mask_BT = packed.trained_BT.clone()
    mask_BT[:, 0] = False
    with _hidden_states(model) as kept:
        logp_BT = token_scores(model, packed, 1.0).logp_BT
    rows_B = _answer_loss(model, teaching, kept[0], micro)
    answer = teaching.beta * rows_B.sum() / micro.size
    total = masked_nll(logp_BT, mask_BT, tokens=micro.tokens) + answer
    rows = {"logprobs": logp_BT.detach()}
    return Loss(total, micro.ids, {"answer": answer.detach()}, rows)


def _answer_loss(model: Any, teaching: Teaching, hidden_RSD: Tensor, micro: Shown) -> Tensor:
    # Trained tokens stand in the order of the members, so their first ones do too.
    places_B = micro.packed.source_N[micro.packed.column_N == 0]
    hidden_BD = hidden_RSD.flatten(0, 1).index_select(0, places_B)
    labels_C = torch.tensor(teaching.label_ids, device=hidden_BD.device)
    logits_BC = model.logits(hidden_BD).index_select(-1, labels_C)
    teacher_BC = torch.tensor(
        [_teacher(teaching, one) for one in micro.members], dtype=torch.float64
    )
    return answer_kd.plain(logits_BC, teacher_BC, teaching.temperature, reduction="none")


def _teacher(teaching: Teaching, trajectory: Trajectory) -> list[float]:
    """The teacher's probabilities of one demonstration, in the order of the labels."""
    given = trajectory.info.get(teaching.field)
    count = len(teaching.label_ids)
    values = list(given) if isinstance(given, list | tuple) else []
    if len(values) != count or not all(isinstance(v, int | float) and v >= 0 for v in values):
        raise UserError(
            f"distil: demonstration {trajectory.id} has {given!r} in '{teaching.field}'; expected "
            f"a list of {count} probabilities, one a label. Name the field in the experts' carry."
        )
    return values


@contextmanager
def _hidden_states(module: torch.nn.Module) -> Iterator[list[Tensor]]:
    """The final hidden states (R, S, D) of each pass inside, kept so that none is made twice."""
    kept: list[Tensor] = []

    def keep(_: torch.nn.Module, __: Any, hidden_RSD: Tensor) -> None:
        kept.append(hidden_RSD)

    handle = module.register_forward_hook(keep)
    try:
        yield kept
    finally:
        handle.remove()


# --- the likelihood of demonstrations that are not imitated


@torch.no_grad()
def nll_of(batches: MicroBatcher, shown: Sequence[Trajectory], step: int) -> list[float]:
    """Mean negative log-prob a token of each demonstration, in nats, over all processes."""

    def work() -> dict[int, Tensor]:
        found: dict[int, Tensor] = {}
        for packed in batches.split(shown):
            logp_BT = token_scores(batches.model, packed, 1.0).logp_BT.double()
            mean_B = -logp_BT.sum(1) / packed.trained_BT.sum(1)
            found |= zip(packed.members, mean_B, strict=True)
        return found

    merged = batches.world.merge(batches.within_memory(work))
    nll_B = torch.stack([merged[i] for i in range(len(shown))])
    check_rows("logprob", "held-out logprobs", nll_B, [one.id for one in shown], step)
    return [float(value) for value in nll_B.tolist()]


# --- the `sft` term of a policy recipe


@dataclass(frozen=True)
class Measured:
    state: BalanceState
    nll: float | None
    """Of the held-back demonstrations, nats a token; None where it was not measured."""

    def metrics(self) -> dict[str, float]:
        found = {"loss/sft/coefficient": self.state.coefficient}
        return found if self.nll is None else {**found, "loss/sft/held_out_nll": self.nll}


@dataclass(frozen=True)
class SftTerm:
    """What is imitated beside a policy loss, and how much it counts at each step."""

    term: SFT
    experts: Experts
    steps: int
    """Of the run; a linear schedule ends there."""
    held: tuple[Trajectory, ...] = ()
    """Held-back demonstrations; an adaptive schedule keeps their likelihood."""

    @classmethod
    def open(cls, config: Config, data: Data, tokenizer: Tokenizer, seeds: Seeds) -> SftTerm | None:
        term = config.policy.imitation
        if term is None:
            return None
        experts = open_experts(config, data, tokenizer, seeds, term.by)
        held = held_back(config, experts.tasks)
        tasks = held.tasks if held else ()
        shown = tuple(experts.as_trajectory(task, i) for i, task in enumerate(tasks))
        return cls(term, experts, config.steps, shown)

    def loss(self, model: Any, micro: Shown, coefficient: float) -> Loss:
        """The coefficient times the mean negative log-prob of the update's demonstrations."""
        logp_BT = token_scores(model, micro.packed, 1.0).logp_BT
        nll = masked_nll(logp_BT, micro.packed.trained_BT, tokens=micro.tokens)
        total = coefficient * nll
        rows = {"logprobs": logp_BT.detach()}
        return Loss(total, micro.ids, {"sft": total.detach()}, rows)

    def coefficient(self, step: int, balance: BalanceState | None = None) -> float:
        """The coefficient at a step; `balance` is that of an adaptive schedule."""
        if self.term.schedule == "adaptive" and balance is not None:
            return balance.coefficient
        if self.term.schedule != "linear":
            return self.term.coefficient
        done = step / max(self.steps - 1, 1)
        return self.term.coefficient * (1 - done * (1 - self.term.final_ratio))

    def compares(self, step: int) -> bool:
        every = self.term.gradients_every
        return every > 0 and step % every == 0

    def measure(
        self, batches: MicroBatcher, state: BalanceState | None, step: int
    ) -> Measured | None:
        """The coefficient of an adaptive schedule, measured and moved where that is due.

        None for other schedules. Asked twice for one step, it moves once.
        """
        term = self.term
        if term.schedule != "adaptive":
            return None
        if state is not None and step < state.step + term.every:
            return Measured(state, None)
        means = nll_of(batches, self.held, step)
        counts = [one.trained_tokens for one in self.held]
        nll = sum(m * n for m, n in zip(means, counts, strict=True)) / sum(counts)
        if state is None:
            state = BalanceState(term.coefficient, term.target or max(nll, LEAST_TARGET), step)
        moved = adapted_coefficient.plain(
            state.coefficient, nll, state.target, term.rate, *term.bounds
        )
        return Measured(BalanceState(moved, state.target, step), nll)
