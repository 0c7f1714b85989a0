"""How a rubric's scores serve as a reward, and how well they agree with people.

    merge_equal([0.50, 0.53, 0.90], L=0.05)      # [0.515, 0.515, 0.9]: a difference that is noise
    concordance([(+1, 0.8, 0.5), (-1, 0.7, 0.6)]).ratio      # pairs ordered right over reversed ones

The two stabilisers and the two measures of agreement of QuarkMedBench (arXiv 2603.13691).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, overload

from burnish.errors import UserError
from burnish.numbers import plain
from burnish.seeds import derive

EQUAL_WITHIN = 0.05
CONSISTENT, ACCEPTABLE, SEVERE = 4.0, 8.0, 12.0
"""Points of 100 by which a score may differ from a person's."""


class Concordance(NamedTuple):
    """How scores order the pairs that people ordered."""

    correct: int
    reversed: int
    tied: int
    ratio: float | None
    """Correct over reversed; None where no pair is reversed."""


class Interval(NamedTuple):
    """A mean and the range that it plausibly lies in."""

    mean: float
    low: float
    high: float
    queries: int


def equal(pairs: Sequence[Any], L: float = EQUAL_WITHIN) -> Any:
    """Whether two scores are too close to tell apart: `|a - b| < L`, strictly.

    One pair `(a, b)` gives a bool, a list of pairs a list of them.
    """
    if not L >= 0:
        raise UserError(f"equal: L is {L}; expected at least 0.")
    pairs = plain(pairs)
    if len(pairs) == 2 and not any(isinstance(one, Sequence) for one in pairs):
        return abs(float(pairs[0]) - float(pairs[1])) < L
    return [equal(pair, L) for pair in pairs]


def merge_equal(scores: Sequence[float | None], L: float = EQUAL_WITHIN) -> list[float | None]:
    """Scores of a group, those within L of their neighbour replaced by their common mean.

    Single linkage on the sorted scores: a chain of small steps is one cluster, however long. None
    stays None and joins nothing.
    """
    order = sorted((value, place) for place, value in enumerate(scores) if value is not None)
    merged: list[float | None] = [None] * len(scores)
    start = 0
    for end in range(1, len(order) + 1):
        if end < len(order) and equal((order[end - 1][0], order[end][0]), L):
            continue
        cluster = order[start:end]
        mean = math.fsum(value for value, _ in cluster) / len(cluster)
        for value, place in cluster:
            merged[place] = value if len(cluster) == 1 else mean
        start = end
    return merged


@overload
def scale_reward(scores: float, mean_of_references: float, w_scale: float = ...) -> float: ...


@overload
def scale_reward(
    scores: Sequence[float], mean_of_references: float, w_scale: float = ...
) -> list[float]: ...


def scale_reward(
    scores: float | Sequence[float], mean_of_references: float, w_scale: float = 2.0
) -> float | list[float]:
    """Progress above the reference models is worth `w_scale` times as much (eq. 7).

    `s` where `s` is below their mean, else `mean + w_scale * (s - mean)`; one score or a list.
    """
    if not 0 < w_scale < math.inf:
        raise UserError(f"scale_reward: w_scale is {w_scale}; expected more than 0.")
    scores = plain(scores)
    if isinstance(scores, int | float):
        above = max(float(scores) - mean_of_references, 0.0)
        return float(scores) if above == 0 else mean_of_references + w_scale * above
    return [scale_reward(float(one), mean_of_references, w_scale) for one in scores]


def concordance(human_sign_and_scores: Iterable[Any]) -> Concordance:
    """How many pairs that a person ordered are ordered alike, the other way, or not at all.

    A row is `(sign, a, b)`, `(sign, (a, b))` or `(sign, a - b)`: the sign is positive where the
    person prefers the first. Rows with sign 0 order nothing and are left out.
    """
    correct = reverse = tied = 0
    for row in plain(human_sign_and_scores):
        sign, difference = _ordered(row)
        if sign == 0:
            continue
        if difference == 0:
            tied += 1
        elif (difference > 0) == (sign > 0):
            correct += 1
        else:
            reverse += 1
    return Concordance(correct, reverse, tied, correct / reverse if reverse else None)


def band(deviations: float | Sequence[float]) -> Any:
    """The name of a deviation from a person's score, in points of 100; one or a list.

    Up to 4 `consistent`, up to 8 `acceptable`, above 12 `severe`; the report names nothing between
    8 and 12: `unlabelled`.
    """
    deviations = plain(deviations)
    if not isinstance(deviations, int | float):
        return [band(one) for one in deviations]
    size = abs(deviations)
    if math.isnan(size):
        raise UserError("band: the deviation is not a number; leave out what has no score.")
    if size <= CONSISTENT:
        return "consistent"
    if size <= ACCEPTABLE:
        return "acceptable"
    return "unlabelled" if size <= SEVERE else "severe"


def bootstrap_interval(
    scores: Iterable[float | None], *, share: float = 0.95, draws: int = 2000, seed: int = 0
) -> Interval | None:
    """The mean score over queries and its bootstrap interval; queries without a score are left out.

    None where no query has a score.
    """
    known = [score for score in scores if score is not None]
    if not known:
        return None
    if not 0 < share < 1 or draws < 1:
        raise UserError(
            f"bootstrap: share is {share} and draws {draws}; expected a share between 0 and 1 and "
            "at least one draw."
        )
    rng = random.Random(derive(seed, "bootstrap", len(known)))
    size = len(known)
    means = sorted(math.fsum(rng.choices(known, k=size)) / size for _ in range(draws))
    edge = (1 - share) / 2
    low, high = means[int(edge * (draws - 1))], means[math.ceil((1 - edge) * (draws - 1))]
    return Interval(math.fsum(known) / size, low, high, size)


def family_deltas(rows: Iterable[tuple[str, str, float]]) -> dict[str, float]:
    """How much more each judge's family gives to its own answers than other judges give to them.

    Rows are (family of the judge, family of the answer, score). A family's delta is the mean of its
    own judge on its own answers minus on others' answers, minus the same difference by the other
    judges: above 0 it favours its own. Families for which a part is missing are left out.
    """
    scores: dict[tuple[str, str], list[float]] = {}
    for judge, answer, value in rows:
        scores.setdefault((judge, answer), []).append(value)
    deltas = {}
    for family in sorted({judge for judge, _ in scores}):
        parts = [
            [v for (j, a), own in scores.items() if (j == family, a == family) == kind for v in own]
            for kind in ((True, True), (True, False), (False, True), (False, False))
        ]
        if all(parts):
            own, others, theirs, rest = (math.fsum(part) / len(part) for part in parts)
            deltas[family] = (own - others) - (theirs - rest)
    return deltas


def _ordered(row: Any) -> tuple[float, float]:
    """The person's sign and the scores' difference."""
    if isinstance(row, Mapping):
        row = tuple(row.values())
    if len(row) == 3:
        return float(row[0]), float(row[1]) - float(row[2])
    if len(row) == 2:
        rest = row[1]
        difference = float(rest[0]) - float(rest[1]) if isinstance(rest, Sequence) else float(rest)
        return float(row[0]), difference
    raise UserError(f"concordance: got {row!r:.60}; expected (sign, first score, second score).")
