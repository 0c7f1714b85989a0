"""Marks and scores for `burnish.tasks.examples.manuals`, by matching words and numbers.

    marks(text, facts, rubric, promise)          # {"voltage": 2, ..., "wrong number": 0}
    graded(text, facts, rubric, promise, truncation=True)

A fact is fully met with its number, partly where only its name stands; another number behind the name
is an error. No judge is asked, so a difference between two recipes is one of the formula alone.
"""

from __future__ import annotations

import re
from typing import Any

from burnish.rewards.judges.rubric.score import MarkedItem, explain

EQUAL = {"essential": 1.0, "important": 1.0, "highlight": 1.0, "pitfall": 1.0}
WRONG, PROMISE = "wrong number", "empty promise"
BETWEEN = 12
"""Characters between the name of a fact and its number."""


def marks(text: str, facts: dict[str, int], rubric: dict[str, Any], promise: str) -> dict[str, int]:
    """The level of every item of the rubric."""
    said = " ".join(text.lower().split())
    levels: dict[str, int] = {}
    wrong = 0
    for name, value in facts.items():
        found = re.findall(rf"\b{re.escape(name)}\b([^\d.]{{0,{BETWEEN}}}(\d+))?", said)
        numbers = {int(number) for _, number in found if number}
        levels[name] = 0 if not found else 2 if numbers == {value} else 1
        wrong += bool(numbers - {value})
    levels[WRONG] = min(wrong, 2)
    levels[PROMISE] = 2 if promise in said else 0
    return {item["id"]: levels[item["id"]] for item in rubric["items"]}


def graded(
    text: str,
    facts: dict[str, int],
    rubric: dict[str, Any],
    promise: str,
    equal: bool = False,
    truncation: bool = False,
    saturation: bool = False,
) -> float | None:
    """The rubric's score; `equal` counts every tier alike."""
    return explain(
        _items(text, facts, rubric, promise),
        EQUAL if equal else None,
        truncation=truncation,
        saturation=saturation,
    ).score


def essentials(text: str, facts: dict[str, int], rubric: dict[str, Any], promise: str) -> float:
    """The share of the asked facts that is met."""
    return _share(text, facts, rubric, promise, ("essential",))


def extras(text: str, facts: dict[str, int], rubric: dict[str, Any], promise: str) -> float:
    """The share of the other facts that is told."""
    return _share(text, facts, rubric, promise, ("important", "highlight"))


def pitfalls(text: str, facts: dict[str, int], rubric: dict[str, Any], promise: str) -> float:
    """1 where the answer has an error or an empty promise, else 0."""
    return float(_share(text, facts, rubric, promise, ("pitfall",)) > 0)


def _share(
    text: str, facts: dict[str, int], rubric: dict[str, Any], promise: str, tiers: tuple[str, ...]
) -> float:
    own = [item for item in _items(text, facts, rubric, promise) if item.tier in tiers]
    return sum((item.level or 0.0) / 2 for item in own) / len(own)


def _items(
    text: str, facts: dict[str, int], rubric: dict[str, Any], promise: str
) -> list[MarkedItem]:
    found = marks(text, facts, rubric, promise)
    return [
        MarkedItem(item["tier"], found[item["id"]], tag=item["tag"], id=item["id"])
        for item in rubric["items"]
    ]
