"""The premises of each step of a solution beside the evidence: what matched, and what it cost (EVPV).

    premises_view(sample)        # None where no reward of the sample has steps with premises

Everything is read from the stored reward, never computed again: a reward whose parts are `step 1`,
`step 2`, ... and of which some have verdicts on premises.
"""

from __future__ import annotations

import json
import re
from typing import Any

from burnish.records import ImagePart, Reward
from burnish.store import StoredSample
from burnish.view.pages.groups import TEXT
from burnish.view.pages.runs import Page

MOST = 64
"""Steps, and pieces of evidence, that are shown."""
FIELD = "evidence"
_BOX = re.compile(r"picture ([0-9a-f]{12}), box (-?\d{1,6}) (-?\d{1,6}) (-?\d{1,6}) (-?\d{1,6})")
"""Where a reader of pictures found the fact that decided."""


def premises_view(sample: StoredSample) -> Page | None:
    """The first reward of a sample that scores steps by their premises, and its evidence."""
    found = _find(sample.reward)
    if found is None:
        return None
    steps: list[dict[str, Any]] = [
        {
            "text": part.evidence[0].observation[:TEXT] if part.evidence else "",
            "value": part.value,
            "how": part.reason[:TEXT],  # the verifier's score, and what it was gated by
            # Support: 1 supported, 0 contradicted; null where it could not be checked.
            "premises": [
                {"claim": one.criterion[:TEXT], "support": one.value, "why": one.reason[:TEXT]}
                for one in part.verdicts
            ],
            "cost_usd": sum(one.cost_usd for one in part.evidence),
        }
        for part in found.parts[:MOST]
    ]
    given = sample.task.fields.get(FIELD)
    pieces = given if isinstance(given, list | tuple) else [given] if given is not None else []
    shared = sum(one.cost_usd for one in found.evidence)
    return {
        "name": found.name,
        "value": found.value,
        "reason": found.reason[:TEXT],
        "steps": steps,
        "evidence": [_written(piece)[:TEXT] for piece in pieces[:MOST]],
        "pictures": _pictures(sample, [one for step in steps for one in step["premises"]]),
        "cost_usd": shared + sum(step["cost_usd"] for step in steps),
    }


def _find(reward: Reward) -> Reward | None:
    names = [part.name for part in reward.parts]
    is_steps = bool(names) and names == [f"step {n}" for n in range(1, len(names) + 1)]
    if is_steps and (reward.verdicts or any(part.verdicts for part in reward.parts)):
        return reward
    return next((found for part in reward.parts if (found := _find(part)) is not None), None)


def _pictures(sample: StoredSample, premises: list[Page]) -> list[Page]:
    """Each picture of the prompt with the boxes, in pixels, that the reasons name."""
    found: dict[str, list[Page]] = {}
    for premise in premises:
        for name, *sides in _BOX.findall(premise["why"]):
            places = zip(("left", "top", "right", "bottom"), map(int, sides), strict=True)
            box = {"claim": premise["claim"], "support": premise["support"], **dict(places)}
            if box not in (boxes := found.setdefault(name, [])) and len(boxes) < MOST:
                boxes.append(box)
    parts = [part for message in sample.task.messages for part in message.media]
    shown = dict.fromkeys(part.sha256 for part in parts if isinstance(part, ImagePart))
    return [{"sha256": one, "boxes": found[one[:12]]} for one in shown if one[:12] in found]


def _written(piece: Any) -> str:
    if isinstance(piece, dict) and ("image" in piece or "sha256" in piece):
        given = piece.get("image")
        size = f" of {len(given):,} characters" if isinstance(given, str) else ""
        return f"a picture{size}, read by {piece.get('type', 'ocr')}"
    if isinstance(piece, dict):
        texts = [value for value in piece.values() if isinstance(value, str)]
        longest = max(texts, key=len, default="")
        return longest if len(longest) > 40 or "\n" in longest else json.dumps(piece, default=str)
    return piece if isinstance(piece, str) else json.dumps(piece, default=str)
