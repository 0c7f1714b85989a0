"""Who is best of N, from matches between two: pure functions of who beat whom.

    knockout = sequential_knockout(order=[2, 0, 1], quality=[0.1, 0.9, 0.4])    # winner 1, 2 calls
    win_counts(3, [Match(0, 1, 1.0), Match(1, 2, 0.0), Match(0, 2, None)])
    bradley_terry(3, matches)                                                   # strengths, mean 0

A match without a value (the judge failed) is no tie: it counts for nobody.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

from burnish.arguments import as_list, as_number, as_numbers, as_whole, as_word, refused
from burnish.numbers import sigmoid, solve
from burnish.records import Status

TieRule = Literal["incumbent", "challenger"]


class Match(NamedTuple):
    """One comparison of two candidates, by their places."""

    first: int
    second: int
    value: float | None
    """From the first one's side: above 0 it is better, 0 is a tie, None no verdict."""
    status: Status = Status.OK
    reason: str = ""


class Knockout(NamedTuple):
    """What came of a knockout over known qualities."""

    winner: int
    calls: int


def sequential_knockout(order: Any, quality: Any, tie_rule: str = "incumbent") -> Knockout:
    """The last one standing when each challenger in `order` meets the incumbent.

    `quality` gives the number of each candidate (a sequence, an array or a mapping), None where
    there is none: then the incumbent stays. Equal ones by `tie_rule`. One candidate makes no call.
    """
    as_word("tie_rule", tie_rule, get_args(TieRule))
    order = as_list("order", order, least=1)
    known = _qualities(quality)
    for candidate in order:
        if not isinstance(candidate, Hashable) or candidate not in known:
            raise refused(
                "order", candidate, f"candidates that have a quality, {len(known)} of them"
            )
    incumbent = order[0]
    for challenger in order[1:]:
        stands, comes = known[incumbent], known[challenger]
        if stands is None or comes is None:
            continue
        if comes > stands or (comes == stands and tie_rule == "challenger"):
            incumbent = challenger
    return Knockout(incumbent, len(order) - 1)


def _qualities(quality: Any) -> dict[Any, float | None]:
    """The number of each candidate, None where there is none; a NaN would beat and lose to nobody."""
    if isinstance(quality, Mapping):
        values = as_numbers("quality", list(quality.values()), missing=True)
        return dict(zip(quality, values, strict=True))
    return dict(enumerate(as_numbers("quality", quality, missing=True)))


def all_pairs(count: int) -> Iterator[tuple[int, int]]:
    """Every two candidates once."""
    return ((a, b) for a in range(count) for b in range(a + 1, count))


def win_counts(count: int, matches: Sequence[Match]) -> list[float]:
    """Wins of each candidate, a tie half a win for both."""
    wins = [0.0] * as_whole("count", count, low=0)
    for match in _checked(count, matches):
        if match.value is None:
            continue
        share = 0.5 if match.value == 0 else float(match.value > 0)
        wins[match.first] += share
        wins[match.second] += 1 - share
    return wins


def win_rates(count: int, matches: Sequence[Match]) -> list[float | None]:
    """Wins over matches with a verdict; None for a candidate that has none."""
    played = [0] * as_whole("count", count, low=0)
    for match in _checked(count, matches):
        if match.value is not None:
            played[match.first] += 1
            played[match.second] += 1
    wins = win_counts(count, matches)
    return [w / n if n else None for w, n in zip(wins, played, strict=True)]


def bradley_terry(
    count: int, matches: Sequence[Match], *, prior: float = 0.1, tolerance: float = 1e-10
) -> list[float]:
    """Strengths whose differences are the log-odds of winning; their mean is 0.

    Ties are half a win for both. `prior` is that many won and lost games of everyone against a
    candidate of strength 0: it keeps an unbeaten one finite. Newton's method on a strictly concave
    likelihood, so there is one answer and it is found from anywhere.
    """
    # Without a prior an unbeaten candidate would be infinite.
    prior = as_number("prior", prior, above=0)
    tolerance = as_number("tolerance", tolerance, above=0)
    count = as_whole("count", count, low=0)
    games: dict[tuple[int, int], list[float]] = {}
    for match in _checked(count, matches):
        if match.value is not None and match.first != match.second:
            share = 0.5 if match.value == 0 else float(match.value > 0)
            a, b = sorted((match.first, match.second))
            won = share if match.first == a else 1 - share
            game = games.setdefault((a, b), [0.0, 0.0])
            game[0] += won
            game[1] += 1
    strengths = [0.0] * count
    for _ in range(200):
        gradient, curvature = _slopes(strengths, games, prior)
        step = solve(curvature, gradient)
        # A long step from far away can overshoot; a bounded one still ends in the same place.
        scale = min(1.0, 2.0 / max(max(map(abs, step), default=0.0), 1e-300))
        strengths = [s + scale * d for s, d in zip(strengths, step, strict=True)]
        if max(map(abs, step), default=0.0) < tolerance:
            break
    middle = math.fsum(strengths) / count if count else 0.0
    return [s - middle for s in strengths]


def _checked(count: int, matches: Sequence[Match]) -> list[Match]:
    """Matches of known candidates with a value that is a number or None."""
    found = as_list("matches", matches)
    for match in found:
        if not isinstance(match, Match):
            raise refused("matches", match, "a Match")
        for place in match[:2]:
            as_whole("matches", place, low=0, high=count - 1)
        if match.value is not None:
            as_number("matches", match.value)
    return found


def _slopes(
    strengths: Sequence[float], games: Mapping[tuple[int, int], Sequence[float]], prior: float
) -> tuple[list[float], list[list[float]]]:
    """Gradient of the log-likelihood and the negative of its second derivatives."""
    count = len(strengths)
    gradient = [0.0] * count
    curvature = [[0.0] * count for _ in range(count)]
    for i, strength in enumerate(strengths):
        chance = sigmoid(strength)
        gradient[i] += prior * (1 - 2 * chance)
        curvature[i][i] += 2 * prior * chance * (1 - chance)
    for (a, b), (won, played) in games.items():
        chance = sigmoid(strengths[a] - strengths[b])
        slope, bend = won - played * chance, played * chance * (1 - chance)
        gradient[a] += slope
        gradient[b] -= slope
        curvature[a][a] += bend
        curvature[b][b] += bend
        curvature[a][b] -= bend
        curvature[b][a] -= bend
    return gradient, curvature
