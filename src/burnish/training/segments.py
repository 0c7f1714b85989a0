"""Which part of a structured answer each sampled token belongs to, for stepwise credit.

    segment = Segmenter(tokenizer, ("rule:", "why:"))
    segments_BT = pad_segments([segment(trajectory) for trajectory in trajectories])

Without headings the whole answer is segment 0. With them token 0 is segment 0: the answer that stands first. Tokens of the section under heading k (1, 2,
...) are segment k, everything else is -1. With `split` an answer's steps are its segments, and no
token is outside. The text is cut by the tokens that were sampled, never encoded again, so a segment
number always stands for the token that was really written.
"""

from __future__ import annotations

import bisect
import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from burnish.records import Reward, Trajectory
from burnish.rewards.checks.sections import check_headings, find_sections
from burnish.rewards.checks.steps import Split, find_steps

logger = logging.getLogger(__name__)

LONGEST_RUN = 8
"""Tokens that may wait for each other to become a character: one a byte, and some to spare."""
REMEMBERED = 2**16
"""Short runs of tokens whose text is kept; the answers of a run repeat each other."""
BROKEN = "\ufffd"
"""What a decoder writes for bytes that are no character, or not one yet."""


class Decodes(Protocol):
    """What is asked of a tokenizer here."""

    def decode(self, ids: Sequence[int]) -> str: ...


class Cut(NamedTuple):
    """A response's text, and the part of it that each token wrote."""

    text: str
    ranges: list[tuple[int, int]]
    """First character and the one behind the last; tokens that make a character together share."""


class Segmenter:
    """Numbers the trained tokens of rollouts by the section they belong to."""

    def __init__(
        self,
        tokenizer: Decodes,
        headings: Sequence[str],
        split: Split | Literal["sections"] = "sections",
    ) -> None:
        check_headings(headings)
        self.headings = tuple(headings)
        self._split: Split | None = None if split == "sections" else split
        self._text_of = lru_cache(REMEMBERED)(tokenizer.decode)

    def __call__(self, trajectory: Trajectory) -> list[int]:
        """The segment of each trained token of a rollout, in order."""
        return self.number([t for s in trajectory.spans if s.trainable for t in s.token_ids])

    def number(self, ids: Sequence[int]) -> list[int]:
        """The segment of each token of a response.

        A token that holds the border between two sections belongs to the second one: it is what
        begins the heading. A token without text, such as the end token, belongs to the section it
        stands in, or behind.
        """
        if self._split is not None:
            return self._steps(ids, self._split)
        if not self.headings:
            return [0] * len(ids)
        text, ranges = self.cut(ids)
        owners = [-1] * (len(text) + 1)
        begun: dict[int, int] = {}
        for number, section in enumerate(find_sections(text, self.headings), start=1):
            if section is not None:
                begun[section.start] = number
                owners[section.start : section.end] = [number] * (section.end - section.start)
        return [0 if i == 0 else _segment(*r, owners, begun) for i, r in enumerate(ranges)]

    def _steps(self, ids: Sequence[int], split: Split) -> list[int]:
        """The step of each token: that of its first character which is no blank."""
        text, ranges = self.cut(ids)
        starts = [step.start for step in find_steps(text, split, self.headings)]
        if not starts:
            return [-1] * len(ids)
        return [
            bisect.bisect_right(starts, start + _blanks(text[start:end])) - 1
            for start, end in ranges
        ]

    def cut(self, ids: Sequence[int]) -> Cut:
        """The text of a response, token by token.

        A decoder may treat the start of a text in its own way (drop a blank), so each piece is
        read behind the piece before it.
        """
        pieces: list[str] = []
        ranges: list[tuple[int, int]] = []
        given, text_of = tuple(ids), self._text_of
        context, done, place = 0, 0, 0
        for i in range(1, len(given) + 1):
            now = text_of(given[context:i])
            if now.endswith(BROKEN) and i - done < LONGEST_RUN and i < len(given):
                continue
            piece = now[len(text_of(given[context:done])) :]
            pieces.append(piece)
            ranges += [(place, place + len(piece))] * (i - done)
            place += len(piece)
            context, done = done, i
        return Cut("".join(pieces), ranges)


def pad_segments(segments: Sequence[Sequence[int]]) -> Tensor:
    """Segments of several rollouts as one tensor, -1 behind the shorter ones: (B, T) int64."""
    width = max((len(one) for one in segments), default=0)
    rows = [[*one, *[-1] * (width - len(one))] for one in segments]
    return torch.tensor(rows, dtype=torch.int64).reshape(len(segments), width)


def _blanks(piece: str) -> int:
    """Blanks before a piece's first other character; 0 where it has none."""
    kept = piece.lstrip()
    return len(piece) - len(kept) if kept else 0


class StepScores(NamedTuple):
    """Steps of answers with their scores; B answers of up to J steps."""

    steps_BJ: Tensor
    """float64; NaN where an answer has no such step, or it has no score."""
    segments_BT: Tensor


def step_scores(
    rewards: Sequence[Reward], name: str, segments: Sequence[Sequence[int]]
) -> StepScores:
    """The scores of each answer's steps: the parts of its reward `name`.

    An answer whose reward has another number of parts than its tokens have steps gets none, and so
    does one without that reward: a score is never credited to another step's tokens.
    """
    rows: list[list[float]] = []
    kept: list[Sequence[int]] = []
    differing = 0
    for reward, numbers in zip(rewards, segments, strict=True):
        own = next((part for part in (*reward.parts, reward) if part.name == name), None)
        parts = own.parts if own is not None else ()
        scores = [float("nan") if part.value is None else part.value for part in parts]
        is_same = len(scores) == max(numbers, default=-1) + 1
        differing += own is not None and own.value is not None and not is_same
        rows.append(scores if is_same else [])
        kept.append(numbers if is_same else [-1] * len(numbers))
    if differing:
        logger.warning(
            "reward '%s' scored other steps than policy.advantage.split finds in %d of %d answers; "
            "they are left out. Give both the same split and headings.",
            *(name, differing, len(rewards)),
        )
    width = max([1, *map(len, rows)])
    padded = [[*row, *[float("nan")] * (width - len(row))] for row in rows]
    steps_BJ = torch.tensor(padded, dtype=torch.float64).reshape(len(rows), width)
    return StepScores(steps_BJ, pad_segments(kept))


def _segment(start: int, end: int, owners: Sequence[int], begun: Mapping[int, int]) -> int:
    """The section that begins inside the token (the last of several), else that of its place."""
    for place in range(end - 1, start - 1, -1):
        if place in begun:
            return begun[place]
    is_behind = start == end > 0 and owners[start] < 0
    return owners[start - 1] if is_behind else owners[start]
