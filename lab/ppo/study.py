"""PPO: does a critic on one answer a prompt learn as much from 64 answers as groups of eight do?

python -m lab.run ppo --jobs 4
"""

from __future__ import annotations

from typing import Any

from lab.plan import Arm, Column, Study

GROUPS: dict[str, Any] = {"rollout.prompts": 8, "rollout.samples": 8}
PLAIN: dict[str, Any] = {"policy.auxiliary": [], "update.minibatches": 2}
"""As the recipe `ppo`: no KL, two updates a step."""


def _ppo(name: str, *, lam: float = 0.95, **more: Any) -> Arm:
    advantage = {"kind": "gae", "gamma": 1.0, "lam": lam, "whiten": True}
    return Arm(name, "ppo", {"policy.advantage": advantage, **more})


STUDIES = (
    Study(
        name="ppo_arithmetic",
        about="SmolLM2, sums of two numbers, 64 answers a step in every arm: eight answers to each "
        "of eight prompts, or one to each of 64.",
        start=None,
        overrides={"steps": 60},
        arms=(
            Arm("GRPO, 8 x 8", "grpo", {**GROUPS, **PLAIN}),
            _ppo("PPO, 64 x 1"),
            _ppo("PPO, 64 x 1, lambda 1", lam=1.0),
            _ppo("PPO, 64 x 1, separate critic", **{"policy.critic": {"kind": "separate"}}),
            # A tiny coefficient is no control: Adam's steps have the same size at any scale.
            _ppo(
                "control: critic that never learns",
                **{"policy.critic": {"kind": "separate", "learning_rate": 0.0}},
            ),
        ),
        columns=(Column("score_end", "held-out accuracy"),),
        panels=("reward/correct/mean", "policy/entropy", "critic/explained_variance"),
    ),
)
