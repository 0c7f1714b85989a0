"""Simulated solutions and a premise-blind verifier, scored by the public functions of EVPV.

A candidate has premise steps and plain ones. It may misread premises and may make one logic error; its
answer is right where it did neither. The verifier finds most logic errors, few misread premises, and
raises some false alarms.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from burnish.rewards.judges.evpv import best_of_k, gate, weighted_correctness

FINDS_LOGIC, FINDS_PREMISE, FALSE_ALARM = 0.8, 0.25, 0.07
"""What the verifier says -1 of: logic errors, misread premises, right steps."""


class Candidate(NamedTuple):
    """One solution: which premises it misread, what the verifier says, and whether it is right."""

    misread: tuple[bool, ...]
    """Of the premise steps, which stand first."""
    raw: tuple[int, ...]
    is_right: bool


def draw(
    rng: random.Random,
    premises: int,
    plain: int,
    *,
    misreads: float,
    each: float,
    logic: float,
    finds_premise: float = FINDS_PREMISE,
) -> Candidate:
    """A candidate that misreads with the chance `misreads`, then each premise with the chance `each`
    and at least one, and makes a logic error in a random step with the chance `logic`."""
    wrong = [False] * premises
    if rng.random() < misreads and premises:
        wrong = [rng.random() < each for _ in range(premises)]
        if not any(wrong):
            wrong[rng.randrange(premises)] = True
    error = rng.randrange(premises + plain) if rng.random() < logic else None
    raw = []
    for place in range(premises + plain):
        is_misread = place < premises and wrong[place]
        chance = FINDS_LOGIC if place == error else finds_premise if is_misread else FALSE_ALARM
        raw.append(-1 if rng.random() < chance else 1)
    return Candidate(tuple(wrong), tuple(raw), error is None and not any(wrong))


Supports = Callable[[int, Candidate], Sequence[float]]
"""Support of each premise step of a candidate, by its place among the candidates."""


def accuracy(problems: Sequence[Sequence[Candidate]], supports: Sequence[Supports] | None) -> float:
    """Expected accuracy of the best of all candidates, ungated where there are no supports."""
    total = 0.0
    for number, candidates in enumerate(problems):
        scores = []
        for place, one in enumerate(candidates):
            own = () if supports is None else tuple(supports[number](place, one))
            scores.append(score(one.raw, own))
        total += best_of_k(scores, [one.is_right for one in candidates]).bon_at_k[-1]
    return total / len(problems)


@lru_cache(1 << 16)
def score(raw: tuple[int, ...], supports: tuple[float, ...]) -> float:
    """The value of step scores with the first steps gated by these supports."""
    places = list(range(len(supports)))
    return weighted_correctness(gate(list(raw), places, list(supports)))


def share_right(problems: Sequence[Sequence[Candidate]]) -> float:
    """pass@1, as the mean over all candidates."""
    flags = [one.is_right for candidates in problems for one in candidates]
    return sum(flags) / len(flags)


def share_any(problems: Sequence[Sequence[Candidate]]) -> float:
    """pass@8: any of the candidates is right."""
    return sum(any(one.is_right for one in row) for row in problems) / len(problems)
