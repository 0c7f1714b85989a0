"""A search tool over a small corpus of facts that no model knows, and questions about them."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

from burnish.tools.search import Passage, PassageIndex

_STARTS = ("Vel", "Kor", "Ash", "Bram", "Tol", "Nor", "Gil", "Har")
_ENDS = ("mar", "wick", "stead", "ford", "dale")
_FACTS = {
    "population": ("has {} inhabitants", 1_000, 9_999, "How many inhabitants has {}?"),
    "founded": ("was founded in the year {}", 1100, 1899, "In which year was {} founded?"),
    "bridges": ("has {} bridges over its river", 2, 40, "How many bridges has {}?"),
}


@cache
def towns() -> dict[str, dict[str, int]]:
    """Invented towns and their numbers, always the same."""
    rng = random.Random("towns")
    names = [start + end for start in _STARTS for end in _ENDS]
    return {
        name: {fact: rng.randint(low, high) for fact, (_, low, high, _) in _FACTS.items()}
        for name in names
    }


@cache
def _index() -> PassageIndex:
    return PassageIndex(
        Passage(f"{name}/{fact}", f"{name} {_FACTS[fact][0].format(value)}.")
        for name, facts in towns().items()
        for fact, value in facts.items()
    )


def search(query: str, limit: int = 2) -> str:
    """Search an encyclopedia of towns.

    Args:
        query: words to look for
        limit: how many passages to return
    """
    found = _index().search(query, min(limit, 5))
    return "\n".join(passage.text for passage in found) or "nothing found"


def make(rng: random.Random) -> dict[str, Any]:
    """A question about one town."""
    name = rng.choice(list(towns()))
    fact = rng.choice(list(_FACTS))
    return {"prompt": _FACTS[fact][3].format(name), "answer": str(towns()[name][fact])}
