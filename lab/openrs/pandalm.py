"""A rubric evolved against human labels on PandaLM: criteria by program, two recorded judges.

    python -m lab.openrs.pandalm

Every criterion says which of two responses has more of something; a rubric picks criteria, says
which way is better and gives each a type, and `aggregate_criteria` makes the score. Evolution
searches on one half of the decided pairs (part of it untouched, for the final choice) and is tested
on the other half, on eight splits.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import numpy as np

from burnish.rewards.judges.openrs import (
    Item,
    MetaRubric,
    RubricEvolution,
    Search,
    aggregate_criteria,
    evolve_rubric,
    random_edits,
)
from burnish.rewards.judges.openrs.meta_rubric import TYPES, WEIGHTS
from burnish.seeds import Seeds
from lab.openrs.common import arguments, keep, read_rows, table
from lab.openrs.features import FEATURES

JUDGES = ("gpt-3.5-turbo", "pandalm-7b")
UP, DOWN = "More is better.", "Less is better."
SEARCH = Search(beam=4, proposals=16, generations=30, patience=8)
CHOICE = 0.2
"""Share of the first half that the search does not see."""


class Pair(NamedTuple):
    """A pair with a decided majority."""

    id: str
    label: int
    row: int
    """Its place in the table of criteria."""


class Table(NamedTuple):
    """Pairs, and the verdict of every criterion on every pair: -2 to 2, above 0 for the first."""

    pairs: list[Pair]
    names: list[str]
    verdicts: np.ndarray[Any, np.dtype[np.float64]]


def load(data: Path, judges: Sequence[str] = JUDGES) -> Table:
    """The pairs with a decided majority of three annotators, and their criteria."""
    rows = read_rows(data, "pandalm/test")
    said = {
        (row["idx"], row["judge"]): {"1": 2.0, "2": -2.0}.get(row["result"], 0.0)
        for row in read_rows(data, "recorded_judges/pandalm")
    }
    pairs: list[Pair] = []
    leads: list[list[float]] = []
    recorded: list[list[float]] = []
    for row in rows:
        votes = Counter(row[f"annotator{n}"] for n in (1, 2, 3))
        winner, count = votes.most_common(1)[0]
        if count < 2 or winner not in (1, 2):
            continue
        request = f"{row['instruction']} {row['input']}"
        texts = (row["response1"], row["response2"])
        leads.append([f(request, texts[0]) - f(request, texts[1]) for f in FEATURES.values()])
        recorded.append([said[row["idx"], judge] for judge in judges])
        pairs.append(Pair(str(row["idx"]), 1 if winner == 1 else -1, len(pairs)))
    lead = np.array(leads)
    # 2 for a difference above the usual one, 1 below; labels play no part in it.
    usual = [np.median(np.abs(c[c != 0])) if c.any() else 1.0 for c in lead.T]
    graded = np.sign(lead) * (1 + (np.abs(lead) > np.array(usual)))
    verdicts = np.hstack([graded, np.array(recorded).reshape(len(pairs), -1)])
    return Table(pairs, [*FEATURES, *judges], verdicts)


def scores(rubric: MetaRubric, found: Table, rows: Sequence[int]) -> np.ndarray[Any, Any]:
    """`aggregate_criteria` of the rubric on many pairs at once."""
    place = {name: i for i, name in enumerate(found.names)}
    total = np.zeros(len(rows))
    weight = np.zeros(len(rows))
    flaws = np.zeros(len(rows))
    is_flawed = np.zeros(len(rows), dtype=bool)
    for item in rubric.items:
        verdict = found.verdicts[rows, place[item.title]] * (1 if item.text == UP else -1)
        if item.type == "critical":
            flaws += verdict
            is_flawed |= verdict != 0
        else:
            total += WEIGHTS[item.type] * verdict
            weight += WEIGHTS[item.type] * (verdict != 0)
    return np.where(is_flawed, flaws, total / (weight + 1e-6))


def slow_scores(rubric: MetaRubric, found: Table, rows: Sequence[int]) -> list[float]:
    """The same by the function itself, one pair at a time."""
    letter = {1: "A", 0: "S", -1: "B"}
    place = {name: i for i, name in enumerate(found.names)}
    out = []
    for row in rows:
        criteria = []
        for item in rubric.items:
            score = found.verdicts[row, place[item.title]] * (1 if item.text == UP else -1)
            winner = letter[int(np.sign(score))]
            criteria.append({"type": item.type, "winner": winner, "score": score})
        out.append(aggregate_criteria(criteria))
    return out


def accuracy(values: Sequence[float], labels: Sequence[int]) -> tuple[float, float]:
    """Share of right verdicts over all pairs, a tie counting half, and the share of ties."""
    value, label = np.asarray(values, dtype=float), np.asarray(labels)
    right = np.where(value == 0, 0.5, (value > 0) == (label > 0))
    return float(right.mean()), float((value == 0).mean())


def pool_of(names: Sequence[str]) -> list[Item]:
    """Every criterion in every type and both directions."""
    return [Item(type, name, text) for name in names for type in TYPES for text in (UP, DOWN)]


def evolved(
    found: Table, first: Sequence[Pair], names: Sequence[str], seed: int
) -> RubricEvolution:
    """The rubric that evolution makes of one half."""

    async def judge(rubric: MetaRubric, pairs: Sequence[Pair]) -> list[float]:
        return [float(s) for s in scores(rubric, found, [pair.row for pair in pairs])]

    cut = round(len(first) * (1 - CHOICE))

    async def run() -> RubricEvolution:
        return await evolve_rubric(
            MetaRubric(()),
            first[:cut],
            first[cut:],
            judge=judge,
            propose=random_edits(pool_of(names), SEARCH.proposals),
            search=SEARCH,
            seed=seed,
        )

    return anyio.run(run)


def random_rubric(names: Sequence[str], size: int, seed: int) -> MetaRubric:
    """A rubric of chance of a given size: what edits without selection come to."""
    rng = Seeds(seed).rng("random rubric")
    chosen = rng.sample(list(names), min(size, len(names)))
    items = [Item(rng.choice(TYPES), name, rng.choice((UP, DOWN))) for name in chosen]
    return MetaRubric(tuple(items))


def equal_weights(names: Sequence[str], found: Table, first: Sequence[Pair]) -> MetaRubric:
    """All criteria as important ones, each in the direction that fits the first half."""
    rows, labels = [p.row for p in first], np.array([p.label for p in first])
    fits = found.verdicts[rows].T @ labels
    place = {name: i for i, name in enumerate(found.names)}
    items = [Item("important", name, UP if fits[place[name]] >= 0 else DOWN) for name in names]
    return MetaRubric(tuple(items))


def one_split(found: Table, seed: int) -> tuple[dict[str, tuple[float, float]], RubricEvolution]:
    """Accuracy on the second half of one shuffle, by every way to judge."""
    order = list(found.pairs)
    Seeds(seed).rng("split").shuffle(order)
    half = len(order) // 2
    first, second = order[:half], order[half:]
    rows, labels = [p.row for p in second], [p.label for p in second]
    own = list(FEATURES)

    def test(rubric: MetaRubric) -> tuple[float, float]:
        return accuracy(list(scores(rubric, found, rows)), labels)

    def single(name: str) -> MetaRubric:
        return MetaRubric((Item("core", name, UP),))

    best, alone = evolved(found, first, found.names, seed), evolved(found, first, own, seed)
    size = len(best.rubric.items)
    judges = found.verdicts[rows][:, len(own) :]
    arms = {
        "longer wins": test(single("characters")),
        "GPT-3.5, recorded": test(single(JUDGES[0])),
        "PandaLM-7B, recorded": test(single(JUDGES[1])),
        "vote of the two": accuracy(list(judges.sum(axis=1)), labels),
        "a random rubric": test(random_rubric(found.names, size, seed)),
        "all criteria, equal weight": test(equal_weights(found.names, found, first)),
        "evolved, programs alone": test(alone.rubric),
        "evolved": test(best.rubric),
        "evolved, where searched": (best.dev_accuracy, 0.0),
    }
    return arms, best


def main() -> None:
    parser = arguments("Evolve a rubric on PandaLM and test it on held-out pairs.")
    parser.add_argument("--splits", type=int, default=8)
    given = parser.parse_args()
    found = load(given.data)
    splits = [one_split(found, seed) for seed in range(given.splits)]
    names = list(splits[0][0])
    vote = [arms["vote of the two"][0] for arms, _ in splits]
    rows: list[list[object]] = []
    for name in names:
        right = [arms[name][0] for arms, _ in splits]
        ties = statistics.fmean(arms[name][1] for arms, _ in splits)
        more = [a - b for a, b in zip(right, vote, strict=True)]
        rows.append([name, *(f"{x:.3f}" for x in _spread(right)), f"{ties:.3f}", *_lead(more)])
    head = ["judge", "accuracy", "sd", "ties", "minus the vote", "splits above"]
    shown = [[r[0], f"{r[1]} ± {r[2]}", *r[3:]] for r in rows]
    sizes = [len(best.rubric.items) for _, best in splits]
    tried = [len(best.log) for _, best in splits]
    taken = [sum(step.accepted for step in best.log) for _, best in splits]
    text = "\n".join(
        [
            "# PandaLM: a rubric evolved against human labels",
            "",
            f"{len(found.pairs)} pairs with a decided majority, {given.splits} splits in halves, mean "
            "and standard deviation over splits; a tie counts half. The first half is searched on "
            f"({1 - CHOICE:.0%}) and decided on ({CHOICE:.0%}), the second is the test.",
            "",
            table([head[0], "accuracy on the second half", *head[3:]], shown),
            "",
            f"Edits tried a split: {statistics.fmean(tried):.0f}, accepted "
            f"{statistics.fmean(taken):.1f}; items of the rubric: {min(sizes)} to {max(sizes)}.",
            "",
            "The rubric of split 0:",
            "",
            *(f"- {item.type}: {item.title}. {item.text}" for item in splits[0][1].rubric.items),
        ]
    )
    keep(given.out, "pandalm", text, head, rows)
    log = splits[0][1].report(with_refused=False)
    (given.out / "pandalm_log.md").write_text(log, encoding="utf-8")


def _spread(values: Sequence[float]) -> tuple[float, float]:
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def _lead(more: Sequence[float]) -> tuple[str, str]:
    above = sum(x > 0 for x in more)
    return f"{statistics.fmean(more):+.3f}", f"{above}/{len(more)}"


if __name__ == "__main__":
    main()
