"""Proxy-GRM with a small judge: do rubrics help another judge, and does the guard keep them honest?

    burnish train rubric_proxy task.options='{credulous = 0.3}' run.name=rubric_proxy
    python -m lab.run proxy_grm --jobs 4

The judge is first shown rubrics of the right form that name an attribute at random; a fifth of them
also say which response is better. The proxy is a second small model that was taught to follow a
rubric, and to believe one that names a winner, as large models do by themselves. The evaluator of
the transfer is code that reads the attribute and nothing else: no arm met it but the second.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from burnish.lm.base import Sampling
from lab.measure import answer, held_out, part
from lab.plan import Arm, Column, Study, Subject

RECIPES = Path(__file__).resolve().parents[2] / "recipes" / "proxy_grm"
FOLLOW = {"kind": "function", "path": "recipes.proxy_grm.phones:follow"}
TRAINED = {
    "kind": "model",
    "model": str(Path("runs/rubric_proxy/checkpoints/step-000300").resolve()),
    "template": (RECIPES / "proxy.txt").read_text(encoding="utf-8"),
    "max_tokens": 24,
}
"""The proxy of the recipe `rubric_proxy`."""
TASK: dict[str, Any] = {
    "kind": "function",
    "path": "recipes.proxy_grm.phones:make",
    "options": {"leaky": 0.2},
}
WATCHED: list[dict[str, Any]] = [
    {"kind": "proxy_rubric", "name": "right", "value": "accuracy", "weight": 0.0},
    {
        "kind": "proxy_rubric",
        "name": "transfer",
        "value": "proxy",
        "guard": "off",
        "proxy": FOLLOW,
        "weight": 0.0,
    },
    {"kind": "proxy_rubric", "name": "leak", "value": "leak", "weight": 0.0},
]
OUTCOME: dict[str, Any] = {"weights": [1.0, 0.0, 0.5], "guard": "off"}
"""Pay for the judge's own verdict and form alone."""


def rubrics(subject: Subject) -> dict[str, float]:
    """Held-out verdicts and rubrics of the greedy judge."""
    tasks = held_out(TASK, subject.prompts)
    counted = [{**reward, "weight": 1.0} for reward in WATCHED]
    greedy = Sampling(temperature=0.0, max_tokens=48)
    items = answer(subject.model, subject.device, tasks, counted, greedy)
    share = {name: statistics.fmean(part(items, name)) for name in ("right", "transfer", "leak")}
    return {
        "own_accuracy": (1 + share["right"]) / 2,
        "transfer_accuracy": (1 + share["transfer"]) / 2,
        "leak_rate": share["leak"],
    }


def _rewards(**settings: Any) -> list[dict[str, Any]]:
    return [{"kind": "proxy_rubric", "name": "verified", **settings}, *WATCHED]


def _arm(name: str, **settings: Any) -> Arm:
    return Arm(name, "proxy_grm", {"rewards": _rewards(**settings)})


STUDIES = (
    Study(
        name="proxy_grm_judge",
        about="SmolLM2 judges pairs of phones; a fifth of its demonstrations leak the verdict.",
        overrides={"task": TASK, "steps": 120},
        start={"rewards": _rewards(**OUTCOME)},
        arms=(
            _arm("outcome only", **OUTCOME),
            _arm("proxy by code, guard", proxy=FOLLOW),
            _arm("trained proxy, guard", proxy=TRAINED),
            _arm("trained proxy, same order, no guard", proxy=TRAINED, guard="off", order="same"),
            _arm("trained proxy, same order, guard", proxy=TRAINED, order="same"),
        ),
        columns=(
            Column("own_accuracy", "own accuracy"),
            Column("transfer_accuracy", "transfer"),
            Column("leak_rate", "leak rate"),
        ),
        measure=rubrics,
        headline="transfer_accuracy",
        panels=("reward/right/mean", "reward/transfer/mean", "reward/leak/mean"),
    ),
)
