"""Why criteria, outside weights and a veto: three simulated judges with the same eyes.

    python -m lab.openrs.simulated

Each response has a quality on eight criteria (two core, three important, three highlight) and, with
a chance of 8 %, a fatal flaw. The better response is the one without a flaw, else the one with the
higher weighted quality. All judges see the same blurred qualities and notice the same flaws.
`holistic` gives one number to each response: it weighs by feel, blurs once more in adding up, and
sees a flaw as one more bad point. The two others compare on each criterion and leave the weights to
`aggregate_criteria`, with flaws as one more core criterion or as a veto. How much is blurred is an
assumption: what the figures show is the order of the three, not their size.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from burnish.rewards.judges.openrs import aggregate_criteria
from lab.openrs.common import arguments, keep, table

TYPES = ("core",) * 2 + ("important",) * 3 + ("highlight",) * 3
WEIGHTS = np.array([5.0] * 2 + [2.0] * 3 + [1.0] * 3)
FATAL = 0.08
SEEN = 0.85
"""Chance that a judge notices a fatal flaw."""
BLUR = 0.6
"""Noise on each criterion, in units of the spread of qualities."""
FEEL = 1.5
"""Spread of the weights by feel, as a factor (log-normal), from pair to pair."""

Array = np.ndarray[Any, Any]


class World(NamedTuple):
    """Many pairs, and what a judge sees of them."""

    label: Array
    """1 or -1."""
    seen_AB: tuple[Array, Array]
    """Noisy qualities, pairs by criteria."""
    flaw_AB: tuple[Array, Array]
    noticed_AB: tuple[Array, Array]


def world(count: int, seed: int) -> World:
    """Pairs whose two responses differ in what decides."""
    rng = np.random.default_rng(seed)
    quality = [rng.normal(size=(count, len(TYPES))) for _ in "AB"]
    flaw = [rng.random(count) < FATAL for _ in "AB"]
    noticed = [f & (rng.random(count) < SEEN) for f in flaw]
    seen = [q + BLUR * rng.normal(size=q.shape) for q in quality]
    lead = (quality[0] - quality[1]) @ WEIGHTS
    fatal = flaw[1].astype(int) - flaw[0].astype(int)
    label = np.where(fatal != 0, fatal, np.sign(lead))
    return World(label, (seen[0], seen[1]), (flaw[0], flaw[1]), (noticed[0], noticed[1]))


def holistic(found: World, seed: int) -> list[float]:
    """One number a response, with weights by feel; a noticed flaw costs as much as a bad core."""
    rng = np.random.default_rng((seed, 1))
    numbers = []
    for seen, noticed in zip(found.seen_AB, found.noticed_AB, strict=True):
        weights = WEIGHTS * np.exp(np.log(FEEL) * rng.normal(size=seen.shape))
        blurred = seen + BLUR * rng.normal(size=seen.shape)
        numbers.append((weights * blurred).sum(axis=1) - 2 * WEIGHTS[0] * noticed)
    return list(numbers[0] - numbers[1])


def by_criteria(found: World, flaw_type: str) -> list[float]:
    """A comparison on each criterion, weighted outside."""
    lead = found.seen_AB[0] - found.seen_AB[1]
    graded = np.sign(lead) * np.where(np.abs(lead) > 1.5, 2, np.where(np.abs(lead) > 0.3, 1, 0))
    flaws = 2 * (found.noticed_AB[1].astype(int) - found.noticed_AB[0].astype(int))
    letter = {1: "A", 0: "S", -1: "B"}
    scores = []
    for row, flaw in zip(graded, flaws, strict=True):
        items = [*zip(TYPES, row, strict=True), (flaw_type, flaw)]
        criteria = [
            {"type": type, "winner": letter[int(np.sign(s))], "score": float(s)}
            for type, s in items
        ]
        scores.append(float(aggregate_criteria(criteria)))
    return scores


def right(scores: Sequence[float], label: Array, where: Array) -> float:
    """Share of right verdicts, a tie counting half."""
    value = np.asarray(scores)
    marks = np.where(value == 0, 0.5, np.sign(value) == label)
    return float(marks[where].mean())


def measured(count: int, seed: int) -> dict[str, tuple[float, float]]:
    """Accuracy of each judge on all pairs, and on those where a response has a fatal flaw."""
    found = world(count, seed)
    everywhere = np.ones(count, dtype=bool)
    fatal = found.flaw_AB[0] | found.flaw_AB[1]
    judges = {
        "holistic number": holistic(found, seed),
        "criteria, flaws as a core item": by_criteria(found, "core"),
        "criteria, flaws as a veto": by_criteria(found, "critical"),
    }
    return {
        name: (right(s, found.label, everywhere), right(s, found.label, fatal))
        for name, s in judges.items()
    }


def main() -> None:
    parser = arguments("Three simulated judges: one number, criteria, criteria with a veto.")
    parser.add_argument("--pairs", type=int, default=20_000)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    runs = [measured(given.pairs, seed) for seed in range(given.seeds)]
    rows: list[list[object]] = []
    for name in runs[0]:
        cells: list[object] = [name]
        for place in (0, 1):
            values = [run[name][place] for run in runs]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            cells += [f"{statistics.fmean(values):.3f}", f"{spread:.3f}"]
        rows.append(cells)
    head = ["judge", "accuracy", "sd", "accuracy with a fatal flaw", "sd with a fatal flaw"]
    shown = [[r[0], f"{r[1]} ± {r[2]}", f"{r[3]} ± {r[4]}"] for r in rows]
    text = "\n".join(
        [
            "# Simulated judges: one number, criteria, criteria with a veto",
            "",
            f"{given.pairs:,} pairs, {given.seeds} seeds, 8 criteria, {FATAL:.0%} fatal flaws a "
            f"response, of which a judge notices {SEEN:.0%}.",
            "",
            table([head[0], head[1], head[3]], shown),
        ]
    )
    keep(given.out, "simulated", text, head, rows)


if __name__ == "__main__":
    main()
