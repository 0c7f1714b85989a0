"""What the store keeps of a scored pair beside its texts and scores: the label and both sides' attributes.

    pair_record(pair, tokens=(12, 40))       # {"target": 1.0, "margin": 0.0, "attributes": {...}}

It lies in the `info` of the pair's sample under `pair`; the viewer and your own queries read it there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from burnish.rewards.models.bias_attributes import agrees, markdown_marks
from burnish.rewards.models.term import Pair

KEY = "pair"
REJECTED = "the rejected answer"
"""Source of the evidence that holds its text: the sample's own text is the preferred one."""

COUNTS: Mapping[str, Callable[[str], float]] = {
    "characters": len,
    "markdown": markdown_marks,
    "agreement": lambda text: int(agrees(text)),
}
"""Attributes of one answer: characters, markdown marks, 1 where it begins by agreeing."""


def text_attributes(chosen: str, rejected: str) -> dict[str, list[float]]:
    """Every attribute of the two texts, the preferred one's first."""
    return {name: [count(chosen), count(rejected)] for name, count in COUNTS.items()}


def pair_record(pair: Pair, tokens: tuple[int, int], *, has_texts: bool = True) -> dict[str, Any]:
    """The record of a pair; without `has_texts` only what is known already, for a training step."""
    texts = text_attributes(pair.chosen, pair.rejected) if has_texts else {}
    attributes = {"tokens": list(tokens), **texts}
    return {"target": pair.target, "margin": pair.margin, "attributes": attributes}
