"""GenRM: a judge trained against known preferences, by what it is paid and how places are weighed."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from typing import Any

from recipes.genrm.preferences import draw_pair, task_of

from burnish.bench.evaluation import Evaluated
from burnish.lm.base import Sampling
from burnish.records import Message, Task
from burnish.rewards.pairs import parse_pair_scores
from burnish.seeds import derive
from lab.measure import answer, part
from lab.plan import Arm, Column, Study, Subject

MAX_TOKENS = 40


def in_both_orders(subject: Subject) -> dict[str, float]:
    """Accuracy, taste for a place and agreement with itself over new pairs in both orders."""
    tasks = [task for k in range(subject.prompts) for task in _pair(k)]
    sampling = Sampling(temperature=0.0, max_tokens=MAX_TOKENS)
    rewards = [{"kind": "genrm", "name": "right", "value": "right"}]
    items = answer(subject.model, subject.device, tasks, rewards, sampling)
    ahead = [_ahead(item) for item in items]
    picks = [one > 0 for one in ahead if one]
    pairs = list(zip(ahead[::2], ahead[1::2], strict=True))
    return {
        "accuracy": statistics.fmean(part(items, "right")),
        "first_picked": statistics.fmean(picks) if picks else 0.0,
        "same_text": statistics.fmean(bool(a and b and a * b < 0) for a, b in pairs),
        "readable": statistics.fmean(one is not None for one in ahead),
    }


def _pair(number: int) -> Sequence[Task]:
    """One pair that no run has seen, in both orders."""
    pair = draw_pair(random.Random(derive("genrm study", number)))
    rows = [task_of(pair, is_swapped) for is_swapped in (False, True)]
    return [
        Task(
            f"{number}.{k}", (Message("user", row["prompt"]),), {"label": row["label"]}, ("label",)
        )
        for k, row in enumerate(rows)
    ]


def _ahead(item: Evaluated) -> float | None:
    scores = parse_pair_scores(item.trajectory.text)
    return None if scores is None else scores[0] - scores[1]


def _watched(name: str) -> dict[str, Any]:
    return {"kind": "genrm", "name": name, "value": name, "weight": 0.0}


ACCURACY = [
    {"kind": "genrm", "name": "genrm", "margin_floor": 1.0},
    _watched("picked_first"),
    _watched("right"),
]

STUDIES = (
    Study(
        name="genrm_judge",
        about="A judge of two sentences that begins with a taste for the first place. What do RL, "
        "the margin and the weight of places change? Greedy, over new pairs in both orders.",
        arms=(
            Arm("right or wrong alone", "genrm", {"rewards": ACCURACY, "policy.shaping": []}),
            Arm("margin", "genrm", {"policy.shaping": []}),
            Arm("margin, place weight", "genrm"),
        ),
        columns=(
            Column("accuracy", "accuracy"),
            Column("first_picked", "first picked"),
            Column("same_text", "same text in both orders"),
            Column("readable", "readable"),
        ),
        measure=in_both_orders,
        panels=("reward/right/mean", "reward/picked_first/mean"),
    ),
)
