"""One order against two, by each rule, with the recorded judges of LLMBar.

    python -m lab.openrs.orders

First each recorded judge by itself; then its three prompts as three criteria of one score, as OpenRS
aggregates them, where a least score makes ties and the two-order rules part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from burnish.rewards.judges.openrs import (
    aggregate_criteria,
    two_order_strict,
    two_order_verdict,
    two_order_votes,
)
from lab.openrs.common import arguments, keep, read_rows, share, table

PROMPTS = ("Vanilla", "CoT", "Metrics_Reference")
LEAST = 0.5
"""Two of three prompts against one give a score of a third: with this, a tie."""

Score = float | None
Orders = tuple[Score, Score]
"""Scores of whichever response is shown first: unswapped, swapped."""


class Recorded(NamedTuple):
    """One judge on one pair."""

    label: int
    """1: the first output is better, -1: the second."""
    orders: Orders


class Shares(NamedTuple):
    """Right verdicts over all pairs, over those with a winner, over those with a verdict."""

    all: float
    decided: float | None
    valid: float | None
    ties: int
    failed: int


def load(data: Path) -> dict[tuple[str, str], dict[str, Recorded]]:
    """By judge and prompt, then by pair."""
    labels = {row["id"]: row["label"] for row in read_rows(data, "llmbar/test")}
    said: dict[tuple[str, str], dict[str, dict[bool, Score]]] = {}
    for row in read_rows(data, "recorded_judges/llmbar"):
        first = "2" if row["swapped"] else "1"
        winner = row["winner"]
        score = None if winner not in ("1", "2") else 1.0 if winner == first else -1.0
        pair = said.setdefault((row["judge"], row["prompt"]), {}).setdefault(row["id"], {})
        pair[row["swapped"]] = score
    return {
        judge: {
            id: Recorded(1 if labels[id] == 1 else -1, (orders.get(False), orders.get(True)))
            for id, orders in pairs.items()
        }
        for judge, pairs in said.items()
    }


def shares(verdicts: Sequence[int | None], labels: Sequence[int]) -> Shares:
    """Accuracy with its three denominators; a verdict is 1, 0 (tie), -1 or None (none)."""
    right = sum(v == label for v, label in zip(verdicts, labels, strict=True))
    valid = [v for v in verdicts if v is not None]
    decided = [v for v in valid if v]
    return Shares(
        right / len(verdicts),
        right / len(decided) if decided else None,
        right / len(valid) if valid else None,
        len(valid) - len(decided),
        len(verdicts) - len(valid),
    )


def one_order(orders: Orders, place: int, least: float = 0.0) -> int | None:
    """The winner by one order alone: 1 for the first output."""
    score = orders[place]
    if score is None:
        return None
    return 0 if abs(score) <= least else (1 if score > 0 else -1) * (-1 if place else 1)


def by_reference(orders: Orders, least: float = 0.0) -> int | None:
    return _verdict(two_order_verdict(orders, least))


def by_votes(orders: Orders, least: float = 0.0) -> int | None:
    return _verdict(two_order_votes(orders, least))


def by_strict(orders: Orders, least: float = 0.0) -> int | None:
    letters = [
        None if s is None else "S" if abs(s) <= least else "A" if s > 0 else "B" for s in orders
    ]
    return {"win": 1, "lose": -1, "tie": 0}.get(two_order_strict(letters))


def _verdict(word: str) -> int | None:
    return {"good": 1, "bad": -1, "same": 0}.get(word)


RULES: dict[str, Callable[[Orders, float], int | None]] = {
    "reference": by_reference,
    "votes": by_votes,
    "strict": by_strict,
}


def as_criteria(found: Sequence[Recorded]) -> Orders:
    """The three prompts of a judge as three criteria: a score in each order."""

    def score(place: int) -> Score:
        said = [one.orders[place] for one in found]
        known = [s for s in said if s is not None]
        letter = {1.0: "A", -1.0: "B"}
        criteria = [{"type": "core", "winner": letter[s], "score": s} for s in known]
        return None if not known else float(aggregate_criteria(criteria))

    return score(0), score(1)


def flipped(found: Sequence[Orders]) -> float:
    """Share of the pairs, read in both orders, whose winner changes with the order."""
    read = [(f, b) for f, b in found if f is not None and b is not None]
    return sum(f * b > 0 for f, b in read) / len(read)


def rows_of(data: Path) -> list[list[object]]:
    """One row a judge, prompt and rule."""
    recorded = load(data)
    rows: list[list[object]] = []

    def add(
        judge: str, prompt: str, found: Sequence[Orders], labels: Sequence[int], m: float
    ) -> None:
        turned = share(flipped(found))
        singles = [shares([one_order(o, place, m) for o in found], labels) for place in (0, 1)]
        mean = sum(single.all for single in singles) / 2
        failed = sum(single.failed for single in singles)
        ties = sum(single.ties for single in singles)
        decided = _mean(single.decided for single in singles)
        valid = _mean(single.valid for single in singles)
        cells = [share(mean), share(decided), share(valid), ties / 2, failed / 2]
        rows.append([judge, prompt, "one order", *cells, turned])
        for name, rule in RULES.items():
            two = shares([rule(orders, m) for orders in found], labels)
            cells = [share(two.all), share(two.decided), share(two.valid), two.ties, two.failed]
            rows.append([judge, prompt, name, *cells, turned])

    judges = dict.fromkeys(judge for judge, _ in recorded)
    for judge in judges:
        for prompt in PROMPTS:
            pairs = recorded[judge, prompt]
            labels = [one.label for one in pairs.values()]
            add(judge, prompt, [one.orders for one in pairs.values()], labels, 0.0)
        ids = list(recorded[judge, PROMPTS[0]])
        joined = [as_criteria([recorded[judge, p][id] for p in PROMPTS]) for id in ids]
        labels = [recorded[judge, PROMPTS[0]][id].label for id in ids]
        add(judge, "three criteria", joined, labels, 0.0)
        add(judge, f"three criteria, m = {LEAST}", joined, labels, LEAST)
    return rows


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def merged(rows: Sequence[Sequence[object]]) -> list[list[object]]:
    """Rules that give the same figures for a judge share a line."""
    lines: dict[tuple[object, ...], list[str]] = {}
    for judge, prompt, rule, *cells in rows:
        lines.setdefault((judge, prompt, *cells), []).append(str(rule))
    return [[*key[:2], ", ".join(rules), *key[2:]] for key, rules in lines.items()]


def main() -> None:
    given = arguments("One order against two with the recorded judges of LLMBar.").parse_args()
    rows = rows_of(given.data)
    head = ["judge", "prompt", "rule", "all", "decided", "valid", "ties", "failed", "flipped"]
    text = "\n".join(
        [
            "# LLMBar: recorded judges in one order and in two",
            "",
            "290 pairs. `one order` is the mean of the two single orders. Right verdicts over all "
            "pairs, over those with a winner, over those with a verdict. `three criteria`: the "
            "judge's three prompts as three core criteria of one score. Recorded verdicts know no "
            "tie, so the three rules give the same there; they part where a least score makes ties.",
            "",
            table(head, merged(rows)),
        ]
    )
    keep(given.out, "orders", text, head, rows)


if __name__ == "__main__":
    main()
