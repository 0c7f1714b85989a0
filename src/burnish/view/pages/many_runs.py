"""Any number of runs on one page: groups over seeds, their curves, and the settings that differ.

The numbers are those of `burnish.bench.run_tables`, which `burnish compare` prints. A curve of a
group is the mean over its runs at each step, between the lowest and the highest of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from msgspec import Struct

from burnish.bench import ABSENT, RunGroup, RunTable, SeedMean, run_table
from burnish.bench.comparison import CURVES, evaluations
from burnish.errors import StoreError, UserError
from burnish.metrics import title_of
from burnish.store.manifest import list_sweeps, read_sweep
from burnish.store.reader import RunReader
from burnish.view.pages.run_page import Curve, Line, curves_of, thinned
from burnish.view.pages.runs import NotFound, Runs, open_run, readable

MOST = 200
"""Runs on one page."""
READ_S = 8.0
HELD_OUT = "held out"
"""The chart of the held-out scores, beside those of the metrics."""


class Mean(Struct, frozen=True):
    """A mean over runs with its 95 % interval, which one run does not have."""

    value: float
    low: float | None
    high: float | None
    runs: int


class Member(Struct, frozen=True):
    key: str
    name: str
    seed: int | None
    status: str
    steps: int
    before: float | None
    after: float | None
    problem: str


class GroupLine(Struct, frozen=True, kw_only=True):
    """Runs that differ only in their seed."""

    label: str
    runs: list[Member]
    before: Mean | None
    after: Mean | None
    difference: Mean | None
    problem: str
    seconds: Mean | None
    tokens: Mean | None
    usd: Mean | None


class Band(Struct, frozen=True):
    """The mean curve of a group; `low` and `high` are the lowest and the highest of its runs."""

    steps: list[int]
    values: list[float]
    low: list[float]
    high: list[float]
    runs: int


class Varied(Struct, frozen=True):
    """A setting that differs, with each group's value; a group that lacks it says so."""

    key: str
    values: list[Any]
    there: list[bool]


class ManyPage(Struct, frozen=True, kw_only=True):
    sweep: str
    measure: str
    baseline: int
    groups: list[GroupLine]
    differs: list[Varied]
    names: list[str]
    """Metrics that any of the runs has."""
    curves: dict[str, list[Band]]
    """One band for each group."""
    run_curves: dict[str, list[Curve]]
    """One line for each run, in the order of the groups; empty unless `each` was asked for."""
    titles: dict[str, str]
    steps: list[int]
    """Steps at which every run was evaluated."""
    step: int | None
    notes: list[str]


class SweepLine(Struct, frozen=True):
    name: str
    recipe: str
    varied: list[str]
    runs: int
    """That were started, of `planned`."""
    planned: int
    failed: int
    problem: str = ""


class SweepList(Struct, frozen=True):
    sweeps: list[SweepLine]


class ManyAsked(Struct, frozen=True, kw_only=True):
    runs: Sequence[str]
    sweep: str
    baseline: str
    step: int | None
    names: Sequence[str]
    points: int
    each: bool = False
    """Also the curves of every run."""


def sweeps_page(runs: Runs) -> SweepList:
    """The sweeps beside the runs; a damaged file says what is wrong with it."""
    listed = runs.listing().folders
    found = []
    for file in list_sweeps(runs.folder) if runs.folder is not None else ():
        try:
            record = read_sweep(file)
        except StoreError as error:
            name = readable(file.name)
            found.append(SweepLine(name, "", [], 0, 0, 0, str(error)))
            continue
        started = sum(run.name in listed for run in record.runs)
        failed = sum(bool(run.failure) for run in record.runs)
        varied = list(record.grid)
        found.append(
            SweepLine(record.name, record.recipe, varied, started, len(record.runs), failed)
        )
    return SweepList(found)


def many_page(runs: Runs, asked: ManyAsked) -> ManyPage:
    chosen, keys = _chosen(runs, asked)
    key_of = {folder: key for key, folder in chosen.items()}
    with ExitStack() as stack:
        readers = [stack.enter_context(open_run(f, READ_S)) for f in chosen.values()]
        table = run_table(readers, step=asked.step, baseline=asked.baseline, keys=keys)
        names = sorted({name for run in readers for name in _read(run)})
        shown = [name for name in (asked.names or CURVES) if name in names]
        scores = {run.folder: _scores(run) for run in readers}
    common = set.intersection(*(set(line.steps) for line in scores.values()))
    curves = {HELD_OUT: [_band([scores[run.folder] for run in g.runs], 0) for g in table.groups]}
    for name in shown:
        curves[name] = [
            _band([curves_of(run.folder).of(name) for run in group.runs], asked.points)
            for group in table.groups
        ]
    if not any(band.steps for band in curves[HELD_OUT]):
        del curves[HELD_OUT]
    members = [run.folder for group in table.groups for run in group.runs] if asked.each else []
    run_curves = {
        name: [
            thinned(scores[f] if name == HELD_OUT else curves_of(f).of(name), asked.points)
            for f in members
        ]
        for name in curves
    }
    return ManyPage(
        sweep=asked.sweep,
        measure=table.measure,
        baseline=table.baseline,
        groups=[_line(group, key_of) for group in table.groups],
        differs=_varied(table),
        names=names,
        curves=curves,
        run_curves=run_curves if members else {},
        titles={name: title_of(name) for name in shown} | {HELD_OUT: f"Held-out {table.measure}"},
        steps=sorted(common),
        step=asked.step,
        notes=table.notes,
    )


def _chosen(runs: Runs, asked: ManyAsked) -> tuple[dict[str, Path], list[str]]:
    """Run folders by key, and the settings that the sweep among them varies."""
    listed = runs.listing().folders
    keys: list[str] = []
    chosen: dict[str, Path] = {}
    if asked.sweep:
        files = list_sweeps(runs.folder) if runs.folder is not None else []
        file = next((f for f in files if read_sweep(f).name == asked.sweep), None)
        if file is None:
            raise NotFound(f"no sweep '{asked.sweep}' here.")
        record = read_sweep(file)
        keys = list(record.grid)
        chosen = {run.name: listed[run.name] for run in record.runs if run.name in listed}
        if len(chosen) < 2:
            raise UserError(
                f"sweep '{asked.sweep}' has {len(chosen)} started runs; expected two to compare."
            )
    for key in asked.runs:
        if asked.runs.count(key) > 1:
            raise UserError(f"run '{key}' is compared with itself; expected different runs.")
        chosen[key] = runs.find(key)
    if len(chosen) < 2:
        raise UserError("expected at least two runs: run=A&run=B, or sweep=NAME.")
    if len(chosen) > MOST:
        raise UserError(f"{len(chosen)} runs are named; expected at most {MOST} on one page.")
    return chosen, keys


def _read(run: RunReader) -> list[str]:
    """Bring the run's curves up to date; their names."""
    curves = curves_of(run.folder)
    curves.update(run)
    return curves.names()


def _scores(run: RunReader) -> Line:
    found = {step: e.summary.get("score") for step, e in evaluations(run).items()}
    known = {step: float(score[0]) for step, score in found.items() if score}
    return Line(list(known), list(known.values()))


def _band(lines: Sequence[Line], points: int) -> Band:
    """Mean, lowest and highest of the lines at each step that one of them has; thinned."""
    at: dict[int, list[float]] = {}
    for line in lines:
        for step, value in zip(line.steps, line.values, strict=True):
            if math.isfinite(value):
                at.setdefault(step, []).append(value)
    steps = sorted(at)
    means = Line(steps, [math.fsum(at[step]) / len(at[step]) for step in steps])
    shown = thinned(means, points or max(len(steps), 1))
    return Band(
        shown.steps,
        shown.values,
        [min(at[step]) for step in shown.steps],
        [max(at[step]) for step in shown.steps],
        len([line for line in lines if line.steps]),
    )


def _line(group: RunGroup, key_of: Mapping[Path, str]) -> GroupLine:
    return GroupLine(
        label=group.label,
        runs=[
            Member(
                key_of[run.folder],
                readable(run.name),
                run.seed,
                run.status,
                run.steps,
                run.before,
                run.after,
                run.problem,
            )
            for run in group.runs
        ],
        before=_mean(group.before),
        after=_mean(group.after),
        difference=_mean(group.difference),
        problem=group.problem,
        seconds=_mean(group.seconds),
        tokens=_mean(group.tokens),
        usd=_mean(group.usd),
    )


def _mean(mean: SeedMean | None) -> Mean | None:
    return None if mean is None else Mean(*mean)


def _varied(table: RunTable) -> list[Varied]:
    return [
        Varied(
            key,
            [None if value is ABSENT else value for value in values],
            [value is not ABSENT for value in values],
        )
        for key, values in table.differs.items()
    ]
