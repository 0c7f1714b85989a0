"""The few numbers an audit is made of: shifts, rates within groups, who is paid for what."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec import Struct

from burnish.grouping import grouped
from burnish.numbers import solve
from burnish.store.reader import RunReader

RIDGE = 0.05
"""Keeps features that move together from being paid with opposite signs."""


def mean(values: Sequence[float]) -> float | None:
    """None where there is nothing to average."""
    return math.fsum(values) / len(values) if values else None


def deviation(values: Sequence[float]) -> float:
    """Standard deviation; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    centre = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((v - centre) ** 2 for v in values) / (len(values) - 1))


def shift(early: Sequence[float], late: Sequence[float]) -> float:
    """How far the mean moved, in deviations of both halves together; 0 where nothing varies."""
    before, after = mean(early), mean(late)
    if before is None or after is None:
        return 0.0
    spread = math.sqrt((deviation(early) ** 2 + deviation(late) ** 2) / 2)
    if spread == 0:
        return 0.0 if before == after else math.copysign(10.0, after - before)
    return max(-10.0, min(10.0, (after - before) / spread))


def within(values: Sequence[float], groups: Sequence[Hashable]) -> list[float]:
    """Each value less its group's mean."""
    sums = grouped(zip(groups, values, strict=True))
    means = {group: math.fsum(found) / len(found) for group, found in sums.items()}
    return [value - means[group] for value, group in zip(values, groups, strict=True)]


def correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Pearson's; None where one side does not vary."""
    if len(first) < 2:
        return None
    mean_a, mean_b = math.fsum(first) / len(first), math.fsum(second) / len(second)
    a = [value - mean_a for value in first]
    b = [value - mean_b for value in second]
    scale = math.sqrt(math.fsum(x * x for x in a) * math.fsum(y * y for y in b))
    # Sums of rounding errors are not a spread.
    if scale < 1e-12 * len(first):
        return None
    return math.fsum(x * y for x, y in zip(a, b, strict=True)) / scale


def paid(columns: Sequence[Sequence[float]], reward: Sequence[float]) -> list[float]:
    """Standardised coefficients of a ridge regression: what each column earns, others held.

    Columns and reward are differences within groups. A column that does not vary earns 0.
    """
    target = _unit(reward)
    scaled = [_unit(column) for column in columns]
    if target is None:
        return [0.0] * len(columns)
    varying = [i for i, column in enumerate(scaled) if column is not None]
    shown = [column for column in scaled if column is not None]
    matrix = [
        [_dot(a, b) + (RIDGE if i == j else 0.0) for j, b in enumerate(shown)]
        for i, a in enumerate(shown)
    ]
    solved = solve(matrix, [_dot(column, target) for column in shown])
    found = [0.0] * len(columns)
    for place, coefficient in zip(varying, solved, strict=True):
        found[place] = coefficient
    return found


def _unit(values: Sequence[float]) -> list[float] | None:
    length = math.sqrt(math.fsum(value * value for value in values))
    return [value / length for value in values] if length > 1e-9 else None


def _dot(first: Sequence[float], second: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(first, second, strict=True))


SAMPLES = 10
"""Answers that a finding names."""


class Finding(Struct, frozen=True, omit_defaults=True):
    """Something that changed in a run in a way that a reader should look at."""

    monitor: str
    """length, format, phrase, ..."""
    title: str
    text: str
    """One sentence with its numbers."""
    strength: float
    """0 to 1, for the order of the list; no probability."""
    early: float | None = None
    """The figure in the first quarter of the run."""
    late: float | None = None
    """And in the last."""
    curve: tuple[tuple[int, float], ...] = ()
    """By step."""
    samples: tuple[str, ...] = ()
    """Names of the answers that moved it most."""


class Gold(Struct, frozen=True):
    """The reward that was trained on beside a score that was not."""

    reward: tuple[tuple[int, float], ...]
    gold: tuple[tuple[int, float], ...]
    reward_shift: float
    """From the first quarter to the last, in deviations."""
    gold_shift: float
    text: str
    samples: tuple[str, ...]
    """Late answers that are paid most and are worth least."""


class Audit(Struct, frozen=True):
    run: str
    steps: int
    answers: int
    """Read, of the run's rollouts."""
    findings: tuple[Finding, ...]
    conflicts: dict[str, dict[str, float | None]]
    """Correlation of each two rewards within groups; None where one never varies."""
    gold: Gold | None
    note: str = ""
    """Why there is less to say than usual."""


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
