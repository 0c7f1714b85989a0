"""When each sentence of a scene is heard: overlaps, interruptions, back-channels, and chunks.

    timeline = resolve_timeline(sentences)          # start, end and cut of each sentence
    overlap_statistics(timeline).ratio              # share of the speech in which two talk at once
    plan_chunks(frames, max_frames, context)        # which sentences are rendered together

From *Borderless Long Speech Synthesis* (arXiv 2603.19798), which names overlaps and interruptions but
gives no rules; those here are our own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

from burnish.arguments import as_list, as_number, as_table, as_whole, as_word, refused
from burnish.errors import ArgumentError, did_you_mean

INTERRUPT_TAIL_S = 0.15
"""How long somebody who is interrupted goes on talking."""
LARGEST_S = 1e9
"""Of the times that a timeline takes: floats hold them to a microsecond."""
RELATIONS = {
    "after": ("gap",),
    "overlap": ("seconds",),
    "interrupt": ("at",),
    "with": ("ref", "offset"),
}


class Span(TypedDict):
    """When a sentence is heard."""

    start: float
    end: float
    cut: bool
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


def resolve_timeline(
    sentences: Sequence[Mapping[str, Any]], interrupt_tail: float = INTERRUPT_TAIL_S
) -> list[Span]:
    """Start, end and cut of each sentence, from its speaker, duration and relation.

    A relation is `{"type": "after", "gap"}`, `{"type": "overlap", "seconds"}`, `{"type": "interrupt",
    "at"}` (a share of the sentence before) or `{"type": "with", "ref", "offset"}` (a back-channel to an
    earlier sentence); without one a sentence follows at once. The first three refer to the latest
    sentence that is no `with`. Nobody starts before 0 or overlaps himself: he waits for his own end.
    An interrupted sentence ends `interrupt_tail` seconds after the interruption really starts.

    >>> from burnish.models.long_speech import resolve_timeline
    >>> resolve_timeline([
    ...     {"speaker": "A", "duration": 2.0},
    ...     {"speaker": "B", "duration": 1.0, "relation": {"type": "interrupt", "at": 0.5}},
    ... ])
    [{'start': 0.0, 'end': 1.15, 'cut': True}, {'start': 1.0, 'end': 2.0, 'cut': False}]
    """
    interrupt_tail = as_number("interrupt_tail", interrupt_tail, low=0, high=LARGEST_S)
    spans: list[Span] = []
    # Nobody overlaps himself, so the latest sentence of a speaker is also the last to end.
    own_latest: dict[str | int, int] = {}
    before: int | None = None
    for place, given in enumerate(as_list("sentences", sentences)):
        what = f"sentences[{place}]"
        speaker, duration, relation = _read_sentence(what, given)
        kind = relation["type"]
        start = _wished_start(f"{what}.relation", relation, spans, before)
        own_end = spans[own_latest[speaker]]["end"] if speaker in own_latest else 0.0
        start = max(start, own_end)
        if kind == "interrupt" and before is not None:
            stop = start + interrupt_tail
            if stop < spans[before]["end"]:
                spans[before] = {"start": spans[before]["start"], "end": stop, "cut": True}
        spans.append({"start": start, "end": start + duration, "cut": False})
        own_latest[speaker] = place
        if kind != "with":
            before = place
    return spans


def _wished_start(
    what: str, relation: dict[str, Any], spans: list[Span], before: int | None
) -> float:
    """Where the relation puts a sentence, before its speaker's own sentences are looked at."""
    kind = relation["type"]
    if kind == "with":
        ref = as_whole(f"{what}.ref", relation.get("ref"))
        if not 0 <= ref < len(spans):
            raise refused(f"{what}.ref", ref, f"an earlier sentence than {len(spans)}")
        return spans[ref]["start"] + _seconds(f"{what}.offset", relation.get("offset", 0.0))
    if kind == "after":
        gap = _seconds(f"{what}.gap", relation.get("gap", 0.0))
        return gap if before is None else spans[before]["end"] + gap
    if before is None:
        raise refused(f"{what}.type", kind, "after: no sentence stands before the first")
    previous = spans[before]
    if kind == "overlap":
        return previous["end"] - _seconds(f"{what}.seconds", relation.get("seconds"), low=0.0)
    share = as_number(f"{what}.at", relation.get("at"), low=0, high=1)
    return previous["start"] + share * (previous["end"] - previous["start"])


def _read_sentence(what: str, given: Any) -> tuple[str | int, float, dict[str, Any]]:
    sentence = as_table(what, given, "a dict with speaker and duration")
    speaker = sentence.get("speaker")
    if isinstance(speaker, str):
        name: str | int = speaker
    else:
        name = as_whole(f"{what}.speaker", speaker)
    duration = _seconds(f"{what}.duration", sentence.get("duration"), low=0.0)
    relation = sentence.get("relation")
    if relation is None:
        return name, duration, {"type": "after", "gap": 0.0}
    table = as_table(f"{what}.relation", relation)
    kind = as_word(f"{what}.relation.type", table.get("type"), tuple(RELATIONS))
    for key in table:
        if key != "type" and key not in RELATIONS[kind]:
            hint = did_you_mean(key, RELATIONS[kind])
            raise ArgumentError(
                f"{what}.relation: got '{key}', expected {' and '.join(RELATIONS[kind])} "
                f"for '{kind}'.{hint}"
            )
    return name, duration, table


def _seconds(what: str, value: Any, low: float = -LARGEST_S) -> float:
    return as_number(what, value, low=low, high=LARGEST_S)


def overlap_statistics(timeline: Sequence[Any]) -> OverlapStatistics:
    """How long somebody talks, how long two or more do, and the ratio of the two.

    Takes what `resolve_timeline` returns, or pairs of start and end.

    >>> from burnish.models.long_speech import overlap_statistics
    >>> overlap_statistics([(0.0, 2.0), (1.5, 4.0)])
    OverlapStatistics(speech=4.0, overlap=0.5, ratio=0.125)
    """
    changes: list[tuple[float, int]] = []
    for place, given in enumerate(as_list("timeline", timeline)):
        start, end = _read_span(f"timeline[{place}]", given)
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


def _read_span(what: str, given: Any) -> tuple[float, float]:
    if isinstance(given, Mapping):
        pair = [given.get("start"), given.get("end")]
    else:
        pair = as_list(what, given)
        if len(pair) != 2:
            raise refused(what, given, "start and end")
    start, end = (_seconds(what, value) for value in pair)
    if end < start:
        raise ArgumentError(f"{what}: ends at {end:g}, before it starts at {start:g}")
    return start, end


def plan_chunks(frames: Sequence[int], max_frames: int, context: int) -> list[Chunk]:
    """Sentences grouped in order into chunks of at most `max_frames` frames.

    A sentence that is longer by itself has a chunk of its own. Each chunk but the first is shown
    the last `context` frames of the one before, or all of it where that is shorter.

    >>> from burnish.models.long_speech import plan_chunks
    >>> plan_chunks([40, 50, 30], max_frames=100, context=20)
    [{'sentences': [0, 1], 'context_frames': 0}, {'sentences': [2], 'context_frames': 20}]
    """
    max_frames = as_whole("max_frames", max_frames, low=1)
    context = as_whole("context", context, low=0)
    counts = [
        as_whole(f"frames[{i}]", one, low=0) for i, one in enumerate(as_list("frames", frames))
    ]
    chunks: list[Chunk] = []
    filled = 0
    for place, count in enumerate(counts):
        if chunks and filled + count <= max_frames:
            chunks[-1]["sentences"].append(place)
            filled += count
        else:
            shown = min(context, filled) if chunks else 0
            chunks.append({"sentences": [place], "context_frames": shown})
            filled = count
    return chunks
