"""How well scores tell faithful answers from others: balanced accuracy with its interval.

    found = detection([0.2, 1.0, None], [False, True, True], threshold=1.0)
    found.balanced, found.decided

A score below the threshold flags an answer as unfaithful. The interval joins Wilson's intervals of the
two rates by squares (Newcombe), so that it is not empty where a rate is 0 or 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from burnish.arguments import as_flag, as_list, as_number, as_numbers, same_length
from burnish.bench.statistics import Estimate, wilson


class Detection(NamedTuple):
    """Rates over the decided answers, and what is left of them over all."""

    balanced: Estimate | None
    """Mean of the next two, over the decided answers; None without both kinds."""
    caught: Estimate | None
    """Unfaithful answers that were flagged."""
    passed: Estimate | None
    """Faithful answers that were not."""
    all: Estimate | None
    """Balanced accuracy where an answer without a score counts as wrong."""
    items: int
    decided: int


def detection(
    scores: Sequence[float | None], faithful: Sequence[bool], *, threshold: float = 0.5
) -> Detection:
    """Balanced accuracy of scores against labels; None is an answer without a score.

    >>> detection([0.2, 1.0, 1.0, None], [False, True, False, True], threshold=1.0).balanced.value
    0.75
    """
    values = as_numbers("scores", as_list("scores", scores, least=1), missing=True)
    labels = [as_flag("faithful", one) for one in as_list("faithful", faithful)]
    same_length("faithful", labels, len(values), "scores")
    limit = as_number("threshold", threshold)
    kinds: dict[bool, list[bool | None]] = {True: [], False: []}
    for value, label in zip(values, labels, strict=True):
        kinds[label].append(None if value is None else (value >= limit) == label)
    decided = {label: [one for one in own if one is not None] for label, own in kinds.items()}
    caught, passed = _rate(decided[False]), _rate(decided[True])
    everything = [_rate([bool(one) for one in kinds[label]]) for label in (False, True)]
    return Detection(
        _balanced(caught, passed),
        caught,
        passed,
        _balanced(*everything),
        len(values),
        sum(map(len, decided.values())),
    )


def _rate(marks: Sequence[bool]) -> Estimate | None:
    return wilson(sum(marks), len(marks)) if marks else None


def _balanced(first: Estimate | None, second: Estimate | None) -> Estimate | None:
    if first is None or second is None:
        return None
    value = (first.value + second.value) / 2
    low = math.hypot(first.value - first.low, second.value - second.low) / 2
    high = math.hypot(first.high - first.value, second.high - second.value) / 2
    return Estimate(value, max(0.0, value - low), min(1.0, value + high), first.size + second.size)
