"""Whether a rendered scene does what its script asked for: every instruction beside its measure.

    report = follow_report(mix)                     # pitch, rate, loudness, arc, overlap, SNR, turns
    follow_report(mix, voices=True, words=True)     # also voices (Resemblyzer) and words (Whisper)

Pitch, rate and loudness are correlations over sentences between what the manner asked for and what
is measured on the sentence's own samples, each speaker compared with himself. The arc score is
Spearman's correlation of the arc's arousal with measured pitch and loudness together.
`rendered_changes` measures what single sentences change, beside the same words without a plan.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from burnish.boundary import Number, public
from burnish.errors import ArgumentError
from burnish.models.long_speech.engine import Line, Manner, SpeechEngine, Spoken
from burnish.models.long_speech.measures import arc_score
from burnish.models.long_speech.mixer import Mix
from burnish.models.long_speech.scene import Overlap, Scene, With, spoken_text
from burnish.models.long_speech.timeline import overlap_statistics
from burnish.speech.acoustics import (
    MEETING_OVERLAP,
    SpeechMeasure,
    Turn,
    measure_speech,
    meeting_distance,
)
from burnish.speech.cast import cast_scene
from burnish.speech.manner import arousal_of, resolve_manners
from burnish.tensors import as_finite


class FollowReport(NamedTuple):
    """How well instructions were followed; None where a scene asks for nothing that can be measured."""

    pitch: float | None
    """Correlation over sentences of the pitch asked for and measured."""
    rate: float | None
    loudness: float | None
    arc: float | None
    """Spearman's correlation of arousal with measured pitch and loudness."""
    overlap: float
    """Share of the speech in which two talk."""
    overlap_error_s: float | None
    """Mean difference of an overlap from what was asked."""
    gap_distance_s: float | None
    """Distance of the gaps between speakers from real meetings (`meeting_distance`)."""
    snr_error_db: float | None
    """Difference of the ratio of speech to background from what was asked."""
    same_voice: float | None
    """Mean cosine of two sentences of one speaker."""
    other_voice: float | None
    """Mean cosine of two sentences of different speakers."""
    word_error: float | None
    """Words that Whisper hears wrong, as a share."""


@public
def follow_report(
    mix: Mix,
    *,
    voices: bool = False,
    words: bool = False,
    asked_arousal: Sequence[Number] | None = None,
) -> FollowReport:
    """Every instruction of a scene beside what was rendered.

    `asked_arousal` replaces the arc of the mix's own scene: what was asked of a baseline that could
    not hear it.
    """
    sentences = mix.scene.sentences
    measured = [
        measure_speech(mix.levelled(i), mix.sample_rate, spoken_text(one.text))
        for i, one in enumerate(sentences)
    ]
    who = [one.speaker for one in sentences]
    pitch = [None if m.pitch_hz is None else 12 * math.log2(m.pitch_hz / 100) for m in measured]
    arousal = arousal_of(mix.scene) if asked_arousal is None else asked_arousal
    if arousal is not None and len(arousal) != len(sentences):
        raise ArgumentError(
            f"asked_arousal: got {len(arousal)}, expected one for each of {len(sentences)} sentences"
        )
    same, other = _voices(mix) if voices else (None, None)
    turns = [Turn(w, s["start"], s["end"]) for w, s in zip(who, mix.timeline, strict=True)]
    return FollowReport(
        pitch=correlation([m.pitch_st for m in mix.manners], pitch, who),
        rate=correlation(
            [math.log(m.rate) for m in mix.manners],
            [None if m.rate is None else math.log(m.rate) for m in measured],
            who,
        ),
        loudness=correlation(
            [m.gain_db for m in mix.manners], [m.loudness_db for m in measured], who
        ),
        arc=None if arousal is None else measured_arc(arousal, measured, who),
        overlap=overlap_statistics(mix.timeline).ratio,
        overlap_error_s=_overlap_error(mix),
        gap_distance_s=meeting_distance(turns).gap_s,
        snr_error_db=_snr_error(mix),
        same_voice=same,
        other_voice=other,
        word_error=_word_error(mix) if words else None,
    )


@public
def heard_marks(report: FollowReport) -> dict[str, float | None]:
    """The figures as marks from 0 to 1, for rewards; None where a figure was not measured.

    Correlations and the cosine of one speaker's sentences count from 0; distances fall by a factor of e
    for 1 s of gaps, 3 dB of SNR and the overlap of real meetings.
    """
    snr, gaps, wrong = report.snr_error_db, report.gap_distance_s, report.word_error
    from_zero = {
        "pitch": report.pitch,
        "rate": report.rate,
        "loudness": report.loudness,
        "arc": report.arc,
        "voice": report.same_voice,
        "words": None if wrong is None else 1 - wrong,
    }
    return {
        **{name: None if one is None else max(0.0, one) for name, one in from_zero.items()},
        # Without gaps nobody answers anybody.
        "overlap": None
        if gaps is None
        else math.exp(-abs(report.overlap - MEETING_OVERLAP) / MEETING_OVERLAP),
        "gaps": None if gaps is None else math.exp(-gaps),
        "snr": None if snr is None else math.exp(-snr / 3),
    }


def measured_arc(
    arousal: Sequence[float], measured: Sequence[SpeechMeasure], who: Sequence[str]
) -> float | None:
    """Spearman's correlation of arousal with pitch (semitones) plus loudness (dB), by speaker's mean."""
    pitch = [None if m.pitch_hz is None else 12 * math.log2(m.pitch_hz / 100) for m in measured]
    centred = _centred(pitch, who), _centred([m.loudness_db for m in measured], who)
    energy = [None if a is None or b is None else a + b for a, b in zip(*centred, strict=True)]
    kept = [(a, e) for a, e in zip(_centred(list(arousal), who), energy, strict=True) if e is not None and a is not None]  # fmt: skip
    if len(kept) < 3:
        return None
    # To a millionth: differences below that are rounding, and ranks would take them for an order.
    return arc_score([round(a, 6) for a, _ in kept], [round(e, 6) for _, e in kept])


def _centred(values: Sequence[float | None], who: Sequence[str]) -> list[float | None]:
    """Each value less the mean of its speaker: voices differ, and only changes were asked for."""
    groups: dict[str, list[float]] = {}
    for value, speaker in zip(values, who, strict=True):
        if value is not None:
            groups.setdefault(speaker, []).append(value)
    return [
        None if value is None else value - sum(groups[speaker]) / len(groups[speaker])
        for value, speaker in zip(values, who, strict=True)
    ]


def correlation(
    asked: Sequence[float], measured: Sequence[float | None], who: Sequence[str]
) -> float | None:
    """Pearson's correlation of what was asked and measured, each speaker beside himself."""
    known = [i for i, one in enumerate(measured) if one is not None]
    names = [who[i] for i in known]
    first = [a for a in _centred([asked[i] for i in known], names) if a is not None]
    second = [b for b in _centred([measured[i] for i in known], names) if b is not None]
    spread = math.sqrt(sum(a * a for a in first) * sum(b * b for b in second))
    if len(known) < 3 or sum(a * a for a in first) < 1e-12 or spread < 1e-12:
        return None
    return sum(a * b for a, b in zip(first, second, strict=True)) / spread


def _overlap_error(mix: Mix) -> float | None:
    errors, before = [], 0
    for place, sentence in enumerate(mix.scene.sentences):
        if isinstance(sentence.relation, Overlap):
            got = mix.timeline[before]["end"] - mix.timeline[place]["start"]
            errors.append(abs(got - sentence.relation.seconds))
        if not isinstance(sentence.relation, With):
            before = place
    return sum(errors) / len(errors) if errors else None


def _snr_error(mix: Mix) -> float | None:
    asked = mix.scene.overall.environment.snr_db
    if asked is None:
        return None
    speech, noise = mix.stems(0, mix.length)
    active = mix.active(0, mix.length)
    if not bool(active.any()):
        return None
    powers = [one[active].square().mean().item() for one in (speech, noise)]
    if min(powers) <= 0:
        return None
    return abs(10 * math.log10(powers[0] / powers[1]) - asked)


def _voices(mix: Mix, least_s: float = 0.8) -> tuple[float | None, float | None]:
    """Mean cosine of voice embeddings within and between speakers, over sentences of some length."""
    from burnish.speech.listeners import embed_voice

    kept = []
    for place, sentence in enumerate(mix.scene.sentences):
        samples = mix.levelled(place)
        if len(samples) >= least_s * mix.sample_rate:
            kept.append((sentence.speaker, embed_voice(samples, mix.sample_rate)))
    same: list[float] = []
    other: list[float] = []
    for at, (name, one) in enumerate(kept):
        for name2, two in kept[at + 1 :]:
            (same if name == name2 else other).append((one @ two).item())
    return (
        sum(same) / len(same) if same else None,
        sum(other) / len(other) if other else None,
    )


def _word_error(mix: Mix) -> float | None:
    """Over the sentences that nobody talks into, as they are heard in the mix."""
    from burnish.speech.listeners import transcribe, word_errors

    wrong = said = 0
    for place, (sentence, span) in enumerate(zip(mix.scene.sentences, mix.timeline, strict=True)):
        others = [one for i, one in enumerate(mix.timeline) if i != place]
        if span["cut"] or any(
            o["start"] < span["end"] and span["start"] < o["end"] for o in others
        ):
            continue
        first, last = (round(span[end] * mix.sample_rate) for end in ("start", "end"))
        heard = transcribe(mix.samples(first, min(last, mix.length)), mix.sample_rate)
        errors, words = word_errors(spoken_text(sentence.text), heard)
        wrong, said = wrong + errors, said + words
    return wrong / said if said else None


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
