"""A meta-rubric that is improved on pairs with known preferences: beam search over small edits.

    result = await evolve_rubric(rubric, dev, choice, judge=judge, propose=random_edits(pool))
    result.rubric, result.report()

In each generation every rubric of the beam gets edits (add, delete or modify one item); a child is
accepted only where it beats its parent on the same pairs by more than one standard error, and the
beam keeps the fittest on a bootstrap of the pairs, less a price per item. What comes out is decided
once, on pairs that the search never saw. A pair on which the judge failed under either rubric takes
no part in their comparison, and too many of those end the search. OpenRS describes such a search but did not release one
(arXiv 2602.14069, section on refinement); the numbers and the two tests here are ours.
People improve a rubric by a review file (`review`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Annotated, Any, Generic, NamedTuple, Protocol, TypeVar

from msgspec import Meta, Struct

from burnish.arguments import as_number, as_numbers
from burnish.boundary import NonNegative, PositiveInt, Settings
from burnish.errors import JudgeError, UserError
from burnish.rewards.judges.instruction import Tried, check_apart, improve
from burnish.rewards.judges.openrs.meta_rubric import Change, MetaRubric
from burnish.seeds import Seeds

MOST_FAILURES = 0.2
"""Share of pairs without a verdict above which a comparison stops: what is left may not be fair."""


class LabelledPair(Protocol):
    """A pair of which it is known which response people prefer."""

    @property
    def id(self) -> str: ...

    @property
    def label(self) -> int:
        """1: the first response is preferred, -1: the second."""
        ...


def mark_of_score(score: float | None, label: int) -> float | None:
    """1: the preferred response won, 0: it lost, 0.5: a tie; None: there is no verdict."""
    if score is None or math.isnan(score):
        return None
    return 0.5 if score == 0 else float((score > 0) == (label > 0))


def marks_of(scores: Sequence[float | None], pairs: Sequence[LabelledPair]) -> list[float | None]:
    if len(scores) != len(pairs):
        raise UserError(
            f"the judge gave {len(scores)} scores for {len(pairs)} pairs; expected one each."
        )
    marks = [mark_of_score(s, pair.label) for s, pair in zip(scores, pairs, strict=True)]
    missing = marks.count(None)
    if missing > MOST_FAILURES * len(marks):
        place = marks.index(None)
        raise JudgeError(
            f"the judge gave no verdict on {missing} of {len(marks)} pairs (the first is "
            f"'{pairs[place].id}'); expected at most {MOST_FAILURES:.0%}. Look into its record for "
            "the reason and start again; a cache keeps what was answered."
        )
    return marks


def marked_in_both(
    before: Sequence[float | None], after: Sequence[float | None]
) -> tuple[list[float], list[float]]:
    """The marks of the pairs that have one under both rubrics."""
    both = [(b, a) for b, a in zip(before, after, strict=True) if b is not None and a is not None]
    return [b for b, _ in both], [a for _, a in both]


def mean_mark(marks: Sequence[float | None]) -> float:
    """The mean over the pairs that have a mark."""
    known = [mark for mark in marks if mark is not None]
    return math.fsum(known) / len(known)


def left_out(count: int) -> str:
    """What a report says of pairs without a verdict; nothing where there are none."""
    return f", {count} pairs without a verdict left out" if count else ""


def paired_gain(before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
    """Mean difference on the same pairs and its standard error."""
    differences = [b - a for a, b in zip(before, after, strict=True)]
    count = len(differences)
    mean = math.fsum(differences) / count
    if count < 2:
        return mean, math.inf
    squares = math.fsum((d - mean) ** 2 for d in differences)
    return mean, math.sqrt(squares / (count - 1) / count)


def sign_test(before: Sequence[float], after: Sequence[float]) -> float:
    """Exact one-sided p-value that so many pairs got better rather than worse by chance."""
    better = sum(b > a for a, b in zip(before, after, strict=True))
    worse = sum(b < a for a, b in zip(before, after, strict=True))
    count = better + worse
    return sum(math.comb(count, k) for k in range(better, count + 1)) / (1 << count)


P = TypeVar("P", bound=LabelledPair)

Judge = Callable[[MetaRubric, Sequence[P]], Awaitable[Sequence[float | None]]]
"""The score of each pair under a rubric: above 0 for the first response; None: no verdict."""


class Failure(NamedTuple, Generic[P]):
    """A pair that a rubric gets wrong."""

    pair: P
    score: float | None


class Trial(Generic[P]):
    """Marks of rubrics, each asked for once."""

    def __init__(self, judge: Judge[P], dev: Sequence[P], choice: Sequence[P]) -> None:
        self.judge, self.pairs = judge, {False: dev, True: choice}
        self.known: dict[tuple[str, bool], tuple[list[float | None], list[float | None]]] = {}

    async def marks(self, rubric: MetaRubric, is_final: bool = False) -> list[float | None]:
        return (await self._asked(rubric, is_final))[1]

    async def failures(self, rubric: MetaRubric) -> list[Failure[P]]:
        """Pairs with a verdict that is not right; where the judge failed, the rubric did not."""
        found = zip(self.pairs[False], *await self._asked(rubric), strict=True)
        return [Failure(pair, score) for pair, score, mark in found if mark in (0.0, 0.5)]

    async def fitness(self, rubric: MetaRubric, drawn: Sequence[int], cost: float) -> float:
        """Accuracy on the drawn pairs less the price of the items."""
        marks = await self.marks(rubric)
        chosen = [marks[i] for i in drawn if marks[i] is not None]
        # A draw may hit nothing but pairs without a verdict where there are very few pairs.
        return mean_mark(chosen or marks) - cost * len(rubric.items)

    @property
    def missing(self) -> int:
        """Verdicts that the judge did not give so far."""
        return sum(marks.count(None) for _, marks in self.known.values())

    async def _asked(
        self, rubric: MetaRubric, is_final: bool = False
    ) -> tuple[list[float | None], list[float | None]]:
        """Scores and marks."""
        key = (rubric.hash, is_final)
        if key not in self.known:
            pairs = self.pairs[is_final]
            scores = list(await self.judge(rubric, pairs))
            self.known[key] = scores, marks_of(scores, pairs)
        return self.known[key]


Proposer = Callable[[MetaRubric, Sequence[Failure[P]], random.Random], Awaitable[Sequence[Change]]]
"""Edits for a rubric, from the pairs that it gets wrong."""


class Search(Settings, frozen=True, kw_only=True):
    """How widely to search and when to believe a gain."""

    beam: PositiveInt = 4
    proposals: PositiveInt = 6
    """Edits tried on each rubric of the beam in each generation."""
    generations: PositiveInt = 8
    patience: PositiveInt = 8
    """Generations in a row without an accepted edit after which the search ends."""
    item_cost: NonNegative = 0.002
    """What each item takes off the fitness."""
    standard_errors: NonNegative = 1.0
    """A child must beat its parent by more than this many."""
    level: Annotated[float, Meta(gt=0.0, lt=1.0)] = 0.05
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
    check_apart(dev, choice)
    trial = Trial(judge, dev, choice)
    seeds, seen = Seeds(seed), {start.hash}

    async def edits(parent: MetaRubric, number: int, place: int) -> Sequence[Change]:
        rng = seeds.rng("propose", number, place)
        return (await propose(parent, await trial.failures(parent), rng))[: plan.proposals]

    async def fittest(rubrics: list[MetaRubric], number: int) -> list[MetaRubric]:
        drawn = seeds.rng("bootstrap", number).choices(range(len(dev)), k=len(dev))
        fitness = {r.hash: await trial.fitness(r, drawn, plan.item_cost) for r in rubrics}
        return sorted(rubrics, key=lambda r: -fitness[r.hash])[: plan.beam]

    found = await improve(
        start,
        edits,
        partial(_try, trial=trial, seen=seen, plan=plan),
        rounds=plan.generations,
        patience=plan.patience,
        choose=fittest,
    )
    finals, chosen = await _choose(start, found.beam, trial, plan)
    return RubricEvolution(
        chosen,
        start,
        mean_mark(await trial.marks(chosen)),
        mean_mark(await trial.marks(chosen, is_final=True)),
        finals,
        tuple(found.log),
        found.rounds,
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
) -> Tried[MetaRubric, Step]:
    """One edit: what the log says of it, and the child where it is accepted."""
    try:
        child = parent.applied(change)
    except ValueError as error:
        return Tried(Step(generation, parent.hash, change, False, f"does not fit: {error}"))
    if child.hash in seen:
        return Tried(None)  # the log has it already
    seen.add(child.hash)
    marks = await trial.marks(parent)
    before, after = marked_in_both(marks, await trial.marks(child))
    gain, error_of_gain = paired_gain(before, after)
    missing = len(marks) - len(before)
    # Rounding must not decide: a gain of exactly the bar is not more than the bar.
    accepted = gain > plan.standard_errors * error_of_gain + 1e-12
    reason = f"accuracy {gain:+.4f}, standard error {error_of_gain:.4f}{left_out(missing)}"
    edit = (generation, parent.hash, change, accepted)
    step = Step(*edit, reason, gain, error_of_gain, child.hash, missing)
    return Tried(step, child if accepted else None)


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
