"""Long speech on SmolLM2: does GRPO on the goals of an instruction make a better planner?

    python -m lab.run long_speech --jobs 4             # minutes on one H200
    python -m lab.run long_speech --cpu                # a trial with a random tiny model

All arms start from the same examples, of whose captions 40 % are drawn at random. Then GRPO is paid
for the goals that a plan meets, or, as a control, for its form alone. Measured on held-out instructions,
greedily, and as the best of eight sampled plans by the same score: what sampling alone would give.
"""

from __future__ import annotations

import statistics
from typing import Any

from burnish.lm.base import Sampling
from lab.measure import answer, held_out, part
from lab.plan import Arm, Column, Study, Subject

TASK: dict[str, Any] = {"kind": "function", "path": "recipes.long_speech.scenes:make"}
PARTS = ("follow", "valid", "complete")
SAMPLES = 8
MAX_TOKENS = 160


def _rewards(**weights: float) -> list[dict[str, Any]]:
    return [
        {"kind": "speech_plan", "part": one, "name": one, "weight": weights.get(one, 1.0)}
        for one in PARTS
    ]


def by_goals(subject: Subject) -> dict[str, float]:
    """Goals that hold in greedy plans of held-out instructions, and in the best of several."""
    tasks = held_out(TASK, subject.prompts)
    greedy = Sampling(temperature=0.0, max_tokens=MAX_TOKENS)
    items = answer(subject.model, subject.device, tasks, _rewards(), greedy)
    found = {name: statistics.fmean(part(items, name)) for name in PARTS}
    sampling = Sampling(temperature=1.0, max_tokens=MAX_TOKENS)
    items = answer(subject.model, subject.device, tasks, _rewards(), sampling, SAMPLES)
    follow = part(items, "follow")
    each = [follow[i :: len(tasks)] for i in range(len(tasks))]
    found["sampled"] = statistics.fmean(follow)
    found["best"] = statistics.fmean(max(own) for own in each)
    return found


STUDIES = (
    Study(
        name="long_speech_planner",
        about="SmolLM2 plans tone, pace and volume of three sentences from an instruction whose words the "
        "resolver of captions does not know; 16 instructions a step, 8 plans each.",
        overrides={"steps": 60, "stages.0.steps": 150, "rollout.max_tokens": MAX_TOKENS},
        arms=(
            Arm("examples alone", "long_speech", {"optimiser.learning_rate": 0.0, "steps": 6}),
            Arm("goals are paid", "long_speech"),
            Arm(
                "form alone is paid",
                "long_speech",
                {"rewards": _rewards(follow=0.0, valid=0.5, complete=0.5)},
            ),
        ),
        columns=(
            Column("follow", "goals that hold"),
            Column("sampled", "in a sampled plan"),
            Column("best", f"in the best of {SAMPLES}"),
            Column("valid", "plans that can be read"),
            Column("complete", "captions filled in"),
        ),
        measure=by_goals,
        headline="follow",
        panels=("reward/follow/mean", "reward/complete/mean", "policy/entropy"),
        run_s=100.0,
    ),
)
