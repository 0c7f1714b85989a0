"""What a step's comparisons looked like, read from the rewards themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from burnish.arguments import as_list, as_number, as_text
from burnish.records import Reward
from burnish.rewards.versus import IS_REFERENCE, SHOWN_FIRST, SHOWN_SECOND


def versus_metrics(
    rewards: Iterable[Sequence[Reward]], *, name: str = "versus", threshold: float = 0.6
) -> dict[str, float]:
    """Shares over groups of rewards, each a total that has the part `name`, or that part itself.

    `win_rate` and `tie_rate`: of the responses with a value. `undecided_rate`: responses without
    one, of those that were compared. `skew` and `drop_rate`: the mean of `|sum| / G`, and how many
    groups exceed the threshold. `first_position_rate`: questions that the text shown first won, of
    those that somebody won; far from 0.5 the judge goes by position. `disagreement_rate`: meetings
    in which questions named different winners. A share of nothing is left out.
    """
    threshold = as_number("threshold", threshold, low=0, high=1)
    as_text("name", name)
    groups = [
        [part for reward in group for part in _named(reward, name)]
        for group in as_list("rewards", rewards)
    ]
    groups = [group for group in groups if group]
    compared = [reward for group in groups for reward in group if not is_reference(reward)]
    values = [reward.value for reward in compared if reward.value is not None]
    skews = [abs(sum(r.value or 0.0 for r in group)) / len(group) for group in groups]
    firsts = [first for reward in compared for first in _first_wins(reward)]
    splits = [split for reward in compared for split in _splits(reward)]
    shares: dict[str, list[float] | list[bool]] = {
        "win_rate": [value > 0 for value in values],
        "tie_rate": [value == 0 for value in values],
        "undecided_rate": [reward.value is None for reward in compared],
        "skew": skews,
        "drop_rate": [skew > threshold + 1e-9 for skew in skews],
        "first_position_rate": firsts,
        "disagreement_rate": splits,
    }
    return {key: sum(found) / len(found) for key, found in shares.items() if found}


def is_reference(reward: Reward) -> bool:
    """Whether this response was compared with nobody because the others were compared with it."""
    return any(evidence.observation == IS_REFERENCE for evidence in reward.evidence)


def _named(reward: Reward, name: str) -> Iterator[Reward]:
    """The reward, or its parts at any depth, of that name."""
    if reward.name == name:
        yield reward
        return
    for part in reward.parts:
        yield from _named(part, name)


def _first_wins(reward: Reward) -> Iterator[bool]:
    """For each question that somebody won, whether it was the text shown first."""
    for verdict in reward.verdicts:
        if verdict.value:
            yield (verdict.value > 0) == (verdict.criterion == SHOWN_FIRST)


def _splits(reward: Reward) -> Iterator[bool]:
    """For each meeting with at least two verdicts, whether they named different winners."""
    meetings: dict[tuple[int, ...], list[float]] = {}
    for verdict in reward.verdicts:
        if verdict.criterion in (SHOWN_FIRST, SHOWN_SECOND) and verdict.value is not None:
            meetings.setdefault(verdict.evidence, []).append(verdict.value)
    for values in meetings.values():
        if len(values) > 1:
            yield min(values) < 0 < max(values)
