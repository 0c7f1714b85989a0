"""Does a rubric help a judge that never met its author? With it, with another pair's, without.


Every evaluator judges every pair in both orders under three conditions: with the pair's rubric, with
that of another pair, which has the form but not the content, and without any. A rubric that transfers
beats both. The headline measure of Proxy-GRM (arXiv 2603.16600).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from statistics import fmean
from typing import NamedTuple

from burnish.arguments import refused
from burnish.bench.statistics import Estimate, estimate_of, paired_difference
from burnish.boundary import Seed, public
from burnish.records import ImagePart, Status
from burnish.rewards.judges.proxy_rubric import Proxy, TwoResponses
from burnish.rewards.scorer import gather
from burnish.seeds import derive

NO_RUBRIC = "(no rubric)"


class RubricCase(NamedTuple):
    question: str
    first: str
    second: str
    label: int
    """1 or 2."""
    rubric: str
    pictures: tuple[ImagePart, ...] = ()
    """What the question is about; an evaluator that sees is shown them."""


class TransferRow(NamedTuple):
    """One evaluator; accuracies are over the pairs that it answered under all three conditions."""

    evaluator: str
    with_rubric: Estimate | None
    shuffled: Estimate | None
    without: Estimate | None
    gain: Estimate | None
    """With the rubric minus with another pair's, on the same pairs."""
    failed: int
    """Pairs without an answer under some condition."""


@public
async def rubric_transfer(
    cases: Sequence[RubricCase], evaluators: Sequence[Proxy], *, seed: Seed = 0
) -> list[TransferRow]:
    """Accuracy of each evaluator with, with a shuffled and without a rubric.

    A pair counts 1, 0.5 or 0 by its two orders; an answer that names both or none is wrong.
    """
    odd = next((case for case in cases if case.label not in (1, 2)), None)
    if len(cases) < 2 or odd is not None:
        raise refused("cases", odd or cases, "at least two, each with the label 1 or 2")
    others = _elsewhere(len(cases), seed)
    rows = []
    for evaluator in evaluators:
        asked = [
            partial(_marks, evaluator, case, (case.rubric, cases[other].rubric, NO_RUBRIC))
            for case, other in zip(cases, others, strict=True)
        ]
        marks = await gather(asked)
        known = [one for one in marks if one is not None]
        own, shuffled, without = ([one[place] for one in known] for place in range(3))
        rows.append(
            TransferRow(
                evaluator.name,
                estimate_of(own),
                estimate_of(shuffled),
                estimate_of(without),
                paired_difference.plain(shuffled, own) if known else None,
                len(marks) - len(known),
            )
        )
    return rows


async def _marks(
    evaluator: Proxy, case: RubricCase, rubrics: Sequence[str]
) -> tuple[float, ...] | None:
    pair = TwoResponses(case.question, case.first, case.second, case.pictures)
    found = []
    for rubric in rubrics:
        marks = []
        for shown, right in ((pair, case.label), (pair.swapped(), 3 - case.label)):
            reply = await evaluator.choose(shown, rubric)
            if reply.status is not Status.OK:
                return None
            marks.append(float(reply.choice == right))
        found.append(fmean(marks))
    return tuple(found)


def _elsewhere(count: int, seed: int) -> list[int]:
    """Another place for each place: a cycle through a seeded order."""
    order = list(range(count))
    random.Random(derive(seed, "rubric transfer")).shuffle(order)
    found = [0] * count
    for place, other in zip(order, [*order[1:], order[0]], strict=True):
        found[place] = other
    return found
