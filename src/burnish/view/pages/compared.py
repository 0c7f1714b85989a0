"""Runs beside each other: any number as groups over seeds, or two on the same held-out prompts.

The numbers are those of `burnish.bench`, which `burnish compare` prints. A curve of a group is the
mean over its runs at each step, between the lowest and the highest of them. Where the paired test
refuses (other prompts, other rewards), the page shows its one line and everything else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from burnish.bench import Comparison, Estimate, RunGroup, compare, differing, run_table
from burnish.bench.comparison import CURVES, evaluation_after, evaluations as by_step, held_out_run
from burnish.bench.run_tables import SeedMean
from burnish.bench.statistics import as_record
from burnish.errors import BurnishError, StoreError, UserError
from burnish.metrics import title_of
from burnish.store.manifest import list_sweeps, read_sweep
from burnish.store.reader import RunReader
from burnish.view.pages.run_page import Line, curves_of, thinned
from burnish.view.pages.runs import NotFound, Page, Runs, open_run, paged, readable, run_line

MOST = 200
"""Runs on one page."""
READ_S = 8.0
"""Reading whole evaluations takes longer than a page of samples."""
HELD_OUT = "held out"
"""The chart of the held-out scores, beside those of the metrics."""
TEXT = 4000
"""Characters of an answer in a pair."""


def sweeps_page(runs: Runs) -> Page:
    """The sweeps beside the runs; a damaged file says what is wrong with it."""
    listed = runs.listing().folders
    found = []
    for file in list_sweeps(runs.folder) if runs.folder is not None else ():
        line: Page = {"name": readable(file.name), "recipe": "", "varied": [], "problem": ""}
        started, planned, failed = 0, 0, 0
        try:
            record = read_sweep(file)
            line |= {"name": record.name, "recipe": record.recipe, "varied": list(record.grid)}
            started = sum(run.name in listed for run in record.runs)
            planned, failed = len(record.runs), sum(bool(run.failure) for run in record.runs)
        except StoreError as error:
            line["problem"] = str(error)
        found.append(line | {"runs": started, "planned": planned, "failed": failed})
    return {"sweeps": found}


def many_page(
    runs: Runs,
    *,
    named: Sequence[str],
    sweep: str,
    baseline: str,
    step: int | None,
    names: Sequence[str],
    points: int,
    each: bool,
) -> Page:
    """Runs as groups that differ only in their seed; `each`: the curves of every run too."""
    chosen, keys = _chosen(runs, named, sweep)
    key_of = {folder: key for key, folder in chosen.items()}
    with ExitStack() as stack:
        readers = [stack.enter_context(open_run(f, READ_S)) for f in chosen.values()]
        table = run_table(readers, step=step, baseline=baseline, keys=keys)
        for run in readers:
            curves_of(run.folder).update(run)
        scores = {run.folder: _scores(run) for run in readers}
    known = sorted({name for run in readers for name in curves_of(run.folder).names()})
    shown = [name for name in (names or CURVES) if name in known]
    lines = {name: {f: curves_of(f).of(name) for f in scores} for name in shown}
    curves = {}
    if any(line.steps for line in scores.values()):
        groups = [[scores[run.folder] for run in group.runs] for group in table.groups]
        curves[HELD_OUT] = [_band(group, 0) for group in groups]
    for name in shown:
        groups = [[lines[name][run.folder] for run in group.runs] for group in table.groups]
        curves[name] = [_band(group, points) for group in groups]
    lines[HELD_OUT] = scores
    members = [run.folder for group in table.groups for run in group.runs]
    run_curves = {name: [thinned(lines[name][f], points) for f in members] for name in curves}
    return {
        "sweep": sweep,
        "measure": table.measure,
        "baseline": table.baseline,
        "groups": [_group(group, key_of) for group in table.groups],
        "differs": [
            {
                "key": key,
                "values": values,
                "there": [value is not None for value in values],
            }
            for key, values in table.differs.items()
        ],
        "names": known,
        "curves": curves,  # one band for each group
        "run_curves": run_curves if each else {},  # in the order of the groups
        "titles": {name: title_of(name) for name in shown}
        | {HELD_OUT: f"Held-out {table.measure}"},
        "steps": sorted(set.intersection(*(set(line.steps) for line in scores.values()))),
        "step": step,
        "notes": table.notes,
    }


def _chosen(runs: Runs, named: Sequence[str], sweep: str) -> tuple[dict[str, Path], list[str]]:
    """Run folders by key, and the settings that the sweep among them varies."""
    listed = runs.listing().folders
    keys: list[str] = []
    chosen: dict[str, Path] = {}
    if sweep:
        files = list_sweeps(runs.folder) if runs.folder is not None else []
        record = next((r for r in map(read_sweep, files) if r.name == sweep), None)
        if record is None:
            raise NotFound(f"no sweep '{sweep}' here.")
        keys = list(record.grid)
        chosen = {run.name: listed[run.name] for run in record.runs if run.name in listed}
    for key in named:
        if named.count(key) > 1:
            raise UserError(f"run '{key}' is compared with itself; expected different runs.")
        chosen[key] = runs.find(key)
    if not 2 <= len(chosen) <= MOST:
        raise UserError(
            f"{len(chosen)} started runs are named; expected at least two runs and at most {MOST}: "
            "run=A&run=B, or sweep=NAME."
        )
    return chosen, keys


def _scores(run: RunReader) -> Line:
    found = {step: e.summary.get("score") for step, e in by_step(run).items()}
    known = {step: float(score[0]) for step, score in found.items() if score}
    return Line(list(known), list(known.values()))


def _band(lines: Sequence[Line], points: int) -> Page:
    """Mean, lowest and highest of the lines at each step that one of them has; thinned."""
    at: dict[int, list[float]] = {}
    for line in lines:
        for step, value in zip(line.steps, line.values, strict=True):
            if math.isfinite(value):
                at.setdefault(step, []).append(value)
    steps = sorted(at)
    means = Line(steps, [math.fsum(at[step]) / len(at[step]) for step in steps])
    shown = thinned(means, points or max(len(steps), 1))
    return {
        "steps": shown["steps"],
        "values": shown["values"],
        "low": [min(at[step]) for step in shown["steps"]],
        "high": [max(at[step]) for step in shown["steps"]],
        "runs": sum(bool(line.steps) for line in lines),
    }


def _group(group: RunGroup, key_of: Mapping[Path, str]) -> Page:
    def mean(found: SeedMean | None) -> Page | None:
        """With its 95 % interval, which one run does not have."""
        return found and dict(zip(("value", "low", "high", "runs"), found, strict=True))

    return {
        "label": group.label,
        "runs": [
            {
                "key": key_of[run.folder],
                "name": readable(run.name),
                "seed": run.seed,
                "status": run.status,
                "steps": run.steps,
                "before": run.before,
                "after": run.after,
                "problem": run.problem,
            }
            for run in group.runs
        ],
        "before": mean(group.before),
        "after": mean(group.after),
        "difference": mean(group.difference),
        "problem": group.problem,
        "seconds": mean(group.seconds),
        "tokens": mean(group.tokens),
        "usd": mean(group.usd),
    }


def compare_page(
    a: tuple[str, Path],
    b: tuple[str, Path],
    *,
    step: int | None,
    names: Sequence[str],
    points: int,
    after: int,
    limit: int,
) -> Page:
    """Two runs compared: settings that differ, curves by name, and the same held-out prompts."""
    with open_run(a[1], READ_S) as run_a, open_run(b[1], READ_S) as run_b:
        curves = [curves_of(a[1]), curves_of(b[1])]
        evaluations = []
        found: Comparison | None = None
        problem = ""
        for lines, run in zip(curves, (run_a, run_b), strict=True):
            lines.update(run)
            evaluations.append(by_step(run))
        try:
            found = compare(
                *(
                    held_out_run(run, evaluation_after(run, own, step))
                    for run, own in zip((run_a, run_b), evaluations, strict=True)
                )
            )
        except BurnishError as error:
            problem = str(error)
        differs = differing(run_a.about.config, run_b.about.config)
    known = sorted({*curves[0].names(), *curves[1].names()})
    shown = [name for name in (names or CURVES) if name in known]
    return {
        "a": run_line(*a),
        "b": run_line(*b),
        "differs": [
            {
                "key": key,
                "a": one,
                "b": two,
                "in_a": one is not None,
                "in_b": two is not None,
            }
            for key, (one, two) in differs.items()
        ],
        "names": known,
        "curves": {
            name: {k: thinned(c.of(name), points) for k, c in zip("ab", curves, strict=True)}
            for name in shown
        },
        "titles": {name: title_of(name) for name in shown},
        "steps": sorted(evaluations[0].keys() & evaluations[1].keys()),
        "problem": problem,
        **_tested(found, after, limit),
    }


def _tested(found: Comparison | None, after: int, limit: int) -> Page:
    """The paired test, whose `difference` is B minus A, and the pairs that changed most."""
    if found is None:
        nothing = dict.fromkeys(("step_a", "step_b", "test", "next"))
        none = dict.fromkeys(("pairs_total", "only_a", "only_b", "unmarked"), 0)
        return {"verdict": "", "pairs": [], **nothing, **none}
    test: dict[str, Any] | None = None
    if found.test is not None:
        test = as_record(found.test)
        for name, value in found.test._asdict().items():
            if isinstance(value, Estimate):
                test[name] = {**value._asdict(), "doubt": value.doubt}
    ordered = sorted(found.pairs, key=lambda pair: (-abs(pair.change), pair.id))
    shown, behind = paged(ordered, after, limit)
    return {
        "step_a": found.a.step,
        "step_b": found.b.step,
        "verdict": found.verdict,
        "test": test,
        "pairs": [
            {
                "task": pair.id,
                "prompt": pair.prompt[:TEXT],
                "mark_a": pair.mark_a,
                "mark_b": pair.mark_b,
                "change": pair.change,
                "answer_a": pair.answer_a[:TEXT],
                "answer_b": pair.answer_b[:TEXT],
            }
            for pair in shown
        ],
        "pairs_total": len(ordered),
        "next": behind,
        "only_a": len(found.only_a),
        "only_b": len(found.only_b),
        "unmarked": len(found.unmarked),
    }
