"""Long speech with a plan: sentences on a timeline, mixed into one scene (arXiv 2603.19798)."""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.models.long_speech.engine import (
        Capabilities as Capabilities,
        Line as Line,
        Manner as Manner,
        SpeechEngine as SpeechEngine,
        Spoken as Spoken,
        Timed as Timed,
        ToneEngine as ToneEngine,
        missing_capabilities as missing_capabilities,
    )
    from burnish.models.long_speech.mixer import (
        Mix as Mix,
        equal_power_fades as equal_power_fades,
        noise_gain as noise_gain,
        place_sentences as place_sentences,
        room_impulse as room_impulse,
    )
    from burnish.models.long_speech.scene import (
        Scene as Scene,
        read_scene as read_scene,
        scene_problems as scene_problems,
        scene_schema as scene_schema,
        scene_warnings as scene_warnings,
        write_scene as write_scene,
    )
    from burnish.models.long_speech.scene_lines import (
        drop_dimensions as drop_dimensions,
        parse_scene_text as parse_scene_text,
        planned_captions as planned_captions,
        scene_text as scene_text,
    )
    from burnish.models.long_speech.timeline import (
        arc_score as arc_score,
        arc_values as arc_values,
        dimension_dropout as dimension_dropout,
        label_retention as label_retention,
        overlap_statistics as overlap_statistics,
        plan_chunks as plan_chunks,
        resolve_timeline as resolve_timeline,
        semitones as semitones,
    )

__getattr__, __dir__ = lazy_exports(__name__)
