"""Marks of verdicts against labels, and whether a change of rubric made them better.

before = [mark_of_score(score, label) for score, label in zip(old, labels)]
paired_gain(before, after)      # mean difference on the same pairs, and its standard error
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def mark_of_score(score: float | None, label: int) -> float:
    """1: the preferred response won, 0: it lost or there is no verdict, 0.5: a tie."""
    if score is None or math.isnan(score):
        return 0.0
    return 0.5 if score == 0 else float((score > 0) == (label > 0))


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
