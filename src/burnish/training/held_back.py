"""Demonstrations that no update imitates: how likely they are says what imitation must hold.

Held-out tasks are taken where they have demonstrations. Where none has, some training tasks are held
back, never more than half of the questions of any stratum, so that a rare rule is still imitated.
Which ones follows from the questions alone: there is nothing to save, and runs of different seeds
measure the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from burnish.errors import UserError
from burnish.policy.balance import BalanceState, adapted_coefficient
from burnish.policy.pieces import SFT
from burnish.records import Task, Trajectory
from burnish.seeds import derive
from burnish.tasks.base import TaskSet, content_key
from burnish.training.experts import LOOK, strata_of, text_of
from burnish.training.forward import token_scores
from burnish.training.guards import check_rows, trip
from burnish.training.passes import Passes

LEAST_TARGET = 1e-6
"""Nats a token; a start model that is certain of every demonstration is held at this."""


class HeldBack(NamedTuple):
    """Tasks whose demonstrations are measured and never imitated."""

    tasks: tuple[Task, ...]
    keys: frozenset[str]
    """Their questions (`content_key`)."""


@dataclass(frozen=True)
class Measured:
    """The weight of imitation at a step, and what was measured there."""

    state: BalanceState
    nll: float | None
    """Of the held-back demonstrations, nats a token; None where it was not measured."""

    def metrics(self) -> dict[str, float]:
        found = {"loss/sft/coefficient": self.state.coefficient}
        return found if self.nll is None else {**found, "loss/sft/held_out_nll": self.nll}


def hold_back(tasks: TaskSet, piece: SFT, field: str) -> HeldBack:
    """The demonstrations to measure, the strata of `piece.by` in turn, as far as each lasts."""
    chosen = list(_in_turn(_by_stratum(tasks.held_out(LOOK), piece.by, field)))
    if not chosen:
        shown = [tasks.train(position) for position in range(tasks.train_size or LOOK)]
        chosen = list(_leaving_half(_by_stratum(shown, piece.by, field)))
    if not chosen:
        raise UserError(
            f"the `sft` term's schedule is 'adaptive', and task set '{tasks.name}' has no "
            f"demonstration ('{field}') to hold back: none is held out, and no stratum has two; "
            "expected at least one. Add demonstrations, or set schedule = 'constant'."
        )
    kept = tuple(chosen[: piece.held_out])
    return HeldBack(kept, frozenset(content_key(task.messages) for task in kept))


def measure(
    passes: Passes, held: Sequence[Trajectory], piece: SFT, state: BalanceState | None, step: int
) -> Measured:
    """The weight of imitation for a step: measured and moved where that is due, else as it was.

    Asked twice for one step, it moves once.
    """
    if state is not None and step < state.step + piece.every:
        return Measured(state, None)
    nll = held_out_nll(passes, held, step)
    if state is None:
        state = BalanceState(piece.coefficient, piece.target or max(nll, LEAST_TARGET), step)
    moved = adapted_coefficient(state.coefficient, nll, state.target, piece.rate, *piece.bounds)
    return Measured(BalanceState(moved, state.target, step), nll)


@torch.no_grad()
def held_out_nll(passes: Passes, held: Sequence[Trajectory], step: int) -> float:
    """Mean negative log-prob of the demonstrations' tokens, in nats, over all processes."""

    def work() -> list[tuple[torch.Tensor, list[str]]]:
        return [
            (token_scores(passes.model, packed, 1.0).logp_BT, [held[i].id for i in packed.members])
            for packed in passes.cut(held)
        ]

    found = passes.within_memory(work)
    total = torch.zeros((), dtype=torch.float64, device=passes.device)
    for logp_BT, _ in found:
        total += logp_BT.double().sum()
    passes.world.add([total])
    nll = -float(total) / sum(trajectory.trained_tokens for trajectory in held)
    if not torch.isfinite(total):
        for logp_BT, ids in found:
            check_rows("logprob", "held-out logprobs", logp_BT, ids, step)
        trip("logprob", "held-out logprobs", step, tuple(t.id for t in held), nll)
    return nll


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
    """One of each stratum, then the next of each; a task of several strata comes once."""
    seen: set[str] = set()
    for place in range(max(map(len, strata.values()), default=0)):
        for tasks in strata.values():
            if place < len(tasks) and tasks[place].id not in seen:
                seen.add(tasks[place].id)
                yield tasks[place]


def _leaving_half(strata: dict[str, list[Task]]) -> Iterator[Task]:
    """The same, as long as half of every stratum that a task belongs to is left."""
    free = {name: len(tasks) // 2 for name, tasks in strata.items()}
    homes: dict[str, list[str]] = {}
    for name, tasks in strata.items():
        for task in tasks:
            homes.setdefault(task.id, []).append(name)
    for task in _in_turn(strata):
        if all(free[name] > 0 for name in homes[task.id]):
            for name in homes[task.id]:
                free[name] -= 1
            yield task
