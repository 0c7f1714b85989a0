"""Two combinations that no paper has, each against its parts."""

from __future__ import annotations

from lab.clipo.study import MIX, STEPS, WARMUP, ways
from lab.gd2po.study import GDPO, PARTS
from lab.plan import Arm, Column, Study

ELASTIC = {"kind": "elastic", "low": 0.2, "high": 0.2, "strength": 0.5}

STUDIES = (
    Study(
        name="gd2po_elastic",
        about="Conflict filter and elastic bounds, alone and together; four updates a step in all.",
        arms=(
            Arm("GD2PO", "gd2po"),
            Arm("GDPO + elastic", "gd2po", {**GDPO, "policy.trust_region": ELASTIC}),
            Arm("GD2PO + elastic", "gd2po_elastic"),
        ),
        overrides={"update.minibatches": 4, "steps": STEPS, "evaluation.every": 10},
        columns=PARTS,
        panels=("reward/total", "policy/clipped_share", "policy/entropy"),
        at_equal_tokens=True,
        headline="score_at_equal_tokens",
    ),
    Study(
        name="clipo_balanced",
        about="Contrastive reward and imitation of sound experts, alone and together; 60 updates "
        "of the policy each.",
        arms=(
            Arm("CLIPO", "clipo", {"steps": STEPS + WARMUP}),
            Arm("GRPO + imitation", "clipo_balanced", {"policy.shaping": [], "steps": STEPS}),
            Arm("CLIPO + imitation", "clipo_balanced", {"steps": STEPS + WARMUP}),
        ),
        overrides=MIX,
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
