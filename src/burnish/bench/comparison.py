"""Which of two runs is better: a paired comparison of their held-out answers to the same prompts.

Prompts are matched by their task's id, never by position. A prompt that only one run answered, or
that has no mark in one of them, is named in the result and left out of the test. Whether two runs
may be compared at all is the business of `comparable`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from burnish.arguments import same_length
from burnish.bench.comparable import LOWER_IS_BETTER, differing, why_incomparable
from burnish.bench.items import Judged
from burnish.bench.judge_accuracy import Accuracy, accuracy
from burnish.bench.statistics import (
    Estimate,
    Observed,
    as_record,
    mcnemar,
    mean_estimate,
    paired_difference,
    sign_flip,
)
from burnish.boundary import Share, public
from burnish.errors import StoreError, UserError, did_you_mean
from burnish.intervals import FEW, TOO_FEW
from burnish.metrics import CATALOGUE
from burnish.records import Task
from burnish.store import RunStatus, StoredEvaluation
from burnish.store.reader import RunReader

ALPHA = 0.05
"""Two runs are told apart where the test's p-value is below this."""


class Method(StrEnum):
    """How the p-value came about."""

    MCNEMAR = "mcnemar"
    """Exact McNemar test of 0/1 marks."""
    SIGN_FLIP = "sign_flip"
    """Permutation test of graded marks: signs of the paired differences are flipped."""


class Answered(NamedTuple):
    task: Task
    answer: str
    mark: float | None
    why: str = ""
    """Why there is no mark, such as `timeout`."""


@dataclass(frozen=True)
class HeldOutRun:
    """A run's held-out evaluation after `step` steps, and the settings it was made under."""

    name: str
    step: int
    answers: Sequence[Answered]
    settings: Mapping[str, Any]
    """The run's config by dotted key, with the digests of its files under `files.NAME`."""
    measure: str = "reward"
    """What a mark is: `reward`, `accuracy`, or of which less is better, `LOWER_IS_BETTER`."""


class Pair(NamedTuple):
    id: str
    mark_a: float
    mark_b: float
    answer_a: str
    answer_b: str
    prompt: str

    @property
    def change(self) -> float:
        return self.mark_b - self.mark_a


class Unmarked(NamedTuple):
    """A prompt that both runs answered and that has no mark in one or both."""

    id: str
    why_a: str
    """Empty where A has a mark."""
    why_b: str


class Fourfold(NamedTuple):
    both: int
    only_a: int
    only_b: int
    neither: int


class PairedTest(NamedTuple):
    """Means of two runs on the same prompts, their difference B - A, and how sure it is.

    The interval and the p-value come from different methods and may disagree near the border; the
    verdict goes by the p-value.
    """

    mean_a: Estimate
    mean_b: Estimate
    difference: Estimate
    p_value: float
    method: Method
    fourfold: Fourfold | None

    @property
    def opening(self) -> str:
        """How a verdict without a winner begins."""
        return TOO_FEW if self.difference.size < FEW else "cannot be told apart"


@dataclass(frozen=True)
class Comparison:
    a: HeldOutRun
    b: HeldOutRun
    pairs: list[Pair]
    """In the order of their ids."""
    only_a: list[str]
    only_b: list[str]
    unmarked: list[Unmarked]
    test: PairedTest | None
    """None where no prompt has a mark in both runs."""

    @property
    def verdict(self) -> str:
        if self.test is None:
            return "cannot be told apart: no prompt has a mark in both runs"
        over = f"over {len(self.pairs)} prompt{'s' * (len(self.pairs) != 1)}"
        if all(pair.change == 0 for pair in self.pairs):
            return f"{self.test.opening}: every mark is the same, {over}"
        in_points = self.test.fourfold is not None
        less = self.a.measure in LOWER_IS_BETTER
        return _tested(self.test, "better", over, in_points=in_points, less_is_better=less)

    def most_changed(self, limit: int) -> list[Pair]:
        """The prompts whose marks changed most, up to `limit` for the better and as many for the
        worse, in the order of their change."""
        gained = sorted((p for p in self.pairs if p.change > 0), key=lambda p: (-p.change, p.id))
        lost = sorted((p for p in self.pairs if p.change < 0), key=lambda p: (p.change, p.id))
        return gained[:limit] + lost[:limit][::-1]


def compare(a: HeldOutRun, b: HeldOutRun) -> Comparison:
    """The paired comparison of two runs; refused where it would compare different things."""
    if a.measure != b.measure:
        raise UserError(f"'{a.name}' is scored by {a.measure}, '{b.name}' by {b.measure}.")
    of_a, of_b = ({item.task.id: item for item in run.answers} for run in (a, b))
    tasks_a, tasks_b = ({key: item.task for key, item in of.items()} for of in (of_a, of_b))
    names = a.name, b.name
    if why := why_incomparable(names, a.settings, b.settings, (tasks_a, tasks_b)):
        raise UserError(why)
    pairs, unmarked = [], []
    for key in sorted(of_a.keys() & of_b.keys()):
        one, two = of_a[key], of_b[key]
        if one.mark is None or two.mark is None:
            why_a, why_b = (
                "" if item.mark is not None else item.why or "no mark" for item in (one, two)
            )
            unmarked.append(Unmarked(key, why_a, why_b))
        else:
            pairs.append(Pair(key, one.mark, two.mark, one.answer, two.answer, one.task.prompt))
    marks = [pair.mark_a for pair in pairs], [pair.mark_b for pair in pairs]
    return Comparison(
        a,
        b,
        pairs,
        only_a=sorted(of_a.keys() - of_b.keys()),
        only_b=sorted(of_b.keys() - of_a.keys()),
        unmarked=unmarked,
        test=paired_test.plain(*marks) if pairs else None,
    )


@public
def paired_test(marks_a: Observed, marks_b: Observed) -> PairedTest:
    """The test of two runs' marks on the same prompts, in the same order."""
    same_length("marks_b", marks_b, len(marks_a), "marks of A")
    difference = paired_difference.plain(marks_a, marks_b)
    means = mean_estimate.plain(marks_a), mean_estimate.plain(marks_b)
    both_marks = list(zip(marks_a, marks_b, strict=True))
    if all(v in (0.0, 1.0) for pair in both_marks for v in pair):
        table = Fourfold(*[both_marks.count(pair) for pair in ((1, 1), (1, 0), (0, 1), (0, 0))])
        p_value = mcnemar.plain(table.only_a, table.only_b)
        return PairedTest(*means, difference, p_value, Method.MCNEMAR, table)
    p_value = sign_flip.plain([b - a for a, b in both_marks])
    return PairedTest(*means, difference, p_value, Method.SIGN_FLIP, None)


@public
def p_text(p_value: Share) -> str:
    """`p = 0.012`, never rounded onto the border that it is compared with."""
    if p_value < 1e-4:
        return "p < 0.0001"
    short = f"{p_value:.2g}"
    return f"p = {p_value:.4g}" if float(short) == ALPHA else f"p = {short}"


def _tested(
    test: PairedTest, better: str, over: str, *, in_points: bool, less_is_better: bool = False
) -> str:
    value, low, high, count = test.difference
    if test.p_value >= ALPHA or value == 0 or count < FEW:
        size = _size(value, low, high, in_points, sign="+")
        return f"{test.opening}: B - A is {size}, {p_text.plain(test.p_value)}, {over}"
    winner = "B" if (value > 0) != less_is_better else "A"
    size = _size(*((value, low, high) if value > 0 else (-value, -high, -low)), in_points)
    return f"{winner} is {better} by {size}, {p_text.plain(test.p_value)}, {over}"


def _size(value: float, low: float, high: float, in_points: bool, sign: str = "") -> str:
    scale, style, unit = (100, ".1f", " points") if in_points else (1, ".3g", "")
    interval = f" [{scale * low:{style}}, {scale * high:{style}}]" if low < high else ""
    return f"{scale * value:{sign}{style}}{unit}{interval}"


@dataclass(frozen=True)
class JudgeComparison:
    """Two judges on the items that both were asked about and that have a label."""

    name_a: str
    name_b: str
    pairs: list[tuple[Judged, Judged]]
    accuracy_a: Accuracy
    accuracy_b: Accuracy
    test: PairedTest
    only_a: list[str]
    only_b: list[str]
    agreed: float
    """Share of the items on which both say the same, a missing verdict included."""

    @property
    def verdict(self) -> str:
        over = f"over {len(self.pairs)} item{'s' * (len(self.pairs) != 1)}"
        return _tested(self.test, "right more often", over, in_points=True)


def compare_judges(
    a: Sequence[Judged], b: Sequence[Judged], name_a: str = "A", name_b: str = "B"
) -> JudgeComparison:
    """The paired comparison over all labelled items; a tie or no verdict counts as not right."""
    of_a, of_b = _of_one_judge(a, name_a), _of_one_judge(b, name_b)
    shared = sorted(of_a.keys() & of_b.keys())
    pairs = [(of_a[key], of_b[key]) for key in shared]
    other = next((x.id for x, y in pairs if x.best != y.best), None)
    if other is not None:
        raise UserError(f"'{name_a}' and '{name_b}' have different labels for item '{other}'.")
    pairs = [(x, y) for x, y in pairs if x.best]
    if not pairs:
        raise UserError(f"'{name_a}' and '{name_b}' have no labelled item in common.")
    marks_a, marks_b = [x.credit for x, _ in pairs], [y.credit for _, y in pairs]
    return JudgeComparison(
        name_a,
        name_b,
        pairs,
        accuracy([x for x, _ in pairs]),
        accuracy([y for _, y in pairs]),
        paired_test.plain(marks_a, marks_b),
        only_a=sorted(of_a.keys() - of_b.keys()),
        only_b=sorted(of_b.keys() - of_a.keys()),
        agreed=sum(x.choice == y.choice for x, y in pairs) / len(pairs),
    )


def _of_one_judge(judged: Sequence[Judged], name: str) -> dict[str, Judged]:
    judges = sorted({one.judge for one in judged})
    if len(judges) > 1:
        raise UserError(f"'{name}' has several judges; name FILE#JUDGE of {', '.join(judges)}.")
    return {one.id: one for one in judged}


CURVES = tuple(metric.name for metric in CATALOGUE if "compare" in metric.shown)
"""The curves that are shown where none is asked for."""


def evaluations(run: RunReader) -> dict[int, StoredEvaluation]:
    """The run's held-out evaluations by step, in the order of the steps."""
    found = {evaluation.step: evaluation for evaluation in run.evaluations("held_out")}
    return dict(sorted(found.items()))


def evaluation_after(
    run: RunReader, found: dict[int, StoredEvaluation], step: int | None
) -> StoredEvaluation:
    if not found:
        hint = "expected at least one; train it with evaluation.prompts above 0"
        if run.status() is RunStatus.RUNNING:
            hint = "it is going on; wait for its first one"
        raise UserError(f"run '{run.name}' has no held-out evaluation: {hint}.")
    if step is not None and step not in found:
        raise UserError(f"run '{run.name}' was held out after {list(found)} steps, not {step}.")
    return found[max(found) if step is None else step]


def held_out_run(run: RunReader, evaluation: StoredEvaluation) -> HeldOutRun:
    """What the run answered, with the marks that its own score is made of."""
    samples = list(run.samples(step=evaluation.step, split=f"eval:{evaluation.name}"))
    marks = evaluation.summary.get("marks", [])
    measure = str(evaluation.summary.get("measure", "reward"))
    settings = run.about.config
    if measure in LOWER_IS_BETTER:
        # A loss has no answer to match by: the items of the same data stand in the same order.
        same = {"data": run.about.data_hash, "items": len(marks)}
        items = [Task(f"{i:06d}", (), same) for i in range(len(marks))]
        answers = [Answered(item, "", mark) for item, mark in zip(items, marks, strict=True)]
        return HeldOutRun(run.name, evaluation.step, answers, settings, measure)
    if len(marks) != len(samples):
        raise StoreError(f"run '{run.name}' has {len(marks)} marks for {len(samples)} answers.")
    part = str(settings.get("evaluation.part", ""))
    answers = []
    for s, mark in zip(samples, marks, strict=True):
        scored = next((one for one in s.reward.parts if one.name == part), s.reward)
        why = "" if mark is not None else scored.status.value
        answers.append(Answered(s.task, s.trajectory.text, mark, why))
    return HeldOutRun(run.name, evaluation.step, answers, settings, measure)


class RunSide(NamedTuple):
    folder: Path
    recipe: str
    status: str
    steps: int
    curves: dict[str, list[tuple[int, float]]]


class RunComparison(NamedTuple):
    found: Comparison
    a: RunSide
    b: RunSide
    changes: dict[str, tuple[Any, Any]]
    notes: list[str]
    """What a person should know before believing the test."""

    def record(self) -> dict[str, Any]:
        """The whole comparison as JSON; a setting that a run does not have is null."""
        found, test = self.found, self.found.test
        return {
            "a": _run_record(found.a, self.a),
            "b": _run_record(found.b, self.b),
            "differs": self.changes,
            "notes": self.notes,
            "test": as_record(test),
            "prompts": [{**pair._asdict(), "change": pair.change} for pair in found.pairs],
            "only_a": found.only_a,
            "only_b": found.only_b,
            "unmarked": as_record(found.unmarked),
            "curves": {n: {"a": c, "b": self.b.curves[n]} for n, c in self.a.curves.items()},
            "verdict": found.verdict,
        }


def compare_runs(
    run_a: RunReader, run_b: RunReader, *, step: int | None = None, metrics: Sequence[str] = ()
) -> RunComparison:
    by_step = evaluations(run_a), evaluations(run_b)
    found = compare(
        held_out_run(run_a, evaluation_after(run_a, by_step[0], step)),
        held_out_run(run_b, evaluation_after(run_b, by_step[1], step)),
    )
    known = check_metrics([run_a, run_b], metrics)
    names = [name for name in dict.fromkeys(metrics or CURVES) if name in known]
    return RunComparison(
        found,
        _side(run_a, names),
        _side(run_b, names),
        differing(found.a.settings, found.b.settings),
        _notes(found, sorted(by_step[0].keys() & by_step[1].keys())),
    )


def check_metrics(runs: Sequence[RunReader], asked: Sequence[str]) -> list[str]:
    """The metrics that some of the runs have; one that none has is refused."""
    known = list(dict.fromkeys(name for run in runs for name in run.metrics()))
    if missing := next((name for name in asked if name not in known), ""):
        hint = did_you_mean(missing, known) or f" They have: {', '.join(known) or 'none yet'}."
        raise UserError(f"none of the {len(runs)} runs has a metric '{missing}'.{hint}")
    return known


def _side(run: RunReader, names: Sequence[str]) -> RunSide:
    curves = {
        name: [(step, v) for step, v in run.metrics(name).get(name, []) if v is not None]
        for name in names
    }
    return RunSide(run.folder, run.about.recipe, run.status().value, run.steps_done(), curves)


def _notes(found: Comparison, both: Sequence[int]) -> list[str]:
    notes = []
    if found.a.step != found.b.step:
        choose = f"; --step N compares both after N steps: {', '.join(map(str, both))}"
        notes.append(
            f"the last evaluation of each is compared: A's after {found.a.step} steps, B's after "
            f"{found.b.step}{choose if both else ''}"
        )
    budgets = [
        (run.settings.get("evaluation.max_tokens") or run.settings.get("rollout.max_tokens"))
        for run in (found.a, found.b)
    ]
    if all(budgets) and budgets[0] != budgets[1]:
        notes.append(
            f"answers had at most {budgets[0]} tokens in A and {budgets[1]} in B, which alone can "
            "make a difference"
        )
    return notes


def _run_record(run: HeldOutRun, side: RunSide) -> dict[str, Any]:
    return {
        "name": run.name,
        "folder": str(side.folder),
        "recipe": side.recipe,
        "status": side.status,
        "steps": side.steps,
        "evaluated_after": run.step,
        "answers": len(run.answers),
    }
