"""Search in passages that lie on this machine: BM25, in memory, nothing to install.

    index = PassageIndex([Passage("p1", "The lamp has two batteries."), ...])
    index.search("how many batteries", limit=3)      # the best passages, best first

Made for a few thousand passages of one domain. Anything with the same `search` can stand in for it:
builders of rubrics and agents take a `Retriever`. The package `bm25s` is faster on millions but
needs numpy, which this room does without.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct

from burnish.errors import UserError

_CJK = "\u3400-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_CJK}]|[^\W{_CJK}]+")


class Passage(Struct, frozen=True, omit_defaults=True):
    """A piece of a document that can be found and quoted."""

    id: str
    text: str
    title: str = ""


@runtime_checkable
class Retriever(Protocol):
    """Anything that finds passages."""

    def search(self, query: str, limit: int = 5) -> Sequence[Passage]:
        """The best passages for a query, best first; none where nothing matches."""
        ...


class PassageIndex:
    """Okapi BM25 over passages; `k1` bounds repeated words, `b` discounts long passages."""

    def __init__(self, passages: Iterable[Passage], *, k1: float = 1.5, b: float = 0.75) -> None:
        self.passages = tuple(passages)
        self.k1, self.b = k1, b
        twice = [i for i, n in Counter(p.id for p in self.passages).items() if n > 1]
        if twice:
            raise UserError(f"search: two passages have the id '{twice[0]}'; expected unique ids.")
        counts = [Counter(tokens(f"{p.title} {p.text}")) for p in self.passages]
        self._lengths = [sum(count.values()) for count in counts]
        self._mean = sum(self._lengths) / len(counts) if counts else 0.0
        self._places: dict[str, list[tuple[int, int]]] = {}
        for place, count in enumerate(counts):
            for word, times in count.items():
                self._places.setdefault(word, []).append((place, times))

    def search(self, query: str, limit: int = 5) -> list[Passage]:
        """The best passages for a query; equal scores in the order they were given."""
        scores: dict[int, float] = {}
        for word in dict.fromkeys(tokens(query)):
            found = self._places.get(word, ())
            rare = math.log(1 + (len(self.passages) - len(found) + 0.5) / (len(found) + 0.5))
            for place, times in found:
                length = 1 - self.b + self.b * self._lengths[place] / self._mean
                gain = rare * times * (self.k1 + 1) / (times + self.k1 * length)
                scores[place] = scores.get(place, 0.0) + gain
        best = sorted(scores, key=lambda place: (-scores[place], place))
        return [self.passages[place] for place in best[: max(0, limit)]]


def tokens(text: str) -> list[str]:
    """Lower-case words; a Chinese character is a word."""
    return _WORD.findall(text.lower())
