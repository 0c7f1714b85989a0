"""How well step scores find the first wrong step of a solution: the F1 of ProcessBench.

A label is the place of the first wrong step, or None where all steps are right. A step is flagged
where its score is below the threshold; the first flagged one is the answer. Of wrong solutions the
share whose first wrong step is found counts, of right ones the share without a flag; F1 is the
harmonic mean of the two (ProcessBench, arXiv 2412.06559).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple

from msgspec import Meta

from burnish.arguments import refused, same_length
from burnish.bench.statistics import Estimate, estimate_of
from burnish.boundary import Count, Draws, Number, public
from burnish.seeds import Seeds, derive

Steps = Annotated[Sequence[Number], Meta(min_length=1)]
"""Scores of a solution's steps."""
Places = Sequence[Count | None]
DRAWS = 4000
"""Draws of the two shares behind the interval of F1."""


class FirstWrong(NamedTuple):
    f1: Estimate | None
    """Harmonic mean of the next two; None without both kinds of solution."""
    wrong: Estimate | None
    """Share of wrong solutions whose first wrong step is the first flagged one."""
    right: Estimate | None
    """Share of right solutions in which no step is flagged."""
    found: tuple[bool, ...]
    thresholds: tuple[float, ...]


@public
def labels_of(first_wrong: Count | None, count: Draws) -> list[int | None]:
    """The labels of `count` steps: 1 before the first wrong one, 0 for it, None behind it.

    >>> labels_of(1, 4), labels_of(None, 2)
    ([1, 0, None, None], [1, 1])
    """
    if first_wrong is None:
        return [1] * count
    place = _place(first_wrong, count)
    return [*[1] * place, 0, *[None] * (count - place - 1)]


@public
def halves(keys: Sequence[str]) -> list[int]:
    """Half 0 or 1 for each key, such as a prompt's text; equal keys are in one half.

    Follows from the keys alone, in any order: `parts` of `calibrated_f1`.

    >>> halves(["a", "b", "a"])
    [0, 1, 0]
    """
    order = sorted(set(keys), key=lambda key: (derive("calibration half", key), key))
    half = {key: place % 2 for place, key in enumerate(order)}
    return [half[key] for key in keys]


@public
def first_flagged(scores: Sequence[float], threshold: Number = 0.5) -> int | None:
    """The place of the first score below the threshold; None where there is none.

    >>> first_flagged([0.9, 0.2, 0.1])
    1
    """
    return next((place for place, value in enumerate(scores) if value < threshold), None)


@public
def first_wrong_f1(
    scores: Sequence[Steps], first_wrong: Places, threshold: Number = 0.5
) -> FirstWrong:
    """F1 of the first wrong step at one threshold, with 95 % intervals.

    `scores` holds a list of step scores for each solution, higher for better steps; `first_wrong`
    the place of the first wrong step, or None where all are right.

    >>> found = first_wrong_f1([[0.9, 0.2], [0.4, 0.1], [0.9]], [1, 1, None])
    >>> found.wrong.value, found.right.value, round(found.f1.value, 3)
    (0.5, 1.0, 0.667)
    """
    solutions = _solutions(scores, first_wrong)
    return _summary(solutions, [threshold] * len(solutions))


@public
def best_threshold(scores: Sequence[Steps], first_wrong: Places) -> float:
    """The threshold with the highest F1 on these solutions; the one nearest to 0.5 of several.

    Without right solutions it is that of most wrong steps found, without wrong ones 0.5: nothing
    then says that a step has to be flagged.

    >>> best_threshold([[0.9, 0.1], [0.7]], [1, None])
    0.4
    """
    return _best(_solutions(scores, first_wrong))


@public
def calibrated_f1(scores: Sequence[Steps], first_wrong: Places, parts: Sequence[int]) -> FirstWrong:
    """F1 where each solution is judged by the threshold that is best on the other parts.

    `parts` numbers each solution's part: two of them, as `halves` gives, are a calibration and a
    test part that change places. No solution has a say in its own threshold.

    >>> calibrated_f1([[0.9, 0.1], [0.7], [0.8, 0.2], [0.6]], [1, None, 1, None], [0, 0, 1, 1]).found
    (True, True, True, True)
    """
    solutions = _solutions(scores, first_wrong)
    same_length("parts", parts, len(solutions), "solutions")
    border = {
        part: _best([one for one, other in zip(solutions, parts, strict=True) if other != part])
        for part in set(parts)
    }
    return _summary(solutions, [border[part] for part in parts])


class _Solution(NamedTuple):
    """A solution is judged as its label says by thresholds above `low` and up to `high`."""

    is_wrong: bool
    low: float
    high: float


def _solutions(scores: Sequence[Steps], first_wrong: Places) -> list[_Solution]:
    same_length("first_wrong", first_wrong, len(scores), "solutions")
    found = []
    for row, label in zip(scores, first_wrong, strict=True):
        if label is None:
            found.append(_Solution(False, -math.inf, min(row)))
        else:
            place = _place(label, len(row))
            found.append(_Solution(True, row[place], min(row[:place], default=math.inf)))
    return found


def _place(label: int, count: int) -> int:
    if label >= count:
        raise refused("first_wrong", label, f"None, or a place from 0 to {count - 1}")
    return label


def _best(solutions: Sequence[_Solution]) -> float:
    if not any(one.is_wrong for one in solutions):
        return 0.5
    return max(_regions(solutions), key=lambda region: (region[0], -abs(region[1] - 0.5)))[1]


def _regions(solutions: Sequence[_Solution]) -> Iterator[tuple[float, float]]:
    """F1 and a threshold for each stretch of thresholds that judge all solutions alike.

    One sweep over the borders: whether a solution is judged rightly changes at its two alone.
    """
    changes: dict[float, list[int]] = {}
    counts = [0, 0]
    totals = [sum(one.is_wrong is kind for one in solutions) for kind in (False, True)]
    for kind, low, high in solutions:
        # Found by thresholds above `low`, no more by those above `high`.
        if low < high:
            if low == -math.inf:
                counts[kind] += 1
            else:
                changes.setdefault(low, [0, 0])[kind] += 1
            changes.setdefault(high, [0, 0])[kind] -= 1
    borders = sorted(changes.keys() - {math.inf}) or [0.5]
    yield _harmonic(counts, totals), borders[0]
    for place, border in enumerate(borders):
        for number, change in enumerate(changes.get(border, (0, 0))):
            counts[number] += change
        after = borders[place + 1] if place + 1 < len(borders) else math.nextafter(border, math.inf)
        middle = border + (after - border) / 2
        yield _harmonic(counts, totals), middle if border < middle <= after else after


def _harmonic(counts: Sequence[int], totals: Sequence[int]) -> float:
    """The harmonic mean of two shares; the other one where a kind has no solution."""
    shares = [count / total for count, total in zip(counts, totals, strict=True) if total]
    return len(shares) / sum(1 / share for share in shares) if all(shares) else 0.0


def _summary(solutions: Sequence[_Solution], thresholds: Sequence[float]) -> FirstWrong:
    judged = zip(solutions, thresholds, strict=True)
    found = tuple(one.low < threshold <= one.high for one, threshold in judged)
    marks: dict[bool, list[bool]] = {False: [], True: []}
    for one, mark in zip(solutions, found, strict=True):
        marks[one.is_wrong].append(mark)
    right, wrong = (estimate_of(map(float, m)) for m in marks.values())
    if right is None or wrong is None:
        return FirstWrong(None, wrong, right, found, tuple(thresholds))
    counts, totals = [sum(m) for m in marks.values()], [len(m) for m in marks.values()]
    value = _harmonic(counts, totals)
    # The posterior under Jeffreys' prior: an interval also where a share is 0 or 1.
    rng = Seeds(0).rng("first wrong f1", *totals[::-1])
    drawn = []
    for _ in range(DRAWS):
        b, a = (
            rng.betavariate(counts[kind] + 0.5, totals[kind] - counts[kind] + 0.5)
            for kind in (True, False)
        )
        drawn.append(2 * b * a / (b + a) if b + a else 0.0)
    drawn.sort()
    low, high = drawn[int(0.025 * DRAWS)], drawn[int(0.975 * DRAWS) - 1]
    f1 = Estimate(value, min(low, value), max(high, value), sum(totals))
    return FirstWrong(f1, wrong, right, found, tuple(thresholds))
