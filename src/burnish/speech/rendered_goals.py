"""Measured changes of rendered sentences: as planned, beside the same words without a plan."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable

from burnish.models.long_speech.engine import Line, Manner, SpeechEngine, Spoken
from burnish.models.long_speech.scene import Scene, spoken_text
from burnish.speech.acoustics import SpeechMeasure, measure_speech
from burnish.speech.cast import cast_scene
from burnish.speech.manner import resolve_manners
from burnish.tensors import as_finite


def rendered_changes(
    scene: Scene, planned: Scene, wanted: Iterable[tuple[int, str]], engine: str = "espeak"
) -> dict[tuple[int, str], float | None]:
    """By sentence and attribute: semitones, share of the rate, dB, or share of the pitch's range.

    None where the sentence cannot be measured with the plan or without it.
    """
    cast = cast_scene(scene, engine)
    manners = resolve_manners(planned).manners
    measured = functools.cache(functools.partial(_measure, cast, scene))
    changes = {}
    for place, attribute in wanted:
        changed, own = measured(place, manners[place]), measured(place, Manner())
        changes[place, attribute] = _difference(attribute, changed, own)
    return changes


def _measure(cast: SpeechEngine, scene: Scene, place: int, manner: Manner) -> SpeechMeasure:
    sentence = scene.sentences[place]
    (speaker, *_) = (one for one in scene.overall.speakers if one.id == sentence.speaker)
    text = spoken_text(sentence.text)
    said = cast.speak(Line(text, speaker, place, 0, manner))
    given = said.samples if isinstance(said, Spoken) else said
    samples = as_finite(given, f"sentences[{place}]")
    return measure_speech(samples * 10 ** (manner.gain_db / 20), cast.sample_rate, text)


def _difference(attribute: str, changed: SpeechMeasure, own: SpeechMeasure) -> float | None:
    name = {"pitch_st": "pitch_hz", "rate": "rate", "gain_db": "loudness_db", "range": "pitch_range_st"}[attribute]  # fmt: skip
    first, second = getattr(changed, name), getattr(own, name)
    if first is None or second is None:
        return None
    if attribute == "gain_db":
        return float(first - second)
    if attribute == "pitch_st":
        return 12 * math.log2(first / second)
    return float(first / second - 1) if second else None
