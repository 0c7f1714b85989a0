"""Whether a scene does what its script asked for, and what training data keeps.

arc_score(arc_values(waypoints, n), measured)   # does the speech follow the emotional arc
semitones(f0, reference)                        # pitch relative to a voice
label_retention(clips, rule)                    # what a filter keeps, and what labelling keeps
dimension_dropout(dims, u, p, protected)        # which dimensions of a plan are blanked
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence, Set
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from burnish.arguments import (
    LARGEST_COUNT,
    as_list,
    as_number,
    as_numbers,
    as_table,
    as_text,
    as_whole,
    refused,
    same_length,
)
from burnish.errors import ArgumentError, did_you_mean
from burnish.tensors import as_finite, torch

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.tensors import Numbers

FILTER_RULE = {"min_snr": 20.0, "max_overlap": 0.05, "speakers": 1}
"""What a classic filter of speech data keeps."""


class Retention(NamedTuple):
    """Indices of the clips that are kept."""

    filter_kept: list[int]
    label_kept: list[int]


def dimension_dropout(
    dims: Sequence[str], u: Numbers, p: float, protected: Collection[str] = ()
) -> list[str]:
    """Names of the dimensions to blank: those with `u < p` that are not protected, in order.

    `u` has a uniform number from [0, 1) for each dimension, so that p = 0 drops nothing and p = 1
    all that is not protected.

    >>> from burnish.models.long_speech import dimension_dropout
    >>> dimension_dropout(["tone", "pace", "intent"], [0.1, 0.2, 0.9], 0.3, ["pace"])
    ['tone']
    """
    names = [as_text(f"dims[{i}]", one) for i, one in enumerate(as_list("dims", dims))]
    draws = as_numbers("u", u)
    same_length("u", draws, len(names), "dims")
    for place, draw in enumerate(draws):
        as_number(f"u[{place}]", draw, low=0, high=1)
    p = as_number("p", p, low=0, high=1)
    given = list(protected) if isinstance(protected, Set) else as_list("protected", protected)
    kept = {as_text("protected", one) for one in given}
    return [name for name, draw in zip(names, draws, strict=True) if draw < p and name not in kept]


def arc_values(waypoints: Sequence[Any], n: int) -> Tensor:
    """An emotional arc at each of n sentences: waypoints joined by straight lines, float64 (n,).

    Sentence i stands at `i / (n - 1)`, a single one at 0. Waypoints are pairs of `at` (0 to 1, in
    ascending order) and value, or dicts with these; before the first and after the last one the arc
    is flat, and where two share a place the later one counts.

    >>> from burnish.models.long_speech import arc_values
    >>> arc_values([(0.0, 0.2), (0.5, 1.0), (1.0, 0.0)], 5).tolist()
    [0.2, 0.6, 1.0, 0.5, 0.0]
    """
    n = as_whole("n", n, low=0, high=LARGEST_COUNT)
    points = [_waypoint(f"waypoints[{i}]", one) for i, one in enumerate(_listed(waypoints))]
    for place, (first, second) in enumerate(pairwise(points)):
        if second[0] < first[0]:
            raise ArgumentError(
                f"waypoints[{place + 1}]: stands at {second[0]:g}, before the one at {first[0]:g}; "
                "sort the waypoints by place"
            )
    values = [_arc_at(points, i / (n - 1) if n > 1 else 0.0) for i in range(n)]
    return torch.tensor(values, dtype=torch.float64)


def _listed(waypoints: Any) -> list[Any]:
    return as_list("waypoints", waypoints, least=1)


def _waypoint(what: str, given: Any) -> tuple[float, float]:
    if isinstance(given, Mapping):
        pair = [given.get("at"), given.get("value")]
    else:
        pair = as_list(what, given)
        if len(pair) != 2:
            raise refused(what, given, "a pair of place and value")
    return as_number(f"{what}.at", pair[0], low=0, high=1), as_number(f"{what}.value", pair[1])


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


def arc_score(requested: Numbers, measured: Numbers) -> float | None:
    """Spearman's rank correlation of what was asked for and what was measured, -1 to 1.

    Equal values share the mean of their ranks. None where either side is constant or has fewer
    than two values: no order was asked for, or none can be seen.

    >>> from burnish.models.long_speech import arc_score
    >>> arc_score([0.1, 0.5, 0.9], [60.0, 64.0, 71.0])
    1.0
    """
    asked, found = as_numbers("requested", requested), as_numbers("measured", measured)
    same_length("measured", found, len(asked), "requested values")
    if len(set(asked)) < 2 or len(set(found)) < 2:
        return None
    middle = (len(asked) - 1) / 2
    a = [rank - middle for rank in _ranks(asked)]
    b = [rank - middle for rank in _ranks(found)]
    spread = math.sqrt(math.fsum(x * x for x in a) * math.fsum(y * y for y in b))
    product = math.fsum(x * y for x, y in zip(a, b, strict=True))
    return max(-1.0, min(1.0, product / spread))


def _ranks(values: list[float]) -> list[float]:
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


def semitones(f0: Numbers, reference: Numbers) -> Tensor:
    """How many semitones a frequency lies above a reference: `12 log2(f0 / reference)`, float64.

    Leave frames without a pitch out; they have no place on this scale.

    >>> from burnish.models.long_speech import semitones
    >>> semitones([220.0, 110.0, 55.0], 110.0).tolist()
    [12.0, 0.0, -12.0]
    """
    f0_X, reference_X = _frequencies("f0", f0), _frequencies("reference", reference)
    if reference_X.ndim and reference_X.shape != f0_X.shape:
        raise ArgumentError(
            f"reference: got shape {tuple(reference_X.shape)}, expected one number or "
            f"{tuple(f0_X.shape)}"
        )
    return 12 * (f0_X.log2() - reference_X.log2())


def _frequencies(what: str, values: Numbers) -> Tensor:
    read_X = as_finite(values, what)
    if not bool((read_X > 0).all()):
        low = read_X[read_X <= 0].flatten()[0].item() if read_X.ndim else read_X.item()
        raise ArgumentError(f"{what}: got {low:g}, expected frequencies above 0")
    return read_X


def label_retention(
    clips: Sequence[Mapping[str, Any]], filter_rule: Mapping[str, Any] | None = None
) -> Retention:
    """Which clips a filter would keep, and which are kept if they are labelled instead.

    A clip has `snr` (dB; None where unknown, which fails the filter), `overlap` (share) and
    `speakers` (count). The rule has `min_snr`, `max_overlap` and `speakers`; a key that is left out
    demands nothing, and without a rule it is `FILTER_RULE`. Labelling drops only clips in which
    nobody speaks.

    >>> from burnish.models.long_speech import label_retention
    >>> label_retention([
    ...     {"snr": 30.0, "overlap": 0.0, "speakers": 1},
    ...     {"snr": 5.0, "overlap": 0.3, "speakers": 3},
    ...     {"snr": None, "overlap": 0.0, "speakers": 0},
    ... ])
    Retention(filter_kept=[0], label_kept=[0, 1])
    """
    rule = _rule(FILTER_RULE if filter_rule is None else filter_rule)
    retention = Retention([], [])
    for place, given in enumerate(as_list("clips", clips)):
        what = f"clips[{place}]"
        clip = as_table(what, given, "a dict with snr, overlap and speakers")
        speakers = as_whole(f"{what}.speakers", clip.get("speakers"), low=0)
        overlap = as_number(f"{what}.overlap", clip.get("overlap", 0.0), low=0, high=1)
        snr = None if clip.get("snr") is None else as_number(f"{what}.snr", clip["snr"])
        if speakers:
            retention.label_kept.append(place)
        passes_snr = "min_snr" not in rule or (snr is not None and snr >= rule["min_snr"])
        passes_overlap = "max_overlap" not in rule or overlap <= rule["max_overlap"]
        if passes_snr and passes_overlap and speakers == rule.get("speakers", speakers):
            retention.filter_kept.append(place)
    return retention


def _rule(given: Any) -> dict[str, float]:
    rule = as_table("filter_rule", given)
    for key in rule:
        if key not in FILTER_RULE:
            raise ArgumentError(
                f"filter_rule: got '{key}', expected {', '.join(FILTER_RULE)}."
                f"{did_you_mean(key, FILTER_RULE)}"
            )
    return {key: as_number(f"filter_rule.{key}", value) for key, value in rule.items()}
