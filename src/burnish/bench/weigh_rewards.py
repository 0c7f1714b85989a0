"""What four ways to join several rewards make of recorded ones: each reward's share and why.

recorded = read_run(store, first=0, last=9)         # burnish.bench.reward_table
weigh(recorded, threshold={"safety": -0.5}, severity={"safety": 3.0}).record()
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from burnish.bench.reward_table import Recorded, Row
from burnish.errors import UserError
from burnish.policy import ReferenceStats, TriFactor, WeightingComparison, compare_weightings
from burnish.policy.groups import label_numbers
from burnish.tensors import torch

REASONS = 3
"""Reasons that are shown for each reward under its threshold."""


class Cause(NamedTuple):
    """A reason that a reward gave under its threshold."""

    reason: str
    answers: int
    sample: str
    """One answer that it was given for."""


class Below(NamedTuple):
    """The answers under one reward's threshold, and why the reward says so."""

    reward: str
    threshold: float
    answers: int
    of: int
    causes: tuple[Cause, ...]
    """The most frequent ones; none where the reward gives no reason."""
    silent: int
    """Answers under the threshold that came without a reason."""


class Weighed(NamedTuple):
    """The report on one table of recorded rewards."""

    title: str
    answers: int
    groups: int
    unit: str
    found: WeightingComparison
    categories: Mapping[str, str]
    unweighed: tuple[str, ...]
    """Rewards of weight 0."""
    below: tuple[Below, ...]
    scale: str
    """How the sums are scaled, as in the run."""
    replayed: int
    """Answers of earlier steps, which only moved the weights."""
    not_followed: tuple[str, ...]
    """What of the run's recipe none of the four does."""

    def record(self) -> dict[str, Any]:
        """The same for machines."""
        return {
            "source": self.title,
            "answers": self.answers,
            "groups": self.groups,
            "unit": self.unit,
            **self.found.record(),
            "categories": dict(self.categories),
            "category_shares": category_shares(self.found, self.categories),
            "unweighed": self.unweighed,
            "scale": self.scale,
            "replayed": self.replayed,
            "not_followed": self.not_followed,
            "below_threshold": [
                {**below._asdict(), "causes": [cause._asdict() for cause in below.causes]}
                for below in self.below
            ],
        }


def weigh(
    recorded: Recorded,
    *,
    severity: Mapping[str, float] | None = None,
    threshold: Mapping[str, float] | None = None,
    reference: int | None = None,
) -> Weighed:
    """The four methods on a table of rewards; `severity` and `threshold` add to the run's rule."""
    names = recorded.weighed
    _check_values(recorded, names)
    rule = _rule(recorded.rule, severity or {}, threshold or {})
    rows, shown = recorded.rows, recorded.shown
    # None means missing to `compare_weightings`, which numpy's types cannot say.
    table: Any = [[row.rewards.get(name) for name in names] for row in rows]
    start, unit = _reference(recorded, names, reference)
    found = compare_weightings(
        table,
        label_numbers([row.group for row in rows]),
        names=names,
        steps=None if rows[0].step is None else label_numbers([row.step for row in rows]),
        weights=torch.tensor([recorded.weights.get(name, 1.0) for name in names]).double(),
        reference=start,
        frozen=recorded.frozen,
        rule=rule,
        scaling=recorded.advantage,
        replayed=recorded.replayed,
    )
    return Weighed(
        title=recorded.title,
        answers=len(shown),
        groups=len({(row.step, row.group) for row in shown}),
        unit=unit,
        found=found,
        categories={n: c for n, c in recorded.categories.items() if n in names},
        unweighed=tuple(name for name in recorded.names if name not in names),
        below=tuple(diagnose(shown, n, rule.threshold[n]) for n in names if n in rule.threshold),
        scale=recorded.advantage.scale,
        replayed=recorded.replayed,
        not_followed=recorded.not_followed,
    )


def diagnose(rows: Sequence[Row], reward: str, threshold: float) -> Below:
    """How many answers a reward puts under its threshold, and its most frequent reasons for it."""
    under = [r for r in rows if (v := r.rewards.get(reward)) is not None and v < threshold]
    counts = Counter(row.reasons[reward] for row in under if reward in row.reasons)
    first: dict[str, str] = {}
    for row in under:
        first.setdefault(row.reasons.get(reward, ""), row.id)
    causes = [Cause(why, count, first[why]) for why, count in counts.most_common(REASONS)]
    present = sum(row.rewards.get(reward) is not None for row in rows)
    silent = len(under) - counts.total()
    return Below(reward, threshold, len(under), present, tuple(causes), silent)


def category_shares(
    found: WeightingComparison, categories: Mapping[str, str]
) -> dict[str, dict[str, float | None]]:
    """The share of each category in the advantage, by method; none where there are no categories."""
    if not categories:
        return {}
    labels = [categories.get(name, "") for name in found.names]
    record = found.record()["methods"]
    shares: dict[str, dict[str, float | None]] = {}
    for label in dict.fromkeys(labels):
        members = [n for n, own in zip(found.names, labels, strict=True) if own == label]
        shares[label] = {
            method: _total([by_reward[name]["share"] for name in members])
            for method, by_reward in record.items()
        }
    return shares


def _total(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _rule(
    rule: TriFactor, severities: Mapping[str, float], thresholds: Mapping[str, float]
) -> TriFactor:
    """The run's rule with what is given; a severity without a threshold is refused."""
    severity, threshold = {**rule.severity, **severities}, {**rule.threshold, **thresholds}
    for name in severity:
        if name not in threshold:
            raise UserError(
                f"--severity {name}: '{name}' has no threshold; give the value below which its "
                f"rule is broken: --threshold {name}=0"
            )
    return replace(rule, severity=severity, threshold=threshold)


def _check_values(recorded: Recorded, names: Sequence[str]) -> None:
    """Refuse tables in which there is nothing to weigh."""
    if not names:
        raise UserError(
            f"{recorded.title}: no reward has a weight other than 0; there is nothing to weigh."
        )
    for name in names:
        if all(row.rewards.get(name) is None for row in recorded.rows):
            why = f" See why: burnish show {recorded.run} --failed 5" if recorded.run else ""
            raise UserError(
                f"{recorded.title}: reward '{name}' has no value in any of "
                f"{len(recorded.rows)} answers; expected some.{why}"
            )


def _reference(
    recorded: Recorded, names: Sequence[str], asked: int | None
) -> tuple[ReferenceStats | int | None, str]:
    """What stands for the start model, and a line that says so."""
    rows = recorded.rows
    unit = recorded.unit
    if asked is None and unit is not None and set(names) <= set(unit.names):
        stats = ReferenceStats.from_numbers(*unit.columns(names))
        return stats, f"{unit.answers} answers of its start"
    if asked is None and rows[0].step is None:
        return None, "all of these answers: give --reference N where the first N are the start's"
    if asked is not None and asked > len(rows):
        raise UserError(f"--reference {asked}: got {len(rows)} answers; expected at most as many.")
    # What training does where nothing was measured before its first step.
    count = asked or sum(row.step == rows[0].step for row in rows)
    for name in names:
        if all(row.rewards.get(name) is None for row in rows[:count]):
            raise UserError(
                f"{recorded.title}: reward '{name}' has no value in the first {count} answers, "
                "which stand for the start model; give a larger --reference."
            )
    return count, f"the first {count} answers"
