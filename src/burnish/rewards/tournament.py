"""Every response of a group meets every other: net wins, or a Bradley-Terry fit, as a reward.

    scorer = Tournament(CallablePairJudge(better_story), seed=7, scheme="bradley_terry")

G (G - 1) / 2 comparisons a group, twice that with both orders; `VersusReference` asks G - 1. Net wins
are `(won - lost) / decided`, -1 to 1. The fit gives strengths whose differences are the log-odds of
winning, with a mean of 0: an opponent's strength counts, so a win over the best is worth more than
one over the worst. A comparison without a verdict leaves both. Strengths are comparable only where a
chain of comparisons connects them, so a group that falls apart has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any, Literal, get_args

from burnish.errors import UserError, did_you_mean
from burnish.records import Response, Reward, Status, Task
from burnish.rewards.pair_judges import PairJudge
from burnish.rewards.select import Match, bradley_terry
from burnish.rewards.versus import Comparison, VersusReference, why_undecided
from burnish.seeds import digest

Scheme = Literal["round_robin", "bradley_terry"]

NOT_CONNECTED = "the comparisons with a verdict do not connect the group"


class Tournament(VersusReference):
    """A group scorer that compares every two responses; settings as those of `VersusReference`."""

    def __init__(
        self, judge: PairJudge, *, seed: int, scheme: Scheme = "round_robin", **settings: Any
    ) -> None:
        super().__init__(judge, seed=seed, **settings)
        if scheme not in get_args(Scheme):
            raise UserError(
                f"reward '{self.name}': scheme is '{scheme}'; expected "
                f"{', '.join(get_args(Scheme))}.{did_you_mean(scheme, get_args(Scheme))}"
            )
        self.scheme = scheme
        # A pair has one outcome here: what is not even would favour whoever stands first in the group.
        for key, value in (("tie", self.tie), ("inconsistent", self.inconsistent)):
            if value not in (0, "abstain"):
                either = ' or "abstain"' if key == "inconsistent" else ""
                raise UserError(
                    f"reward '{self.name}': {key} is {value}, but with the scheme '{scheme}' an "
                    f'undecided pair is even for both; expected 0{either}, or scheme = "reference".'
                )

    @property
    def fingerprint(self) -> str:
        """Changes with the settings and with the judge."""
        return digest(super().fingerprint, self.scheme)

    def _draw(self, task: Task, responses: Sequence[Response]) -> list[int]:
        """Everybody is met; a cut response is one that usually loses."""
        return list(range(len(responses)))

    def _rewards(
        self, responses: Sequence[Response], rows: Sequence[Sequence[Comparison]]
    ) -> list[Reward]:
        if self.scheme == "round_robin":
            return [self._reward(row) for row in rows]
        outcomes = _outcomes(responses, rows)
        playing = sorted({place for pair in outcomes for place in pair})
        if not is_connected(playing, list(outcomes)):
            return [self._unknown(row) for row in rows]
        places = {place: number for number, place in enumerate(playing)}
        matches = [Match(places[a], places[b], value) for (a, b), value in outcomes.items()]
        strengths = bradley_terry(len(playing), matches)
        return [
            self._strength(row, strengths[places[i]]) if i in places else self._unknown(row)
            for i, row in enumerate(rows)
        ]

    def _strength(self, row: Sequence[Comparison], strength: float) -> Reward:
        values = [m.outcome for m in row if m.outcome is not None]
        won, lost = sum(v > 0 for v in values), sum(v < 0 for v in values)
        reason = f"won {won}, lost {lost}, even in {len(values) - won - lost} of {len(row)}"
        known = self._explained(row)
        return Reward(self.name, strength, Status.OK, 1.0, (), *known, reason=reason)

    def _unknown(self, row: Sequence[Comparison]) -> Reward:
        """No strength: the first failure of this response, or that the group falls apart."""
        status, reason = why_undecided(row)
        if any(m.outcome is not None for m in row):
            reason = f"{NOT_CONNECTED}: {reason}"
        return Reward(self.name, None, status, 1.0, (), *self._explained(row), reason=reason)


def _outcomes(
    responses: Sequence[Response], rows: Sequence[Sequence[Comparison]]
) -> dict[tuple[int, int], float]:
    """The outcome of each decided pair, from the side of the first."""
    found: dict[tuple[int, int], float] = {}
    for first, second in combinations(range(len(responses)), 2):
        # A row holds the other responses in their order, without the response itself.
        outcome = rows[first][second - 1].outcome
        if outcome is not None:
            found[first, second] = outcome
    return found


def is_connected(places: Sequence[int], pairs: Sequence[tuple[int, int]]) -> bool:
    """Whether a chain of pairs leads from each place to every other; not for fewer than two."""
    if len(places) < 2:
        return False
    reached, waiting = {places[0]}, [places[0]]
    while waiting:
        here = waiting.pop()
        others = {b if a == here else a for a, b in pairs if here in (a, b)} - reached
        reached |= others
        waiting += others
    return reached >= set(places)
