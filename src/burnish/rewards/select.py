"""Best of N: pick one response with any scorer, and say how it came about.

A pair scorer plays a knockout of N - 1 matches; any other scorer scores all at once and the highest
value wins. A match or a score without a value counts for nobody and is flagged. One response, or N
equal ones, make no call. Strengths of candidates who met each other in any matches: `bradley_terry`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta

from burnish.arguments import refused
from burnish.boundary import Number, Seed, public
from burnish.errors import ModelError
from burnish.lm.base import LM, Sampling
from burnish.numbers import sigmoid, solve
from burnish.records import Response, Reward, Status, Task, Trajectory
from burnish.rewards.combine import compare
from burnish.rewards.scorer import Scope, Scorer, checked
from burnish.rollouts import Rollout, roll_out, single_turn
from burnish.seeds import Seeds

KNOCKOUT = "knockout"
Candidates = Annotated[int, Meta(ge=0, le=1_000_000)]
TieRule = Literal["incumbent", "challenger"]


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
    """The scorer's values by place; empty for a knockout."""
    matches: tuple[Match, ...] = ()
    rewards: tuple[Reward, ...] = ()
    """What a scorer that scores all at once said."""
    flags: tuple[str, ...] = ()
    """What to know before trusting it: ties, matches without a verdict, equal texts."""


@public
async def best_of_n(
    scorer: Scorer,
    task: Task,
    responses: Annotated[Sequence[Response], Meta(min_length=1)],
    *,
    seed: Seed = 0,
) -> Selection:
    """The best response by the scorer; `seed` draws the order of a knockout."""
    if len(responses) == 1:
        return Selection(0, (0,), KNOCKOUT)
    if len({response.text for response in responses}) == 1:
        flag = f"all {len(responses)} responses are the same text"
        return Selection(0, tuple(range(len(responses))), KNOCKOUT, flags=(flag,))
    play = _knockout if scorer.scope is Scope.PAIR else _by_value
    return await play(scorer, task, responses, seed)


class BestRollout(NamedTuple):
    """The rollout that was chosen of those that did not fail."""

    trajectory: Trajectory
    selection: Selection
    """Places are those of `played`."""
    played: list[Trajectory]
    failed: list[Trajectory]


async def best_rollout(
    scorer: Scorer,
    task: Task,
    lm: LM,
    sampling: Sampling,
    *,
    rollout: Rollout = single_turn,
) -> BestRollout:
    """Play `sampling.n` rollouts of a task, in one turn or many, and pick the best by the scorer.

    Of a rollout with several roles the first one is compared. Failed rollouts are left out.
    """
    (group,) = await roll_out([(0, task)], lm, sampling, rollout, sampling.seed)
    own = [t for t in group if t.role == group[0].role]
    played = [t for t in own if t.status is Status.OK]
    failed = [t for t in own if t.status is not Status.OK]
    if not played:
        raise ModelError(
            f"task {task.id}: all {len(failed)} rollouts failed, the first with "
            f"{failed[0].status.value}: {failed[0].reason}"
        )
    responses = [t.as_response() for t in played]
    chosen = await best_of_n.plain(scorer, task, responses, seed=sampling.seed)
    return BestRollout(played[chosen.index], chosen, played, failed)


async def _by_value(
    scorer: Scorer, task: Task, responses: Sequence[Response], seed: int
) -> Selection:
    rewards = await checked(scorer, task, responses)
    undecided = [reward for reward in rewards if reward.value is None]
    flags = []
    if undecided:
        flags.append(f"{len(undecided)} of {len(rewards)} have no score: {undecided[0].reason}")
    scores = tuple(reward.value for reward in rewards)
    top = max((score for score in scores if score is not None), default=0.0)
    edge = top - 1e-9 * max(1.0, abs(top))  # what differs by rounding alone is equal
    best = tuple(i for i, score in enumerate(scores) if score is not None and score >= edge)
    if len(best) > 1:
        flags.append(f"{len(best)} responses share the best score")
    if not best:
        flags.append("nothing was decided: no response has a score")
    place = best[0] if best else 0
    made, said = "highest value", tuple(rewards)
    return Selection(place, best, made, len(scores), scores, rewards=said, flags=tuple(flags))


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
        reward, _ = await compare(scorer, task, *(responses[place] for place in pair))
        match = Match(pair[0], pair[1], reward.value, reward.status, reward.reason)
        matches.append(match)
        if match.value is not None and match.value != 0:
            incumbent = match.first if match.value > 0 else match.second
    silent = [match for match in matches if match.value is None]
    ties = sum(match.value == 0 for match in matches)
    flags = []
    if silent:
        lost = f"{len(silent)} of {len(matches)} matches have no verdict, the incumbent stayed"
        flags.append(f"{lost}: {silent[0].reason}")
    if ties:
        flags.append(f"{ties} of {len(matches)} matches are ties")
    return Selection(
        incumbent, (incumbent,), KNOCKOUT, len(matches), matches=tuple(matches), flags=tuple(flags)
    )


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

    winner: Any
    calls: int


@public
def sequential_knockout(
    order: Annotated[Sequence[Hashable], Meta(min_length=1)],
    quality: Sequence[Number | None] | Mapping[Hashable, Number | None],
    tie_rule: TieRule = "incumbent",
) -> Knockout:
    """The last one standing when each challenger in `order` meets the incumbent.

    `quality` gives the number of each candidate (a sequence, an array or a mapping), None where
    there is none: then the incumbent stays. Equal ones by `tie_rule`. One candidate makes no call.
    """
    pairs = quality.items() if isinstance(quality, Mapping) else enumerate(quality)
    known: dict[Hashable, float | None] = dict(pairs)
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


LEAST_PRIOR = 1e-9
"""With less, strengths run so far apart that rounding decides where they end."""


@public
def bradley_terry(
    count: Candidates,
    matches: Sequence[Match],
    *,
    prior: Annotated[float, Meta(ge=LEAST_PRIOR)] = 0.1,
) -> list[float]:
    """Strengths whose differences are the log-odds of winning; their mean is 0.

    Ties are half a win for both. `prior` is that many won and lost games of everyone against a
    candidate of strength 0: it keeps an unbeaten one finite. Newton's method on a strictly concave
    likelihood, so there is one answer and it is found from anywhere.
    """
    games: dict[tuple[int, int], list[float]] = {}
    for match in matches:
        is_known = all(0 <= place < count for place in match[:2])
        if not is_known or (match.value is not None and not math.isfinite(match.value)):
            raise refused("matches", match, f"finite values and places of the {count} candidates")
        if match.value is not None and match.first != match.second:
            # What the first of two won: a tie is half a win for both.
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
        if max(map(abs, step), default=0.0) < 1e-10:
            break
    middle = math.fsum(strengths) / count if count else 0.0
    return [s - middle for s in strengths]


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
