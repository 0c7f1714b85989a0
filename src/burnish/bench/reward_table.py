"""Recorded rewards as a table: from the samples of a run, or from a file of rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from burnish.bench.comparable import reward_title
from burnish.bench.loaders.reading import Source, read_sources
from burnish.config.resolve import unflatten
from burnish.errors import StoreError, UserError
from burnish.policy import (
    Function,
    KeepAll,
    NoPostScale,
    NormaliseThenSum,
    ReferenceFrozen,
    SumThenNormalise,
    TriFactor,
)
from burnish.policy.base import Component
from burnish.policy.recipe import Recipe
from burnish.records import Reward
from burnish.store import Manifest, RunStore, StartRewards, read_start_rewards

LARGEST = 1e100
"""Of a reward, by size: its square is still a number."""
WEIGHED = ("shaping", "weights", "advantage", "select", "post_scale")
"""The settings of a recipe that make advantages of rewards."""


class Row(NamedTuple):
    """The rewards of one answer."""

    id: str
    group: str
    step: int | None
    rewards: Mapping[str, float | None]
    reasons: Mapping[str, str]
    """What a reward said of its value; rewards that said nothing are left out."""


class Recorded(NamedTuple):
    """A table of rewards, and what is known of them."""

    title: str
    rows: list[Row]
    weights: Mapping[str, float]
    """Of the recipe; a reward that is not named has 1."""
    categories: Mapping[str, str]
    frozen: ReferenceFrozen
    rule: TriFactor
    unit: StartRewards | None
    advantage: SumThenNormalise = SumThenNormalise()
    """How the sum is scaled."""
    run: str = ""
    """Its name; nothing for a file."""
    replayed: int = 0
    """Rows of earlier steps than those asked for, which only move the weights."""
    not_followed: tuple[str, ...] = ()
    """What of the run's recipe the four methods leave aside."""

    @property
    def shown(self) -> list[Row]:
        """The rows that were asked for."""
        return self.rows[self.replayed :]

    @property
    def names(self) -> tuple[str, ...]:
        """Every reward that some answer has, in the order of their first appearance."""
        return tuple(dict.fromkeys(name for row in self.rows for name in row.rewards))

    @property
    def weighed(self) -> tuple[str, ...]:
        """The rewards whose weight is not 0."""
        return tuple(name for name in self.names if self.weights.get(name, 1.0) != 0)


def read_file(path: Path) -> Recorded:
    """Rows of `{"group": ..., "rewards": {...}}`, with `step`, `id` and `diagnosis` if they like."""
    rows = [_file_row(source) for source in read_sources(path)]
    if len({row.step is None for row in rows}) > 1:
        raise UserError(
            f"{path}: some rows have a 'step' and some have none; expected all or none."
        )
    return Recorded(str(path), rows, {}, {}, ReferenceFrozen(), TriFactor(), None)


def read_run(store: RunStore, first: int | None, last: int | None) -> Recorded:
    """The trained samples of a run, from step `first` to `last`, both included.

    Those of earlier steps come too, for the weights of a step follow from all before it.
    """
    samples = [s for s in store.samples(split="train") if last is None or s.step <= last]
    samples.sort(key=lambda sample: sample.step)
    replayed = sum(first is not None and sample.step < first for sample in samples)
    if replayed == len(samples):
        steps = store.steps()
        has = f"it has steps {steps[0] + 1} to {steps[-1] + 1}" if steps else "it has no steps yet"
        asked = (
            ""
            if first is None
            else f" of steps {first + 1} to {(first if last is None else last) + 1}"
        )
        raise UserError(f"run '{store.name}' has no samples{asked}; {has}.")
    rows = []
    weights: dict[str, float] = {}
    # A total that failed as a whole has no parts: it then has none of the rewards.
    has_parts = any(sample.reward.parts for sample in samples)
    for name, sample in zip(store.names(samples), samples, strict=True):
        parts = sample.reward.parts or (() if has_parts else (sample.reward,))
        weights |= {part.name: part.weight for part in parts if part.name not in weights}
        reasons = {part.name: said for part in parts if (said := reason_of(part))}
        values = {part.name: part.value for part in parts}
        _check_size(store.name, name, values)
        rows.append(Row(name, sample.trajectory.group, sample.step, values, reasons))
    first_shown, last_shown = samples[replayed].step + 1, samples[-1].step + 1
    title = f"run '{store.name}', steps {first_shown} to {last_shown}"
    config = _config(store.about)
    recipe = _recipe(config.get("policy", {}), store.name)
    if not has_parts:
        weights = dict.fromkeys(weights, 1.0)
    moved = [e.step for e in store.events("refreeze") if e.step is not None]
    return Recorded(
        title,
        rows,
        weights,
        categories=_categories(config.get("rewards", [])),
        frozen=recipe.calibration or ReferenceFrozen(),
        rule=recipe.weights if isinstance(recipe.weights, TriFactor) else TriFactor(),
        unit=read_start_rewards(store.folder),
        advantage=_scaling(recipe),
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
    found = [
        f"{slot} {_name(component)}"
        for slot, component in asked
        if not isinstance(component, known)
    ]
    if moved:
        found.append(
            f"the unit measured again in step {', '.join(str(step + 1) for step in moved)}"
        )
    return tuple(found)


def _name(component: Component) -> str:
    return (
        component.path if isinstance(component, Function) else str(component.__struct_config__.tag)
    )


def _scaling(recipe: Recipe) -> SumThenNormalise:
    """How the run scales its sums; only the constants where it sums standardised rewards."""
    match recipe.advantage:
        case SumThenNormalise():
            return recipe.advantage
        case NormaliseThenSum(eps=eps, ddof=ddof):
            return SumThenNormalise(eps=eps, ddof=ddof)
        case _:
            return SumThenNormalise()


def reason_of(reward: Reward) -> str:
    """Why a reward has its value, in its own words: reason, verdicts, evidence, or its parts'."""
    if reward.reason:
        return reward.reason
    said = [verdict.reason for verdict in reward.verdicts if verdict.reason]
    said = said or [evidence.observation for evidence in reward.evidence if evidence.observation]
    said = said or [f"{part.name}: {why}" for part in reward.parts if (why := reason_of(part))]
    return "; ".join(said)


def _file_row(source: Source) -> Row:
    values = source.values
    group = values.get("group", values.get("prompt"))
    if not isinstance(group, str | int) or isinstance(group, bool):
        raise UserError(
            f"{source.where}: 'group' is {group!r}; expected text or a whole number (or 'prompt') "
            "that the answers to one prompt share."
        )
    step = values.get("step")
    if step is not None and (not isinstance(step, int) or isinstance(step, bool)):
        raise UserError(f"{source.where}: 'step' is {step!r}; expected a whole number.")
    rewards = values.get("rewards")
    if not isinstance(rewards, dict) or not rewards:
        raise UserError(
            f"{source.where}: 'rewards' is {rewards!r}; expected a table of numbers by name, such "
            'as {"safety": 0.5}.'
        )
    diagnosis = values.get("diagnosis") or {}
    if not isinstance(diagnosis, dict):
        raise UserError(f"{source.where}: 'diagnosis' is {diagnosis!r}; expected texts by reward.")
    numbers = {name: _value(source, name, value) for name, value in rewards.items()}
    reasons = {name: str(why) for name, why in diagnosis.items() if why}
    identity = str(values.get("id", f"line {source.number}"))
    return Row(identity, str(group), step, numbers, reasons)


def _value(source: Source, name: str, value: Any) -> float | None:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > LARGEST:
        said = repr(value)
        said = said if len(said) <= 60 else f"{said[:60]}..."
        raise UserError(
            f"{source.where}: reward '{name}' is {said}; expected a finite number of at most "
            f"{LARGEST:g} in size, or null where there is none."
        )
    return float(value)


def _check_size(run: str, sample: str, values: Mapping[str, float | None]) -> None:
    for name, value in values.items():
        if value is not None and abs(value) > LARGEST:
            raise UserError(
                f"run '{run}': reward '{name}' of sample {sample} is {value}; expected a number of "
                f"at most {LARGEST:g} in size."
            )


def _config(about: Manifest) -> dict[str, Any]:
    """The rewards and the policy of a run as tables; nothing where it stored none."""
    kept = {k: v for k, v in about.config.items() if k.startswith(("policy.", "rewards."))}
    return unflatten(kept)


def _recipe(policy: Mapping[str, Any], run: str) -> Recipe:
    """What the run made advantages of rewards by; the rest of its recipe does not matter here."""
    try:
        return msgspec.convert({key: policy[key] for key in WEIGHED if key in policy}, Recipe)
    except msgspec.ValidationError as error:
        raise StoreError(f"run '{run}': its policy settings cannot be read: {error}.") from error


def _categories(tables: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The category of each reward that has one, under the name that it bears in samples."""
    return {
        reward_title(table): str(table["category"]) for table in tables if table.get("category")
    }
