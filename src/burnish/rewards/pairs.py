"""The pair protocol: two texts, two scores, both orders, several votes, one outcome.

The rules are those of Writing-Zero (arXiv 2506.00103). Where we differ: a tie is worth 0 by
default, not -1, because only an antisymmetric outcome keeps the expected advantage at 0. In the reward
of `kind = "genrm"` a reply without scores is the policy's own fault and costs 1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta

from burnish.arguments import refused
from burnish.boundary import INFINITE, NonNegative, Positive, Share, public
from burnish.numbers import plain
from burnish.records import Response, Reward, Task
from burnish.rewards.checks.base import CheckConfig, RuleCheck
from burnish.rewards.checks.extract import short
from burnish.rewards.scorer import as_float

VoteRule = Literal["unanimous", "majority", "mean"]
Outcome = Annotated[float, Meta(ge=-1.0, le=1.0)]
Inconsistent = Outcome | Literal["abstain"]
"""The outcome of votes that do not agree: a number from -1 to 1, or none at all."""

DISAGREE = "the orders or votes name different winners"
"""Why a pair has no outcome where `inconsistent` is "abstain"."""
Scores = Sequence[object] | None
LOWEST, HIGHEST = 0.0, 10.0
"""The scale that a judge is asked to score on."""

_SCORES = re.compile(r"<scores>([^<]*)</scores>", re.IGNORECASE)
# Each text matches in one way only: two ways would take minutes to rule out for many digits.
_NUMBER = r"([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?)"
_TWO = re.compile(rf"\s*{_NUMBER}\s*,\s*{_NUMBER}\s*", re.IGNORECASE | re.ASCII)


@public
def parse_pair_scores(text: str | None) -> list[float] | None:
    """`[a, b]` of the last `<scores>a, b</scores>`; None unless it holds two numbers in [0, 10].

    None, a reply without a text, holds none. An unreadable last pair is a failure even where an
    earlier one can be read: a judge that corrects itself means what it says last.
    """
    found = all_pair_scores(text or "")
    return found[-1] if found else None


def all_pair_scores(text: str) -> list[list[float] | None]:
    """Every `<scores>a, b</scores>` of a text, None for one that does not hold two such numbers."""
    found: list[list[float] | None] = []
    for inside in _SCORES.findall(text):
        numbers = _TWO.fullmatch(inside)
        scores = [float(numbers[1]), float(numbers[2])] if numbers else []
        is_read = bool(scores) and all(LOWEST <= score <= HIGHEST for score in scores)
        found.append(scores if is_read else None)
    return found


@public
def pair_outcome(scores: Scores, tie: Outcome = 0.0, parse_failure: Outcome = 0.0) -> float:
    """+1 if the first of two scores is higher, -1 if it is lower, `tie` if they are equal.

    `parse_failure` where there are no scores, not two of them, or one that is not finite. Any
    scale will do: only the order counts. `tie` and `parse_failure` are outcomes themselves, from
    -1 to 1; the published rule is -1 for both.
    """
    both = two_finite(scores)
    if both is None:
        return parse_failure
    return tie if both[0] == both[1] else math.copysign(1.0, both[0] - both[1])


@public
def vote(
    outcomes: Sequence[Annotated[float, INFINITE] | None],
    rule: VoteRule = "unanimous",
    inconsistent: Inconsistent = 0.0,
) -> float | None:
    """One outcome from several votes on the same pair; None without votes.

    `unanimous`: what all votes say, else `inconsistent` (-1 is the strict published rule, "abstain"
    is None: no outcome); where a vote is missing and the others agree, the outcome is unknown: None. `majority`: +1 or -1,
    whichever has more votes; `inconsistent` where both have as many, 0 where all are ties. `mean`:
    the mean; these two leave votes that are missing (None or NaN) out.
    """
    split = None if isinstance(inconsistent, str) else inconsistent
    votes = [one for one in outcomes if one is not None and not math.isnan(one)]
    if odd := [one for one in votes if math.isinf(one)]:
        raise refused("outcomes", odd[0], "finite numbers, or None where there is none")
    if not votes:
        return None
    if rule == "mean":
        return math.fsum(votes) / len(votes)
    if len(set(votes)) == 1:
        return None if rule == "unanimous" and len(votes) < len(outcomes) else votes[0]
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


@public
def genrm_reward(
    scores: Scores,
    label: Literal[1, -1, "a", "b"],
    first_pick_rate: Share,
    margin_scale: Positive = 2.0,
    margin_floor: Share = 0.2,
    pos_weight_min: NonNegative = 0.5,
    pos_weight_max: NonNegative = 2.0,
) -> float:
    """What a pairwise judge in training earns for its scores `(first, second)`.

    With `d = first - second` and `w = clip(|d| / margin_scale, margin_floor, 1)`: the right winner
    earns `w * clip(0.5 / f, pos_weight_min, pos_weight_max)`, where `f` is how often the place it
    picked has been picked lately (`first_pick_rate`, or 1 minus that); the wrong one `-w`; a tie
    `-margin_floor`; unreadable scores -1. `label`: 1 or "a" if the first text is the better one,
    -1 or "b" if the second is.
    """
    check_factors(pos_weight_min, pos_weight_max)
    better = 1.0 if label in ("a", 1) else -1.0
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


def check_factors(least: float, most: float) -> None:
    if least > most:
        raise refused("pos_weight_min", least, "at most pos_weight_max")


def two_finite(scores: Iterable[Any] | None) -> tuple[float, float] | None:
    """Two finite numbers as plain floats; None for anything else."""
    numbers = [as_float(plain(score)) for score in plain(scores) or ()]
    if len(numbers) != 2 or not all(map(math.isfinite, numbers)):
        return None
    return numbers[0], numbers[1]


# --- what a judge in training earns, as a reward


class GenRMConfig(CheckConfig, frozen=True, tag="genrm"):
    """A judge's two scores against the label: from -1 to `pos_weight_max`."""

    field: str = "label"
    """The better text: "a" or 1 for the first, "b" or -1 for the second."""
    value: Literal["reward", "right", "picked_first"] = "reward"
    """`right`: 1, 0.5 for a tie, 0. `picked_first`: 1 or 0, none for a tie or without scores."""
    first_pick_rate: Share = 0.5
    """How often the first text is picked; 0.5 weighs both places alike. `position_weight` of the
    policy room measures it in every step instead."""
    margin_scale: Positive = 2.0
    """Difference of the two scores from which on a verdict counts in full."""
    margin_floor: Share = 0.2
    """Least share that a verdict counts, however small the difference."""
    pos_weight_min: NonNegative = 0.5
    """Least factor of right verdicts by the place that they picked."""
    pos_weight_max: NonNegative = 2.0
    """Greatest factor of right verdicts by the place that they picked."""

    def check(self) -> None:
        check_factors(self.pos_weight_min, self.pos_weight_max)


class GenRMReward(RuleCheck[GenRMConfig]):
    uses_answer = True

    def judge(self, task: Task, response: Response) -> Reward:
        label = task.fields.get(self.config.field)
        if label not in ("a", "b", 1, -1) or isinstance(label, bool):
            given = short(repr(label))
            return self.abstained(f"the field '{self.config.field}' is {given}, not 'a' or 'b'")
        scores = parse_pair_scores.plain(response.text)
        saw = f"no scores in {short(response.text)!r}"
        if scores is not None:
            saw = f"scores {scores[0]:g} to {scores[1]:g}"
        saw = f"{saw}; the better text is {'the first' if label in ('a', 1) else 'the second'}"
        if self.config.value == "reward":
            own = self.config
            rates = (own.first_pick_rate, own.margin_scale, own.margin_floor)
            limits = (own.pos_weight_min, own.pos_weight_max)
            return self.decided(genrm_reward.plain(scores, label, *rates, *limits), saw)
        ahead = 0.0 if scores is None else scores[0] - scores[1]
        if self.config.value == "picked_first":
            return self.decided(float(ahead > 0), saw) if ahead else self.abstained(saw)
        if scores is None:
            return self.decided(0.0, saw)
        picked = (ahead > 0) - (ahead < 0)
        better = 1 if label in ("a", 1) else -1
        return self.decided((1 + picked * better) / 2, saw)
