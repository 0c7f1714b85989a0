"""Best of N: pick one response with any scorer, and say how it came about.

    selection = await best_of_n(scorer, task, responses, method="knockout", seed=1)
    responses[selection.index], selection.calls, selection.flags, selection.matches

A pair scorer plays a tournament (`knockout`: N - 1 matches; `round_robin` and `bradley_terry`:
every two meet); any other scorer scores all at once and the highest value wins. A match or a score
without a value counts for nobody and is flagged. One response, or N equal ones, make no call.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

from burnish.arguments import as_numbers, same_length
from burnish.errors import UserError, did_you_mean
from burnish.records import Response, Reward, Task
from burnish.rewards.pair_scorers import compare
from burnish.rewards.scorer import Scope, Scorer, checked, gather
from burnish.rewards.tournament import (
    Match,
    all_pairs,
    bradley_terry,
    sequential_knockout,
    win_counts,
    win_rates,
)
from burnish.seeds import Seeds

__all__ = [
    "Match",
    "Selection",
    "best_of_n",
    "bradley_terry",
    "expected_value",
    "sequential_knockout",
    "win_counts",
    "win_rates",
]

Method = Literal["knockout", "round_robin", "bradley_terry"]


@dataclass(frozen=True)
class Selection:
    """One response chosen of N, and why."""

    index: int
    """Place of the chosen response; of several best ones the first."""
    best: tuple[int, ...]
    """Places that share the best score; a knockout has one."""
    method: str
    calls: int = 0
    """Comparisons, or responses scored. What each costs in calls to a model is the scorer's."""
    scores: tuple[float | None, ...] = ()
    """By place: win shares, strengths or the scorer's values; empty for a knockout."""
    matches: tuple[Match, ...] = ()
    rewards: tuple[Reward, ...] = ()
    """What a scorer that scores all at once said."""
    flags: tuple[str, ...] = ()
    """What to know before trusting it: ties, matches without a verdict, equal texts."""


async def best_of_n(
    scorer: Scorer,
    task: Task,
    responses: Sequence[Response],
    *,
    method: Method = "knockout",
    seed: int = 0,
) -> Selection:
    """The best response by the scorer; `method` and `seed` are for pair scorers."""
    known = get_args(Method)
    if method not in known:
        raise UserError(
            f"method is '{method}'; expected {', '.join(known)}.{did_you_mean(method, known)}"
        )
    if not responses:
        raise UserError(f"best of N: task {task.id} has no responses; expected at least one")
    if len(responses) == 1:
        return Selection(0, (0,), method)
    if len({response.text for response in responses}) == 1:
        flag = f"all {len(responses)} responses are the same text"
        return Selection(0, tuple(range(len(responses))), method, flags=(flag,))
    if scorer.scope is not Scope.PAIR:
        return await _by_value(scorer, task, responses)
    if method == "knockout":
        return await _knockout(scorer, task, responses, seed)
    return await _everyone(scorer, task, responses, method)


def expected_value(scores: Sequence[float | None], quality: Sequence[float]) -> float | None:
    """Mean quality of the responses that share the best score: what a fair draw among them gives."""
    scores = as_numbers("scores", scores, missing=True)
    quality = as_numbers("quality", quality)
    same_length("quality", quality, len(scores), "scores")
    best = _best(scores)
    return math.fsum(quality[place] for place in best) / len(best) if best else None


async def _by_value(scorer: Scorer, task: Task, responses: Sequence[Response]) -> Selection:
    rewards = await checked(scorer, task, responses)
    scores = tuple(reward.value for reward in rewards)
    best = _best(scores)
    silent = [reward for reward in rewards if reward.value is None]
    flags = []
    if silent:
        flags.append(f"{len(silent)} of {len(rewards)} have no score: {silent[0].reason}")
    if len(best) > 1:
        flags.append(f"{len(best)} responses share the best score")
    if not best:
        flags.append("nothing was decided: no response has a score")
    return Selection(
        best[0] if best else 0,
        best,
        "highest value",
        calls=len(responses),
        scores=scores,
        rewards=tuple(rewards),
        flags=tuple(flags),
    )


async def _knockout(
    scorer: Scorer, task: Task, responses: Sequence[Response], seed: int
) -> Selection:
    """The incumbent stays on a tie and on a match without a verdict."""
    order = list(range(len(responses)))
    rng = Seeds(seed).rng("knockout", task.id)
    rng.shuffle(order)
    incumbent, matches = order[0], []
    for challenger in order[1:]:
        # Who is shown first is drawn: being the incumbent must not mean being shown first.
        pair = [incumbent, challenger]
        rng.shuffle(pair)
        match = await _match(scorer, task, responses, *pair)
        matches.append(match)
        if match.value is not None and match.value != 0:
            incumbent = match.first if match.value > 0 else match.second
    flags = _flags(matches, "the incumbent stayed")
    return Selection(
        incumbent, (incumbent,), "knockout", len(matches), matches=tuple(matches), flags=flags
    )


async def _everyone(
    scorer: Scorer, task: Task, responses: Sequence[Response], method: Method
) -> Selection:
    count = len(responses)
    matches = await gather(
        [partial(_match, scorer, task, responses, a, b) for a, b in all_pairs(count)]
    )
    rates = win_rates(count, matches)
    scores: tuple[float | None, ...] = tuple(rates)
    if method == "bradley_terry":
        strengths = bradley_terry(count, matches)
        # Who never met anybody with a verdict has no strength, only the prior's.
        scores = tuple(
            None if rate is None else strength
            for rate, strength in zip(rates, strengths, strict=True)
        )
    best = _best(scores)
    flags = list(_flags(matches, "they count for nobody"))
    if len(best) > 1:
        flags.append(f"{len(best)} responses share the best score")
    if not best:
        flags.append("nothing was decided: no match has a verdict")
    return Selection(
        best[0] if best else 0,
        best,
        method,
        len(matches),
        scores,
        tuple(matches),
        flags=tuple(flags),
    )


async def _match(
    scorer: Scorer, task: Task, responses: Sequence[Response], first: int, second: int
) -> Match:
    reward, _ = await compare(scorer, task, responses[first], responses[second])
    return Match(first, second, reward.value, reward.status, reward.reason)


def _flags(matches: Sequence[Match], meaning: str) -> tuple[str, ...]:
    silent = [match for match in matches if match.value is None]
    ties = [match for match in matches if match.value == 0]
    flags = []
    if silent:
        flags.append(
            f"{len(silent)} of {len(matches)} matches have no verdict, {meaning}: "
            f"{silent[0].reason}"
        )
    if ties:
        flags.append(f"{len(ties)} of {len(matches)} matches are ties")
    return tuple(flags)


def _best(scores: Sequence[float | None]) -> tuple[int, ...]:
    """Places of the highest score; strengths that differ by rounding alone are equal."""
    known = [score for score in scores if score is not None]
    if not known:
        return ()
    top = max(known)
    edge = top - 1e-9 * max(1.0, abs(top))
    return tuple(i for i, score in enumerate(scores) if score is not None and score >= edge)
