"""Plain supervised training: a warm start on expert answers, and distillation of a teacher.

    optimiser = MasterAdamW(trainable.module.named_parameters(), config.optimiser)
    for done in fine_tune(trainable, experts, optimiser, steps=100, batch=32, rate=lambda _: 1e-5):
        ...                                  # done.loss

The loss of a step is the mean over all tokens of its batch, in as many passes as memory asks for;
however the batch is cut, the gradient is that of the whole. Everything follows from the experts'
seed and the step, so the same call gives the same weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from burnish.errors import UserError
from burnish.policy.answer_first import answer_divergence
from burnish.policy.auxiliary import masked_nll
from burnish.records import Trajectory
from burnish.training.devices import World
from burnish.training.experts import Experts
from burnish.training.forward import token_scores
from burnish.training.guards import Watch, check_tensors
from burnish.training.optimiser import MasterAdamW
from burnish.training.packing import PackedBatch
from burnish.training.passes import Passes
from burnish.training.trainable import Trainable

TEACHER = "teacher_probabilities"
"""Field of a demonstration's `info` with the teacher's probability of each label."""

Rate = Callable[[int], float]
"""Learning rate of a step, counted from 0."""


class SupervisedStep(NamedTuple):
    """What one step saw."""

    step: int
    loss: float
    tokens: int
    """Tokens whose likelihood was raised."""
    rate: float
    gradient_norm: float
    answer_loss: float = 0.0
    """The part of `loss` that distils the first token."""


@dataclass(frozen=True)
class Teaching:
    """How the first token of an answer is distilled."""

    label_ids: tuple[int, ...]
    """Vocabulary items of the C labels; `label_tokens` finds them."""
    temperature: float = 2.0
    beta: float = 1.0
    """Weight of the first token's loss beside the likelihood of the rest."""
    field: str = TEACHER


class _Parts(NamedTuple):
    """Loss of a pass, detached: the whole, and the part of the first tokens."""

    loss: Tensor
    answer: Tensor


@dataclass
class Supervised:
    """Takes supervised steps with one model and one optimiser."""

    trainable: Trainable
    optimiser: MasterAdamW
    teaching: Teaching | None = None
    """Distils the first token where given; else all tokens are imitated alike."""
    budget: int = 0
    """Tokens of one pass at first, 0 for what fits."""
    world: World = field(default_factory=World)

    passes: Passes = field(init=False)

    def __post_init__(self) -> None:
        module, device = self.trainable.module, self.trainable.device
        self.passes = Passes(module, device, self.world, budget=self.budget)

    def step(self, step: int, batch: Sequence[Trajectory], rate: float) -> SupervisedStep:
        """One optimiser step on a batch of demonstrations."""
        if not batch:
            raise ValueError("batch: got no demonstration, expected at least one")
        ids = [trajectory.id for trajectory in batch]
        tokens = sum(self._imitated(trajectory) for trajectory in batch)
        work = partial(self._accumulate, step, batch, tokens)
        watch, parts = self.passes.within_memory(work, self.optimiser.clear)
        self.world.add(self.optimiser.sums)
        totals = torch.stack([torch.stack(list(part)) for part in parts]).sum(0)
        self.world.add([totals])
        norm = self.optimiser.gradient_norm()

        def name_the_gradient() -> None:
            named = zip(self.optimiser.names, self.optimiser.sums, strict=True)
            check_tensors("gradient", named, ids, step)

        read = watch.settle(norm, name_the_gradient, ids)
        self.optimiser.step(rate, norm)
        loss, answer, moved = torch.stack([*totals, self.optimiser.weight_norm]).tolist()
        if not math.isfinite(moved):
            weights = zip(self.optimiser.names, self.optimiser.masters, strict=True)
            check_tensors("weight", weights, ids, step)
        return SupervisedStep(step, loss, tokens, rate, read, answer)

    def _imitated(self, trajectory: Trajectory) -> int:
        return trajectory.trained_tokens - (self.teaching is not None)

    def _accumulate(
        self, step: int, batch: Sequence[Trajectory], tokens: int
    ) -> tuple[Watch, list[_Parts]]:
        self.optimiser.clear()
        watch = Watch(step)
        zero = torch.zeros((), dtype=torch.float64, device=self.trainable.device)
        parts = [_Parts(zero, zero)]
        for packed in self.passes.cut(batch):
            parts.append(self._backward(packed, batch, tokens, watch))
        return watch, parts

    def _backward(
        self, packed: PackedBatch, batch: Sequence[Trajectory], tokens: int, watch: Watch
    ) -> _Parts:
        members = [batch[i] for i in packed.members]
        ids = [trajectory.id for trajectory in members]
        mask_BT = packed.trained_BT
        with _hidden_states(self.trainable.module) as kept:
            logp_BT = token_scores(self.trainable.module, packed, 1.0).logp_BT
        watch.rows("logprob", "logprobs", logp_BT.detach(), ids)
        answer = logp_BT.new_zeros(())
        if self.teaching is not None:
            mask_BT = mask_BT.clone()
            mask_BT[:, 0] = False
            rows_B = self._answer_loss(self.teaching, kept[0], packed, members)
            answer = self.teaching.beta * rows_B.sum() / len(batch)
        loss = masked_nll(logp_BT, mask_BT, tokens=tokens) + answer
        watch.tensors("loss", [("loss", loss.detach())], ids)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.collect()
        return _Parts(loss.detach().double(), answer.detach().double())

    def _answer_loss(
        self, teaching: Teaching, hidden_RSD: Tensor, packed: PackedBatch, members: list[Trajectory]
    ) -> Tensor:
        """The first token's loss of each member, (B,)."""
        is_first_N = packed.column_N == 0
        # Trained tokens stand in the order of the members, so their first ones do too.
        places_B = packed.source_N[is_first_N]
        hidden_BD = hidden_RSD.flatten(0, 1).index_select(0, places_B)
        labels_C = torch.tensor(teaching.label_ids, device=hidden_BD.device)
        logits_BC = self.trainable.module.logits(hidden_BD).index_select(-1, labels_C)
        teacher_BC = torch.tensor([_teacher(teaching, one) for one in members], dtype=torch.float64)
        return answer_divergence(logits_BC, teacher_BC, teaching.temperature, reduction="none")


def fine_tune(
    trainable: Trainable,
    experts: Experts,
    optimiser: MasterAdamW,
    *,
    steps: int,
    batch: int,
    rate: Rate,
    teaching: Teaching | None = None,
    budget: int = 0,
    world: World | None = None,
) -> Iterator[SupervisedStep]:
    """Imitate expert answers, step by step: mean NLL of their tokens, end token included.

    With `teaching` it distils: the loss is `mean NLL(tokens > 0) + beta T^2 KL(teacher_T ||
    student_T)` at token 0, the mean over rows; the experts are then to carry the teacher's
    probabilities (`carry=(teaching.field,)`).
    """
    room = Supervised(trainable, optimiser, teaching, budget, world or World())
    for step in range(steps):
        yield room.step(step, experts.take(step, batch), rate(step))


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
