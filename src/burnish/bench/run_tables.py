"""Any number of runs in one table: runs that differ only in their seed are one group.


A run without a score is left out of the statistics and named in the notes. A group of one run has
no interval. Where the scores of two groups do not mean the same (other rewards, other prompts), the
difference is None and the reason is kept.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import msgspec

from burnish.bench.comparable import (
    LIVES,
    LOWER_IS_BETTER,
    group_labels,
    plain_text,
    why_incomparable,
)
from burnish.bench.comparison import check_metrics, evaluation_after, evaluations
from burnish.bench.statistics import t_estimate
from burnish.errors import UserError, did_you_mean
from burnish.intervals import ALL_EQUAL, FEW, TOO_FEW, interval_text
from burnish.metrics import STEP_S
from burnish.records import Task
from burnish.store import manifest
from burnish.store.manifest import read_sweep
from burnish.store.reader import RunReader
from burnish.texts import counted, safe

SEED = "run.seed"
TOKENS = "length/tokens"
LAST_EVALUATION = "the last evaluation of each run is compared"


class SeedMean(NamedTuple):
    """A mean over runs with its 95 % interval; one run has none, nor have runs that are all equal."""

    value: float
    low: float | None
    high: float | None
    size: int

    def text(self, *, signed: bool = False) -> str:
        """`0.700 [0.452, 0.948]`; one run has no interval, and equal runs say so."""
        if self.size == 1:  # a note under the table says that it has no interval
            return f"{self.value:{'+' if signed else ''}.3f}"
        # A t interval is made for few observations.
        return interval_text(*self, signed=signed, few=2).replace(ALL_EQUAL, "all equal")


@dataclass(frozen=True)
class RunFigures:
    name: str
    folder: Path
    recipe: str
    status: str
    settings: Mapping[str, Any]
    steps: int = 0
    step: int | None = None
    """Steps before the evaluation that is compared."""
    before: float | None = None
    """Held-out score before the first step."""
    after: float | None = None
    prompts: int | None = None
    """Held-out prompts that its score rests on."""
    measure: str = "reward"
    """`reward`, or `loss`, of which less is better."""
    seconds: float | None = None
    tokens: float | None = None
    usd: float | None = None
    """What its judges cost; None where no reward asks a model."""
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    """The last value of each curve that was asked for."""
    tasks: Mapping[str, Task] = field(default_factory=dict)
    """Held-out prompts by id."""
    problem: str = ""

    @property
    def seed(self) -> Any:
        return self.settings.get(SEED)


@dataclass(frozen=True)
class RunGroup:
    """Runs with the same settings and different seeds."""

    label: str
    settings: dict[str, Any]
    """Those in which the groups differ; None where this one has no such setting."""
    runs: list[RunFigures]
    before: SeedMean | None
    after: SeedMean | None
    change: SeedMean | None
    difference: SeedMean | None
    """To the baseline, over the seeds that both have; None for the baseline."""
    problem: str
    metrics: dict[str, SeedMean | None]
    seconds: SeedMean | None
    tokens: SeedMean | None
    usd: SeedMean | None

    @property
    def seeds(self) -> list[Any]:
        return [run.seed for run in self.runs]

    def __repr__(self) -> str:
        score = "no score" if self.after is None else self.after.text()
        return f"<{_line(self.label)}: {counted(len(self.runs), 'run')}, {score}>"


@dataclass(frozen=True)
class RunTable:
    groups: list[RunGroup]
    baseline: int
    """Place of the group that the others are compared with."""
    differs: dict[str, list[Any]]
    """Settings that differ, with the value of each group."""
    measure: str
    notes: list[str]
    """What a person should know before believing the numbers."""

    @property
    def title(self) -> str:
        better = ", lower is better" if self.measure in LOWER_IS_BETTER else ""
        return f"held-out {self.measure}, mean over seeds and 95 % t interval{better}"

    def columns(self) -> dict[str, list[str]]:
        """The short table, column by column: groups, runs, scores and differences."""
        groups = self.groups
        return {
            "group": [_line(group.label) for group in groups],
            "runs": [str(len(group.runs)) for group in groups],
            "before": ["-" if g.before is None else f"{g.before.value:.3f}" for g in groups],
            "after": ["-" if g.after is None else g.after.text() for g in groups],
            "to baseline": [
                "baseline"
                if place == self.baseline
                else "-"
                if group.difference is None
                else group.difference.text(signed=True)
                for place, group in enumerate(groups)
            ],
        }

    def __repr__(self) -> str:
        columns = []
        for head, cells in self.columns().items():
            width = max(map(len, (head, *cells)))
            columns.append([cell.ljust(width) for cell in (head, *cells)])
        rows = ["  ".join(row).rstrip() for row in zip(*columns, strict=True)]
        return "\n".join([self.title, *rows, *(f"note: {_line(note)}" for note in self.notes)])

    def record(self) -> dict[str, Any]:
        """The table as JSON; a setting that a group does not have is null."""
        return {
            "baseline": self.groups[self.baseline].label,
            "measure": self.measure,
            "differs": self.differs,
            "groups": [_group_record(group) for group in self.groups],
            "notes": self.notes,
        }

    def csv(self) -> str:
        """One line a group: its settings, then mean, low, high and runs of each figure."""
        names = list(self.groups[0].metrics)
        figures = ["before", "after", "change", "difference", *names, "seconds", "tokens", "usd"]
        parts = ("", "_low", "_high", "_runs")
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        columns = [f"{figure}{part}" for figure in figures for part in parts]
        writer.writerow(["group", *self.differs, "seeds", *columns])
        for group in self.groups:
            found = {**vars(group), **group.metrics}
            means = [found[name] or ("", "", "", 0) for name in figures]
            cells = ["" if v is None else v for mean in means for v in mean]
            settings = ["" if v is None else plain_text(v) for v in group.settings.values()]
            writer.writerow([group.label, *settings, " ".join(map(str, group.seeds)), *cells])
        return text.getvalue()


def run_table(
    runs: Sequence[RunReader],
    *,
    step: int | None = None,
    metrics: Sequence[str] = (),
    baseline: str = "",
    keys: Sequence[str] = (),
) -> RunTable:
    """Compare stored runs after `step` steps (the last evaluation of each where not given).

    `baseline` is a run's name or a group's label; the first group without one. `keys` are the
    settings that name a group, where they tell the groups apart: those that a sweep varies.
    """
    check_metrics(runs, metrics)
    figures = [run_figures(run, step=step, metrics=metrics) for run in runs]
    return group_runs(figures, baseline=baseline, keys=keys)


def runs_of_sweep(file: Path) -> tuple[list[Path], list[str]]:
    record = read_sweep(file)
    folders = [file.parent / run.name for run in record.runs]
    return [f for f in folders if (f / manifest.FILE).is_file()], list(record.grid)


def run_figures(
    run: RunReader, *, step: int | None = None, metrics: Sequence[str] = ()
) -> RunFigures:
    found, problem, evaluation = evaluations(run), "", None
    try:
        evaluation = evaluation_after(run, found, step)
        if step is None and evaluation.step == 0 and run.steps():
            problem = f"run '{run.name}' has no held-out evaluation after its steps yet"
    except UserError as error:
        problem = str(error)
    first = found[min(found)] if found else None
    after = None if evaluation is None or problem else _score(evaluation.summary)
    if evaluation is not None and after is None and not problem:
        problem = f"run '{run.name}' has no score after {evaluation.step} steps"
    tasks = {}
    if evaluation is not None:
        split = f"eval:{evaluation.name}"
        tasks = {s.task.id: s.task for s in run.samples(step=evaluation.step, split=split)}
    curves = {name: run.metrics(name).get(name, []) for name in (*metrics, STEP_S, TOKENS)}
    values = {name: [v for _, v in curve if v is not None] for name, curve in curves.items()}
    shown = evaluation or first
    config, usd = run.about.config, None
    if any(k.startswith("rewards.") and k.endswith(".model") and v for k, v in config.items()):
        query = (
            "SELECT coalesce(sum(found.value), 0) FROM samples, json_tree(samples.reward_tree) AS "
            "found WHERE found.key = 'cost_usd'"
        )
        ((usd,),) = run.query(query)
    return RunFigures(
        name=run.name,
        folder=run.folder,
        recipe=PurePath(run.about.recipe).stem,
        status=run.status().value,
        settings=run.about.config,
        steps=run.steps_done(),
        step=None if evaluation is None else evaluation.step,
        before=None if first is None or first.step else _score(first.summary),
        after=after,
        prompts=int(evaluation.summary["score"][3]) if evaluation and after is not None else None,
        measure="reward" if shown is None else shown.summary.get("measure", "reward"),
        seconds=sum(values[STEP_S]) if values[STEP_S] else None,
        tokens=sum(values[TOKENS]) if values[TOKENS] else None,
        usd=None if usd is None else float(usd),
        metrics={name: values[name][-1] if values[name] else None for name in metrics},
        tasks=tasks,
        problem=problem,
    )


def _score(summary: Mapping[str, Any]) -> float | None:
    score = summary.get("score")
    return float(score[0]) if score else None


# --- groups


def group_runs(
    runs: Sequence[RunFigures], *, baseline: str = "", keys: Sequence[str] = ()
) -> RunTable:
    """The table of runs that were read; groups stand in the order of their first run."""
    if len({run.folder.resolve() for run in runs}) < 2:
        raise UserError("expected at least two different runs to compare.")
    grouped: dict[bytes, list[RunFigures]] = {}
    for run in runs:
        kept = msgspec.json.encode(defining(run.settings), order="sorted", enc_hook=str)
        grouped.setdefault(kept, []).append(run)
    notes: list[str] = []
    groups = [_one_per_seed(members, notes) for members in grouped.values()]
    tables = [defining(group[0].settings) for group in groups]
    every = dict.fromkeys(key for table in tables for key in table)
    columns = {key: [table.get(key) for table in tables] for key in every}
    differs = {k: values for k, values in columns.items() if any(v != values[0] for v in values)}
    runs_of = [[run.name for run in group] for group in groups]
    labels = group_labels(runs_of, [group[0].recipe for group in groups], differs, keys)
    place = _baseline(groups, labels, baseline)
    measures = list(dict.fromkeys(run.measure for run in runs))
    notes += [run.problem for group in groups for run in group if run.problem]
    scored = [run for group in groups for run in group if run.after is not None]
    steps = sorted({run.step for run in scored if run.step is not None})
    if len(steps) > 1:
        notes.append(f"{LAST_EVALUATION}: after {', '.join(map(str, steps))} steps")
    found = []
    for i, (label, members) in enumerate(zip(labels, groups, strict=True)):
        own = {key: values[i] for key, values in differs.items()}
        found.append(_group(label, own, members, groups[place]))
    notes += [f"{group.label}: no difference: {group.problem}" for group in found if group.problem]
    sizes = [run.prompts for run in runs if run.prompts is not None]
    if sizes and min(sizes) < FEW:
        notes.append(f"held-out scores of {counted(min(sizes), 'prompt')}: {TOO_FEW}")
    alone = [group.label for group in found if group.after is not None and group.after.size < 2]
    if alone:
        whose = "any group" if len(alone) == len(found) else ", ".join(alone)
        notes.append(f"no interval over seeds for {whose}: one run each; train more seeds")
    return RunTable(found, place, differs, " and ".join(measures), notes)


def defining(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that decide what a run computes, without the seed."""
    from burnish.config import FREE

    free = (*LIVES, SEED, *(f"{pattern}*" for pattern in FREE))
    return {k: v for k, v in settings.items() if not any(fnmatchcase(k, one) for one in free)}


def _one_per_seed(members: Sequence[RunFigures], notes: list[str]) -> list[RunFigures]:
    """One run for each seed: a repetition is no further observation."""
    kept: dict[Any, RunFigures] = {}
    for run in members:
        first = kept.setdefault(run.seed, run)
        if first is run:
            continue
        if first.after is None and run.after is not None:
            kept[run.seed], run = run, first
        same = f"run '{kept[run.seed].name}' has the same settings and seed"
        notes.append(f"run '{run.name}' is left out: {same}")
    return list(kept.values())


def _baseline(groups: Sequence[Sequence[RunFigures]], labels: Sequence[str], asked: str) -> int:
    if not asked:
        return 0
    if asked in labels:
        return labels.index(asked)
    places = {run.name: place for place, group in enumerate(groups) for run in group}
    begun = {place for name, place in places.items() if name.startswith(asked)}
    if asked in places or len(begun) == 1:
        return places.get(asked, min(begun))
    hint = f"{', '.join(labels)}.{did_you_mean(asked, [*labels, *places])}"
    raise UserError(f"baseline: got '{asked}', expected a group or one of its runs: {hint}")


def _group(
    label: str, settings: dict[str, Any], runs: list[RunFigures], base: list[RunFigures]
) -> RunGroup:
    changes = [r.after - r.before for r in runs if r.after is not None and r.before is not None]
    difference, problem = (None, "") if runs is base else _difference(base, runs)
    return RunGroup(
        label=label,
        settings=settings,
        runs=runs,
        before=seed_mean([run.before for run in runs]),
        after=seed_mean([run.after for run in runs]),
        change=seed_mean(changes),
        difference=difference,
        problem=problem,
        metrics={name: seed_mean([run.metrics[name] for run in runs]) for name in runs[0].metrics},
        seconds=seed_mean([run.seconds for run in runs]),
        tokens=seed_mean([run.tokens for run in runs]),
        usd=seed_mean([run.usd for run in runs]),
    )


def seed_mean(values: Sequence[float | None]) -> SeedMean | None:
    """The mean of the values that are there; None where none is, no interval for one alone."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return SeedMean(known[0], None, None, 1) if known else None
    mean = t_estimate.plain(known)
    # Seeds that agree exactly have shown no spread; an interval of no width would claim certainty.
    return SeedMean(*mean) if mean.low < mean.high else SeedMean(mean.value, None, None, mean.size)


def _difference(
    base: Sequence[RunFigures], runs: Sequence[RunFigures]
) -> tuple[SeedMean | None, str]:
    """The mean difference over the seeds that both groups have, or why there is none."""
    of_base = {run.seed: run for run in base}
    pairs = [(of_base[run.seed], run) for run in runs if run.seed in of_base]
    changes = []
    for a, b in pairs:
        if a.after is None or b.after is None:
            continue
        if a.measure != b.measure:
            return None, f"'{a.name}' is scored by {a.measure}, '{b.name}' by {b.measure}"
        tasks = (a.tasks, b.tasks) if a.tasks or b.tasks else None
        if why := why_incomparable((a.name, b.name), a.settings, b.settings, tasks):
            return None, why
        changes.append(b.after - a.after)
    if not changes:
        return None, "no seed with a score in both" if pairs else "no seed in common"
    return seed_mean(changes), ""


# --- records


def _line(text: str) -> str:
    return safe(" ".join(text.split()))


def _group_record(group: RunGroup) -> dict[str, Any]:
    figures = ("before", "after", "change", "difference", "seconds", "tokens", "usd")
    means = {**{name: getattr(group, name) for name in figures}, **group.metrics}
    records = {name: None if mean is None else mean._asdict() for name, mean in means.items()}
    own = ("name", "recipe", "status", "seed", "steps", "before", "after", "seconds", "tokens")
    return {
        "label": group.label,
        "settings": group.settings,
        **{name: records[name] for name in figures},
        "metrics": {name: records[name] for name in group.metrics},
        "problem": group.problem,
        "runs": [
            {
                **{name: getattr(run, name) for name in own},
                "folder": str(run.folder),
                "evaluated_after": run.step,
                "usd": run.usd,
                "metrics": dict(run.metrics),
                "problem": run.problem,
            }
            for run in group.runs
        ],
    }
