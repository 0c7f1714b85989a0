"""Supervised fine-tuning: raise the likelihood of demonstrations.

`train = { kind = "sft" }` is a run of its own or, in `[[stages]]`, a warm start; the `sft` term of a
policy recipe is the same loss beside the policy's: the mean negative log-prob over all tokens of an
update, end token included.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from burnish.config.schema import Config, SftTrain as SftSettings
from burnish.lm.tokenizer import Tokenizer
from burnish.policy import SFT
from burnish.policy.auxiliary import masked_nll
from burnish.policy.balance import BalanceState, adapted_coefficient
from burnish.records import Trajectory
from burnish.seeds import Seeds
from burnish.training.algorithm import Algorithm, HeldOutScores, Loss, Setup, StepReport, StepResult
from burnish.training.data import Data, Experts, missing_field, open_experts
from burnish.training.forecast import MEASURED, Workload, measured
from burnish.training.guards import check_rows
from burnish.training.metrics import held_out_rewards, token_counts
from burnish.training.packing import PackedBatch, token_scores
from burnish.training.update import MicroBatcher

LEAST_TARGET = 1e-6
"""Nats a token; a start model that is certain of every demonstration is held at this."""


class Shown(NamedTuple):
    packed: PackedBatch
    members: list[Trajectory]
    tokens: int
    size: int


def show(
    batches: MicroBatcher, batch: Sequence[Trajectory], budget: int | None = None
) -> Iterator[Shown]:
    tokens = sum(one.trained_tokens for one in batch)
    for packed in batches.split(batch, tokens=budget):
        yield Shown(packed, [batch[i] for i in packed.members], tokens, len(batch))


def shown_loss(model: Any, micro: Shown) -> Loss:
    logp_BT = token_scores(model, micro.packed, 1.0).logp_BT
    nll = masked_nll(logp_BT, micro.packed.trained_BT, tokens=micro.tokens)
    return Loss(nll, [one.id for one in micro.members], rows={"logprobs": logp_BT.detach()})


class SftAlgorithm(Algorithm[list[Trajectory], Shown]):
    shares_model = True
    samples_answers = False

    def __init__(self, setup: Setup, settings: SftSettings) -> None:
        tokenizer = setup.trainable.loaded.tokenizer
        experts = open_experts(setup.config, setup.data, tokenizer, setup.seeds, settings.by)
        self.experts, self.batches, self.size = experts, setup.batches, settings.batch
        self.setup = setup

    @classmethod
    def faults(cls, config: Config, settings: SftSettings, data: Data) -> Iterator[str]:
        tasks = data.open(config.experts.task)
        yield from missing_field(tasks, config.experts.field, "experts.field")
        if settings.by:
            yield from missing_field(tasks, settings.by, "train.by")

    def batch(self, step: int) -> list[Trajectory]:
        return self.experts.take(step, self.size)

    def micro_batches(self, batch: list[Trajectory], tokens: int) -> Iterator[Shown]:
        return show(self.batches, batch, tokens)

    def loss(self, model: Any, micro: Shown) -> Loss:
        return shown_loss(model, micro)

    def workload(self) -> Workload:
        return measured(self.size, self.experts.take(0, min(self.size, MEASURED)))

    def finish(self, step: int, batch: list[Trajectory], result: StepResult) -> StepReport:
        return StepReport(token_counts([one.trained_tokens for one in batch]))

    def evaluate(self, step: int) -> HeldOutScores | None:
        """The rewards of held-out answers; without rewards, the loss of held-out demonstrations."""
        if self.setup.scorer is not None:
            return held_out_rewards(self.setup, step)
        tasks = self.experts.tasks.held_out(self.setup.config.evaluation.prompts)
        known = filter(self.experts.has_answers, tasks)
        shown = [self.experts.as_trajectory(task, i) for i, task in enumerate(known)]
        return HeldOutScores(nll_of(self.batches, shown, step), "loss") if shown else None


ALGORITHM = SftAlgorithm


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

    nll_B = batches.world.stacked(batches.within_memory(work), len(shown))
    check_rows("logprob", "held-out logprobs", nll_B, [one.id for one in shown], step)
    return nll_B.tolist()


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
    held: tuple[Trajectory, ...] = ()
    """Held-back demonstrations; an adaptive schedule keeps their likelihood."""

    @classmethod
    def open(cls, config: Config, data: Data, tokenizer: Tokenizer, seeds: Seeds) -> SftTerm | None:
        term = config.policy.imitation
        if term is None:
            return None
        experts = open_experts(config, data, tokenizer, seeds, term.by)
        shown = tuple(experts.as_trajectory(task, i) for i, task in enumerate(experts.held))
        return cls(term, experts, config.steps, shown)

    def loss(self, model: Any, micro: Shown, coefficient: float) -> Loss:
        found = shown_loss(model, micro)
        total = coefficient * found.total
        return replace(found, total=total, parts={"sft": total.detach()})

    def coefficient(self, step: int, balance: BalanceState | None = None) -> float:
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
