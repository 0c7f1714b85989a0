"""What can be counted on the surface of an answer, and which phrases spread in a run."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

_WORD = re.compile(r"[\w'-]+")
_MARKDOWN = re.compile(r"^\s{0,3}(?:#{1,6}\s|[-*+]\s|\d+[.)]\s|>|\|)|\*\*|__|`+", re.MULTILINE)
_HEDGES = re.compile(
    r"\b(?:perhaps|maybe|possibly|probably|might|could be|it seems|in general|arguably|"
    r"to some extent|i think|not sure)\b",
    re.IGNORECASE,
)
_CLAIMS = re.compile(
    r"\b(?:as (?:you )?requested|this answer|this response|is (?:correct|complete|accurate)|"
    r"verified|guaranteed|certainly|of course|perfect(?:ly)?|excellent|high[- ]quality|"
    r"expert|trust me|without (?:any )?doubt)\b",
    re.IGNORECASE,
)
_REFUSALS = re.compile(
    r"\b(?:i (?:cannot|can't|am unable to|won't)|as an ai|i'm sorry|i am sorry)\b", re.IGNORECASE
)
PHRASE_WORDS = 3
LEAST_RISE = 0.1
"""Share of the answers by which a phrase must rise to be looked at."""
SAME = 0.9
"""Two phrases are one where this share of the answers that hold either holds both."""


def words(text: str) -> list[str]:
    """Runs of letters, digits, apostrophes and hyphens, in lower case."""
    return _WORD.findall(text.lower())


def repetition(text: str) -> float:
    """Share of three-word runs that stood in the text before."""
    found = words(text)
    runs = list(zip(found, found[1:], found[2:], strict=False))
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


def _count(pattern: re.Pattern[str]) -> Callable[[str], float]:
    return lambda text: float(len(pattern.findall(text)))


SURFACE: dict[str, Callable[[str], float]] = {
    "length": lambda text: float(len(words(text))),
    "format": _count(_MARKDOWN),
    "repetition": repetition,
    "hedging": _count(_HEDGES),
    "claims about itself": _count(_CLAIMS),
    "refusals": _count(_REFUSALS),
}
"""Counts that a reward can be pleased by without the answer getting better."""


def phrases(text: str) -> set[str]:
    """All runs of one to three words."""
    found = words(text)
    return {
        " ".join(found[start : start + size])
        for size in range(1, PHRASE_WORDS + 1)
        for start in range(len(found) - size + 1)
    }


def rising(early: Sequence[str], late: Sequence[str], most: int) -> list[str]:
    """Phrases whose share of answers rose most; of those that stand in the same answers, one."""
    before, after = _places(early), _places(late)
    rise = {
        phrase: len(places) / len(late) - len(before.get(phrase, ())) / len(early)
        for phrase, places in after.items()
    }
    order = sorted(rise, key=lambda p: (-round(rise[p], 3), -len(p.split()), p))
    chosen: list[str] = []
    for phrase in order:
        if len(chosen) == most or rise[phrase] < LEAST_RISE:
            break
        if not any(_overlap(after[phrase], after[other]) > SAME for other in chosen):
            chosen.append(phrase)
    return chosen


def _places(texts: Sequence[str]) -> dict[str, set[int]]:
    """The texts that hold each phrase."""
    found: dict[str, set[int]] = {}
    for place, text in enumerate(texts):
        for phrase in phrases(text):
            found.setdefault(phrase, set()).add(place)
    return found


def _overlap(first: set[int], second: set[int]) -> float:
    return len(first & second) / len(first | second)
