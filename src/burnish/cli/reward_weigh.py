"""`burnish reward weigh`: what four ways to join several rewards make of those that are recorded."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from burnish.cli.console import emit_json
from burnish.cli.needs import policy_room
from burnish.cli.recorded import LARGEST, Recorded, Row, read_file, read_run
from burnish.errors import UserError, did_you_mean
from burnish.policy.pieces import TriFactor
from burnish.store import RunStore, find_run
from burnish.tasks.rows import SUFFIXES

if TYPE_CHECKING:
    from burnish.policy import ReferenceStats, WeightingComparison

REASONS = 3
"""Reasons that are shown for each reward under its threshold."""


class Query(NamedTuple):
    """The flags of `burnish reward weigh`."""

    step: str = ""
    severity: tuple[str, ...] = ()
    threshold: tuple[str, ...] = ()
    reference: int | None = None
    as_json: bool = False


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
    """All that is told about one table of recorded rewards."""

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


def weigh(folder: Path, source: str, query: Query) -> int:
    """Read recorded rewards, compare the four methods on them, and print or emit it."""
    recorded = _read(folder, source, query.step)
    weighed = compare(recorded, query)
    if query.as_json:
        emit_json(weighed.record())
    else:
        from burnish.cli.weigh_report import print_weighed

        print_weighed(weighed)
    return 0


def compare(recorded: Recorded, query: Query) -> Weighed:
    """The four methods on a table of rewards."""
    policy = policy_room()
    names = tuple(name for name in recorded.names if recorded.weights.get(name, 1.0) != 0)
    _check_values(recorded, names)
    rule = _rule(recorded.rule, query, names)
    rows, shown = recorded.rows, recorded.shown
    table = [[row.rewards.get(name) for name in names] for row in rows]
    reference, unit = _reference(recorded, names, query.reference)
    found = policy.compare_weightings(
        table,
        [row.group for row in rows],
        names=names,
        steps=None if rows[0].step is None else [row.step for row in rows],
        weights=[recorded.weights.get(name, 1.0) for name in names],
        reference=reference,
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


def _read(folder: Path, source: str, step: str) -> Recorded:
    path = Path(source)
    if path.suffix.lower() in SUFFIXES and not path.is_dir():
        if step:
            raise UserError(f"--step {step} is for runs; {source} is a file.")
        return read_file(path)
    first, last = _steps(step)
    with RunStore.open(find_run(folder, source), read_only=True) as store:
        return read_run(store, first, last)


def _steps(text: str) -> tuple[int | None, int | None]:
    """`5` or `0..9`, both ends included; nothing is all steps."""
    if not text:
        return None, None
    match = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", text)
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise UserError(
            f"--step: got '{text}'; expected a step such as 5, or a range such as 0..9."
        )
    return int(match[1]), int(match[2] or match[1])


def _rule(rule: TriFactor, query: Query, names: Sequence[str]) -> TriFactor:
    """The run's rule with what the flags say; a severity without a threshold is refused."""
    severity = {**rule.severity, **_by_name("--severity", query.severity, names)}
    threshold = {**rule.threshold, **_by_name("--threshold", query.threshold, names)}
    for name in severity:
        if name not in threshold:
            raise UserError(
                f"--severity {name}: '{name}' has no threshold; give the value below which its "
                f"rule is broken: --threshold {name}=0"
            )
    return replace(rule, severity=severity, threshold=threshold)


def _by_name(flag: str, words: Sequence[str], names: Sequence[str]) -> dict[str, float]:
    found = {}
    least = 0.0 if flag == "--severity" else -LARGEST
    for word in words:
        name, has_number, text = word.rpartition("=")
        if not has_number:
            raise UserError(f"{flag} {word}: expected NAME=NUMBER, such as {word}=1.")
        if name not in names:
            raise UserError(
                f"{flag} {word}: there is no reward '{name}' here; expected NAME=NUMBER "
                f"with one of {', '.join(names)}.{did_you_mean(name, names)}"
            )
        try:
            found[name] = float(text)
        except ValueError:
            raise UserError(f"{flag} {word}: '{text}' is no number.") from None
        if math.isnan(found[name]) or not least <= found[name] <= LARGEST:
            raise UserError(
                f"{flag} {word}: got {text}; expected a number from {least:g} to {LARGEST:g}."
            )
    return found


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
        from burnish.policy import ReferenceStats

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
