"""Recorded rewards as a table: from the samples of a run, or from a file of rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from burnish.bench.loaders.reading import Source, read_sources
from burnish.config.resolve import unflatten
from burnish.errors import StoreError, UserError
from burnish.policy.pieces import ReferenceFrozen, TriFactor
from burnish.records import Reward
from burnish.store import Manifest, RunStore

CALIBRATION = "calibration.json"
"""Where a run keeps the start model's rewards."""


class Row(NamedTuple):
    """The rewards of one answer."""

    id: str
    group: str
    step: int | None
    rewards: Mapping[str, float | None]
    reasons: Mapping[str, str]
    """What a reward said of its value; rewards that said nothing are left out."""


class Unit(Struct, frozen=True):
    """The start model's rewards as a run measured them."""

    answers: int
    names: tuple[str, ...]
    mean: list[float]
    deviation: list[float]
    counts: list[int]


class Recorded(NamedTuple):
    """A table of rewards, and what is known of them."""

    title: str
    rows: list[Row]
    weights: Mapping[str, float]
    """Of the recipe; a reward that is not named has 1."""
    categories: Mapping[str, str]
    frozen: ReferenceFrozen
    rule: TriFactor
    unit: Unit | None

    @property
    def names(self) -> tuple[str, ...]:
        """Every reward that some answer has, in the order of their first appearance."""
        return tuple(dict.fromkeys(name for row in self.rows for name in row.rewards))


def read_file(path: Path) -> Recorded:
    """Rows of `{"group": ..., "rewards": {...}}`, with `step`, `id` and `diagnosis` if they like."""
    rows = [_file_row(source) for source in read_sources(path)]
    if len({row.step is None for row in rows}) > 1:
        raise UserError(
            f"{path}: some rows have a 'step' and some have none; expected all or none."
        )
    return Recorded(str(path), rows, {}, {}, ReferenceFrozen(), TriFactor(), None)


def read_run(store: RunStore, first: int | None, last: int | None) -> Recorded:
    """The trained samples of a run, from step `first` to `last`, both included."""
    samples = [
        sample
        for sample in store.samples(split="train")
        if (first is None or sample.step >= first) and (last is None or sample.step <= last)
    ]
    if not samples:
        steps = store.steps()
        has = f"it has steps {steps[0]} to {steps[-1]}" if steps else "it has no steps yet"
        asked = "" if first is None else f" of steps {first} to {last}"
        raise UserError(f"run '{store.name}' has no samples{asked}; {has}.")
    rows = []
    weights: dict[str, float] = {}
    # A total that failed as a whole has no parts: it then has none of the rewards.
    has_parts = any(sample.reward.parts for sample in samples)
    for sample in samples:
        parts = sample.reward.parts or (() if has_parts else (sample.reward,))
        weights |= {part.name: part.weight for part in parts if part.name not in weights}
        reasons = {part.name: said for part in parts if (said := reason_of(part))}
        values = {part.name: part.value for part in parts}
        rows.append(Row(sample.id, sample.trajectory.group, sample.step, values, reasons))
    title = f"run '{store.name}', steps {samples[0].step} to {samples[-1].step}"
    config = _config(store.about)
    frozen, rule = _pieces(config.get("policy", {}), store.name)
    categories = _categories(config.get("rewards", []))
    if not has_parts:
        weights = dict.fromkeys(weights, 1.0)
    return Recorded(title, rows, weights, categories, frozen, rule, _unit(store.folder))


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
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isinf(value):
        raise UserError(
            f"{source.where}: reward '{name}' is {value!r}; expected a finite number, or null where "
            "there is none."
        )
    return float(value)


def _config(about: Manifest) -> dict[str, Any]:
    """The rewards and the policy of a run as tables; nothing where it stored none."""
    kept = {k: v for k, v in about.config.items() if k.startswith(("policy.", "rewards."))}
    return unflatten(kept)


def _pieces(policy: Mapping[str, Any], run: str) -> tuple[ReferenceFrozen, TriFactor]:
    """The run's own settings of the two pieces; defaults where its recipe has no such piece."""
    shaping: Iterable[Any] = policy.get("shaping") or ()
    asked = [piece for piece in shaping if piece.get("kind") == "reference_frozen"]
    rule = policy.get("weights", {})
    try:
        return (
            msgspec.convert(asked[0], ReferenceFrozen) if asked else ReferenceFrozen(),
            msgspec.convert(rule, TriFactor) if rule.get("kind") == "tri_factor" else TriFactor(),
        )
    except msgspec.ValidationError as error:
        raise StoreError(f"run '{run}': its policy settings cannot be read: {error}.") from error


def _categories(tables: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The category of each reward that has one, under the name that it bears in samples."""
    found = {}
    for table in tables:
        path = str(table.get("path", "")).rpartition(":")[2]
        by_kind = path if table.get("kind") == "function" else table.get("kind", "")
        if table.get("category"):
            found[str(table.get("name") or by_kind)] = str(table["category"])
    return found


def _unit(folder: Path) -> Unit | None:
    path = folder / CALIBRATION
    if not path.is_file():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=Unit)
    except msgspec.MsgspecError as error:
        raise StoreError(f"{path}: damaged: {error}.") from error
