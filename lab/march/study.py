"""MARCH on SmolLM2: do blind checkers cure a writer that trusts its memory?

    python -m lab.run march --jobs 4                   # about 8 minutes on one H200
    python -m lab.run march --cpu                      # a trial with a random tiny model

Reports about towns from four passages, where 40 % of the facts differ from the number that the
examples keep repeating. All arms start from the same 300 steps on examples of the roles (solver,
proposer, checker, and a checker that sees the answer and repeats it in 80 % of the cases), which state
the remembered number instead of the passage's with probability 0.3. The measure plays the game with
blind checkers on held-out tasks and compares every stated number with the passages: an exact oracle.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
from recipes.march.passages import prior, read_facts

from burnish.lm.base import Sampling
from burnish.records import Status, Task, Trajectory
from burnish.rollouts import roll_out
from burnish.rollouts.env import FunctionRollout
from lab.measure import held_out, model_of
from lab.plan import Arm, Column, Study, Subject

FILE = Path(__file__).resolve().parents[2] / "recipes" / "march" / "passages.py"
TASK: dict[str, Any] = {"kind": "function", "path": f"{FILE}:make", "options": {"conflict": 0.4}}
EXPERTS = {"by_heart": 0.3, "sighted": 0.3, "nod": 0.8}
MAX_TOKENS = 96


def by_oracle(subject: Subject) -> dict[str, float]:
    """What reports state against their passages, and how well each role keeps to its form."""
    options = {"checkers": 3, "ablation": 1.0}
    settings = FunctionRollout(path="burnish.agents.march.game:play", options=options)
    tasks = held_out(TASK, subject.prompts)
    lm = model_of(subject.model, subject.device)
    sampling = Sampling(n=1, temperature=1.0, max_tokens=MAX_TOKENS)
    slots = list(enumerate(tasks))
    played = anyio.run(lambda: roll_out(slots, lm, sampling, settings.build(), 0))
    pairs = [
        (task, trajectory)
        for task, group in zip(tasks, played, strict=True)
        for trajectory in group
        if trajectory.role == "solver" and trajectory.status is Status.OK
    ]
    if not pairs:
        first = next(trajectory for group in played for trajectory in group)
        raise RuntimeError(f"no report was written: {first.status.value}, {first.reason}")
    return figures(pairs)


def figures(pairs: Sequence[tuple[Task, Trajectory]]) -> dict[str, float]:
    """Shares over the reports of tasks; a share of nothing is left out."""
    stated = [
        (number == task.fields["facts"].get(thing), _differs(task, thing))
        for task, solver in pairs
        for thing, number in read_facts(solver.text).items()
    ]
    traces = [(task, solver.info["march"]) for task, solver in pairs]
    claims = [(task, claim) for task, trace in traces for claim in trace["claims"]]
    checks = [check for _, claim in claims for check in claim["checks"]]
    right = [
        check is not None and check.strip() == str(task.fields["facts"].get(thing))
        for task, claim in claims
        for thing in [_asked(task, claim["question"])]
        if thing and _differs(task, thing)
        for check in claim["checks"]
    ]
    marks = {
        "conflict": [not is_right for is_right, differs in stated if differs],
        "against": [not is_right for is_right, _ in stated],
        "faithful": [is_right for is_right, _ in stated],
        "proposed": [bool(trace["claims"]) for _, trace in traces],
        "checked": [check is not None for check in checks],
        "checker_right": right,
        "holds": [claim["holds"] for _, claim in claims],
        "by_heart": [one for _, c in claims if (one := c["by_heart"]) is not None],
    }
    found = {name: statistics.fmean(own) for name, own in marks.items() if own}
    total = max(1, len(pairs))
    found["facts"] = len(stated) / total
    found["claims"] = len(claims) / total
    return found


def _differs(task: Task, thing: str) -> bool:
    """Whether the passages say another number than the one that is remembered."""
    return bool(task.fields["facts"].get(thing) != prior(task.fields["town"], thing))


def _asked(task: Task, question: str) -> str:
    """The fact that a claim's question asks for; empty where it asks for none of the town."""
    return next((thing for thing in task.fields["facts"] if f" {thing} " in question), "")


STUDIES = (
    Study(
        name="march_towns",
        about="SmolLM2 writes reports from passages that differ from what it remembers in 40 % of the "
        "facts; 16 questions a step, 4 reports each, 3 checkers. Against the passages is exact.",
        start={"experts.task.options": EXPERTS},
        overrides={
            "steps": 60,
            "stages.0.steps": 300,
            "rollout.prompts": 16,
            "rollout.samples": 4,
            "rollout.max_tokens": MAX_TOKENS,
            "evaluation.prompts": 100,
            "evaluation.every": 30,
        },
        arms=(
            Arm("examples alone", "march", {"optimiser.learning_rate": 0.0, "steps": 6}),
            Arm("blind, solver and checkers", "march"),
            Arm("blind, solver alone", "march", {"rollout.options.use_checker": False}),
            Arm("sighted checkers", "march", {"rollout.options.sighted": True}),
            Arm("blind, no floor", "march", {"rollout.options.short_penalty": 0.0}),
        ),
        columns=(
            Column("conflict", "against the passages, where memory differs"),
            Column("against", "against the passages"),
            Column("facts", "facts a report", 2),
            Column("claims", "claims a report", 2),
            Column("checker_right", "checkers right, where memory differs"),
            Column("checked", "checks in form"),
            Column("proposed", "reports with claims"),
            Column("by_heart", "claims also made without passages"),
        ),
        measure=by_oracle,
        headline="conflict",
        panels=("reward/march/mean", "reward/faithful/mean", "reward/claims/mean"),
        run_s=100.0,
    ),
)
