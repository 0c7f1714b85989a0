"""Calls of `import burnish` that are refused before any work."""

from pathlib import Path
from typing import Any

import burnish
from burnish.lm import CallLog, ScriptedLM

ROWS = [{"prompt": "Say 7.", "answer": "7"}, {"prompt": "Say 8.", "answer": "8"}]
ASKED: dict[str, Any] = {"model": ScriptedLM(["7"]), "prompts": "Say 7.", "max_tokens": 2}
POLICY = str(Path(__file__).parents[2] / "recipes/policyalign/policy.md")
CALLS = [
    (
        burnish.generate,
        {**ASKED, "n": 1, "temperature": 0.0, "seed": 0, "system": "", "stop": [], "top_p": 1.0},
        "prompts-word system-word stop-list temperature-huge",
    ),
    (
        burnish.evaluate,
        {
            "model": ASKED["model"],
            "task": ROWS,
            "rewards": "match",
            "prompts": 2,
            "max_tokens": 2,
            "columns": None,
            "part": "",
        },
        "max_tokens-none columns-none columns-dict",
    ),
    (
        burnish.train,
        {
            **{"recipe": "grpo", "model": "tiny", "data": ROWS, "rewards": "match", "steps": 1},
            **{"columns": None, "held_out": 0.5, "seed": 0, "name": "a", "runs": "runs"},
            **{"again": False, "show": False, "on_event": None, "optimiser": {}, "rollout": {}},
        },
        "recipe-none steps-none columns-none columns-dict held_out-none seed-none name-none name-word "
        "runs-none runs-word on_event-none optimiser-none optimiser-dict rollout-none rollout-dict "
        "data-none rewards-none model-none model-dict model-word data-dict",
    ),
    (
        burnish.sweep,
        {
            **{
                "recipe": "tiny",
                "grid": {"steps": [1]},
                "seeds": 1,
                "settings": {},
                "runs": "runs",
            },
            **{"jobs": 1, "sample": None, "retry": False, "name": "", "show": None},
        },
        "grid-none grid-dict grid-list settings-none settings-dict settings-list runs-none runs-word "
        "jobs-none sample-none sample-huge name-word show-none jobs-huge",
    ),
    (
        burnish.optimise_prompt,
        {
            **{"model": ASKED["model"], "task": [*ROWS, {"prompt": "Say 9.", "answer": "9"}]},
            **{"rewards": "match", "proposer": "examples"},
            **{"prompt": None, "rounds": 1, "candidates": 1, "shown": 1, "trial": 1, "confirm": 1},
            **{"alpha": 0.05, "seed": 0, "max_tokens": 2, "columns": None, "part": "", "out": None},
        },
        "proposer-none prompt-none prompt-word max_tokens-none columns-none columns-dict out-none "
        "out-word",
    ),
    (
        burnish.align,
        {
            **{"model": "tiny", "policy": POLICY, "out": "aligned", "steps": 1, "seed": 0},
            **{"per_clause": 1, "score": "kl", "keep": 0.5, "benign_share": 0.2, "max_tokens": 4},
            **{"keep_truncated": False, "teacher": "ema", "force": False},
        },
        "model-word policy-word out-word",
    ),
    (burnish.load_run, {"reference": "a", "runs": "runs"}, ""),
    (burnish.load_runs, {"folder": "runs", "form": "pandas"}, "folder-word"),
    (burnish.compare, {"run_a": "a", "run_b": "b", "step": None}, "step-none step-huge"),
    (
        burnish.judge,
        {
            **{
                "prompt": "Say 7.",
                "model": ASKED["model"],
                "method": "direct",
                "both_orders": True,
            },
            **{"options": None, "max_tokens": 2},
        },
        "prompt-word options-none options-dict options-list max_tokens-none",
    ),
    (
        burnish.score,
        {"reward": "match", "prompt": "Say 7.", "response": "7"},
        "prompt-word response-word response-list",
    ),
    (burnish.Config.load, {"recipe": "tiny"}, ""),
    (burnish.Config.load("tiny").save, {"path": "a.toml"}, "path-word"),
    (CallLog, {"path": "calls.jsonl"}, "path-none path-word"),
]
"""Calls of `import burnish` that are refused before any work, and values that they do take."""
