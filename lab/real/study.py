"""Real data: AFRL on relevance judgements of people, GD2PO on the tool calls of BFCL.

The files come from `python -m lab.real.prepare DATA_FOLDER runs/lab/data`. A trial with the
tiny model (`--cpu`) is not possible: one token a byte makes these prompts longer than it can read.

Each study measures the shared warm start too, as the row of the start model, so what policy
optimisation adds is told apart from what imitation alone gives. For graded search `majority` is
the control that reads nothing: the commonest grade of the training file, given to everything.
"""

from __future__ import annotations

import statistics
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from burnish.lm.base import Sampling
from burnish.rewards.checks.relevance import leading_grade, relevance_reward
from burnish.tasks.base import TaskSet
from burnish.tasks.config import TaskConfig, build as build_tasks
from lab.gd2po.study import GDPO, GRPO
from lab.measure import answer, part
from lab.plan import Arm, Column, Study, Subject

HERE = Path(__file__).resolve().parent
DATA = HERE.parents[1] / "runs" / "lab" / "data"
SEARCH, TOOLS = (str(HERE / name) for name in ("search.toml", "tools.toml"))
GRADES = ("D", "C", "B", "A")
"""From the lowest to the highest."""
MEASURED = 5
"""Held-out questions for each that a size asks for: one token is cheap, and files are small."""


class Judged(NamedTuple):
    """What a model and a person said of one pair."""

    source: str
    gold: int
    found: int | None
    """None where the answer does not begin with a grade."""


def tasks_of(recipe: str | Path, data: Path) -> TaskSet:
    """The task set of a recipe of this folder, its files taken from `data`."""
    table: dict[str, Any] = tomllib.loads(Path(recipe).read_text(encoding="utf-8"))["task"]
    table["path"] = Path(table["path"]).name
    table["held_out"]["path"] = Path(table["held_out"]["path"]).name
    return build_tasks(msgspec.convert(table, TaskConfig), seed=0, root=data)


def by_grade(subject: Subject) -> dict[str, float]:
    """Accuracy of the first token: over all, over grades, over sources, and of the majority."""
    tasks = tasks_of(SEARCH, DATA)
    asked = tasks.held_out(MEASURED * subject.prompts)
    grade = {"kind": "grade", "name": "grade", "labels": GRADES}
    sampling = Sampling(temperature=0.0, max_tokens=1)
    items = answer(subject.model, subject.device, asked, [grade], sampling)
    judged = [
        Judged(
            str(item.task.fields["source"]),
            GRADES.index(item.task.fields["grade"]),
            leading_grade(item.trajectory.text, GRADES),
        )
        for item in items
    ]
    shown = [tasks.train(index).fields["grade"] for index in range(tasks.train_size or 0)]
    return {**grade_figures(judged), **majority_figures(judged, majority(shown))}


def majority(grades: Sequence[str]) -> int:
    """The commonest grade; of two the lower."""
    counts = Counter(grades)
    return max(range(len(GRADES)), key=lambda grade: (counts[GRADES[grade]], -grade))


def grade_figures(judged: Sequence[Judged]) -> dict[str, float]:
    """What is said of a grader; the error is over the answers that have a grade."""
    errors = [abs(one.found - one.gold) for one in judged if one.found is not None]
    figures = {
        "accuracy": _accuracy(judged),
        "macro_accuracy": _macro(judged),
        "ordinal_score": statistics.fmean(
            relevance_reward(one.found, one.gold, len(GRADES), "ordinal") for one in judged
        ),
        "graded_share": len(errors) / len(judged),
    }
    if errors:
        figures["grade_error"] = statistics.fmean(errors)
    for grade, label in enumerate(GRADES):
        if of_grade := [one for one in judged if one.gold == grade]:
            figures[f"grade/{label}"] = _accuracy(of_grade)
    for source in sorted({one.source for one in judged}):
        of_source = [one for one in judged if one.source == source]
        figures[f"{source}/accuracy"] = _accuracy(of_source)
        figures[f"{source}/macro_accuracy"] = _macro(of_source)
    return figures


def majority_figures(judged: Sequence[Judged], grade: int) -> dict[str, float]:
    """The same of a grader that always says one grade."""
    figures = grade_figures([one._replace(found=grade) for one in judged])
    names = ("accuracy", "macro_accuracy", "ordinal_score", "grade_error")
    return {f"majority/{name}": figures[name] for name in names}


def _accuracy(judged: Sequence[Judged]) -> float:
    return statistics.fmean(one.found == one.gold for one in judged)


def _macro(judged: Sequence[Judged]) -> float:
    """Mean over the grades that occur of the accuracy on each."""
    golds = sorted({one.gold for one in judged})
    return statistics.fmean(
        _accuracy([one for one in judged if one.gold == gold]) for gold in golds
    )


def by_category(subject: Subject) -> dict[str, float]:
    """Exact calls, over all and by category; `calls` leaves out where no call is wanted."""
    recipe = tomllib.loads(Path(TOOLS).read_text(encoding="utf-8"))
    asked = tasks_of(TOOLS, DATA).held_out(MEASURED * subject.prompts)
    sampling = Sampling(temperature=0.0, max_tokens=recipe["rollout"]["max_tokens"])
    items = answer(subject.model, subject.device, asked, recipe["rewards"], sampling)
    exact = part(items, "exact")
    categories = [str(item.task.fields["category"]) for item in items]
    by_name: dict[str, list[float]] = {}
    for category, value in zip(categories, exact, strict=True):
        by_name.setdefault(category, []).append(value)
    called = [v for name, values in by_name.items() if name != "irrelevance" for v in values]
    return {
        "exact": statistics.fmean(exact),
        **({"exact_calls": statistics.fmean(called)} if called else {}),
        **{f"all/{name}": statistics.fmean(part(items, name)) for name in ("format", "name")},
        "all/arguments": statistics.fmean(part(items, "arguments")),
        **{f"category/{name}": statistics.fmean(v) for name, v in sorted(by_name.items())},
    }


ORDINAL = {"rewards.0.scale": "ordinal"}
"""A grade that is one off earns two thirds, so the middle grades are the safe ones."""
STAGES = {
    "curriculum.thresholds": [0.5, 0.8, 1.0],
    "curriculum.pool": 512,
    "curriculum.samples": 8,
    "curriculum.patience": 1,
    "curriculum.always": "grade=A",
}
"""From what the start model finds easy to the rest; the rarest grade is there from the beginning."""


def _imitating(coefficient: float, note: str = "", **settings: Any) -> Arm:
    coefficients = {"policy.auxiliary.0.coefficient": coefficient}
    return Arm(f"lambda {coefficient:g}{note}", SEARCH, {**coefficients, **settings})


STUDIES = (
    Study(
        name="real_search",
        about="Relevance grades of Cranfield and LiveQA-Med. Does imitating "
        "all grades in equal parts beside the policy loss keep rare grades, and does the "
        "curriculum help?",
        arms=(
            _imitating(0.0),
            _imitating(1.0),
            _imitating(0.1, ", ordinal", **ORDINAL),
            *(
                _imitating(value, ", ordinal, curriculum", **ORDINAL, **STAGES)
                for value in (0.0, 0.1, 0.3)
            ),
        ),
        columns=(
            Column("accuracy", "accuracy"),
            Column("macro_accuracy", "macro accuracy"),
            Column("ordinal_score", "ordinal score"),
            Column("grade_error", "grade error"),
            Column("cranfield/accuracy", "Cranfield"),
            Column("liveqa_med/accuracy", "LiveQA-Med"),
            Column("majority/accuracy", "majority: accuracy"),
            Column("majority/macro_accuracy", "majority: macro"),
            Column("majority/ordinal_score", "majority: ordinal"),
        ),
        measure=by_grade,
        headline="macro_accuracy",
        panels=("reward/grade/mean", "policy/entropy"),
    ),
    Study(
        name="real_tools",
        about="Tool calls of BFCL's single turns. Which way of joining the "
        "rewards format, name and arguments gives more exact calls?",
        arms=(
            Arm("GRPO", TOOLS, GRPO),
            Arm("GDPO", TOOLS, GDPO),
            Arm("GD2PO SNR", TOOLS),
        ),
        columns=(
            Column("exact", "exact"),
            Column("exact_calls", "exact where a call is wanted"),
            Column("all/format", "readable"),
            Column("all/name", "right name"),
            Column("all/arguments", "right arguments"),
        ),
        measure=by_category,
        panels=("reward/total", "trained_share", "policy/entropy"),
        at_equal_tokens=True,
    ),
)
