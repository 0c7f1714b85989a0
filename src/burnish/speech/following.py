"""Whether a rendered scene does what its script asked for: every instruction beside its measure.

Pitch, rate and loudness are correlations over sentences between what the manner asked for and what
is measured on the sentence's own samples, each speaker compared with himself. The arc score is
Spearman's correlation of the arc's arousal with measured pitch and loudness together.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

from burnish.arguments import same_length
from burnish.boundary import Number, public
from burnish.models.long_speech.engine import Line, Manner
from burnish.models.long_speech.mixer import Mix
from burnish.models.long_speech.scene import Overlap, Scene, With, spoken_text
from burnish.models.long_speech.timeline import arc_score, overlap_statistics
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
    pitch = _pitches(measured)
    arousal = arousal_of(mix.scene) if asked_arousal is None else asked_arousal
    if arousal is not None:
        same_length("asked_arousal", arousal, len(sentences), "sentences")
    same, other = _voices(mix) if voices else (None, None)
    turns = [Turn(w, s["start"], s["end"]) for w, s in zip(who, mix.timeline, strict=True)]
    errors, before = [], 0
    for place, one in enumerate(sentences):
        if isinstance(one.relation, Overlap):
            got = mix.timeline[before]["end"] - mix.timeline[place]["start"]
            errors.append(abs(got - one.relation.seconds))
        before = before if isinstance(one.relation, With) else place
    snr_db, snr_error = mix.scene.overall.environment.snr_db, None
    active = mix.active(0, mix.length)
    if snr_db is not None and bool(active.any()):
        stems = mix.stems(0, mix.length)
        speech, noise = (part[active].square().mean().item() for part in stems)
        if min(speech, noise) > 0:
            snr_error = abs(10 * math.log10(speech / noise) - snr_db)
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
        overlap_error_s=sum(errors) / len(errors) if errors else None,
        gap_distance_s=meeting_distance(turns).gap_s,
        snr_error_db=snr_error,
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


def _pitches(measured: Sequence[SpeechMeasure]) -> list[float | None]:
    """In semitones above 100 Hz."""
    return [None if m.pitch_hz is None else 12 * math.log2(m.pitch_hz / 100) for m in measured]


def measured_arc(
    arousal: Sequence[float], measured: Sequence[SpeechMeasure], who: Sequence[str]
) -> float | None:
    """Spearman's correlation of arousal with pitch (semitones) plus loudness (dB), by speaker's mean."""
    columns = list(arousal), _pitches(measured), [m.loudness_db for m in measured]
    # To a millionth: differences below that are rounding, and ranks would take them for an order.
    kept = [
        (round(asked, 6), round(pitch + loudness, 6))
        for asked, pitch, loudness in zip(*(_centred(one, who) for one in columns), strict=True)
        if asked is not None and pitch is not None and loudness is not None
    ]
    return arc_score([a for a, _ in kept], [e for _, e in kept]) if len(kept) >= 3 else None


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


def _voices(mix: Mix) -> tuple[float | None, float | None]:
    """Mean cosine of voice embeddings within and between speakers, over sentences of some length."""
    from burnish.speech.listeners import embed_voice

    kept = []
    for place, sentence in enumerate(mix.scene.sentences):
        samples = mix.levelled(place)
        if len(samples) >= 0.8 * mix.sample_rate:
            kept.append((sentence.speaker, embed_voice(samples, mix.sample_rate)))
    found: tuple[list[float], list[float]] = ([], [])
    for (name, one), (other, two) in combinations(kept, 2):
        found[name != other].append((one @ two).item())
    same, different = (sum(one) / len(one) if one else None for one in found)
    return same, different


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
    scene: Scene, planned: Scene, wanted: Iterable[tuple[int, str]]
) -> dict[tuple[int, str], float | None]:
    """By sentence and attribute: semitones, share of the rate, dB, or share of the pitch's range.

    None where the sentence cannot be measured with the plan or without it.
    """
    cast = cast_scene(scene)
    manners = resolve_manners(planned).manners
    speakers = {one.id: one for one in scene.overall.speakers}

    @functools.cache
    def measured(place: int, manner: Manner) -> SpeechMeasure:
        sentence = scene.sentences[place]
        text = spoken_text(sentence.text)
        said = cast.speak(Line(text, speakers[sentence.speaker], place, 0, manner))
        samples = as_finite(said.samples, f"sentences[{place}]")
        return measure_speech(samples * 10 ** (manner.gain_db / 20), cast.sample_rate, text)

    changes: dict[tuple[int, str], float | None] = {}
    for place, attribute in wanted:
        name = _MEASURES[attribute]
        first, second = (getattr(measured(place, m), name) for m in (manners[place], Manner()))
        change = None
        if first is not None and second is not None:
            if attribute == "gain_db":
                change = float(first - second)
            elif attribute == "pitch_st":
                change = 12 * math.log2(first / second)
            elif second:
                change = float(first / second - 1)
        changes[place, attribute] = change
    return changes


_MEASURES = {
    "pitch_st": "pitch_hz",
    "rate": "rate",
    "gain_db": "loudness_db",
    "range": "pitch_range_st",
}
