"""The six methods and two combinations on the tiny model: real pieces, made-up rewards."""

from typing import Any

from training_cases import HERE, reward

SHOWN = {"kind": "function", "path": f"{HERE / 'shown_tasks.py'}:make"}
BREVITY = {"kind": "length", "unit": "characters", "max": 3, "edge": 6, "weight": 0.5}
TWO_REWARDS = [reward("letters"), BREVITY]
ELASTIC = {"kind": "elastic", "strength": 1.0, "macro": 0.5, "range": [0.0, 1.0]}
CONTRASTIVE = {
    "kind": "contrastive",
    "correct_above": 0.2,
    "loss": "supcon_in",
    "size": 8,
    "warmup": 1,
    "dedup": True,
}
SFT = {"kind": "sft", "coefficient": 0.3, "batch": 3, "schedule": "linear"}
CONFLICT = {
    "advantage": {"kind": "normalise_then_sum"},
    "select": {"kind": "snr_conflict", "tau": 0.5},
    "post_scale": {"kind": "batch_whiten"},
    "aggregate": {"mode": "token-mean"},
}

METHODS: dict[str, dict[str, Any]] = {
    "etr": {"policy": {"trust_region": ELASTIC}, "update": {"minibatches": 2}},
    "gd2po": {"rewards": TWO_REWARDS, "policy": CONFLICT},
    "clipo": {"policy": {"shaping": [CONTRASTIVE]}},
    "brpo": {
        "rewards": [
            {
                "kind": "versus",
                "name": "wins",
                "judge": {"kind": "score", "reward": reward("letters")},
            },
            reward("letters", weight=0.0),
        ],
        "policy": {"advantage": {"kind": "raw"}, "select": {"kind": "skew", "threshold": 0.9}},
        "evaluation": {"part": "letters"},
    },
    "afrl": {
        "task": SHOWN,
        "stages": [
            {
                "steps": 2,
                "train": {"kind": "sft", "batch": 3},
                "optimiser": {"learning_rate": 1e-3},
                "checkpoint_every": 1,
            }
        ],
        "rewards": [reward("letters", name="grade"), reward("has_letter", name="rule", weight=0.5)],
        "policy": {
            "advantage": {"kind": "stepwise", "rewards": ["grade", "rule"], "headings": ["a"]},
            "auxiliary": [{**SFT, "by": "rule"}, {"kind": "kl", "coefficient": 0.01}],
            "aggregate": {"mode": "token-mean"},
        },
    },
    "medalign": {
        "rewards": TWO_REWARDS,
        "policy": {
            "shaping": [{"kind": "reference_frozen", "prompts": 3, "samples": 2}],
            "weights": {
                "kind": "tri_factor",
                "severity": {"letters": 2.0},
                "threshold": {"letters": 0.2},
            },
        },
    },
    "curriculum": {
        "curriculum": {
            "thresholds": [0.3, 1.0],
            "pool": 6,
            "samples": 2,
            "passing": 0.3,
            "patience": 1,
        },
        "evaluation": {"every": 1},
    },
    "gd2po_elastic": {
        "rewards": TWO_REWARDS,
        "policy": {**CONFLICT, "trust_region": ELASTIC},
        "update": {"epochs": 2},
    },
    "clipo_balanced": {"task": SHOWN, "policy": {"shaping": [CONTRASTIVE], "auxiliary": [SFT]}},
}
