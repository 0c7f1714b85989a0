"""The premises of each step of a solution beside the evidence: what matched, and what it cost (EVPV).

    premises_view(sample)        # None where no reward of the sample has steps with premises

Everything is read from the stored reward, never computed again: a reward whose parts are `step 1`,
`step 2`, ... and of which some have verdicts on premises.
"""

from __future__ import annotations

import json
import re
from typing import Any

from msgspec import Struct

from burnish.records import ImagePart, Reward
from burnish.store import StoredSample
from burnish.view.pages.groups import TEXT

MOST = 64
"""Steps, and pieces of evidence, that are shown."""
FIELD = "evidence"
_BOX = re.compile(r"picture ([0-9a-f]{12}), box (-?\d{1,6}) (-?\d{1,6}) (-?\d{1,6}) (-?\d{1,6})")
"""Where a reader of pictures found the fact that decided."""


class PremiseView(Struct, frozen=True):
    claim: str
    support: float | None
    """1 supported, 0 contradicted, between them unknown; null where it could not be checked."""
    why: str


class StepView(Struct, frozen=True):
    text: str
    value: float | None
    how: str
    """The verifier's score and the reliability that it was gated by, or why there is none."""
    premises: list[PremiseView]
    cost_usd: float


class BoxView(Struct, frozen=True):
    """Where in a picture the fact stands that decided on a premise; in pixels."""

    claim: str
    support: float | None
    left: int
    top: int
    right: int
    bottom: int


class PictureView(Struct, frozen=True):
    """A picture of the prompt with the places that decided."""

    sha256: str
    boxes: list[BoxView]


class PremisesView(Struct, frozen=True, kw_only=True):
    """The steps of a solution and the evidence that they were checked against."""

    name: str
    value: float | None
    reason: str
    steps: list[StepView]
    evidence: list[str]
    pictures: list[PictureView]
    """Of the prompt, those in which something was found."""
    cost_usd: float
    """Of all replies behind it, those about single steps included."""


def premises_view(sample: StoredSample) -> PremisesView | None:
    """The first reward of a sample that scores steps by their premises."""
    found = _find(sample.reward)
    if found is None:
        return None
    steps = [_step(part) for part in found.parts[:MOST]]
    shared = sum(one.cost_usd for one in found.evidence)
    return PremisesView(
        name=found.name,
        value=found.value,
        reason=found.reason[:TEXT],
        steps=steps,
        evidence=_pieces(sample.task.fields.get(FIELD)),
        pictures=_pictures(sample, steps),
        cost_usd=shared + sum(step.cost_usd for step in steps),
    )


def _find(reward: Reward) -> Reward | None:
    names = [part.name for part in reward.parts]
    is_steps = bool(names) and names == [f"step {n}" for n in range(1, len(names) + 1)]
    if is_steps and (reward.verdicts or any(part.verdicts for part in reward.parts)):
        return reward
    return next((found for part in reward.parts if (found := _find(part)) is not None), None)


def _step(part: Reward) -> StepView:
    text = part.evidence[0].observation if part.evidence else ""
    premises = [
        PremiseView(one.criterion[:TEXT], one.value, one.reason[:TEXT]) for one in part.verdicts
    ]
    cost = sum(one.cost_usd for one in part.evidence)
    return StepView(text[:TEXT], part.value, part.reason[:TEXT], premises, cost)


def _pictures(sample: StoredSample, steps: list[StepView]) -> list[PictureView]:
    """Each picture of the prompt with the boxes that the reasons name, equal ones once."""
    found: dict[str, dict[BoxView, None]] = {}
    for step in steps:
        for premise in step.premises:
            for name, *sides in _BOX.findall(premise.why):
                left, top, right, bottom = map(int, sides)
                box = BoxView(premise.claim, premise.support, left, top, right, bottom)
                found.setdefault(name, {})[box] = None
    parts = [part for message in sample.task.messages for part in message.media]
    shown = dict.fromkeys(part.sha256 for part in parts if isinstance(part, ImagePart))
    return [PictureView(one, list(found[one[:12]])[:MOST]) for one in shown if one[:12] in found]


def _pieces(given: Any) -> list[str]:
    if given is None:
        return []
    pieces = given if isinstance(given, list | tuple) else [given]
    return [_written(piece)[:TEXT] for piece in pieces[:MOST]]


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
