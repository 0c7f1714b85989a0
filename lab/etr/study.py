"""ETR: bounds that widen with the advantage, against static bounds, narrow and wide."""

from __future__ import annotations

from lab.plan import Arm, Column, Study


def _static(width: float) -> Arm:
    region = {"kind": "static", "low": width, "high": width}
    return Arm(f"static {width:g}", "etr", {"policy.trust_region": region})


def _elastic(strength: float) -> Arm:
    region = {"kind": "elastic", "low": 0.2, "high": 0.2, "strength": strength}
    return Arm(f"elastic {strength:g}", "etr", {"policy.trust_region": region})


STUDIES = (
    Study(
        name="etr_bounds",
        about="Do elastic clip bounds learn faster than static ones, also than simply wider ones? "
        "Eight updates a step (4 mini-batches, 2 epochs), or bounds would mean nothing.",
        arms=(
            _static(0.2),
            _static(0.4),
            _elastic(0.5),
            _elastic(1.0),
        ),
        start=None,
        overrides={
            "rollout.prompts": 8,
            "rollout.samples": 16,
            "update.minibatches": 4,
            "update.epochs": 2,
        },
        columns=(
            Column("score_end", "accuracy"),
            Column("score_mean", "accuracy, mean over the run"),
            Column("reward_mean", "training reward, mean over the run"),
            Column("last10/policy/ratio_max", "largest ratio", 2),
        ),
        panels=("reward/total", "policy/entropy", "policy/clipped_share"),
        at_equal_reward=True,
    ),
)
