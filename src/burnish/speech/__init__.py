"""Long speech from a script: engines and voices, planning, rendering, labelling and measuring."""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.speech.acoustics import (
        f0_track as f0_track,
        level_db as level_db,
        measure_speech as measure_speech,
        meeting_distance as meeting_distance,
        syllables as syllables,
        turn_taking as turn_taking,
    )
    from burnish.speech.cast import (
        Cast as Cast,
        Voice as Voice,
        cast_scene as cast_scene,
        design_voice as design_voice,
    )
    from burnish.speech.following import (
        FollowReport as FollowReport,
        follow_report as follow_report,
        heard_marks as heard_marks,
    )
    from burnish.speech.label import (
        Label as Label,
        label_file as label_file,
        label_sound as label_sound,
    )
    from burnish.speech.listeners import (
        embed_voice as embed_voice,
        speech_segments as speech_segments,
        transcribe as transcribe,
        word_errors as word_errors,
    )
    from burnish.speech.manner import (
        read_caption as read_caption,
        resolve_manners as resolve_manners,
    )
    from burnish.speech.plan_text import (
        open_slots as open_slots,
        plan_prompt as plan_prompt,
        plan_with_lm as plan_with_lm,
        read_plan as read_plan,
    )
    from burnish.speech.planner import (
        draft_scene as draft_scene,
        plan_scene as plan_scene,
        read_script as read_script,
    )
    from burnish.speech.render import (
        align_scene as align_scene,
        mix_scene as mix_scene,
        render_scene as render_scene,
        timeline_svg as timeline_svg,
        write_timeline as write_timeline,
    )

__getattr__, __dir__ = lazy_exports(__name__)
