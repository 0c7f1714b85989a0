"""What every search here shares: a passage, what finds passages, words, and a search in memory.


`PassageIndex` needs no package and is made for a few thousand passages. `open_index` is for files
and folders, up to millions of passages. Anything with the same `search` can stand in for either:
builders of rubrics, tools and agents take a `Retriever`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct

from burnish.arguments import as_whole
from burnish.boundary import public
from burnish.errors import UserError

K1, B = 1.5, 0.75
"""Of BM25: how much repeated words count, and how much long passages are discounted."""
_CJK = "\u3400-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_CJK}]|[^\W{_CJK}]+")
_ASCII = {code: " " for code in range(128) if not (chr(code).isalnum() or chr(code) == "_")}


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
    """BM25 over passages in memory.

    >>> index = PassageIndex([Passage("lamp", "Two batteries."), Passage("kettle", "A cord.")])
    >>> [passage.id for passage in index.search("which batteries?")]
    ['lamp']
    """

    def __init__(self, passages: Iterable[Passage]) -> None:
        self.passages = tuple(passages)
        twice = [i for i, n in Counter(p.id for p in self.passages).items() if n > 1]
        if twice:
            raise UserError(f"search: two passages have the id '{twice[0]}'; expected unique ids.")
        counts = [Counter(tokens.plain(indexed_text(p))) for p in self.passages]
        self._lengths = [sum(count.values()) for count in counts]
        self._mean = sum(self._lengths) / len(counts) if counts else 0.0
        self._places: dict[str, list[tuple[int, int]]] = {}
        for place, count in enumerate(counts):
            for word, times in count.items():
                self._places.setdefault(word, []).append((place, times))

    def search(self, query: str, limit: int = 5) -> list[Passage]:
        """The best passages for a query; equal scores in the order they were given."""
        words, limit = query_words(query), max(0, as_whole("limit", limit))
        scores: dict[int, float] = {}
        for word in words:
            found = self._places.get(word, ())
            rare = math.log(1 + (len(self.passages) - len(found) + 0.5) / (len(found) + 0.5))
            for place, times in found:
                length = 1 - B + B * self._lengths[place] / self._mean
                gain = rare * times / (times + K1 * length)
                scores[place] = scores.get(place, 0.0) + gain
        best = sorted(scores, key=lambda place: (-scores[place], place))
        return [self.passages[place] for place in best[:limit]]


@public
def tokens(text: str) -> list[str]:
    """Lower-case words; a Chinese character is a word.

    >>> tokens("Two lamps, 水壶")
    ['two', 'lamps', '水', '壶']
    """
    if text.isascii():  # the same words, several times as fast
        return text.lower().translate(_ASCII).split()
    return _WORD.findall(text.lower())


def query_words(query: str) -> list[str]:
    return list(dict.fromkeys(tokens.plain(query)))


def indexed_text(passage: Passage) -> str:
    """What of a passage is searched."""
    return f"{passage.title} {passage.text}" if passage.title else passage.text
