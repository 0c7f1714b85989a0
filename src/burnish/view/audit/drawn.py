"""The part of a run that an audit reads: whole groups of steps spread over it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from burnish.grouping import grouped
from burnish.store.reader import RunReader

STEPS = 48
"""Steps that are looked at; a longer run is sampled evenly, first and last step included."""
ROLLOUTS = 512
"""Rollouts of one step that are looked at."""


class Answer(NamedTuple):
    """One rollout as an audit sees it."""

    id: str
    step: int
    group: str
    prompt: str
    text: str
    tokens: int
    reward: float
    parts: Mapping[str, float]
    """Rewards by name, those that count and those that do not; a part without a value is left out."""


@dataclass(frozen=True)
class Drawn:
    """Answers with a reward, in the order of their steps."""

    answers: tuple[Answer, ...]
    weights: Mapping[str, float]
    """Of each part in the total; 0: scored beside the training and not paid."""
    gold: Mapping[str, float] = field(default_factory=dict)
    """By answer: what a scorer says that the policy was never paid by."""

    @property
    def steps(self) -> list[int]:
        return sorted({answer.step for answer in self.answers})

    def early(self) -> list[Answer]:
        """The first quarter of the steps."""
        first = set(self.steps[: _quarter(self.steps)])
        return [answer for answer in self.answers if answer.step in first]

    def late(self) -> list[Answer]:
        """The last quarter of the steps."""
        last = set(self.steps[-_quarter(self.steps) :])
        return [answer for answer in self.answers if answer.step in last]

    def groups(self) -> dict[tuple[int, str], list[Answer]]:
        """Answers to one prompt at one step."""
        return grouped(((answer.step, answer.group), answer) for answer in self.answers)


def mean_by_step(
    answers: Sequence[Answer], values: Sequence[float]
) -> tuple[tuple[int, float], ...]:
    """The mean of the answers' values at each step."""
    steps = grouped((a.step, value) for a, value in zip(answers, values, strict=True))
    return tuple((step, sum(found) / len(found)) for step, found in sorted(steps.items()))


def draw(
    store: RunReader, *, gold: Mapping[str, float] | None = None, gold_part: str = ""
) -> Drawn:
    """Read what an audit needs; a part of weight 0 is the gold score where none is given."""
    answers: list[Answer] = []
    weights: dict[str, float] = {}
    for step in spread(store.steps(), STEPS):
        query = (
            "SELECT id, group_key, prompt, response, response_tokens, reward FROM samples "
            "WHERE step = ? AND split = 'train' AND idx < ? AND reward IS NOT NULL ORDER BY idx"
        )
        rows = list(store.query(query, (step, ROLLOUTS)))
        parts = _parts(store, step, weights)
        answers += [
            Answer(row[0], step, *row[1:], parts=parts.get(row[0], {}))  # type: ignore[misc]
            for row in rows
        ]
    if gold is None:
        unpaid = [name for name, weight in weights.items() if weight == 0]
        chosen = gold_part or (unpaid[0] if unpaid else "")
        gold = {a.id: a.parts[chosen] for a in answers if chosen in a.parts}
    return Drawn(tuple(answers), weights, gold)


def spread(steps: Sequence[int], most: int) -> list[int]:
    """At most so many steps, evenly, with the first and the last."""
    if len(steps) <= most:
        return list(steps)
    return [steps[round(i * (len(steps) - 1) / (most - 1))] for i in range(most)]


def _parts(store: RunReader, step: int, weights: dict[str, float]) -> dict[str, dict[str, float]]:
    """The direct parts of each rollout's reward; notes their weights."""
    query = (
        "SELECT p.sample_id, p.name, p.value, p.weight FROM samples s "
        "JOIN reward_parts p ON p.sample_id = s.id "
        "WHERE s.step = ? AND s.split = 'train' AND s.idx < ?"
    )
    found: dict[str, dict[str, float]] = {}
    for sample, path, value, weight in store.query(query, (step, ROLLOUTS)):
        place = path.split("/")
        if len(place) != 2:
            continue
        weights.setdefault(place[1], weight)
        if value is not None:
            found.setdefault(sample, {})[place[1]] = value
    return found


def _quarter(steps: Sequence[int]) -> int:
    return max(1, len(steps) // 4)
