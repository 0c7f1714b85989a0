"""Rubrics on trial: what a judge makes of labelled pairs under each of them, asked for once.

trial = Trial(judge, dev, choice)
await trial.marks(rubric)           # 1, 0.5 or 0 for each pair; None: the judge failed
await trial.failures(rubric)        # the pairs that the rubric gets wrong
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from burnish.rewards.judges.openrs.gains import LabelledPair, marks_of, mean_mark
from burnish.rewards.judges.openrs.meta_rubric import MetaRubric

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
