"""Does a rubric's score order answers as an expert would? A simulation with a judge that errs.

    python -m lab.quarkmedbench.simulation          # one core, under a minute

A query has 8 to 12 points in tiers; an answer covers some of them, with errors. The expert's utility
is nearly lexicographic: dangerous errors and missing essentials first, extras last and less the more
there are. A judge gives the right level in 80 % of the items, else one of the other two. The figure is
the number of pairs that a score orders as the expert over those it reverses. The utility is ours, so
this shows that the formula is consistent with such an expert, not that experts are such.

The second table adds satisfied highlights of one tag to a mediocre answer: what does padding earn?
"""

from __future__ import annotations

import csv
import random
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from burnish.rewards.judges.rubric import MarkedItem, concordance, score
from burnish.seeds import derive

PAIRS, SEEDS = 20_000, (0, 1, 2, 3, 4)
EXACT = 0.8
TAGS = ("information quality", "evidence support", "safety", "readability", "humane care")
EQUAL = {"essential": 1.0, "important": 1.0, "highlight": 1.0, "pitfall": 1.0}
ARMS: dict[str, dict[str, Any]] = {
    "equal weights": {"tier_weights": EQUAL},
    "2:1:1:2": {},
    "2:1:1:2, truncation": {"truncation": True},
    "2:1:1:2, saturation": {"saturation": True},
    "both": {"truncation": True, "saturation": True},
}
RESULTS = Path(__file__).resolve().parent / "results"


class Answer(NamedTuple):
    """True levels of a query's items."""

    items: tuple[MarkedItem, ...]

    @property
    def utility(self) -> float:
        """The expert's: errors and essentials dominate, extras have a falling return."""
        of = {tier: [i.level or 0.0 for i in self.items if i.tier == tier] for tier in EQUAL}
        missing = sum(2 - level for level in of["essential"]) / 2
        errors = sum(1.0 if level == 2 else 0.25 if level else 0.0 for level in of["pitfall"])
        extras = sum(of["important"]) / 2 + sum(of["highlight"]) / 4
        return -4.0 * errors - 2.0 * missing + 1.5 * (1 - 0.6**extras)


def query(rng: random.Random) -> list[MarkedItem]:
    """The items of one query, unmarked."""
    tiers = ["essential"] * rng.randint(2, 4) + ["important"] * rng.randint(2, 3)
    tiers += ["highlight"] * rng.randint(2, 3) + ["pitfall"] * 2
    return [MarkedItem(tier, 0, tag=rng.choice(TAGS)) for tier in tiers]


def answer(items: Sequence[MarkedItem], rng: random.Random) -> Answer:
    """An answer of some care and some eagerness, which need not go together."""
    care, eager, rash = rng.betavariate(2, 2), rng.betavariate(2, 2), rng.betavariate(1, 3)
    chance = {"essential": care, "important": eager, "highlight": eager, "pitfall": rash}
    return Answer(
        tuple(
            item._replace(level=sum(rng.random() < chance[item.tier] for _ in range(2)))
            for item in items
        )
    )


def judged(given: Answer, rng: random.Random) -> list[MarkedItem]:
    """The marks of a judge that is exact in most items."""
    return [
        item
        if rng.random() < EXACT
        else item._replace(level=rng.choice([n for n in (0, 1, 2) if n != item.level]))
        for item in given.items
    ]


def ratios(seed: int, pairs: int = PAIRS) -> dict[str, float]:
    """Correct over reversed pairs of each arm, all on the same marks."""
    rng = random.Random(derive(seed, "quarkmedbench simulation"))
    rows: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ARMS}
    for _ in range(pairs):
        items = query(rng)
        both = answer(items, rng), answer(items, rng)
        marks = [judged(one, rng) for one in both]
        sign = both[0].utility - both[1].utility
        for name, settings in ARMS.items():
            first, second = (score(one, **settings) for one in marks)
            if first is not None and second is not None:
                rows[name].append((sign, first, second))
    return {name: concordance(found).ratio or float("inf") for name, found in rows.items()}


def padding(most: int = 6) -> dict[str, list[float]]:
    """Scores of an answer with half of its essentials as satisfied highlights of a tag are added.

    Every added highlight is an item of the rubric in all of the answers: those not yet added are
    not met.
    """
    base = [MarkedItem("essential", 2), MarkedItem("essential", 0), MarkedItem("important", 1)]
    found: dict[str, list[float]] = {}
    for name, settings in ARMS.items():
        found[name] = [
            score(
                [*base, *(MarkedItem("highlight", 2 * (k < n), tag="care") for k in range(most))],
                **settings,
            )
            or 0.0
            for n in range(most + 1)
        ]
    return found


def report(by_seed: Sequence[dict[str, float]], padded: dict[str, list[float]], pairs: int) -> str:
    """Both tables as text."""
    lines = [
        "# quarkmedbench: simulation", "",
        f"{pairs:,} pairs a seed, {len(by_seed)} seeds, a judge that is exact in {EXACT:.0%} of the "
        "items. Pairs ordered as the expert does over reversed ones:", "",
        "| score | correct : reversed |", "| --- | --- |",
    ]  # fmt: skip
    for name in ARMS:
        values = [row[name] for row in by_seed]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        lines.append(f"| {name} | {statistics.fmean(values):.2f} ± {spread:.2f} |")
    most = len(next(iter(padded.values()))) - 1
    lines += [
        "", "Padding: the score as satisfied highlights of one tag are added to a mediocre answer.",
        "", f"| score | {' | '.join(f'{n} added' for n in range(most + 1))} |",
        f"| --- |{' --- |' * (most + 1)}",
    ]  # fmt: skip
    for name, values in padded.items():
        lines.append(f"| {name} | {' | '.join(f'{value:.3f}' for value in values)} |")
    lines += [
        "",
        "The expert's utility is ours. Repeat: `python -m lab.quarkmedbench.simulation`.",
        "",
    ]
    return "\n".join(lines)


def main(seeds: Sequence[int] = SEEDS, pairs: int = PAIRS, place: Path = RESULTS) -> int:
    """Run, write and print."""
    by_seed = [ratios(seed, pairs) for seed in seeds]
    text = report(by_seed, padding(), pairs)
    place.mkdir(parents=True, exist_ok=True)
    with (place / "simulation.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["seed", *ARMS])
        for seed, row in zip(seeds, by_seed, strict=True):
            writer.writerow([seed, *(f"{row[name]:.5g}" for name in ARMS)])
    (place / "simulation.md").write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
