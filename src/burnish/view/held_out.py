"""A run's held-out evaluations, read for a comparison: `burnish compare` and the viewer's page.

by_step = evaluations(run)
held_out_run(run, evaluation_after(run, by_step, None))    # the newest, answer by answer
"""

from __future__ import annotations

from burnish.bench import Answered, HeldOutRun
from burnish.errors import StoreError, UserError
from burnish.records import Reward
from burnish.store import RunStatus, StoredEvaluation
from burnish.store.reader import RunReader

CURVES = (
    "reward/total",
    "policy/entropy",
    "policy/clipped_share",
    "length/mean",
    "groups/useful",
    "time/step_s",
)
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
    if len(marks) != len(samples):
        raise StoreError(
            f"run '{run.name}' has {len(marks)} marks for the {len(samples)} answers of its "
            f"held-out evaluation after {evaluation.step} steps; expected one each."
        )
    settings = run.about.config
    part = str(settings.get("evaluation.part", ""))
    answers = [
        Answered(s.task, s.trajectory.text, mark, "" if mark is not None else _why(s.reward, part))
        for s, mark in zip(samples, marks, strict=True)
    ]
    return HeldOutRun(run.name, evaluation.step, answers, settings)


def _why(reward: Reward, part: str) -> str:
    """The status of the reward that has no value."""
    scored = next((p for p in reward.parts if p.name == part), reward)
    return scored.status.value
