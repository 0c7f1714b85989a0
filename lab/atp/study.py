"""ATP-Bench on SmolLM2: what does paying for right calls, or for met needs alone, do to a planner?

    python -m lab.run atp --jobs 4                  # under 8 minutes on one H200
    python -m lab.run atp --cpu                     # a trial with a random tiny model

Templated manuals and recipes with known needs. All arms start from the same examples of the syntax, which
leave out calls, add some that nobody needs and take wrong tools. Then GRPO with the F1 of the plan, with
its success rate alone and with its recall alone; validity is paid a fifth in every arm.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from burnish.lm.base import Sampling
from burnish.rewards.judges.atp_bench import aggregate, plan_of
from lab.measure import answer, held_out
from lab.plan import Arm, Column, Study, Subject

TASK = {"kind": "function", "path": "recipes.atp.manuals:make"}
MAX_TOKENS = 128


def _reward(name: str, value: str, weight: float, otherwise: float | None) -> dict[str, Any]:
    options: dict[str, Any] = {"value": value}
    options |= {} if otherwise is None else {"otherwise": otherwise}
    return {"kind": "atp", "name": name, "weight": weight, "options": options}


def by_needs(subject: Subject) -> dict[str, float]:
    """Plans of held-out guides against their needs."""
    tasks = held_out(TASK, subject.prompts)
    sampling = Sampling(temperature=1.0, max_tokens=MAX_TOKENS)
    rewards = [_reward("plan", "f1", 1.0, None)]
    items = answer(subject.model, subject.device, tasks, rewards, sampling)
    plans = [plan for item in items if (plan := plan_of(item.reward)) is not None]
    return figures(plans)


def figures(plans: Sequence[Any]) -> dict[str, float]:
    """Rates over plans; one that is not defined is left out."""
    corpus = aggregate(
        [
            {
                "calls_correct": [item.correct for item in plan.items],
                "missed": len(plan.missed or ()),
            }
            for plan in plans
        ]
    )
    valid = [value for plan in plans if (value := plan.metrics["validity"]) is not None]
    found = {
        "f1": corpus.f1_mean,
        "success": corpus.success_rate_macro,
        "missed": corpus.missed_mean,
        "calls": corpus.mean_calls,
        "recall": corpus.recall_mean,
        "valid": statistics.fmean(valid) if valid else None,
        "with_calls": corpus.tool_adoption,
    }
    return {name: value for name, value in found.items() if value is not None}


def _arm(name: str, value: str, otherwise: float | None = None) -> Arm:
    """Rewards of one arm; curves that are not paid have the weight 0."""
    watched = {"precision": 0.0, "recall": 1.0}
    rewards = [
        _reward("paid", value, 1.0, otherwise),
        _reward("valid", "validity", 0.2, 1.0),
        _reward("plan", "f1", 0.0, None),
        *(_reward(f"watched_{one}", one, 0.0, default) for one, default in watched.items()),
    ]
    return Arm(name, "atp", {"rewards": rewards})


STUDIES = (
    Study(
        name="atp_manuals",
        about="Guides of three steps with known needs; 16 guides a step, 8 plans each. What do the F1 of "
        "a plan, its success rate alone and its recall alone teach?",
        overrides={"steps": 60, "stages.0.steps": 150, "rollout.max_tokens": MAX_TOKENS},
        arms=(
            # Who calls nothing has called nothing wrong; where nothing is needed, all needs are met.
            _arm("f1", "f1"),
            _arm("precision alone", "precision", 1.0),
            _arm("recall alone", "recall", 1.0),
        ),
        columns=(
            Column("f1", "F1"),
            Column("success", "success rate"),
            Column("missed", "missed a response", 2),
            Column("calls", "calls a response", 2),
            Column("recall", "recall"),
            Column("valid", "valid calls"),
            Column("with_calls", "responses with calls"),
        ),
        measure=by_needs,
        headline="f1",
        panels=("reward/plan/mean", "reward/watched_precision/mean", "reward/watched_recall/mean"),
        run_s=100.0,
    ),
)
