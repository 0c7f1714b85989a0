"""MedAlign: rewards of very different scales, one of them tempting; who is served, and is it safe?"""

from __future__ import annotations

import statistics

from burnish.lm.base import Sampling
from burnish.records import Task
from lab.measure import answer, held_out, part
from lab.plan import Arm, Column, Study, Subject

REWARDS = ("keypoints", "usefulness", "usefulness_copy", "safety", "layout")
TASK = {"kind": "function", "path": "recipes.medalign.health:make"}
MAX_TOKENS = 48
SAMPLES = 2
FROZEN = [{"kind": "reference_frozen", "clip": 5.0, "prompts": 64, "samples": 4}]
TRI_FACTOR = {"kind": "tri_factor", "severity": {"safety": 3.0}, "threshold": {"safety": -0.5}}
GIVEN = {"kind": "given"}
HEALTH = "recipes.medalign.health"
TEMPTING = [
    *({"kind": "function", "name": name, "path": f"{HEALTH}:{name}"} for name in REWARDS),
    {"kind": "function", "name": "pleasing", "path": "lab.medalign.pleasing:pleasing"},
]
"""The five rewards, and one that pays for what safety forbids."""


def gains(subject: Subject) -> dict[str, float]:
    """Gain of every reward in deviations of the start model, the least of them, and violations."""
    tasks = held_out(TASK, subject.prompts)
    start, own = _rewards(subject, tasks, is_start=True), _rewards(subject, tasks, is_start=False)
    gained = {
        f"gain/{name}": (statistics.fmean(own[name]) - statistics.fmean(start[name]))
        / statistics.stdev(start[name])
        for name in REWARDS
        # A reward that never varies at the start has no unit.
        if len(set(start[name])) > 1
    }
    has_flag = [bool(task.fields["red_flag"]) for task in tasks] * SAMPLES
    missed = [-s for s, flag in zip(own["safety"], has_flag, strict=True) if flag]
    return {
        **gained,
        **({"least_gain": min(gained.values())} if gained else {}),
        "violations": -statistics.fmean(own["safety"]),
        **({"red_flag_violations": statistics.fmean(missed)} if missed else {}),
    }


def _rewards(subject: Subject, tasks: list[Task], *, is_start: bool) -> dict[str, list[float]]:
    """Rewards of sampled answers by name."""
    configs = [{"kind": "function", "name": name, "path": f"{HEALTH}:{name}"} for name in REWARDS]
    sampling = Sampling(temperature=1.0, max_tokens=MAX_TOKENS)
    model = subject.start if is_start else subject.model
    items = answer(model, subject.device, tasks, configs, sampling, SAMPLES)
    return {name: part(items, name) for name in REWARDS}


STUDIES = (
    Study(
        name="medalign_scales",
        about="Five rewards between 0.2 and 10 wide, two of them nearly the same, one about "
        "safety, and a sixth that pays for what safety forbids. Which of them does a recipe serve?",
        overrides={"rewards": TEMPTING},
        arms=(
            Arm("sum, GRPO", "medalign", {"policy.shaping": [], "policy.weights": GIVEN}),
            Arm(
                "GDPO",
                "medalign",
                {
                    "policy.shaping": [],
                    "policy.weights": GIVEN,
                    "policy.advantage": {"kind": "normalise_then_sum"},
                    "policy.post_scale": {"kind": "batch_whiten", "scope": "token"},
                },
            ),
            Arm("reference-frozen", "medalign", {"policy.weights": GIVEN}),
            Arm(
                "reference-frozen, tri-factor",
                "medalign",
                {"policy.shaping": FROZEN, "policy.weights": TRI_FACTOR},
            ),
        ),
        columns=(
            Column("least_gain", "least gain", 2),
            Column("violations", "violations"),
            Column("red_flag_violations", "of them with a warning sign"),
            *(Column(f"gain/{name}", f"gain: {name}", 2) for name in REWARDS),
        ),
        measure=gains,
        panels=("reward/keypoints/mean", "reward/safety/mean", "reward/layout/mean"),
    ),
)
