"""Two runs compared: settings that differ, curves by name, and the same held-out prompts.

The test is that of `burnish.bench.comparison`. Where it refuses (other prompts, other rewards), the
page shows its one line and everything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from burnish.bench import ABSENT, Comparison, Estimate, compare, differing
from burnish.bench.comparison import CURVES, evaluation_after, held_out_run
from burnish.bench.comparison import evaluations as by_step
from burnish.errors import BurnishError
from burnish.metrics import title_of
from burnish.store.reader import RunReader, StoredEvaluation
from burnish.view.pages.run_page import Curve, curves_of, thinned
from burnish.view.pages.runs import RunLine, open_run, run_line

COMPARE_S = 8.0
"""Reading two whole evaluations takes longer than a page of samples."""
TEXT = 4000
"""Characters of an answer in a pair."""


class Difference(Struct, frozen=True):
    """A setting that is not the same; a run that has no such setting says so."""

    key: str
    a: Any
    b: Any
    in_a: bool
    in_b: bool


class PairLine(Struct, frozen=True):
    task: str
    prompt: str
    mark_a: float
    mark_b: float
    change: float
    answer_a: str
    answer_b: str


class TwoCurves(Struct, frozen=True):
    a: Curve
    b: Curve


class ComparePage(Struct, frozen=True, kw_only=True):
    a: RunLine
    b: RunLine
    differs: list[Difference]
    names: list[str]
    """Metrics that either run has."""
    curves: dict[str, TwoCurves]
    titles: dict[str, str]
    """Of the curves."""
    steps: list[int]
    """Steps at which both runs were evaluated."""
    step_a: int | None
    step_b: int | None
    verdict: str
    problem: str
    """Why there is no paired test; empty where there is one."""
    test: dict[str, Any] | None
    """The record of `burnish.bench.PairedTest`; `difference` is B minus A."""
    pairs: list[PairLine]
    """By how much they changed, most first."""
    pairs_total: int
    next: int | None
    only_a: int
    only_b: int
    unmarked: int


class Asked(Struct, frozen=True):
    step: int | None
    names: Sequence[str]
    points: int
    after: int
    limit: int


def compare_page(a: tuple[str, Path], b: tuple[str, Path], asked: Asked) -> ComparePage:
    with open_run(a[1], COMPARE_S) as run_a, open_run(b[1], COMPARE_S) as run_b:
        curves = [curves_of(a[1]), curves_of(b[1])]
        for lines, run in zip(curves, (run_a, run_b), strict=True):
            lines.update(run)
        names = sorted({*curves[0].names(), *curves[1].names()})
        shown = [name for name in (asked.names or CURVES) if name in names]
        evaluations = [by_step(run_a), by_step(run_b)]
        found, problem = _compared((run_a, run_b), evaluations, asked.step)
        settings = (run_a.about.config, run_b.about.config)
    pairs = _ordered(found)
    runs = (run_line(*a), run_line(*b))
    end = asked.after + asked.limit
    return ComparePage(
        a=runs[0],
        b=runs[1],
        differs=_differences(*settings),
        names=names,
        curves={
            name: TwoCurves(*(thinned(lines.of(name), asked.points) for lines in curves))
            for name in shown
        },
        titles={name: title_of(name) for name in shown},
        steps=sorted(evaluations[0].keys() & evaluations[1].keys()),
        step_a=None if found is None else found.a.step,
        step_b=None if found is None else found.b.step,
        verdict="" if found is None else found.verdict,
        problem=problem,
        test=_test(found),
        pairs=pairs[asked.after : end],
        pairs_total=len(pairs),
        next=end if end < len(pairs) else None,
        only_a=0 if found is None else len(found.only_a),
        only_b=0 if found is None else len(found.only_b),
        unmarked=0 if found is None else len(found.unmarked),
    )


def _compared(
    runs: tuple[RunReader, RunReader],
    evaluations: list[dict[int, StoredEvaluation]],
    step: int | None,
) -> tuple[Comparison | None, str]:
    try:
        sides = [
            held_out_run(run, evaluation_after(run, found, step))
            for run, found in zip(runs, evaluations, strict=True)
        ]
        return compare(*sides), ""
    except BurnishError as error:
        return None, str(error)


def _differences(a: dict[str, Any], b: dict[str, Any]) -> list[Difference]:
    return [
        Difference(
            key,
            None if one is ABSENT else one,
            None if two is ABSENT else two,
            one is not ABSENT,
            two is not ABSENT,
        )
        for key, (one, two) in differing(a, b).items()
    ]


def _test(found: Comparison | None) -> dict[str, Any] | None:
    if found is None or found.test is None:
        return None
    doubts = {
        name: {**value._asdict(), "doubt": value.doubt}
        for name, value in found.test._asdict().items()
        if isinstance(value, Estimate)
    }
    return {**found.test.record(), **doubts}


def _ordered(found: Comparison | None) -> list[PairLine]:
    if found is None:
        return []
    ordered = sorted(found.pairs, key=lambda pair: (-abs(pair.change), pair.id))
    return [
        PairLine(
            p.id,
            p.prompt[:TEXT],
            p.mark_a,
            p.mark_b,
            p.change,
            p.answer_a[:TEXT],
            p.answer_b[:TEXT],
        )
        for p in ordered
    ]
