"""A meta-rubric that is improved on pairs with known preferences: beam search over small edits.

    result = await evolve_rubric(rubric, dev, choice, judge=judge, propose=random_edits(pool))
    result.rubric, result.report()

In each generation every rubric of the beam gets edits (add, delete or modify one item); a child is
accepted only where it beats its parent on the same pairs by more than one standard error, and the
beam keeps the fittest on a bootstrap of the pairs, less a price per item. What comes out is decided
once, on pairs that the search never saw. A pair on which the judge failed under either rubric takes
no part in their comparison, and too many of those end the search. OpenRS describes such a search but did not release one
(arXiv 2602.14069, section on refinement); the numbers and the two tests here are ours.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from msgspec import Struct

from burnish.arguments import as_number, as_numbers
from burnish.errors import UserError
from burnish.rewards.judges.openrs.gains import (
    LabelledPair,
    left_out,
    marked_in_both,
    mean_mark,
    paired_gain,
    sign_test,
)
from burnish.rewards.judges.openrs.meta_rubric import Change, MetaRubric
from burnish.rewards.judges.openrs.trial import Failure, Judge, P, Trial
from burnish.seeds import Seeds

Proposer = Callable[[MetaRubric, Sequence[Failure[P]], random.Random], Awaitable[Sequence[Change]]]
"""Edits for a rubric, from the pairs that it gets wrong."""


class Search(Struct, frozen=True, kw_only=True):
    """How widely to search and when to believe a gain."""

    beam: int = 4
    proposals: int = 6
    """Edits tried on each rubric of the beam in each generation."""
    generations: int = 8
    patience: int = 8
    """Generations in a row without an accepted edit after which the search ends."""
    item_cost: float = 0.002
    """What each item takes off the fitness."""
    standard_errors: float = 1.0
    """A child must beat its parent by more than this many."""
    level: float = 0.05
    """Greatest chance of replacing the start by a rubric that is no better."""


class Step(Struct, frozen=True, omit_defaults=True):
    """One edit that was tried and what became of it."""

    generation: int
    parent: str
    """Hash of the rubric that was changed."""
    change: Change
    accepted: bool
    reason: str
    gain: float = 0.0
    """Accuracy of the child less that of its parent, on the same pairs."""
    standard_error: float = 0.0
    child: str = ""
    left_out: int = 0
    """Pairs without a verdict under one of the two."""


class Final(Struct, frozen=True):
    """A rubric of the last beam against the start, on the untouched pairs that both decide."""

    rubric: str
    accuracy: float
    start_accuracy: float
    p_value: float
    """One-sided, exact: the chance of so many more pairs put right than spoilt."""
    left_out: int = 0
    """Pairs without a verdict under one of the two."""


class RubricEvolution(Struct, frozen=True):
    """The rubric that came out and the whole way to it; JSON-able."""

    rubric: MetaRubric
    start: MetaRubric
    dev_accuracy: float
    """Of the rubric that came out, on the pairs it was searched on: too good by selection."""
    choice_accuracy: float
    """On the pairs that decided."""
    finals: tuple[Final, ...]
    log: tuple[Step, ...]
    generations: int
    missing: int = 0
    """Verdicts that the judge did not give, over all rubrics; nothing stands in their place."""

    @property
    def is_changed(self) -> bool:
        return self.rubric.hash != self.start.hash

    def report(self, *, with_refused: bool = True) -> str:
        """The changes as a diff, what was tried, and the figures, for a person to review."""
        accepted = [step for step in self.log if step.accepted]
        lines = [
            f"# Rubric {self.start.hash} -> {self.rubric.hash}",
            "",
            f"{len(self.log)} edits tried in {self.generations} generations, {len(accepted)} "
            f"accepted; accuracy {self.dev_accuracy:.4f} where it was searched, "
            f"{self.choice_accuracy:.4f} on the untouched pairs; {self.missing} verdicts missing.",
            "",
            "```diff",
            *(str(change) for change in self.start.diff(self.rubric)),
            "```",
        ]
        for step in self.log if with_refused else accepted:
            mark = "accepted" if step.accepted else "refused"
            lines += ["", f"## Generation {step.generation}, {step.parent}: {mark}, {step.reason}"]
            lines += ["", "```diff", str(step.change), "```"]
        return "\n".join([*lines, ""])


async def evolve_rubric(
    start: MetaRubric,
    dev: Sequence[P],
    choice: Sequence[P],
    *,
    judge: Judge[P],
    propose: Proposer[P],
    search: Search | None = None,
    seed: int = 0,
) -> RubricEvolution:
    """Search on `dev`, decide on `choice`; the start stays unless a rubric is surely better.

    The final test is exact and shared among the rubrics of the last beam, so that a judge that does
    not care about the rubric leaves it unchanged in at least 1 - `level` of all runs.
    """
    plan = Search() if search is None else search
    _check(dev, choice, plan)
    trial = Trial(judge, dev, choice)
    seeds = Seeds(seed)
    beam, log, seen = [start], list[Step](), {start.hash}
    idle = generation = 0
    while generation < plan.generations and idle < plan.patience:
        generation += 1
        children: list[MetaRubric] = []
        for place, parent in enumerate(beam):
            rng = seeds.rng("propose", generation, place)
            failures = await trial.failures(parent)
            for change in (await propose(parent, failures, rng))[: plan.proposals]:
                step, child = await _try(parent, change, generation, trial, seen, plan)
                log += [] if step is None else [step]
                children += [] if child is None else [child]
        idle = 0 if children else idle + 1
        drawn = seeds.rng("bootstrap", generation).choices(range(len(dev)), k=len(dev))
        fitness = {r.hash: await trial.fitness(r, drawn, plan.item_cost) for r in beam + children}
        beam = sorted(beam + children, key=lambda r: -fitness[r.hash])[: plan.beam]
    finals, chosen = await _choose(start, beam, trial, plan)
    return RubricEvolution(
        chosen,
        start,
        mean_mark(await trial.marks(chosen)),
        mean_mark(await trial.marks(chosen, is_final=True)),
        finals,
        tuple(log),
        generation,
        trial.missing,
    )


def asymmetric_advantages(
    rewards: Sequence[float], parent: float, kappa: float = 0.1
) -> list[float]:
    """What a refiner learns from a group of edits: mostly from those that improve on the parent.

    A_i = max(0, r_i - max(mean r, parent)) + kappa * min(0, r_i - mean r) * [max r > parent]: where
    every edit hurts, nothing is learned, not even from the least bad one.
    """
    parent = as_number("parent", parent)
    kappa = as_number("kappa", kappa, low=0)
    rewards = as_numbers("rewards", rewards)
    if not rewards:
        return []
    mean = math.fsum(rewards) / len(rewards)
    helps = max(rewards) > parent
    bar = max(mean, parent)
    return [max(0.0, r - bar) + (kappa * min(0.0, r - mean) if helps else 0.0) for r in rewards]


async def _try(
    parent: MetaRubric,
    change: Change,
    generation: int,
    trial: Trial[Any],
    seen: set[str],
    plan: Search,
) -> tuple[Step | None, MetaRubric | None]:
    """One edit: what the log says of it, and the child where it is accepted."""
    try:
        child = parent.applied(change)
    except ValueError as error:
        return Step(generation, parent.hash, change, False, f"does not fit: {error}"), None
    if child.hash in seen:
        return None, None  # the log has it already
    seen.add(child.hash)
    marks = await trial.marks(parent)
    before, after = marked_in_both(marks, await trial.marks(child))
    gain, error_of_gain = paired_gain(before, after)
    missing = len(marks) - len(before)
    # Rounding must not decide: a gain of exactly the bar is not more than the bar.
    accepted = gain > plan.standard_errors * error_of_gain + 1e-12
    reason = f"accuracy {gain:+.4f}, standard error {error_of_gain:.4f}{left_out(missing)}"
    step = Step(
        generation,
        parent.hash,
        change,
        accepted,
        reason,
        gain,
        error_of_gain,
        child.hash,
        missing,
    )
    return step, child if accepted else None


async def _choose(
    start: MetaRubric, beam: Sequence[MetaRubric], trial: Trial[Any], plan: Search
) -> tuple[tuple[Final, ...], MetaRubric]:
    """The best of the beam on the untouched pairs, or the start where none is surely better."""
    marks = await trial.marks(start, is_final=True)
    rivals = [rubric for rubric in beam if rubric.hash != start.hash]
    finals: list[Final] = []
    for rubric in rivals:
        before, after = marked_in_both(marks, await trial.marks(rubric, is_final=True))
        p_value = sign_test(before, after)
        missing = len(marks) - len(before)
        finals.append(Final(rubric.hash, mean_mark(after), mean_mark(before), p_value, missing))
    sure = [
        (final.accuracy - final.start_accuracy, rubric)
        for final, rubric in zip(finals, rivals, strict=True)
        if final.p_value <= plan.level / len(rivals)
    ]
    best = max(sure, key=lambda found: found[0])[1] if sure else start
    return tuple(finals), best


def _check(dev: Sequence[LabelledPair], choice: Sequence[LabelledPair], plan: Search) -> None:
    for name, pairs in (("dev", dev), ("choice", choice)):
        ids = [pair.id for pair in pairs]
        if not ids or len(set(ids)) < len(ids):
            raise UserError(
                f"{name}: got {len(ids)} pairs with {len(set(ids))} different ids; expected at "
                "least one, each with an id of its own."
            )
        odd = next((pair.id for pair in pairs if pair.label not in (1, -1)), None)
        if odd is not None:
            raise UserError(f"{name}: pair '{odd}' has no label; expected 1 (first) or -1.")
    shared = sorted({p.id for p in dev} & {p.id for p in choice})
    if shared:
        raise UserError(
            f"pair '{shared[0]}' and {len(shared) - 1} more are searched on and decided on; "
            "expected none in both."
        )
    least = min(plan.beam, plan.proposals, plan.generations, plan.patience)
    if least < 1 or not 0 < plan.level < 1 or plan.standard_errors < 0 or plan.item_cost < 0:
        raise UserError(
            f"search: got {plan}; expected beam, proposals, generations and patience of at least "
            "1, a level between 0 and 1, and no negative number."
        )
