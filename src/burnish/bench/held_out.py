"""Stored runs compared by their held-out evaluations: `burnish compare` and the viewer's page.

compare_runs(store_a, store_b).record()

by_step = evaluations(run)
held_out_run(run, evaluation_after(run, by_step, None))    # the newest, answer by answer
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from burnish.bench.comparable import ABSENT, LOWER_IS_BETTER, differing
from burnish.bench.compare import Answered, Comparison, HeldOutRun, compare
from burnish.errors import StoreError, UserError, did_you_mean
from burnish.metrics import shown_in
from burnish.records import Reward, Task
from burnish.store import RunStatus, StoredEvaluation
from burnish.store.reader import RunReader

CURVES = shown_in("compare")
"""The curves that are shown where none is asked for."""


def evaluations(run: RunReader) -> dict[int, StoredEvaluation]:
    """The run's held-out evaluations by step, in the order of the steps."""
    found = {evaluation.step: evaluation for evaluation in run.evaluations("held_out")}
    return dict(sorted(found.items()))


def evaluation_after(
    run: RunReader, found: dict[int, StoredEvaluation], step: int | None
) -> StoredEvaluation:
    """The evaluation after so many steps; the last one where no number is given."""
    if not found:
        if run.status() is RunStatus.RUNNING:
            hint = "it is going on; wait for its first one"
        else:
            hint = "expected at least one; train it with evaluation.prompts above 0"
        raise UserError(f"run '{run.name}' has no held-out evaluation: {hint}.")
    if step is None:
        return found[max(found)]
    if step not in found:
        raise UserError(
            f"run '{run.name}' has no held-out evaluation after {step} steps; it has one after "
            f"{', '.join(map(str, found))}."
        )
    return found[step]


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
        raise StoreError(
            f"run '{run.name}' has {len(marks)} marks for the {len(samples)} answers of its "
            f"held-out evaluation after {evaluation.step} steps; expected one each."
        )
    part = str(settings.get("evaluation.part", ""))
    answers = [
        Answered(s.task, s.trajectory.text, mark, "" if mark is not None else _why(s.reward, part))
        for s, mark in zip(samples, marks, strict=True)
    ]
    return HeldOutRun(run.name, evaluation.step, answers, settings, measure)


def _why(reward: Reward, part: str) -> str:
    """The status of the reward that has no value."""
    scored = next((p for p in reward.parts if p.name == part), reward)
    return scored.status.value


class RunSide(NamedTuple):
    """One of the two runs, apart from its answers."""

    folder: Path
    recipe: str
    status: str
    steps: int
    curves: dict[str, list[tuple[int, float]]]


class RunComparison(NamedTuple):
    """Two stored runs: the paired test, the settings that differ, curves, and what to know."""

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
            "differs": {
                key: [None if value is ABSENT else value for value in pair]
                for key, pair in self.changes.items()
            },
            "notes": self.notes,
            "test": None if test is None else test.record(),
            "prompts": [{**pair._asdict(), "change": pair.change} for pair in found.pairs],
            "only_a": found.only_a,
            "only_b": found.only_b,
            "unmarked": [item._asdict() for item in found.unmarked],
            "curves": {n: {"a": c, "b": self.b.curves[n]} for n, c in self.a.curves.items()},
            "verdict": found.verdict,
        }


def compare_runs(
    run_a: RunReader, run_b: RunReader, *, step: int | None = None, metrics: Sequence[str] = ()
) -> RunComparison:
    """Compare two runs after `step` steps (the last evaluation of each where not given)."""
    by_step = evaluations(run_a), evaluations(run_b)
    found = compare(
        held_out_run(run_a, evaluation_after(run_a, by_step[0], step)),
        held_out_run(run_b, evaluation_after(run_b, by_step[1], step)),
    )
    names = _known(metrics, run_a, run_b)
    return RunComparison(
        found,
        _side(run_a, names),
        _side(run_b, names),
        differing(found.a.settings, found.b.settings),
        _notes(found, sorted(by_step[0].keys() & by_step[1].keys())),
    )


def _known(asked: Sequence[str], run_a: RunReader, run_b: RunReader) -> list[str]:
    """The metrics to show; one that neither run has is a mistake where it was asked for."""
    known = list(dict.fromkeys([*run_a.metrics(), *run_b.metrics()]))
    for name in asked:
        if name not in known:
            hint = did_you_mean(name, known) or f" They have: {', '.join(known) or 'none yet'}."
            raise UserError(
                f"neither run '{run_a.name}' nor run '{run_b.name}' has a metric '{name}'.{hint}"
            )
    return [name for name in dict.fromkeys(asked or CURVES) if name in known]


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
    budgets = [_budget(run.settings) for run in (found.a, found.b)]
    if all(budgets) and budgets[0] != budgets[1]:
        notes.append(
            f"answers had at most {budgets[0]} tokens in A and {budgets[1]} in B, which alone can "
            "make a difference"
        )
    return notes


def _budget(settings: Mapping[str, Any]) -> Any:
    return settings.get("evaluation.max_tokens") or settings.get("rollout.max_tokens")


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
