"""How a reward model does on pairs: by group, by style (RM-Bench), and when an attribute is moved.

The chosen response wins only with the higher score: a tie is a loss. What has no pair is None.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import groupby, product
from operator import itemgetter
from statistics import correlation, fmean
from typing import Annotated, Any

from msgspec import Meta

from burnish.arguments import refused, same_length
from burnish.boundary import Number, public

DOMAINS = ("chat", "math", "code", "safety")
"""Of RM-Bench; `safety-refuse` and `safety-response` are one."""
NATURAL, ADVERSARIAL = 0, 1
LARGEST = 1e100
"""Of a score that is computed with as it is."""

Mark = Annotated[int, Meta(ge=0, le=1)]
Answer = str | Number | bool
Metrics = dict[str, float | None]


@public
def grouped_pair_metrics(
    r_chosen: Sequence[Number], r_rejected: Sequence[Number], group: Sequence[Mark]
) -> Metrics:
    """Accuracy and mean margin over all pairs, the natural (group 0) and the adversarial (1).

    In a natural pair the attribute agrees with the label, in an adversarial one it opposes it.
    """
    same_length("r_rejected", r_rejected, len(r_chosen), "chosen rewards")
    same_length("group", group, len(r_chosen), "pairs")
    margins = [a - b for a, b in zip(r_chosen, r_rejected, strict=True)]
    wins = [a > b for a, b in zip(r_chosen, r_rejected, strict=True)]
    found: Metrics = {"accuracy": _mean(wins), "margin": _mean(margins)}
    for name, number in (("natural", NATURAL), ("adversarial", ADVERSARIAL)):
        at = [place for place, one in enumerate(group) if one == number]
        found[f"{name}_accuracy"] = _mean([wins[place] for place in at])
        found[f"{name}_margin"] = _mean([margins[place] for place in at])
    return found


@public
def accuracy_by_group(
    predictions: Sequence[Answer], labels: Sequence[Answer], groups: Sequence[Answer]
) -> dict[Hashable, float | None]:
    """Share of predictions that equal their labels: `overall`, then each group by name."""
    same_length("labels", labels, len(predictions), "predictions")
    same_length("groups", groups, len(predictions), "predictions")
    hits = [a == b for a, b in zip(predictions, labels, strict=True)]
    found: dict[Hashable, float | None] = {"overall": _mean(hits)}
    for name in sorted(set(groups), key=str):
        found[name] = _mean([hit for hit, one in zip(hits, groups, strict=True) if one == name])
    return found


@public
def rmbench_metrics(
    domains: Sequence[str],
    scores_chosen_rejected: Sequence[tuple[Number, Number]],
    styles_per_sample: Annotated[int, Meta(ge=2)] = 3,
) -> Metrics:
    """RM-Bench from rows of (chosen, rejected) scores, one row a style of a sample.

    Rows of a sample follow each other: concise, detailed, detailed with markdown. Chosen style i
    meets rejected style j: hard where i < j, normal where i = j, easy where i > j. `domains` has one
    name a row or a sample; a domain is known by how its name begins. Gives `hard`, `normal`, `easy`
    (means over domains), a value for each domain that is there and `total`, their mean.
    """
    styles, rows, names = styles_per_sample, scores_chosen_rejected, list(domains)
    if len(names) * styles == len(rows):
        names = [name for name in names for _ in range(styles)]
    same_length("domains", names, len(rows), "rows")
    levels: dict[str, dict[str, float]] = {}
    for domain in DOMAINS:
        mine = [row for row, name in zip(rows, names, strict=True) if name.startswith(domain)]
        if len(mine) % styles:
            raise refused("domains", f"{len(mine)} rows of {domain}", f"{styles} rows a sample")
        wins: dict[str, list[bool]] = {"hard": [], "normal": [], "easy": []}
        for start in range(0, len(mine), styles):
            sample = mine[start : start + styles]
            for (i, (chosen, _)), (j, (_, rejected)) in product(enumerate(sample), repeat=2):
                level = "hard" if i < j else "normal" if i == j else "easy"
                wins[level].append(chosen > rejected)
        if mine:
            levels[domain] = {level: fmean(marks) for level, marks in wins.items()}
    found: Metrics = {name: fmean(parts.values()) for name, parts in levels.items()}
    total = _mean(list(found.values()))
    for level in ("hard", "normal", "easy"):
        found[level] = _mean([parts[level] for parts in levels.values()])
    return {**found, "total": total}


@public
def attribute_correlation(rewards: Sequence[Number], attribute: Sequence[Number]) -> float | None:
    """Pearson's correlation of rewards with an attribute, such as length; None if one is constant."""
    same_length("attribute", attribute, len(rewards), "rewards")
    for values in (rewards, attribute):
        if not values or max(values) - min(values) <= 1e-6 * max(1.0, abs(max(values))):
            return None
    # Divided where sums of squares would leave the range of a float.
    units = (max(1.0, max(map(abs, values)) / LARGEST) for values in (rewards, attribute))
    both = zip((rewards, attribute), units, strict=True)
    return correlation(*([value / unit for value in values] for values, unit in both))


@public
def auc(scores: Sequence[Number], labels: Sequence[Mark]) -> float | None:
    """Chance that a pair of label 1 scores above one of label 0, ties half; None without both."""
    same_length("labels", labels, len(scores), "scores")
    positives = sum(labels)
    if not 0 < positives < len(labels):
        return None
    wins = 0.0
    below = 0  # pairs of label 0 with a lower score
    for _, tied in groupby(sorted(zip(scores, labels, strict=True)), key=itemgetter(0)):
        here = [mark for _, mark in tied]
        ones = sum(here)
        wins += ones * (below + (len(here) - ones) / 2)
        below += len(here) - ones
    return wins / (positives * (len(labels) - positives))


def _mean(values: Sequence[Any]) -> float | None:
    return fmean(values) if values else None
