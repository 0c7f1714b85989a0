"""AFRL: what imitation of experts beside a flawed reward keeps alive, by its coefficient.

The model is first shown all eleven rules of the shop search, for a short time. Then it is trained
on prompts with 15 % rare rules, and the rule-based reward only knows the common one, so it is wrong
on exactly the rare ones. Coefficient 0 is plain policy optimisation.
"""

from __future__ import annotations

import math
import statistics
from typing import Any

from recipes.afrl.shop_search import HEAD_RULE, TAIL_RULES

from burnish.lm.base import Sampling
from lab.measure import answer, held_out, part
from lab.plan import Arm, Column, Study, Subject

GRADES = ["D", "C", "B", "A"]
HEADINGS = ["rule:", "why:"]
SHOP = "recipes.afrl.shop_search:make"
TAIL = 0.15
"""Share of training prompts with a rare rule, on which the reward is wrong."""
ALTERNATIVES = 8
"""First tokens whose probabilities make up the entropy."""


def _section(name: str) -> dict[str, Any]:
    return {
        "kind": "section",
        "name": name,
        "heading": f"{name}:",
        "headings": HEADINGS,
        "labels": GRADES,
        "field": "head_grade",
        "weight": 0.25,
    }


FLAWED = [
    {"kind": "grade", "name": "grade", "labels": GRADES, "field": "head_grade"},
    _section("rule"),
    _section("why"),
    {"kind": "grade", "name": "true_grade", "labels": GRADES, "weight": 0.0},
]


def by_rule(subject: Subject) -> dict[str, float]:
    """Accuracy of the first token on every rule, and the entropy of that token."""
    each = max(subject.prompts // 4, 2)
    sampling = Sampling(temperature=0.0, max_tokens=1, top_logprobs=ALTERNATIVES)
    grade = {"kind": "grade", "name": "grade", "labels": GRADES}
    accuracy: dict[str, float] = {}
    entropies: list[float] = []
    for rule in (HEAD_RULE, *TAIL_RULES):
        task = {"kind": "function", "path": SHOP, "options": {"rule": rule}}
        # The common rule stands alone; the rare ones are averaged over ten.
        count = 4 * each if rule == HEAD_RULE else each
        items = answer(subject.model, subject.device, held_out(task, count), [grade], sampling)
        accuracy[rule] = statistics.fmean(part(items, "grade"))
        entropies += [_entropy(item.trajectory.info["top_logprobs"][0]) for item in items]
    tail = [accuracy[rule] for rule in TAIL_RULES]
    return {
        "head_accuracy": accuracy[HEAD_RULE],
        "tail_accuracy": statistics.fmean(tail),
        "worst_rule_accuracy": min(accuracy.values()),
        "macro_accuracy": statistics.fmean(accuracy.values()),
        "first_token_entropy": statistics.fmean(entropies),
        **{f"rule/{rule}": value for rule, value in accuracy.items()},
    }


def _entropy(logprobs: dict[str, float]) -> float:
    """In nats, over the likeliest tokens scaled to a sum of 1."""
    weights = [math.exp(value) for value in logprobs.values()]
    total = sum(weights)
    return -sum(w / total * math.log(w / total) for w in weights if w > 0)


def _arm(coefficient: float) -> Arm:
    return Arm(f"lambda {coefficient:g}", "afrl", {"policy.auxiliary.0.coefficient": coefficient})


STUDIES = (
    Study(
        name="afrl_lambda",
        about="Does imitation beside the policy loss keep rare rules that a flawed reward drives "
        "out, and what does it cost on the common one?",
        arms=tuple(_arm(value) for value in (0.0, 0.1, 0.3, 1.0)),
        overrides={
            "task.options": {"tail": TAIL, "head_only_reward": True},
            "optimiser.learning_rate": 3e-5,
            "steps": 60,
            "rewards": FLAWED,
            "evaluation.part": "true_grade",
        },
        start={"stages.0.steps": 150, "stages.0.optimiser.learning_rate": 1e-4},
        columns=(
            Column("head_accuracy", "head accuracy"),
            Column("tail_accuracy", "tail accuracy"),
            Column("worst_rule_accuracy", "worst rule"),
            Column("first_token_entropy", "first-token entropy"),
        ),
        measure=by_rule,
        headline="tail_accuracy",
        panels=("reward/grade/mean", "policy/entropy"),
    ),
)
