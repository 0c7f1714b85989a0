"""When each sentence of a scene is heard: overlaps, interruptions, back-channels, and chunks.

    timeline = resolve_timeline(sentences)          # start, end and cut of each sentence
    overlap_statistics(timeline).ratio              # share of the speech in which two talk at once
    plan_chunks(frames, max_frames, context)        # which sentences are rendered together

From *Borderless Long Speech Synthesis* (arXiv 2603.19798), which names overlaps and interruptions but
gives no rules; those here are our own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple, NotRequired, TypedDict

from msgspec import Meta

from burnish.arguments import refused
from burnish.boundary import Count, PositiveInt, Settings, Share, public
from burnish.errors import ArgumentError

INTERRUPT_TAIL_S = 0.15
"""How long somebody who is interrupted goes on talking."""
Time = Annotated[float, Meta(ge=-1e9, le=1e9)]
"""Seconds; floats hold them to a microsecond."""
Length = Annotated[float, Meta(ge=0.0, le=1e9)]


class After(Settings, frozen=True, tag_field="type", tag="after"):
    """A sentence that follows the latest one, which is no `with`."""

    gap: Time = 0.0


class Overlap(Settings, frozen=True, tag_field="type", tag="overlap"):
    """One that begins so many seconds before that one ends."""

    seconds: Length


class Interrupt(Settings, frozen=True, tag_field="type", tag="interrupt"):
    """One that cuts it, at a share of it."""

    at: Share


class With(Settings, frozen=True, tag_field="type", tag="with"):
    """A back-channel to an earlier sentence."""

    ref: Count
    offset: Time = 0.0


Relation = After | Overlap | Interrupt | With


class Utterance(TypedDict):
    speaker: str | int
    duration: Length
    relation: NotRequired[Relation | None]


class Span(TypedDict):
    """When a sentence is heard."""

    start: float
    end: float
    cut: NotRequired[bool]
    """True if somebody interrupted it before its end."""


class OverlapStatistics(NamedTuple):
    """Seconds of speech, and how much of it overlaps."""

    speech: float
    """Time in which at least one talks."""
    overlap: float
    """Time in which at least two talk."""
    ratio: float
    """Overlap by speech; 0 without speech."""


class Chunk(TypedDict):
    """Sentences that are rendered together."""

    sentences: list[int]
    context_frames: int
    """How many frames of the chunk before are shown to the engine."""


@public
def resolve_timeline(
    sentences: Sequence[Utterance], interrupt_tail: Length = INTERRUPT_TAIL_S
) -> list[Span]:
    """Start, end and cut of each sentence, from its speaker, duration and relation.

    A relation is `{"type": "after", "gap"}`, `{"type": "overlap", "seconds"}`, `{"type": "interrupt",
    "at"}` (a share of the sentence before) or `{"type": "with", "ref", "offset"}` (a back-channel to an
    earlier sentence); without one a sentence follows at once. The first three refer to the latest
    sentence that is no `with`. Nobody starts before 0 or overlaps himself: he waits for his own end.
    An interrupted sentence ends `interrupt_tail` seconds after the interruption really starts.

    >>> resolve_timeline([
    ...     {"speaker": "A", "duration": 2.0},
    ...     {"speaker": "B", "duration": 1.0, "relation": {"type": "interrupt", "at": 0.5}},
    ... ])
    [{'start': 0.0, 'end': 1.15, 'cut': True}, {'start': 1.0, 'end': 2.0, 'cut': False}]
    """
    spans: list[Span] = []
    # Nobody overlaps himself, so the latest sentence of a speaker is also the last to end.
    own_latest: dict[str | int, int] = {}
    before: int | None = None
    for place, sentence in enumerate(sentences):
        speaker, relation = sentence["speaker"], sentence.get("relation") or After()
        start = _wished_start(f"sentences[{place}].relation", relation, spans, before)
        own_end = spans[own_latest[speaker]]["end"] if speaker in own_latest else 0.0
        start = max(start, own_end)
        if isinstance(relation, Interrupt) and before is not None:
            stop = start + interrupt_tail
            if stop < spans[before]["end"]:
                spans[before] = {"start": spans[before]["start"], "end": stop, "cut": True}
        spans.append({"start": start, "end": start + sentence["duration"], "cut": False})
        own_latest[speaker] = place
        if not isinstance(relation, With):
            before = place
    return spans


def _wished_start(
    what: str, relation: Relation, spans: Sequence[Span], before: int | None
) -> float:
    """Where the relation puts a sentence, before its speaker's own sentences are looked at."""
    if isinstance(relation, With):
        if relation.ref >= len(spans):
            raise refused(f"{what}.ref", relation.ref, f"an earlier sentence than {len(spans)}")
        return spans[relation.ref]["start"] + relation.offset
    if isinstance(relation, After):
        return relation.gap + (0.0 if before is None else spans[before]["end"])
    if before is None:
        raise ArgumentError(f"{what}: expected after: no sentence stands before the first")
    previous = spans[before]
    if isinstance(relation, Overlap):
        return previous["end"] - relation.seconds
    return previous["start"] + relation.at * (previous["end"] - previous["start"])


@public
def overlap_statistics(timeline: Sequence[tuple[Time, Time] | Span]) -> OverlapStatistics:
    """How long somebody talks, how long two or more do, and the ratio of the two.

    Takes what `resolve_timeline` returns, or pairs of start and end.

    >>> overlap_statistics([(0.0, 2.0), (1.5, 4.0)])
    OverlapStatistics(speech=4.0, overlap=0.5, ratio=0.125)
    """
    changes: list[tuple[float, int]] = []
    for place, span in enumerate(timeline):
        start, end = span if isinstance(span, tuple) else (span["start"], span["end"])
        if end < start:
            raise ArgumentError(
                f"timeline[{place}]: ends at {end:g}, before it starts at {start:g}"
            )
        if end > start:
            changes += [(start, 1), (end, -1)]
    speech = overlap = last = 0.0
    talking = 0
    # Ends sort before starts at the same moment: turns that touch do not overlap.
    for moment, change in sorted(changes):
        speech += (moment - last) * (talking >= 1)
        overlap += (moment - last) * (talking >= 2)
        talking, last = talking + change, moment
    return OverlapStatistics(speech, overlap, overlap / speech if speech else 0.0)


@public
def plan_chunks(frames: Sequence[Count], max_frames: PositiveInt, context: Count) -> list[Chunk]:
    """Sentences grouped in order into chunks of at most `max_frames` frames.

    A sentence that is longer by itself has a chunk of its own. Each chunk but the first is shown
    the last `context` frames of the one before, or all of it where that is shorter.

    >>> plan_chunks([40, 50, 30], max_frames=100, context=20)
    [{'sentences': [0, 1], 'context_frames': 0}, {'sentences': [2], 'context_frames': 20}]
    """
    chunks: list[Chunk] = []
    filled = 0
    for place, count in enumerate(frames):
        if chunks and filled + count <= max_frames:
            chunks[-1]["sentences"].append(place)
            filled += count
        else:
            shown = min(context, filled) if chunks else 0
            chunks.append({"sentences": [place], "context_frames": shown})
            filled = count
    return chunks
