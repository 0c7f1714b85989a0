"""What four ways to join several rewards make of recorded ones: each reward's share and why.

recorded = read_run(store, first=0, last=9)         # burnish.bench.weigh_rewards
weigh(recorded, threshold={"safety": -0.5}, severity={"safety": 3.0}).record()
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from burnish.bench.comparable import reward_title
from burnish.bench.loaders.reading import Source, read_sources
from burnish.bench.reward_check import no_steps
from burnish.bench.statistics import as_record
from burnish.config.resolve import unflatten
from burnish.errors import StoreError, UserError
from burnish.policy import (
    Function,
    KeepAll,
    NoPostScale,
    NormaliseThenSum,
    ReferenceFrozen,
    ReferenceStats,
    SumThenNormalise,
    TriFactor,
    WeightingComparison,
    compare_weightings,
)
from burnish.policy.base import Component
from burnish.policy.groups import label_numbers
from burnish.policy.recipe import Recipe
from burnish.records import Reward
from burnish.store import RunStore, StartRewards, read_start_rewards
from burnish.tensors import torch

LARGEST = 1e100
"""Of a threshold or a severity, by size."""
WEIGHED = ("shaping", "weights", "advantage", "select", "post_scale")
"""The settings of a recipe that make advantages of rewards."""


class Row(NamedTuple):
    id: str
    group: str
    step: int | None
    rewards: Mapping[str, float | None]
    reasons: Mapping[str, str]
    """What a reward said of its value; rewards that said nothing are left out."""


class Recorded(NamedTuple):
    title: str
    rows: list[Row]
    weights: Mapping[str, float]
    """Of the recipe; a reward that is not named has 1."""
    categories: Mapping[str, str]
    frozen: ReferenceFrozen
    rule: TriFactor
    unit: StartRewards | None
    advantage: SumThenNormalise = SumThenNormalise()
    run: str = ""
    replayed: int = 0
    """Rows of earlier steps than those asked for, which only move the weights."""
    not_followed: tuple[str, ...] = ()
    """What of the run's recipe the four methods leave aside."""

    @property
    def shown(self) -> list[Row]:
        return self.rows[self.replayed :]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for row in self.rows for name in row.rewards))

    @property
    def weighed(self) -> tuple[str, ...]:
        """The rewards whose weight is not 0."""
        return tuple(name for name in self.names if self.weights.get(name, 1.0) != 0)


def read_file(path: Path) -> Recorded:
    """Rows of `{"group": ..., "rewards": {...}}`, with `step`, `id` and `diagnosis` if they like."""
    rows = [_file_row(source) for source in read_sources(path)]
    if len({row.step is None for row in rows}) > 1:
        raise UserError(f"{path}: some rows have a 'step' and some none; expected all or none.")
    return Recorded(str(path), rows, {}, {}, ReferenceFrozen(), TriFactor(), None)


def read_run(store: RunStore, first: int | None, last: int | None) -> Recorded:
    """The trained samples of a run, from step `first` to `last`, both included.

    Those of earlier steps come too, for the weights of a step follow from all before it.
    """
    samples = [s for s in store.samples(split="train") if last is None or s.step <= last]
    samples.sort(key=lambda sample: sample.step)
    replayed = sum(first is not None and sample.step < first for sample in samples)
    if replayed == len(samples):
        raise no_steps(store, "samples", first, last)
    rows = []
    weights: dict[str, float] = {}
    # A total that failed as a whole has no parts: it then has none of the rewards.
    has_parts = any(sample.reward.parts for sample in samples)
    for name, sample in zip(store.names(samples), samples, strict=True):
        parts = sample.reward.parts or (() if has_parts else (sample.reward,))
        weights |= {part.name: part.weight for part in parts if part.name not in weights}
        reasons = {part.name: said for part in parts if (said := reason_of(part))}
        values = {part.name: part.value for part in parts}
        rows.append(Row(name, sample.trajectory.group, sample.step, values, reasons))
    first_shown, last_shown = samples[replayed].step + 1, samples[-1].step + 1
    title = f"run '{store.name}', steps {first_shown} to {last_shown}"
    kept = {k: v for k, v in store.about.config.items() if k.startswith(("policy.", "rewards."))}
    config = unflatten(kept)
    policy = config.get("policy", {})
    try:  # what the run made advantages of rewards by; the rest does not matter here
        recipe = msgspec.convert({key: policy[key] for key in WEIGHED if key in policy}, Recipe)
    except msgspec.ValidationError as error:
        raise StoreError(f"run '{store.name}': its policy cannot be read: {error}.") from error
    scaling = recipe.advantage
    if isinstance(scaling, NormaliseThenSum):  # of standardised rewards the constants count alone
        scaling = SumThenNormalise(eps=scaling.eps, ddof=scaling.ddof)
    if not has_parts:
        weights = dict.fromkeys(weights, 1.0)
    moved = [e.step for e in store.events("refreeze") if e.step is not None]
    return Recorded(
        title,
        rows,
        weights,
        categories={
            reward_title(table): str(table["category"])
            for table in config.get("rewards", [])
            if table.get("category")
        },
        frozen=recipe.calibration or ReferenceFrozen(),
        rule=recipe.weights if isinstance(recipe.weights, TriFactor) else TriFactor(),
        unit=read_start_rewards(store.folder),
        advantage=scaling if isinstance(scaling, SumThenNormalise) else SumThenNormalise(),
        run=store.name,
        replayed=replayed,
        not_followed=not_followed(recipe, [s for s in moved if last is None or s <= last]),
    )


def not_followed(recipe: Recipe, moved: Sequence[int] = ()) -> tuple[str, ...]:
    """What a recipe makes of rewards beyond the four methods; `moved`: steps with a new unit."""
    asked: list[tuple[str, Component]] = [("shaping", component) for component in recipe.shaping]
    asked += [("advantage", recipe.advantage), ("select", recipe.select)]
    asked.append(("post_scale", recipe.post_scale))
    known: tuple[type[Component], ...] = (ReferenceFrozen, SumThenNormalise, KeepAll, NoPostScale)
    if recipe.calibration is None:
        # As the GDPO table has it.
        known = (*known, NormaliseThenSum)
    others = [(slot, one) for slot, one in asked if not isinstance(one, known)]
    found = [
        f"{slot} {one.path if isinstance(one, Function) else one.__struct_config__.tag}"
        for slot, one in others
    ]
    if moved:
        found.append(
            f"the unit measured again in step {', '.join(str(step + 1) for step in moved)}"
        )
    return tuple(found)


def reason_of(reward: Reward) -> str:
    """Why a reward has its value, in its own words: reason, verdicts, evidence, or its parts'."""
    if reward.reason:
        return reward.reason
    said = [verdict.reason for verdict in reward.verdicts if verdict.reason]
    said = said or [evidence.observation for evidence in reward.evidence if evidence.observation]
    said = said or [f"{part.name}: {why}" for part in reward.parts if (why := reason_of(part))]
    return "; ".join(said)


class FileRow(Struct):
    """A row of a file; `group` or `prompt` is what the answers to one prompt share."""

    rewards: Annotated[dict[str, float | None], Meta(min_length=1)]
    group: str | int | None = None
    prompt: str | int | None = None
    step: int | None = None
    id: Any = None
    diagnosis: dict[str, Any] | None = None


def _file_row(source: Source) -> Row:
    try:
        row = msgspec.convert(source.values, FileRow)
    except msgspec.ValidationError as error:
        raise UserError(f"{source.where}: {error}.") from None
    group = row.prompt if row.group is None else row.group
    values = {k: None if v is None or math.isnan(v) else v for k, v in row.rewards.items()}
    if group is None:
        raise UserError(f"{source.where}: got {source.values!r:.80}; expected a 'group'.")
    reasons = {name: str(why) for name, why in (row.diagnosis or {}).items() if why}
    identity = f"line {source.number}" if row.id is None else str(row.id)
    return Row(identity, str(group), row.step, values, reasons)


REASONS = 3


class Cause(NamedTuple):
    reason: str
    answers: int
    sample: str


class Below(NamedTuple):
    reward: str
    threshold: float
    answers: int
    of: int
    causes: tuple[Cause, ...]
    """The most frequent ones; none where the reward gives no reason."""
    silent: int
    """Answers under the threshold that came without a reason."""


class Weighed(NamedTuple):
    title: str
    answers: int
    groups: int
    unit: str
    found: WeightingComparison
    categories: Mapping[str, str]
    unweighed: tuple[str, ...]
    below: tuple[Below, ...]
    scale: str
    replayed: int
    """Answers of earlier steps, which only moved the weights."""
    not_followed: tuple[str, ...]
    """What of the run's recipe none of the four does."""

    def record(self) -> dict[str, Any]:
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
            "below_threshold": as_record(self.below),
        }


def weigh(
    recorded: Recorded,
    *,
    severity: Mapping[str, float] | None = None,
    threshold: Mapping[str, float] | None = None,
    reference: int | None = None,
) -> Weighed:
    """The four methods on a table of rewards; `severity` and `threshold` add to the run's rule."""
    names, rows, shown = recorded.weighed, recorded.rows, recorded.shown
    if not names:
        raise UserError(f"{recorded.title}: no reward has a weight other than 0.")
    _check_has_values(recorded, rows, f"any of {len(rows)} answers")
    severity = {**recorded.rule.severity, **(severity or {})}
    threshold = {**recorded.rule.threshold, **(threshold or {})}
    if missing := next((name for name in severity if name not in threshold), ""):
        raise UserError(f"--severity {missing} needs its limit, such as --threshold {missing}=0")
    rule = replace(recorded.rule, severity=severity, threshold=threshold)
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
        shares[label] = {}
        for method, by_reward in record.items():
            own_shares = [by_reward[name]["share"] for name in members]
            shares[label][method] = None if None in own_shares else sum(own_shares)
    return shares


def _reference(
    recorded: Recorded, names: Sequence[str], asked: int | None
) -> tuple[ReferenceStats | int | None, str]:
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
    _check_has_values(recorded, rows[:count], f"the first {count} answers (--reference)")
    return count, f"the first {count} answers"


def _check_has_values(recorded: Recorded, rows: Sequence[Row], where: str) -> None:
    for name in recorded.weighed:
        if all(row.rewards.get(name) is None for row in rows):
            why = f" See why: burnish show {recorded.run} --failed 5" if recorded.run else ""
            raise UserError(f"{recorded.title}: reward '{name}' has no value in {where}.{why}")
