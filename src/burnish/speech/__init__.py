"""Long speech from a script: engines and voices, planning, rendering, labelling and measuring."""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.speech.acoustics import f0_track as f0_track
    from burnish.speech.acoustics import level_db as level_db
    from burnish.speech.acoustics import measure_speech as measure_speech
    from burnish.speech.acoustics import meeting_distance as meeting_distance
    from burnish.speech.acoustics import syllables as syllables
    from burnish.speech.acoustics import turn_taking as turn_taking
    from burnish.speech.cast import Cast as Cast
    from burnish.speech.cast import Voice as Voice
    from burnish.speech.cast import cast_scene as cast_scene
    from burnish.speech.cast import design_voice as design_voice
    from burnish.speech.following import FollowReport as FollowReport
    from burnish.speech.following import follow_report as follow_report
    from burnish.speech.following import heard_marks as heard_marks
    from burnish.speech.label import Label as Label
    from burnish.speech.label import label_file as label_file
    from burnish.speech.label import label_sound as label_sound
    from burnish.speech.listeners import embed_voice as embed_voice
    from burnish.speech.listeners import speech_segments as speech_segments
    from burnish.speech.listeners import transcribe as transcribe
    from burnish.speech.listeners import word_errors as word_errors
    from burnish.speech.manner import read_caption as read_caption
    from burnish.speech.manner import resolve_manners as resolve_manners
    from burnish.speech.plan_text import open_slots as open_slots
    from burnish.speech.plan_text import plan_prompt as plan_prompt
    from burnish.speech.plan_text import plan_with_lm as plan_with_lm
    from burnish.speech.plan_text import read_plan as read_plan
    from burnish.speech.planner import draft_scene as draft_scene
    from burnish.speech.planner import plan_scene as plan_scene
    from burnish.speech.planner import read_script as read_script
    from burnish.speech.render import align_scene as align_scene
    from burnish.speech.render import mix_scene as mix_scene
    from burnish.speech.render import render_scene as render_scene
    from burnish.speech.render import timeline_svg as timeline_svg
    from burnish.speech.render import write_timeline as write_timeline

__getattr__, __dir__ = lazy_exports(__name__)
