"""Settings of the judge `rubric` as a command line or a recipe gives them.

scorer = build(judge, {"truncation": True, "saturation": 1.0, "max_words": 1000})
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from burnish.errors import UserError
from burnish.rewards.judges.asking import JudgeModel
from burnish.rewards.judges.options import Options, read_options
from burnish.rewards.judges.rubric.group import Stabilised
from burnish.rewards.judges.rubric.items import Rubric
from burnish.rewards.judges.rubric.scorer import RubricScorer
from burnish.rewards.scorer import Scorer


class RubricOptions(Options, frozen=True):
    """How answers are marked and scored by a rubric."""

    field: str = "rubric"
    """The task field that holds the rubric (or, for a conversation, a list of them)."""
    rubric: str = ""
    """A JSON file with one rubric for all tasks, instead of the field."""
    tier_weights: dict[str, float] = msgspec.field(default_factory=dict)
    """Other weights than 2, 1, 1 and 2."""
    truncation: bool | float | list[float] = True
    """No extras below this share of the essentials or above this share of the pitfalls; 0.5."""
    saturation: bool | float = False
    """At most this many points of extras a tag; 1 where true."""
    clip: bool = False
    """Scores from 0 to 1 alone."""
    max_words: int = 0
    """Longer answers are cut before they are judged; 0 is no limit."""
    equal_within: float = 0.0
    """Scores of a group that are closer become one; 0 leaves them. Makes the reward a group's."""
    mean_of_references: float | str | None = None
    """Mean score of reference models, or the task field that holds it; progress above counts more."""
    w_scale: float = 2.0
    name: str = "rubric"


def build(judge: JudgeModel, options: Mapping[str, Any]) -> Scorer:
    """The scorer that the options describe."""
    chosen = read_options("rubric", options, RubricOptions)
    scorer = RubricScorer(
        judge,
        rubric=_read(Path(chosen.rubric)) if chosen.rubric else None,
        field=chosen.field,
        tier_weights=chosen.tier_weights,
        truncation=chosen.truncation,
        saturation=chosen.saturation,
        clip=chosen.clip,
        max_words=chosen.max_words,
        name=chosen.name,
    )
    if not chosen.equal_within and chosen.mean_of_references is None:
        return scorer
    return Stabilised(
        scorer,
        equal_within=chosen.equal_within,
        mean_of_references=chosen.mean_of_references,
        w_scale=chosen.w_scale,
    )


def _read(path: Path) -> Rubric:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"judge 'rubric': {path} cannot be read: {error}.") from None
    return Rubric.from_dict(text)
