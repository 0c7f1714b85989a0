"""A reward with its reasons, readable in a terminal and in a notebook."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from burnish.records import Reward
from burnish.texts import safe

CUT = 400
"""Characters of an observation that are shown."""


@dataclass(frozen=True)
class Explained:
    """What an answer earned, and why: parts, evidence and verdicts.

    >>> from burnish.records import Evidence
    >>> reward = Reward("brief", 1.0, evidence=(Evidence("length", "2 characters"),))
    >>> Explained("What is 3 + 4?", "7", reward)
    prompt: What is 3 + 4?
    answer: 7
    brief 1
      length: 2 characters
    """

    prompt: str
    response: str
    reward: Reward

    @property
    def value(self) -> float | None:
        """The reward's number; None where it could not judge, and `status` says why."""
        return self.reward.value

    @property
    def status(self) -> str:
        """`ok`, or why there is no value."""
        return self.reward.status.value

    @property
    def parts(self) -> dict[str, float | None]:
        """The value of each part by its name; the reward itself where it has no parts."""
        return self.reward.components

    def __repr__(self) -> str:
        head = [f"prompt: {_short(self.prompt)}", f"answer: {_short(self.response)}"]
        return "\n".join([*head, *("  " * depth + text for depth, text in lines(self.reward))])


def lines(reward: Reward, depth: int = 0) -> Iterator[tuple[int, str]]:
    """A reward's tree as lines with their depth."""
    value = f"{reward.value:g}" if reward.value is not None else reward.status.value
    weight = f" (weight {reward.weight:g})" if depth and reward.weight != 1 else ""
    reason = f": {_short(reward.reason)}" if reward.reason else ""
    yield depth, f"{_short(reward.name)} {value}{weight}{reason}"
    for evidence in reward.evidence:
        seen = "" if evidence.visibility.value == "visible" else f" ({evidence.visibility.value})"
        failed = f" failed: {_short(evidence.error)}" if evidence.error else ""
        yield depth + 1, f"{_short(evidence.source)}: {_short(evidence.observation)}{seen}{failed}"
    for verdict in reward.verdicts:
        said = f"{verdict.value:g}" if verdict.value is not None else "undecided"
        why = f": {_short(verdict.reason)}" if verdict.reason else ""
        yield depth + 1, f"verdict on {_short(verdict.criterion)}: {said}{why}"
    for part in reward.parts:
        yield from lines(part, depth + 1)


def _short(text: str) -> str:
    line = " ".join(safe(text).split())
    return line if len(line) <= CUT else f"{line[:CUT]}..."
