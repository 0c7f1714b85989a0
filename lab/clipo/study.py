"""CLIPO: does a reward for resembling other right answers prefer sound ways over lucky ones?"""

from __future__ import annotations

import statistics
from typing import Any

from burnish.lm.base import Sampling
from lab.measure import answer, held_out, part
from lab.plan import Arm, Column, Study, Subject

GAME = "recipes.clipo.two_ways:make"
MAX_TOKENS = 40
SAMPLES = 4
STEPS = 60
RIGHT = 0.9
"""Share of training problems on which the shortcut works."""
MIX: dict[str, Any] = {"task.options": {"shortcut_right": RIGHT, "sound": 0.5}}
"""Half of the demonstrations are sound."""
WARMUP = 5
"""Steps in which only the head learns; added to the run, so that policies have equal updates."""
REWARDS: list[dict[str, Any]] = [
    {"kind": "numeric", "name": "correct"},
    {
        "kind": "function",
        "name": "sound",
        "path": "recipes.clipo.two_ways:is_sound",
        "weight": 0.0,
    },
]


def ways(subject: Subject) -> dict[str, float]:
    """Accuracy where the shortcut often works and where it never does; sound among right answers."""
    found: dict[str, float] = {}
    for name, share in (("trained", RIGHT), ("perturbed", 0.0)):
        task = {"kind": "function", "path": GAME, "options": {"shortcut_right": share}}
        tasks = held_out(task, subject.prompts)
        greedy = Sampling(temperature=0.0, max_tokens=MAX_TOKENS)
        items = answer(subject.model, subject.device, tasks, REWARDS, greedy)
        found[f"{name}_accuracy"] = statistics.fmean(part(items, "correct"))
        if name == "trained":
            drawn = Sampling(temperature=1.0, max_tokens=MAX_TOKENS)
            items = answer(subject.model, subject.device, tasks, REWARDS, drawn, SAMPLES)
            marks = zip(part(items, "correct"), part(items, "sound"), strict=True)
            sound = [is_sound for is_right, is_sound in marks if is_right == 1.0]
            found["sound_share"] = statistics.fmean(part(items, "sound"))
            if sound:
                found["sound_among_right"] = statistics.fmean(sound)
    return found


def _contrastive(name: str, *, warmup: int = WARMUP, **piece: Any) -> Arm:
    shaping = {"kind": "contrastive", "reward": "correct", "warmup": warmup, **piece}
    return Arm(name, "clipo", {"policy.shaping": [shaping], "steps": STEPS + warmup})


SOFT: dict[str, Any] = {"loss": "soft_nn", "temperature": 0.2, "lam": 0.5, "dedup": True}

STUDIES = (
    Study(
        name="clipo_ways",
        about="Word problems with a sound way and a shortcut that is right on 90 % of the training "
        "problems. Policies have 60 updates each; heads warm up before.",
        overrides=MIX,
        arms=(
            Arm("GRPO", "clipo", {"policy.shaping": [], "steps": STEPS}),
            _contrastive("CLIPO as published", loss="infonce", temperature=0.05, lam=0.2),
            _contrastive("soft_nn, dedup", **SOFT),
            _contrastive("control: frozen head", warmup=0, frozen=True, **SOFT),
        ),
        columns=(
            Column("trained_accuracy", "accuracy"),
            Column("perturbed_accuracy", "accuracy, shortcut fails"),
            Column("sound_among_right", "sound among right"),
            Column("sound_share", "sound"),
        ),
        measure=ways,
        headline="perturbed_accuracy",
        panels=("reward/correct/mean", "reward/sound/mean", "policy/entropy"),
    ),
)
