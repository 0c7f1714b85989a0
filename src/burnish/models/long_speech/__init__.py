"""Long speech with a plan: sentences on a timeline, mixed into one scene (arXiv 2603.19798).

A `Scene` is the script: captions in three levels, checked by `read_scene`, as JSON or as text.
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
from burnish.models.long_speech.scene import (
    Scene,
    read_scene,
    scene_problems,
    scene_schema,
    scene_warnings,
    write_scene,
)
from burnish.models.long_speech.scene_text import (
    drop_dimensions,
    parse_scene_text,
    planned_captions,
    scene_text,
)
from burnish.models.long_speech.timeline import (
    overlap_statistics,
    plan_chunks,
    resolve_timeline,
)

__all__ = [
    "Scene",
    "arc_score",
    "arc_values",
    "dimension_dropout",
    "drop_dimensions",
    "equal_power_fades",
    "label_retention",
    "noise_gain",
    "overlap_statistics",
    "parse_scene_text",
    "plan_chunks",
    "planned_captions",
    "read_scene",
    "resolve_timeline",
    "scene_problems",
    "scene_schema",
    "scene_text",
    "scene_warnings",
    "semitones",
    "write_scene",
]
