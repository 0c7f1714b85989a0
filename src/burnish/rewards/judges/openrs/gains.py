"""Marks of verdicts against labels, and whether a change of rubric made them better.

marks = marks_of(scores, pairs)                     # None where there is no verdict
before, after = marked_in_both(old_marks, marks)    # a failure is no mark: its pair is left out
paired_gain(before, after)      # mean difference on the same pairs, and its standard error
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from burnish.errors import JudgeError, UserError

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
    """A mark for each pair; a `JudgeError` where too many verdicts are missing."""
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
