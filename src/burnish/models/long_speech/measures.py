"""Whether a scene does what its script asked for, and what training data keeps.

arc_score(arc_values(waypoints, n), measured)   # does the speech follow the emotional arc
semitones(f0, reference)                        # pitch relative to a voice
label_retention(clips, rule)                    # what a filter keeps, and what labelling keeps
dimension_dropout(dims, u, p, protected)        # which dimensions of a plan are blanked
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, NamedTuple, NotRequired, TypedDict

from msgspec import Meta

from burnish.boundary import Count, Number, Settings, Share, public
from burnish.errors import ArgumentError
from burnish.tensors import torch

if TYPE_CHECKING:
    from jaxtyping import Float64
    from torch import Tensor

    Hertz = Annotated[Float64[Tensor, "*B"], Meta(gt=0)]
    OneHertz = Annotated[Float64[Tensor, ""], Meta(gt=0)]


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
    if len(u) != len(dims):
        raise ArgumentError(f"u: got {len(u)}, expected one for each of the {len(dims)} dims")
    pairs = zip(dims, u, strict=True)
    return [name for name, draw in pairs if draw < p and name not in protected]


@public
def arc_values(
    waypoints: Sequence[tuple[Share, Number] | Waypoint],
    n: Annotated[int, Meta(ge=0, le=1_000_000)],
) -> Tensor:
    """An emotional arc at each of n sentences: waypoints joined by straight lines, float64 (n,).

    Sentence i stands at `i / (n - 1)`, a single one at 0. Waypoints are pairs of `at` (0 to 1, in
    ascending order) and value, or dicts with these; before the first and after the last one the arc
    is flat, and where two share a place the later one counts.

    >>> arc_values([(0.0, 0.2), (0.5, 1.0), (1.0, 0.0)], 5).tolist()
    [0.2, 0.6, 1.0, 0.5, 0.0]
    """
    points = [one if isinstance(one, tuple) else (one["at"], one["value"]) for one in waypoints]
    if not points:
        raise ArgumentError("waypoints: got none, expected at least 1")
    for place, (first, second) in enumerate(pairwise(points)):
        if second[0] < first[0]:
            raise ArgumentError(
                f"waypoints[{place + 1}]: stands at {second[0]:g}, before the one at {first[0]:g}; "
                "sort the waypoints by place"
            )
    values = [_arc_at(points, i / (n - 1) if n > 1 else 0.0) for i in range(n)]
    return torch.tensor(values, dtype=torch.float64)


def _arc_at(points: list[tuple[float, float]], place: float) -> float:
    if place < points[0][0]:
        return points[0][1]
    left = max(i for i, (at, _) in enumerate(points) if at <= place)
    at, value = points[left]
    if left + 1 == len(points):
        return value
    next_at, next_value = points[left + 1]
    share = (place - at) / (next_at - at)
    return value * (1 - share) + next_value * share


@public
def arc_score(requested: Sequence[Number], measured: Sequence[Number]) -> float | None:
    """Spearman's rank correlation of what was asked for and what was measured, -1 to 1.

    Equal values share the mean of their ranks. None where either side is constant or has fewer
    than two values: no order was asked for, or none can be seen.

    >>> arc_score([0.1, 0.5, 0.9], [60.0, 64.0, 71.0])
    1.0
    """
    if len(measured) != len(requested):
        raise ArgumentError(
            f"measured: got {len(measured)}, expected one for each of the {len(requested)} requested"
        )
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
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    first = 0
    while first < len(order):
        last = first
        while last + 1 < len(order) and values[order[last + 1]] == values[order[first]]:
            last += 1
        for place in order[first : last + 1]:
            ranks[place] = (first + last) / 2
        first = last + 1
    return ranks


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
