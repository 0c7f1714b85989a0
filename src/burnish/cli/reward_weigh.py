"""`burnish reward weigh`: what four ways to join several rewards make of those that are recorded."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.text import Text

from burnish.cli.console import emit_json, number, one_line, out, say, share
from burnish.cli.drawing import table_of
from burnish.cli.needs import import_policy
from burnish.cli.shared_options import RUNS, AsJson, RunsFolder
from burnish.errors import UserError, did_you_mean
from burnish.store import RunStore, find_run

if TYPE_CHECKING:
    from burnish.cli.reward_table import Recorded, Row
    from burnish.policy import ReferenceStats, WeightingComparison
    from burnish.policy.pieces import TriFactor


REASONS = 3
"""Reasons that are shown for each reward under its threshold."""
TITLES = {
    "sum": "sum, then standardise (GRPO)",
    "gdpo": "standardise each, then sum (GDPO)",
    "reference_frozen": "in deviations of the start model",
    "tri_factor": "in deviations of the start model, tri-factor weights (MedAlign)",
}


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


def reward_weigh(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RUN|FILE.jsonl",
            help='A run, or rows of {"group": ..., "rewards": {NAME: NUMBER}}.',
            show_default=False,
        ),
    ],
    step: Annotated[
        str, typer.Option("--step", metavar="N|A..B", help="Tell only of these steps of a run.")
    ] = "",
    severity: Annotated[
        list[str] | None,
        typer.Option("--severity", metavar="NAME=X", help="How much a broken rule counts."),
    ] = None,
    threshold: Annotated[
        list[str] | None,
        typer.Option("--threshold", metavar="NAME=X", help="A reward below X breaks its rule."),
    ] = None,
    reference: Annotated[
        int | None,
        typer.Option(
            "--reference", min=1, metavar="N", help="The first N answers are the start model's."
        ),
    ] = None,
    folder: RunsFolder = RUNS,
    as_json: AsJson = False,
) -> int:
    """Which reward would training follow? Four ways to join recorded rewards, side by side.

    The sum, GDPO, rewards in units of the start model, and these with MedAlign's
    weights: what share of the advantage each reward has, and why it weighs what
    it weighs. Under a threshold: the reasons that the reward gave, with a sample
    each. A run's own settings hold where it has them; what of its recipe none of
    the four follows is named. No model, no GPU.

    \b
      burnish reward weigh medalign-1f --step 0..9
      burnish reward weigh grpo-7c --threshold safety=-0.5 --severity safety=3
      burnish reward weigh rewards.jsonl --reference 64 --json
    """
    recorded = _read(folder, source, step)
    weighed = weigh(
        recorded, severity=severity or (), threshold=threshold or (), reference=reference
    )
    if as_json:
        emit_json(weighed.record())
    else:
        print_weighed(weighed)
    return 0


def weigh(
    recorded: Recorded,
    *,
    severity: Sequence[str] = (),
    threshold: Sequence[str] = (),
    reference: int | None = None,
) -> Weighed:
    """The four methods on a table of rewards."""
    policy = import_policy()
    names = tuple(name for name in recorded.names if recorded.weights.get(name, 1.0) != 0)
    _check_values(recorded, names)
    rule = _rule(recorded.rule, severity, threshold, names)
    rows, shown = recorded.rows, recorded.shown
    table = [[row.rewards.get(name) for name in names] for row in rows]
    start, unit = _reference(recorded, names, reference)
    found = policy.compare_weightings(
        table,
        [row.group for row in rows],
        names=names,
        steps=None if rows[0].step is None else [row.step for row in rows],
        weights=[recorded.weights.get(name, 1.0) for name in names],
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


def _read(folder: Path, source: str, step: str) -> Recorded:
    from burnish.cli.reward_table import read_file, read_run
    from burnish.tasks.rows import SUFFIXES

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


def _rule(
    rule: TriFactor, severities: Sequence[str], thresholds: Sequence[str], names: Sequence[str]
) -> TriFactor:
    """The run's rule with what the flags say; a severity without a threshold is refused."""
    from msgspec.structs import replace

    severity = {**rule.severity, **_by_name("--severity", severities, names)}
    threshold = {**rule.threshold, **_by_name("--threshold", thresholds, names)}
    for name in severity:
        if name not in threshold:
            raise UserError(
                f"--severity {name}: '{name}' has no threshold; give the value below which its "
                f"rule is broken: --threshold {name}=0"
            )
    return replace(rule, severity=severity, threshold=threshold)


def _by_name(flag: str, words: Sequence[str], names: Sequence[str]) -> dict[str, float]:
    from burnish.cli.reward_table import LARGEST

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


# --- on the screen


def print_weighed(weighed: Weighed) -> None:
    """Everything, from the sum to the reasons below a threshold."""
    groups = "1 group" if weighed.groups == 1 else f"{weighed.groups} groups"
    say(f"{weighed.title}: {weighed.answers} answers in {groups}", style="bold")
    say(f"start model: {weighed.unit}", style="bright_black")
    if weighed.replayed:
        earlier = f"{weighed.replayed} answers of earlier steps only move the weights"
        say(earlier, style="bright_black")
    if weighed.scale != "group_std":
        say(f"sums are scaled as in the run: {weighed.scale}", style="bright_black")
    if weighed.not_followed:
        left = ", ".join(map(one_line, weighed.not_followed))
        say(f"not followed of the run's recipe: {left}", style="yellow")
    if weighed.unweighed:
        say(f"of weight 0, left out: {', '.join(weighed.unweighed)}", style="bright_black")
    if all(one.share_K.isnan().all() for one in weighed.found.methods):
        say("no group has rewards that differ: none of the four teaches anything", style="yellow")
    for method, title in TITLES.items():
        say()
        say(title, style="bold")
        _print_method(weighed, method)
    _print_categories(weighed)
    for below in weighed.below:
        _print_below(below)
    say()
    say(
        "share: of the advantage, by mean size; agrees: correlation with it inside the groups; "
        "settles: the weight if further steps were like the last.",
        style="bright_black",
    )


def _print_method(weighed: Weighed, method: str) -> None:
    record = weighed.found.record()
    if record["left_out"][method]:
        say(_left_out(weighed, method), style="yellow")
    has_unit, has_factors = method == "reference_frozen", method == "tri_factor"
    titles = ["reward", "share", "agrees"]
    titles += ["at clip"] if has_unit else []
    factors = ("weakness", "risk", "redundancy")
    titles += ["weight", "settles", *factors] if has_factors else []
    table = table_of(*titles)
    for name, row in record["methods"][method].items():
        known = record["rewards"][name]
        cells = [one_line(name), share(row["share"]), number(row["correlation"], 2)]
        cells += [share(known["saturated"])] if has_unit else []
        keys = ("weight", "settled", *factors) if has_factors else ()
        cells += [number(known[key], 2) for key in keys]
        table.add_row(*(Text(cell) for cell in cells))
    out.print(table)


def _left_out(weighed: Weighed, method: str) -> str:
    """How many answers a method has no advantage for, and for want of which rewards."""
    record = weighed.found.record()
    said = f"leaves out {record['left_out'][method]} of {weighed.answers} answers"
    if method != "sum":
        return f"{said}, which have no reward at all"
    missing = {name: row["missing"] for name, row in record["rewards"].items() if row["missing"]}
    rewards = ", ".join(f"{one_line(name)} in {count}" for name, count in missing.items())
    return f"{said}, for a reward is missing: {rewards}"


def _print_categories(weighed: Weighed) -> None:
    shares = category_shares(weighed.found, weighed.categories)
    if not shares:
        return
    say()
    say("share by category", style="bold")
    table = table_of("category", "sum", "GDPO", "frozen", "tri-factor")
    for label, by_method in shares.items():
        cells = [one_line(label) or "(none)", *(share(value) for value in by_method.values())]
        table.add_row(*(Text(cell) for cell in cells))
    out.print(table)


def _print_below(below: Below) -> None:
    say()
    head = (
        f"{one_line(below.reward)} below {below.threshold:g}: {below.answers} of {below.of} answers"
    )
    say(head, style="bold")
    for cause in below.causes:
        line = Text(f"  {cause.answers} x  {one_line(cause.reason)}  ")
        line.append(one_line(cause.sample), style="bright_black")
        out.print(line, soft_wrap=True)
    if below.silent:
        say(f"  {below.silent} x  (the reward gives no reason)", style="bright_black")
