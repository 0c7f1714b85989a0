"""How people take turns: gaps, overlaps and back-channels, beside 38 real meetings.

    turn_taking(turns)                  # turns: speaker, start and end
    meeting_distance(turns)             # how far that is from the meetings of the AMI corpus

A turn that lies wholly inside another one is a back-channel. Every other turn that changes the
speaker has a gap to the end of what was said before; below 0 the two overlap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from burnish.arguments import as_list, as_number, as_table, refused
from burnish.errors import ArgumentError
from burnish.models.long_speech.timeline import overlap_statistics

MEETING_GAPS = (-2.95, -1.76, -1.3, -0.98, -0.74, -0.54, -0.37, -0.23, -0.07, 0.04, 0.14, 0.25, 0.35, 0.46, 0.62, 0.78, 1.01, 1.31, 1.87, 3.95)  # fmt: skip
"""Twenty quantiles of the 9,333 gaps between speakers in the 38 meetings (2.5 %, 7.5 % ...), seconds."""
MEETING_INSIDE = 0.364
"""Share of their turns that lie wholly inside another."""
MEETING_OVERLAP = 0.142
"""Share of their speech in which two or more talk."""


class Turn(NamedTuple):
    """Who speaks from when to when."""

    speaker: str
    start: float
    end: float


class TurnTaking(NamedTuple):
    """How a conversation goes."""

    gaps: list[float]
    """At changes of the speaker, seconds; below 0 the two overlap."""
    inside: float
    """Share of turns that lie wholly inside another."""
    overlap: float
    """Share of the speech in which two or more talk."""


class MeetingDistance(NamedTuple):
    """How far a conversation is from real meetings; 0 is like them."""

    gap_s: float | None
    """Mean distance of the gaps' quantiles (Wasserstein), seconds; None without a change of speaker."""
    inside: float
    overlap: float
    """Differences of the shares."""


def turn_taking(turns: Iterable[Any]) -> TurnTaking:
    """Gaps, back-channels and overlap of turns: triples, or dicts with speaker, start and end.

    >>> from burnish.speech import turn_taking
    >>> turn_taking([("A", 0.0, 2.0), ("B", 1.5, 3.0), ("A", 2.0, 2.5)]).gaps
    [-0.5]
    """
    read = sorted(read_turns("turns", turns), key=lambda t: (t.start, t.end))
    gaps, inside = [], 0
    floor: Turn | None = None
    for turn in read:
        if floor is not None and turn.end <= floor.end:
            inside += turn.speaker != floor.speaker
            continue
        if floor is not None and turn.speaker != floor.speaker:
            gaps.append(turn.start - floor.end)
        floor = turn
    ratio = overlap_statistics([(t.start, t.end) for t in read]).ratio
    return TurnTaking(gaps, inside / len(read) if read else 0.0, ratio)


def read_turns(what: str, turns: Any) -> list[Turn]:
    """Turns from triples or dicts, checked."""
    return [_turn(f"{what}[{i}]", one) for i, one in enumerate(as_list(what, turns))]


def _turn(what: str, given: Any) -> Turn:
    if isinstance(given, Mapping):
        table = as_table(what, given)
        given = [table.get(name) for name in Turn._fields]
    if isinstance(given, str) or not hasattr(given, "__len__") or len(given) != 3:
        raise refused(what, given, "speaker, start and end")
    speaker, start, end = given
    begin, stop = as_number(f"{what}.start", start), as_number(f"{what}.end", end)
    if stop < begin:
        raise ArgumentError(f"{what}: ends at {stop:g}, before it starts at {begin:g}")
    if not isinstance(speaker, str):
        raise refused(f"{what}.speaker", speaker, "a name")
    return Turn(speaker, begin, stop)


def quantiles(values: list[float], count: int) -> list[float]:
    """`count` quantiles at (i + 0.5) / count, joined by straight lines."""
    ordered = sorted(values)
    found = []
    for i in range(count):
        place = min(max((i + 0.5) / count * len(ordered) - 0.5, 0.0), len(ordered) - 1.0)
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        found.append(ordered[low] + (place - low) * (ordered[high] - ordered[low]))
    return found


def meeting_distance(turns: Iterable[Any]) -> MeetingDistance:
    """How far the turns are from those of real meetings.

    >>> from burnish.speech import meeting_distance
    >>> round(meeting_distance([("A", 0.0, 2.0), ("B", 2.25, 3.0)]).overlap, 3)
    -0.142
    """
    found = turn_taking(turns)
    gap_s = None
    if found.gaps:
        own = quantiles(found.gaps, len(MEETING_GAPS))
        gap_s = sum(abs(a - b) for a, b in zip(own, MEETING_GAPS, strict=True)) / len(own)
    return MeetingDistance(gap_s, found.inside - MEETING_INSIDE, found.overlap - MEETING_OVERLAP)
