"""Long speech with a plan: sentences on a timeline, mixed into one scene (arXiv 2603.19798).

A `Scene` is the script: captions in three levels, checked by `read_scene`, as JSON or as text.
`resolve_timeline` says when each sentence is heard, `noise_gain` and `equal_power_fades` how loud it
is beside the rest; a `Mix` renders it over any `SpeechEngine`. `arc_score` and `semitones` say whether the result does what was asked.
"""

from burnish.models.long_speech.engine import (
    Capabilities,
    Line,
    Manner,
    SpeechEngine,
    Spoken,
    Timed,
    ToneEngine,
    missing_capabilities,
)
from burnish.models.long_speech.levels import equal_power_fades, noise_gain, room_impulse
from burnish.models.long_speech.measures import (
    arc_score,
    arc_values,
    dimension_dropout,
    label_retention,
    semitones,
)
from burnish.models.long_speech.mixer import (
    Mix,
    place_sentences,
)
from burnish.models.long_speech.scene import Scene
from burnish.models.long_speech.scene_checks import (
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
    "Capabilities",
    "Line",
    "Manner",
    "Mix",
    "Scene",
    "SpeechEngine",
    "Spoken",
    "Timed",
    "ToneEngine",
    "arc_score",
    "arc_values",
    "dimension_dropout",
    "drop_dimensions",
    "equal_power_fades",
    "label_retention",
    "missing_capabilities",
    "noise_gain",
    "overlap_statistics",
    "parse_scene_text",
    "place_sentences",
    "plan_chunks",
    "planned_captions",
    "read_scene",
    "resolve_timeline",
    "room_impulse",
    "scene_problems",
    "scene_schema",
    "scene_text",
    "scene_warnings",
    "semitones",
    "write_scene",
]
