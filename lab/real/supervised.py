"""Supervised fine-tuning in this process, without a run folder, and with a distilled first token.

    optimiser = MasterAdamW(trainable.module.named_parameters(), Optimiser())
    for done in fine_tune(trainable, experts, optimiser, steps=100, batch=32, rate=lambda _: 1e-5):
        ...                                  # done.loss

With `Teaching` the first token of an answer is distilled (a teacher's probabilities of C labels):
`mean NLL(tokens > 0) + beta T^2 KL(teacher_T || student_T)` at token 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from burnish.errors import UserError
from burnish.policy.answer_first import answer_kd
from burnish.policy.auxiliary import masked_nll
from burnish.records import Trajectory
from burnish.training.algorithm import Algorithm, Loss
from burnish.training.algorithms.sft import Shown, show
from burnish.training.data import Experts
from burnish.training.devices import World
from burnish.training.optimiser import MasterAdamW
from burnish.training.packing import token_scores
from burnish.training.trainable import Trainable
from burnish.training.update import MicroBatcher, Updater

TEACHER = "teacher_probabilities"
"""Field of a demonstration's `info` with the teacher's probability of each label."""
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


class Demonstrations(Algorithm[list[Trajectory], Shown]):
    def __init__(
        self, experts: Experts, batches: MicroBatcher, size: int, teaching: Teaching | None = None
    ) -> None:
        self.experts, self.batches, self.size, self.teaching = experts, batches, size, teaching

    def batch(self, step: int) -> list[Trajectory]:
        return self.experts.take(step, self.size)

    def micro_batches(self, batch: list[Trajectory], tokens: int) -> Iterator[Shown]:
        for shown in show(self.batches, batch, tokens):
            skipped = len(batch) if self.teaching is not None else 0
            yield shown._replace(tokens=shown.tokens - skipped)

    def loss(self, model: Any, micro: Shown) -> Loss:
        if self.teaching is not None:
            return _taught(model, micro, self.teaching)
        logp_BT = token_scores(model, micro.packed, 1.0).logp_BT
        nll = masked_nll(logp_BT, micro.packed.trained_BT, tokens=micro.tokens)
        return Loss(nll, [one.id for one in micro.members], rows={"logprobs": logp_BT.detach()})


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


def _taught(model: Any, micro: Shown, teaching: Teaching) -> Loss:
    packed = micro.packed
    mask_BT = packed.trained_BT.clone()
    mask_BT[:, 0] = False
    with _hidden_states(model) as kept:
        logp_BT = token_scores(model, packed, 1.0).logp_BT
    # Trained tokens stand in the order of the members, so their first ones do too.
    places_B = micro.packed.source_N[micro.packed.column_N == 0]
    hidden_BD = kept[0].flatten(0, 1).index_select(0, places_B)
    labels_C = torch.tensor(teaching.label_ids, device=hidden_BD.device)
    logits_BC = model.logits(hidden_BD).index_select(-1, labels_C)
    teacher_BC = torch.tensor(
        [_teacher(teaching, one) for one in micro.members], dtype=torch.float64
    )
    rows_B = answer_kd.plain(logits_BC, teacher_BC, teaching.temperature, reduction="none")
    answer = teaching.beta * rows_B.sum() / micro.size
    total = masked_nll(logp_BT, mask_BT, tokens=micro.tokens) + answer
    rows = {"logprobs": logp_BT.detach()}
    return Loss(total, [one.id for one in micro.members], {"answer": answer.detach()}, rows)


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
