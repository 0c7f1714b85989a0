"""A small rubric about a kettle, and judges that follow a script."""

from __future__ import annotations

import json
from typing import Any

from burnish.lm.replay import ScriptedLM
from burnish.rewards.judges.judge_model import JudgeModel
from burnish.rewards.judges.rubric import Rubric

QUESTION = "How do I descale the kettle?"
ANSWER = "Unplug the kettle first. Boil water with vinegar, wait an hour, then rinse it twice."


def item(name: str, tier: str, **more: Any) -> dict[str, Any]:
    return {
        "id": name, "title": f"title {name}", "tier": tier,
        "description": {
            "0": f"{name} is not there",
            "1": f"{name} is hinted at",
            "2": f"all of {name} {tier}",
        },
        **more,
    }  # fmt: skip


def kettle(**more: Any) -> dict[str, Any]:
    tiers = {"e1": "essential", "e2": "essential", "m1": "important", "h1": "highlight"}
    items = [item(name, tier) for name, tier in tiers.items()]
    return {"query": QUESTION, "items": [*items, item("x1", "pitfall", tag="safety")], **more}


def rubric(**more: Any) -> Rubric:
    return Rubric.from_dict(kettle(**more))


def mark(name: str, level: Any, quote: str = "", reason: str = "so") -> dict[str, Any]:
    return {"item": name, "level": level, "quote": quote, "reason": reason}


GOOD = [
    mark("e1", 2, "Unplug the kettle"), mark("e2", 2, "rinse it twice"),
    mark("m1", 1, "wait an hour"), mark("h1", 0), mark("x1", 0),
]  # fmt: skip


def judge(*replies: Any) -> tuple[JudgeModel, ScriptedLM]:
    lm = ScriptedLM([r if isinstance(r, str) else json.dumps(r) for r in replies])
    return JudgeModel(lm), lm
