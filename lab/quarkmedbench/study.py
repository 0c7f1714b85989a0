"""QuarkMedBench: what tier weights, truncation and saturation of a rubric do to a trained model."""

from __future__ import annotations

import statistics
from typing import Any

from burnish.lm.base import Sampling
from lab.measure import answer, held_out, part
from lab.plan import Arm, Column, Study, Subject

GAME = "recipes.quarkmedbench.manuals"
TASK = {"kind": "function", "path": "recipes.quarkmedbench.manuals:make"}
WATCHED = ("essentials", "extras", "pitfalls")
MAX_TOKENS = 64


def _reward(name: str, weight: float, **options: Any) -> dict[str, Any]:
    return {
        "kind": "function",
        "name": name,
        "path": f"{GAME}:{name}",
        "weight": weight,
        "options": options,
    }


def by_tier(subject: Subject) -> dict[str, float]:
    """What answers to held-out sheets tell, get wrong, and how long they are."""
    tasks = held_out(TASK, subject.prompts)
    sampling = Sampling(temperature=1.0, max_tokens=MAX_TOKENS)
    rewards = [_reward(name, 1.0) for name in WATCHED]
    items = answer(subject.model, subject.device, tasks, rewards, sampling)
    found = {name: statistics.fmean(part(items, name)) for name in WATCHED}
    return found | {"tokens": statistics.fmean(i.trajectory.trained_tokens for i in items)}


def _arm(name: str, **options: Any) -> Arm:
    rewards = [_reward("graded", 1.0, **options), *(_reward(name, 0.0) for name in WATCHED)]
    return Arm(name, "quarkmedbench", {"rewards": rewards})


STUDIES = (
    Study(
        name="quarkmedbench_sheets",
        about="Questions about device sheets, marked without a judge. What do the weights of tiers "
        "and the two mechanisms change against counting every item alike?",
        arms=(
            _arm("equal weights", equal=True),
            _arm("2:1:1:2"),
            _arm("2:1:1:2, truncation", truncation=True),
            _arm("both", truncation=True, saturation=True),
        ),
        columns=(
            Column("essentials", "essentials met"),
            Column("extras", "extras told"),
            Column("pitfalls", "answers with an error"),
            Column("tokens", "tokens", 1),
        ),
        measure=by_tier,
        panels=("reward/essentials/mean", "reward/extras/mean", "reward/pitfalls/mean"),
    ),
)
