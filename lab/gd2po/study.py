"""GD2PO: which rollouts are worth a backward pass when several rewards disagree.

Conflict filters save training, so arms are compared at equal trained tokens, beside two controls
that keep the same share of rollouts: those with the largest advantage, and random ones.
"""

from __future__ import annotations

from lab.plan import Arm, Column, Study

WHITEN = {"kind": "batch_whiten", "scope": "token"}
SNR = {"kind": "snr_conflict", "tau": 0.8}
GRPO = {
    "policy.advantage": {"kind": "sum_then_normalise", "scale": "group_std"},
    "policy.select": {"kind": "all"},
    "policy.post_scale": {"kind": "none"},
}
GDPO = {"policy.select": {"kind": "all"}}


def _call(part: str, weight: float = 1.0) -> dict[str, object]:
    return {"kind": "tool_call", "name": part, "part": part, "dialect": "json", "weight": weight}


SPIKY = [
    _call("format"),
    _call("name"),
    {"kind": "function", "name": "correctness", "path": "lab.gd2po.spikes:spiky_correctness"},
    _call("exact", 0.0),
]
PARTS = (
    Column("score_end", "exact calls"),
    Column("held_out/name", "right name"),
    Column("held_out/arguments", "right arguments"),
)

ONE_CALL = {
    "task.options": {"tools": 4, "calls": 1},
    "rollout.max_tokens": 48,
    "optimiser.learning_rate": 2e-5,
    "evaluation.every": 10,
}
"""A game that a short warm start half masters, so that there is something to win and to lose."""

STUDIES = (
    Study(
        name="gd2po_filters",
        about="Three rewards of a tool call. Is a conflict filter worth what it leaves out, at "
        "equal steps and at equal trained tokens?",
        arms=(
            Arm("GDPO", "gd2po", GDPO),
            Arm("GD2PO hard", "gd2po", {"policy.select": {"kind": "sign_conflict"}}),
            Arm("GD2PO SNR", "gd2po", {"policy.select": SNR}),
            Arm(
                "control: largest advantages",
                "gd2po",
                {"policy.select": {"kind": "magnitude", "like": SNR}},
            ),
            Arm("control: random", "gd2po", {"policy.select": {"kind": "random", "like": SNR}}),
        ),
        start={"stages.0.steps": 14},
        overrides=ONE_CALL,
        columns=PARTS,
        panels=("reward/total", "trained_share", "policy/entropy"),
        at_equal_tokens=True,
        headline="score_at_equal_tokens",
    ),
    Study(
        name="gd2po_spikes",
        about="One of three rewards is off by 3 in a tenth of the answers. Does normalising each "
        "reward by itself (GDPO) bear it better than normalising the sum (GRPO)?",
        arms=(Arm("GRPO", "gd2po", GRPO), Arm("GDPO", "gd2po", GDPO)),
        start={"stages.0.steps": 14},
        overrides={**ONE_CALL, "rewards": SPIKY},
        columns=PARTS[:2],
        panels=("reward/name/mean", "policy/entropy"),
    ),
)
