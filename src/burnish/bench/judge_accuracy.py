"""How often a judge is right: over all items, over those it decided, over those it answered.

`all` counts a tie and a missing verdict as not right, so that no judge gains by declining;
`valid` leaves missing verdicts out, `decided` also leaves ties out. An item without a label is in
none of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

from msgspec import Meta

from burnish.arguments import refused, same_length
from burnish.bench.items import Choice, Judged
from burnish.bench.statistics import Estimate, estimate_of
from burnish.boundary import Number, public
from burnish.numbers import grouped

Mark = str | int | float
"""A category that a rater gave."""
DIFFICULTIES = ("easy", "normal", "hard")


class Accuracy(NamedTuple):
    """Shares of right choices; None where there is nothing to divide by."""

    all: Estimate | None
    decided: Estimate | None
    valid: Estimate | None
    items: int
    ties: int
    failed: int


class Subsets(NamedTuple):
    """Accuracy of each subset, and the mean of the subsets' accuracies over all items."""

    each: dict[str, Accuracy]
    macro: float | None


class Flips(NamedTuple):
    flipped: Estimate | None
    """Share of the pairs with a winner in both orders whose winner changed."""
    first_place: Estimate | None
    """Share of the verdicts with a winner that named the response in the first place."""


@public
def accuracy(judged: Sequence[Judged]) -> Accuracy:
    """Accuracy over the items that have a label."""
    known = [one for one in judged if one.best]
    valid = [one for one in known if one.is_valid]
    decided = [one for one in known if one.is_decided]
    return Accuracy(
        all=estimate_of(one.credit for one in known),
        decided=estimate_of(one.credit for one in decided),
        valid=estimate_of(one.credit for one in valid),
        items=len(known),
        ties=len(valid) - len(decided),
        failed=len(known) - len(valid),
    )


@public
def by_subset(judged: Sequence[Judged]) -> Subsets:
    """Accuracy of each subset, in the order of their names."""
    groups = grouped((one.subset, one) for one in judged)
    each = {name: accuracy.plain(groups[name]) for name in sorted(groups)}
    values = [found.all.value for found in each.values() if found.all is not None]
    return Subsets(each, sum(values) / len(values) if values else None)


class Styles(NamedTuple):
    """RM-Bench by difficulty: the mean of the domains, and each domain."""

    easy: float | None
    normal: float | None
    hard: float | None
    mean: float | None
    """Mean of the domains' means, where a domain's mean is that of its three difficulties."""
    domains: dict[str, dict[str, float]]


@public
def by_style(judged: Sequence[Judged]) -> Styles:
    """Easy, normal and hard pairs of RM-Bench; a tie or a missing verdict is not a win."""
    domains: dict[str, dict[str, float]] = {}
    subsets = grouped((one.subset, one) for one in judged)
    for name, members in sorted(subsets.items()):
        parts = grouped((difficulty(one), one) for one in members)
        domains[name] = {
            level: sum(one.credit for one in parts[level]) / len(parts[level])
            for level in DIFFICULTIES
            if level in parts
        }
    means = [sum(levels.values()) / len(levels) for levels in domains.values() if levels]
    easy, normal, hard = (
        _mean([levels[level] for levels in domains.values() if level in levels])
        for level in DIFFICULTIES
    )
    return Styles(easy, normal, hard, _mean(means), domains)


def difficulty(one: Judged) -> str:
    """Hard where the wrong answer has the more elaborate style, easy where the right one has."""
    right, wrong = int(one.info["right_style"]), int(one.info["wrong_style"])
    return "normal" if right == wrong else "easy" if right > wrong else "hard"


def confusion(judged: Sequence[Judged]) -> dict[tuple[str, str], int]:
    """How often each label met each verdict, for pairs: (label, verdict) -> count."""
    pairs = Counter((name_of(one.best), name_of(one.choice)) for one in judged if one.best)
    return dict(sorted(pairs.items()))


def name_of(choice: Choice | None) -> str:
    """`1`, `2`, `tie` or `none`: places as a person counts them."""
    if choice is None:
        return "none"
    return str(choice[0] + 1) if len(choice) == 1 else "tie"


def disagreements(judged: Sequence[Judged]) -> list[Judged]:
    """Items whose verdict names another response than the label, then those without a verdict."""
    wrong = [one for one in judged if one.best and one.is_valid and one.credit < 1]
    return wrong + [one for one in judged if one.best and not one.is_valid]


@public
def flips(forward: Sequence[Judged], backward: Sequence[Judged]) -> Flips:
    """Two orders of the same pairs, both with choices in the item's own numbering.

    `backward` is what was said where the second response stood first.
    """
    other = {one.id: one for one in backward}
    both = [(one, other[one.id]) for one in forward if one.id in other]
    decided = [(a, b) for a, b in both if a.is_decided and b.is_decided]
    firsts = [one.choice == (0,) for one, _ in both if one.is_decided]
    firsts += [two.choice == (1,) for _, two in both if two.is_decided]
    changed = [float(a.choice != b.choice) for a, b in decided]
    return Flips(estimate_of(changed), estimate_of(map(float, firsts)))


@public
def cohen_kappa(first: Sequence[Mark], second: Sequence[Mark]) -> float | None:
    """Agreement of two raters beyond chance: (observed - expected) / (1 - expected).

    None without items, and where both used one and the same category throughout.
    """
    same_length("second", second, len(first), "marks of the first")
    count = len(first)
    if count == 0:
        return None
    observed = sum(a == b for a, b in zip(first, second, strict=True)) / count
    ones, twos = Counter(first), Counter(second)
    expected = sum(ones[name] * twos[name] for name in ones) / count**2
    return None if expected == 1 else (observed - expected) / (1 - expected)


@public
def fleiss_kappa(marks: Sequence[Sequence[Mark]]) -> float | None:
    """Agreement of several raters beyond chance; one row an item, as many marks in each row."""
    if not marks:
        return None
    raters = len(marks[0])
    if raters < 2 or any(len(row) != raters for row in marks):
        raise refused("marks", marks, "the same number of marks for every item, at least two")
    totals: Counter[Mark] = Counter()
    agreed = 0.0
    for row in marks:
        counts = Counter(row)
        totals.update(counts)
        agreed += sum(n * (n - 1) for n in counts.values()) / (raters * (raters - 1))
    observed = agreed / len(marks)
    expected = sum((n / (len(marks) * raters)) ** 2 for n in totals.values())
    return None if expected == 1 else (observed - expected) / (1 - expected)


class Agreement(NamedTuple):
    percent: Estimate | None
    """Share of the items with a verdict on which judge and majority agree, ties included."""
    kappa: float | None
    """Cohen's kappa of judge and majority over the same items."""
    with_each: tuple[float | None, ...]
    """Cohen's kappa of the judge and each single person."""
    people: float | None
    """Fleiss' kappa of the people among themselves, over all their items."""


@public
def agreement(judged: Sequence[Judged], people: Mapping[str, Sequence[Choice]]) -> Agreement:
    """How a judge agrees with people, whose choices are given by item id."""
    shared = [one for one in judged if one.is_valid and one.best and one.id in people]
    said = [name_of(one.choice) for one in shared]
    majority = [name_of(one.best) for one in shared]
    equal = [float(a == b) for a, b in zip(said, majority, strict=True)]
    raters = len(people[shared[0].id]) if shared else 0
    each = tuple(
        cohen_kappa.plain(said, [name_of(people[one.id][person]) for one in shared])
        for person in range(raters)
    )
    among = [[name_of(choice) for choice in choices] for choices in people.values()]
    return Agreement(
        estimate_of(equal),
        cohen_kappa.plain(said, majority),
        each,
        fleiss_kappa.plain(among),
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


class Detection(NamedTuple):
    """Rates over the decided answers, and what is left of them over all."""

    balanced: Estimate | None
    caught: Estimate | None
    passed: Estimate | None
    all: Estimate | None
    """Balanced accuracy where an answer without a score counts as wrong."""
    items: int
    decided: int


@public
def detection(
    scores: Annotated[Sequence[Number | None], Meta(min_length=1)],
    faithful: Sequence[bool],
    *,
    threshold: Number = 0.5,
) -> Detection:
    """Balanced accuracy of scores against labels; None is an answer without a score.

    >>> detection([0.2, 1.0, 1.0, None], [False, True, False, True], threshold=1.0).balanced.value
    0.75
    """
    same_length("faithful", faithful, len(scores), "scores")
    kinds: dict[bool, list[float | None]] = {True: [], False: []}
    for value, label in zip(scores, faithful, strict=True):
        kinds[label].append(None if value is None else float((value >= threshold) == label))
    caught, passed = estimate_of(kinds[False]), estimate_of(kinds[True])
    everything = (estimate_of(one or 0.0 for one in kinds[label]) for label in (False, True))
    return Detection(
        _balanced(caught, passed),
        caught,
        passed,
        _balanced(*everything),
        len(scores),
        sum(value is not None for value in scores),
    )


def _balanced(first: Estimate | None, second: Estimate | None) -> Estimate | None:
    if first is None or second is None:
        return None
    value = (first.value + second.value) / 2
    low = math.hypot(first.value - first.low, second.value - second.low) / 2
    high = math.hypot(first.high - first.value, second.high - second.value) / 2
    return Estimate(value, max(0.0, value - low), min(1.0, value + high), first.size + second.size)
