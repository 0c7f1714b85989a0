"""What a pairwise judge wrote: its principles, a verdict under each, and two scores at the end.

    said = read_judgement(reply)
    said.scores, said.principles[0].text, said.principles[0].scores

The scores make the verdict; without them there is none. Principles are kept where they can be read,
because they say why, but no number is made of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from burnish.arguments import as_list, as_text
from burnish.rewards.judges.questions import Unreadable
from burnish.rewards.judges.verdicts import after_thoughts, holds
from burnish.rewards.pairs import HIGHEST, LOWEST, all_pair_scores, parse_pair_scores

_NUMBER = r"(\d+(?:\.\d+)?)"
_LINE = r"^[ \t>*#-]*"
_PRINCIPLE = re.compile(
    rf"{_LINE}principle[ \t]+(\d+)[ \t]*\([ \t]*{_NUMBER}[ \t]*%?[ \t]*\)[ \t*]*:[ \t]*(\S.*)$",
    re.IGNORECASE | re.MULTILINE | re.ASCII,
)
_VERDICT = re.compile(
    rf"{_LINE}verdict[ \t]+(\d+)[ \t*]*:[ \t]*{_NUMBER}[ \t]*,[ \t]*{_NUMBER}[ \t]*(?:\|[ \t]*(.*))?$",
    re.IGNORECASE | re.MULTILINE | re.ASCII,
)


class Principle(NamedTuple):
    """One principle that the judge wrote, and how the texts did under it."""

    text: str
    weight: float
    scores: tuple[float, float] | None = None
    """Of the text shown first and of the second; None where the judge gave none."""
    critique: str = ""


class Judgement(NamedTuple):
    """A judge's scores and what it says they rest on."""

    scores: tuple[float, float]
    principles: tuple[Principle, ...] = ()


def read_judgement(
    text: str, shown: Sequence[str] = (), *, rivals: tuple[str, str] | None = None
) -> Judgement:
    """The judgement in a reply; raises `Unreadable` without two scores of its own at its end.

    Scores that stand in a text that was `shown` may be a quotation. So may those in one of the two
    `rivals`, the texts to compare, unless they say that this very text lost: a text that holds all
    its possible defeats would otherwise have none.
    """
    said = after_thoughts(as_text("text", text))
    shown = as_list("shown", shown)
    scores = parse_pair_scores(said) if said.lower().endswith("</scores>") else None
    if scores is None:
        raise Unreadable(
            "expected <scores>a, b</scores> with two numbers from 0 to 10 at the end, got "
            f"{said[-60:]!r}"
        )
    own = said[said.lower().rindex("<scores>") :]
    first, second = rivals or ("", "")
    suspects = [*shown]
    suspects += [first] if scores[0] >= scores[1] else []
    suspects += [second] if scores[1] >= scores[0] else []
    if any(holds(given, own) or scores in all_pair_scores(given) for given in suspects):
        raise Unreadable("expected your own scores, got some that stand in a text to judge")
    return Judgement((scores[0], scores[1]), tuple(read_principles(said)))


def read_principles(text: str) -> list[Principle]:
    """The principles of a reply, in order; a number that stands twice counts once, the last time."""
    as_text("text", text)
    verdicts: dict[str, tuple[tuple[float, float], str]] = {}
    for number, first, second, why in _VERDICT.findall(text):
        scores = float(first), float(second)
        if all(LOWEST <= score <= HIGHEST for score in scores):
            verdicts[number] = scores, why.strip()
    found: dict[str, Principle] = {}
    for number, weight, told in _PRINCIPLE.findall(text):
        scores_and_why = verdicts.get(number, (None, ""))
        found[number] = Principle(told.strip(), float(weight), *scores_and_why)
    return list(found.values())
