"""Where the steps of an answer stand: one rule for rewards, token credit and training data.

    [text[step.start : step.end] for step in find_steps("3 + 4 = 7\\n\\nSo 7.", "blank_lines")]

Steps cover the whole text: what separates two of them belongs to the first. Parts without a
character to read are no step of their own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from burnish.arguments import as_text, as_word
from burnish.errors import UserError
from burnish.rewards.checks.sections import check_headings, heading_starts

Split = Literal["blank_lines", "lines", "headings"]
SPLITS = ("blank_lines", "lines", "headings")
_BORDERS = {
    "blank_lines": re.compile(r"\n[^\S\n]*(?:\n[^\S\n]*)+"),
    "lines": re.compile(r"\n\s*"),
}


class Step(NamedTuple):
    """Where one step stands in a text."""

    start: int
    end: int
    """First character behind it, and behind what separates it from the next one."""


def find_steps(text: str, split: Split = "blank_lines", headings: Sequence[str] = ()) -> list[Step]:
    """The steps of a text: cut at blank lines, at every line, or where a heading begins.

    A heading that is written again begins a step again. Text before the first heading belongs to
    the first step. An empty text has no steps.
    """
    as_text("text", text)
    as_word("split", split, SPLITS)
    check_split(split, headings)
    if split == "headings":
        borders = heading_starts(text, headings)[1:]
    else:
        borders = [match.end() for match in _BORDERS[split].finditer(text)]
    steps: list[Step] = []
    start = 0
    for border in [*borders, len(text)]:
        if text[start:border].strip():
            steps.append(Step(start, border))
            start = border
    if steps:
        steps[-1] = Step(steps[-1].start, len(text))
    return steps


def check_split(split: str, headings: Sequence[str]) -> None:
    """Refuse headings where none are looked for, and none where they are."""
    if (split == "headings") != bool(headings):
        raise UserError(
            f"split is '{split}' with {len(headings)} headings; expected headings with "
            "split = 'headings' alone"
        )
    check_headings(headings)
