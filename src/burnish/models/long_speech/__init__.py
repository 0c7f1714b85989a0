"""Long speech with a plan: sentences on a timeline, mixed into one scene (arXiv 2603.19798).

`resolve_timeline` says when each sentence is heard, `noise_gain` and `equal_power_fades` how loud it
is beside the rest, `arc_score` and `semitones` whether the result does what was asked.
"""

from burnish.models.long_speech.levels import equal_power_fades, noise_gain
from burnish.models.long_speech.measures import (
    arc_score,
    arc_values,
    dimension_dropout,
    label_retention,
    semitones,
)
from burnish.models.long_speech.timeline import (
    overlap_statistics,
    plan_chunks,
    resolve_timeline,
)

__all__ = [
    "arc_score",
    "arc_values",
    "dimension_dropout",
    "equal_power_fades",
    "label_retention",
    "noise_gain",
    "overlap_statistics",
    "plan_chunks",
    "resolve_timeline",
    "semitones",
]
