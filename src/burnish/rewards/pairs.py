"""The pair protocol: two texts, two scores, both orders, several votes, one outcome.

The rules are those of Writing-Zero (arXiv 2506.00103). Where we differ: a tie is worth 0 by
default, not -1, because only an antisymmetric outcome keeps the expected advantage at 0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Literal, get_args

from burnish.arguments import (
    as_list,
    as_number,
    as_numbers,
    as_text,
    as_word,
    plain_number,
    refused,
)
from burnish.numbers import plain
from burnish.rewards.scorer import as_float

VoteRule = Literal["unanimous", "majority", "mean"]
Inconsistent = float | Literal["abstain"]
"""The outcome of votes that do not agree: a number from -1 to 1, or none at all."""

DISAGREE = "the orders or votes name different winners"
"""Why a pair has no outcome where `inconsistent` is "abstain"."""
LOWEST, HIGHEST = 0.0, 10.0
"""The scale that a judge is asked to score on."""

_SCORES = re.compile(r"<scores>([^<]*)</scores>", re.IGNORECASE)
# Each text matches in one way only: two ways would take minutes to rule out for many digits.
_NUMBER = r"([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?)"
_TWO = re.compile(rf"\s*{_NUMBER}\s*,\s*{_NUMBER}\s*", re.IGNORECASE | re.ASCII)


def parse_pair_scores(text: str | None) -> list[float] | None:
    """`[a, b]` of the last `<scores>a, b</scores>`; None unless it holds two numbers in [0, 10].

    None, a reply without a text, holds none. An unreadable last pair is a failure even where an
    earlier one can be read: a judge that corrects itself means what it says last.
    """
    found = all_pair_scores("" if text is None else as_text("text", text))
    return found[-1] if found else None


def all_pair_scores(text: str) -> list[list[float] | None]:
    """Every `<scores>a, b</scores>` of a text, None for one that does not hold two such numbers."""
    return [_two_scores(inside) for inside in _SCORES.findall(text)]


def _two_scores(inside: str) -> list[float] | None:
    numbers = _TWO.fullmatch(inside)
    if numbers is None:
        return None
    scores = [float(numbers[1]), float(numbers[2])]
    return scores if all(LOWEST <= score <= HIGHEST for score in scores) else None


def pair_outcome(
    scores: Sequence[float] | None, tie: float = 0.0, parse_failure: float = 0.0
) -> float:
    """+1 if the first of two scores is higher, -1 if it is lower, `tie` if they are equal.

    `parse_failure` where there are no scores, not two of them, or one that is not finite. Any
    scale will do: only the order counts. `tie` and `parse_failure` are outcomes themselves, from
    -1 to 1; the published rule is -1 for both.
    """
    tie = as_number("tie", tie, low=-1, high=1)
    parse_failure = as_number("parse_failure", parse_failure, low=-1, high=1)
    both = two_finite(scores)
    if both is None:
        return parse_failure
    return tie if both[0] == both[1] else math.copysign(1.0, both[0] - both[1])


def vote(
    outcomes: Iterable[float | None],
    rule: VoteRule = "unanimous",
    inconsistent: Inconsistent = 0.0,
) -> float | None:
    """One outcome from several votes on the same pair; None without votes.

    `unanimous`: what all votes say, else `inconsistent` (-1 is the strict published rule, "abstain"
    is None: no outcome); where a vote is missing and the others agree, the outcome is unknown: None. `majority`: +1 or -1,
    whichever has more votes; `inconsistent` where both have as many, 0 where all are ties. `mean`:
    the mean; these two leave votes that are missing (None or NaN) out.
    """
    as_word("rule", rule, get_args(VoteRule))
    split = None if inconsistent == "abstain" else _split_value(inconsistent)
    given = [None if _is_nan(one) else one for one in as_list("outcomes", outcomes)]
    votes = [one for one in as_numbers("outcomes", given, missing=True) if one is not None]
    if not votes:
        return None
    if rule == "mean":
        return math.fsum(votes) / len(votes)
    if len(set(votes)) == 1:
        return None if rule == "unanimous" and len(votes) < len(given) else votes[0]
    balance = sum(value > 0 for value in votes) - sum(value < 0 for value in votes)
    if rule == "unanimous" or balance == 0:
        return split
    return math.copysign(1.0, balance)


Vote = Sequence[tuple[float, float] | None]
"""The scores of one vote, an order each, the response's first; None where an order has none."""


def tally(
    votes: Sequence[Vote], rule: VoteRule, *, tie: float = 0.0, inconsistent: Inconsistent = 0.0
) -> float | None:
    """The outcome of a pair that was asked several times, each time in one order or in both.

    A vote counts only where every order of it was read, so that a liking for a place cancels out.
    One that does not count is missing, not left out: under `unanimous` the pair then has no
    outcome unless the votes that count disagree (see `vote`).
    """
    outcomes: list[float | None] = []
    for orders in votes:
        is_read = all(scores is not None for scores in orders)
        outcomes += [pair_outcome(scores, tie=tie) if is_read else None for scores in orders]
    return vote(outcomes, rule, inconsistent)


def settled(response: str, other: str) -> tuple[float, str] | None:
    """Outcome and reason of a pair that needs no judge: equal texts are even, an empty one loses."""
    if response == other:
        return 0.0, "the texts are the same"
    empty = not response.strip(), not other.strip()
    if empty == (True, True):
        return 0.0, "both texts are empty"
    if any(empty):
        return (-1.0, "the text is empty") if empty[0] else (1.0, "the reference is empty")
    return None


def genrm_reward(
    scores: Sequence[float] | None,
    label: float | str,
    first_pick_rate: float,
    margin_scale: float = 2.0,
    margin_floor: float = 0.2,
    pos_weight_min: float = 0.5,
    pos_weight_max: float = 2.0,
) -> float:
    """What a pairwise judge in training earns for its scores `(first, second)`.

    With `d = first - second` and `w = clip(|d| / margin_scale, margin_floor, 1)`: the right winner
    earns `w * clip(0.5 / f, pos_weight_min, pos_weight_max)`, where `f` is how often the place it
    picked has been picked lately (`first_pick_rate`, or 1 minus that); the wrong one `-w`; a tie
    `-margin_floor`; unreadable scores -1. `label`: 1 or "a" if the first text is the better one,
    -1 or "b" if the second is.
    """
    better = {"a": 1.0, "b": -1.0}.get(label) if isinstance(label, str) else as_float(plain(label))
    if better not in (1.0, -1.0):
        raise refused("label", label, "1 or 'a', -1 or 'b'")
    as_number("first_pick_rate", first_pick_rate, low=0, high=1)
    as_number("margin_scale", margin_scale, above=0)
    as_number("margin_floor", margin_floor, low=0, high=1)
    as_number("pos_weight_max", pos_weight_max, low=0)
    as_number("pos_weight_min", pos_weight_min, low=0, high=pos_weight_max)
    both = two_finite(scores)
    if both is None:
        return -1.0
    difference = both[0] - both[1]
    if difference == 0:
        return -margin_floor
    margin = min(max(abs(difference) / margin_scale, margin_floor), 1.0)
    if difference * better < 0:
        return -margin
    picked = float(first_pick_rate if difference > 0 else 1 - first_pick_rate)
    rarity = 0.5 / picked if picked > 0 else math.inf
    return margin * min(max(rarity, pos_weight_min), pos_weight_max)


def two_finite(scores: Iterable[float] | None) -> tuple[float, float] | None:
    """Two finite numbers as plain floats; None for anything else in a list, or no list at all."""
    if scores is None:
        return None
    both = plain(scores)
    if isinstance(both, str | bytes | Mapping | Set) or not isinstance(both, Iterable):
        raise refused("scores", scores, "two numbers, or None where there are none")
    numbers = [as_float(plain(score)) for score in both]
    if len(numbers) != 2 or not all(map(math.isfinite, numbers)):
        return None
    return numbers[0], numbers[1]


def _split_value(inconsistent: object) -> float:
    if isinstance(inconsistent, str):
        raise refused("inconsistent", inconsistent, "a number from -1 to 1, or 'abstain'")
    return as_number("inconsistent", inconsistent, low=-1, high=1)


def _is_nan(value: object) -> bool:
    number = plain_number(value)
    return number is not None and math.isnan(number)
