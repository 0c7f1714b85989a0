"""Long speech with a plan: sentences on a timeline, mixed into one scene (arXiv 2603.19798)."""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.models.long_speech.engine import Capabilities as Capabilities
    from burnish.models.long_speech.engine import Line as Line
    from burnish.models.long_speech.engine import Manner as Manner
    from burnish.models.long_speech.engine import SpeechEngine as SpeechEngine
    from burnish.models.long_speech.engine import Spoken as Spoken
    from burnish.models.long_speech.engine import Timed as Timed
    from burnish.models.long_speech.engine import ToneEngine as ToneEngine
    from burnish.models.long_speech.engine import missing_capabilities as missing_capabilities
    from burnish.models.long_speech.mixer import Mix as Mix
    from burnish.models.long_speech.mixer import equal_power_fades as equal_power_fades
    from burnish.models.long_speech.mixer import noise_gain as noise_gain
    from burnish.models.long_speech.mixer import place_sentences as place_sentences
    from burnish.models.long_speech.mixer import room_impulse as room_impulse
    from burnish.models.long_speech.scene import Scene as Scene
    from burnish.models.long_speech.scene import read_scene as read_scene
    from burnish.models.long_speech.scene import scene_problems as scene_problems
    from burnish.models.long_speech.scene import scene_schema as scene_schema
    from burnish.models.long_speech.scene import scene_warnings as scene_warnings
    from burnish.models.long_speech.scene import write_scene as write_scene
    from burnish.models.long_speech.scene_lines import drop_dimensions as drop_dimensions
    from burnish.models.long_speech.scene_lines import parse_scene_text as parse_scene_text
    from burnish.models.long_speech.scene_lines import planned_captions as planned_captions
    from burnish.models.long_speech.scene_lines import scene_text as scene_text
    from burnish.models.long_speech.timeline import arc_score as arc_score
    from burnish.models.long_speech.timeline import arc_values as arc_values
    from burnish.models.long_speech.timeline import dimension_dropout as dimension_dropout
    from burnish.models.long_speech.timeline import label_retention as label_retention
    from burnish.models.long_speech.timeline import overlap_statistics as overlap_statistics
    from burnish.models.long_speech.timeline import plan_chunks as plan_chunks
    from burnish.models.long_speech.timeline import resolve_timeline as resolve_timeline
    from burnish.models.long_speech.timeline import semitones as semitones

__getattr__, __dir__ = lazy_exports(__name__)
