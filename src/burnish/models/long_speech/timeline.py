"""When each sentence of a scene is heard, whether a scene does what was asked, and what training data keeps.

From *Borderless Long Speech Synthesis* (arXiv 2603.19798), which names overlaps and interruptions but
gives no rules; those here are our own.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, NamedTuple, NotRequired, TypedDict

from msgspec import Meta

from burnish.arguments import refused, same_length
from burnish.boundary import Count, NonNegative, Number, PositiveInt, Settings, Share, public
from burnish.tensors import torch

if TYPE_CHECKING:
    from jaxtyping import Float64
    from torch import Tensor

    Hertz = Annotated[Float64[Tensor, "*B"], Meta(gt=0)]
    OneHertz = Annotated[Float64[Tensor, ""], Meta(gt=0)]


class After(Settings, frozen=True, tag_field="type", tag="after"):
    """A sentence that follows the latest one, which is no `with`."""

    gap: Number = 0.0


class Overlap(Settings, frozen=True, tag_field="type", tag="overlap"):
    """One that begins so many seconds before that one ends."""

    seconds: NonNegative


class Interrupt(Settings, frozen=True, tag_field="type", tag="interrupt"):
    """One that cuts it, at a share of it."""

    at: Share


class With(Settings, frozen=True, tag_field="type", tag="with"):
    """A back-channel to an earlier sentence."""

    ref: Count
    offset: Number = 0.0


Relation = After | Overlap | Interrupt | With


class Utterance(TypedDict):
    speaker: str | int
    duration: NonNegative
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
    sentences: Sequence[Utterance], interrupt_tail: NonNegative = 0.15
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
        other = relation.ref if isinstance(relation, With) else before
        is_odd = not isinstance(relation, After) if other is None else other >= place
        if is_odd:
            raise refused(f"sentences[{place}].relation", relation, "one to an earlier sentence")
        known = spans[other] if other is not None else {"start": 0.0, "end": 0.0}
        match relation:
            case After():
                start = relation.gap + known["end"]
            case Overlap():
                start = known["end"] - relation.seconds
            case Interrupt():
                start = known["start"] + relation.at * (known["end"] - known["start"])
            case With():
                start = known["start"] + relation.offset
        start = max(start, spans[own_latest[speaker]]["end"] if speaker in own_latest else 0.0)
        stop = start + interrupt_tail
        if isinstance(relation, Interrupt) and other is not None and stop < known["end"]:
            spans[other] = {"start": known["start"], "end": stop, "cut": True}
        spans.append({"start": start, "end": start + sentence["duration"], "cut": False})
        own_latest[speaker] = place
        if not isinstance(relation, With):
            before = place
    return spans


@public
def overlap_statistics(timeline: Sequence[tuple[Number, Number] | Span]) -> OverlapStatistics:
    """How long somebody talks, how long two or more do, and the ratio of the two.

    Takes what `resolve_timeline` returns, or pairs of start and end.

    >>> overlap_statistics([(0.0, 2.0), (1.5, 4.0)])
    OverlapStatistics(speech=4.0, overlap=0.5, ratio=0.125)
    """
    changes: list[tuple[float, int]] = []
    for place, span in enumerate(timeline):
        start, end = span if isinstance(span, tuple) else (span["start"], span["end"])
        if end < start:
            raise refused(f"timeline[{place}]", span, "an end that is not before the start")
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


class Waypoint(TypedDict):
    """A place of an arc, and its value there."""

    at: Share
    value: Number


class Clip(TypedDict):
    """What is known of a clip of speech."""

    snr: NotRequired[Number | None]
    """dB; None where unknown, which fails a filter."""
    overlap: NotRequired[Share]
    speakers: Count


class FilterRule(Settings, frozen=True):
    """What a filter of speech data keeps; None demands nothing."""

    min_snr: float | None = None
    max_overlap: float | None = None
    speakers: float | None = None


FILTER_RULE = FilterRule(20.0, 0.05, 1)
"""The classic one."""


class Retention(NamedTuple):
    """Indices of the clips that are kept."""

    filter_kept: list[int]
    label_kept: list[int]


@public
def dimension_dropout(
    dims: Sequence[str], u: Sequence[Share], p: Share, protected: Collection[str] = ()
) -> list[str]:
    """Names of the dimensions to blank: those with `u < p` that are not protected, in order.

    `u` has a uniform number from [0, 1) for each dimension, so that p = 0 drops nothing and p = 1
    all that is not protected.

    >>> dimension_dropout(["tone", "pace", "intent"], [0.1, 0.2, 0.9], 0.3, ["pace"])
    ['tone']
    """
    same_length("u", u, len(dims), "dims")
    pairs = zip(dims, u, strict=True)
    return [name for name, draw in pairs if draw < p and name not in protected]


@public
def arc_values(
    waypoints: Sequence[tuple[Share, Number] | Waypoint],
    n: Count,
) -> Tensor:
    """An emotional arc at each of n sentences: waypoints joined by straight lines, float64 (n,).

    Sentence i stands at `i / (n - 1)`, a single one at 0. Waypoints are pairs of `at` (0 to 1, in
    ascending order) and value, or dicts with these; before the first and after the last one the arc
    is flat, and where two share a place the later one counts.

    >>> arc_values([(0.0, 0.2), (0.5, 1.0), (1.0, 0.0)], 5).tolist()
    [0.2, 0.6, 1.0, 0.5, 0.0]
    """
    points = [one if isinstance(one, tuple) else (one["at"], one["value"]) for one in waypoints]
    if not points or any(second[0] < first[0] for first, second in pairwise(points)):
        raise refused("waypoints", points, "at least 1, sorted by their places")
    values = []
    for i in range(n):
        place = i / (n - 1) if n > 1 else 0.0
        passed = [point for point in points if point[0] <= place]
        at, value = passed[-1] if passed else points[0]
        if passed and len(passed) < len(points):
            next_at, next_value = points[len(passed)]
            share = (place - at) / (next_at - at)
            value = value * (1 - share) + next_value * share
        values.append(value)
    return torch.tensor(values, dtype=torch.float64)


@public
def arc_score(requested: Sequence[Number], measured: Sequence[Number]) -> float | None:
    """Spearman's rank correlation of what was asked for and what was measured, -1 to 1.

    Equal values share the mean of their ranks. None where either side is constant or has fewer
    than two values: no order was asked for, or none can be seen.

    >>> arc_score([0.1, 0.5, 0.9], [60.0, 64.0, 71.0])
    1.0
    """
    same_length("measured", measured, len(requested), "requested")
    if len(set(requested)) < 2 or len(set(measured)) < 2:
        return None
    middle = (len(requested) - 1) / 2
    a = [rank - middle for rank in _ranks(requested)]
    b = [rank - middle for rank in _ranks(measured)]
    spread = math.sqrt(math.fsum(x * x for x in a) * math.fsum(y * y for y in b))
    product = math.fsum(x * y for x, y in zip(a, b, strict=True))
    return max(-1.0, min(1.0, product / spread))


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 0; equal values share the mean of theirs."""
    order = sorted(values)
    first = {value: place for place, value in reversed(list(enumerate(order)))}
    last = {value: place for place, value in enumerate(order)}
    return [(first[value] + last[value]) / 2 for value in values]


@public
def semitones(f0: Hertz, reference: OneHertz | Hertz) -> Tensor:
    """How many semitones a frequency lies above a reference: `12 log2(f0 / reference)`, float64.

    Leave frames without a pitch out; they have no place on this scale.

    >>> semitones([220.0, 110.0, 55.0], 110.0).tolist()
    [12.0, 0.0, -12.0]
    """
    return 12 * (f0.log2() - reference.log2())


@public
def label_retention(clips: Sequence[Clip], filter_rule: FilterRule | None = None) -> Retention:
    """Which clips a filter would keep, and which are kept if they are labelled instead.

    Without a rule it is `FILTER_RULE`. Labelling drops only clips in which nobody speaks.

    >>> label_retention([
    ...     {"snr": 30.0, "overlap": 0.0, "speakers": 1},
    ...     {"snr": 5.0, "overlap": 0.3, "speakers": 3},
    ...     {"snr": None, "overlap": 0.0, "speakers": 0},
    ... ])
    Retention(filter_kept=[0], label_kept=[0, 1])
    """
    rule = filter_rule or FILTER_RULE
    retention = Retention([], [])
    for place, clip in enumerate(clips):
        snr, speakers = clip.get("snr"), clip["speakers"]
        if speakers:
            retention.label_kept.append(place)
        passes_snr = rule.min_snr is None or (snr is not None and snr >= rule.min_snr)
        passes_overlap = rule.max_overlap is None or clip.get("overlap", 0.0) <= rule.max_overlap
        if passes_snr and passes_overlap and rule.speakers in (None, speakers):
            retention.filter_kept.append(place)
    return retention
