"""Long speech from a script: engines and voices, planning, rendering, labelling and measuring.

    scene = plan_scene(draft_scene("Ann: Are you there?\\nBob: Yes. Come in!"))
    render_scene(scene, "scene.wav", engine="espeak", seed=1)

The schema, the timeline and the mixer are in `burnish.models.long_speech`; this room has what needs a
voice, a file or a language model.
"""

from burnish.speech.acoustics import f0_track, level_db, measure_speech, syllables
from burnish.speech.cast import Cast, Voice, cast_scene, design_voice
from burnish.speech.following import FollowReport, follow_report, heard_marks
from burnish.speech.label import Label, label_file, label_sound
from burnish.speech.listeners import embed_voice, speech_segments, transcribe, word_errors
from burnish.speech.manner import read_caption, resolve_manners
from burnish.speech.picture import timeline_svg, write_timeline
from burnish.speech.plan_text import open_slots, plan_prompt, plan_with_lm, read_plan
from burnish.speech.planner import draft_scene, plan_scene
from burnish.speech.render import align_scene, mix_scene, render_scene
from burnish.speech.script import read_script
from burnish.speech.turns import meeting_distance, turn_taking

__all__ = [
    "Cast",
    "FollowReport",
    "Label",
    "Voice",
    "align_scene",
    "cast_scene",
    "design_voice",
    "draft_scene",
    "embed_voice",
    "f0_track",
    "follow_report",
    "heard_marks",
    "label_file",
    "label_sound",
    "level_db",
    "measure_speech",
    "meeting_distance",
    "mix_scene",
    "open_slots",
    "plan_prompt",
    "plan_scene",
    "plan_with_lm",
    "read_caption",
    "read_plan",
    "read_script",
    "render_scene",
    "resolve_manners",
    "speech_segments",
    "syllables",
    "timeline_svg",
    "transcribe",
    "turn_taking",
    "word_errors",
    "write_timeline",
]
