"""How much of a response stands in passages that a search finds for it; 0 to 1, with the passages.

Each sentence of the response is looked up. Its support is the share of its words, weighted by how
rare they are in the collection, that one found passage holds. The value is the mean over sentences;
the evidence names each sentence's passage, quotes it, and lists the words that no passage has. It
compares words and knows no meaning: a sentence and its denial earn the same. As a curve (`weight =
0`) or beside a judge it shows where to look.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import anyio.to_thread
from msgspec import Meta
from msgspec.structs import replace

from burnish.boundary import Name
from burnish.records import Evidence, Response, Reward, Task, Visibility
from burnish.rewards.checks.base import Check, CheckConfig
from burnish.rewards.checks.extract import short
from burnish.seeds import digest
from burnish.tools.search.passages import Passage, indexed_text, query_words, tokens

if TYPE_CHECKING:
    from burnish.tools.search.index import SearchIndex

MOST_SENTENCES = 40
"""Of a response that are looked up."""
_SENTENCES = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n+")


class SupportConfig(CheckConfig, frozen=True, tag="support"):
    """The share of the response's words that passages of a collection hold, by sentence."""

    source: Name
    """A folder of .txt and .md files, or a JSONL, CSV, TSV or Parquet file."""
    how: Literal["bm25", "dense", "hybrid"] = "bm25"
    """By words, by vectors, or by both."""
    k: Annotated[int, Meta(ge=1, le=100)] = 3
    """Passages that are looked at for each sentence."""
    index: str = ""
    """Folder of the index; in burnish's cache folder where empty."""


class Supported(NamedTuple):
    """A sentence and the passage that holds most of it."""

    sentence: str
    value: float
    passage: Passage | None
    missing: Sequence[str]


class Support(Check[SupportConfig]):
    @cached_property
    def _index(self) -> SearchIndex:
        from burnish.tools.search.tool import SearchSettings, open_settings

        keys = ("source", "how", "k", "index")
        return open_settings(SearchSettings(**{key: getattr(self.config, key) for key in keys}))

    @property
    def fingerprint(self) -> str:
        """Changes also with what the source holds."""
        return digest(super().fingerprint, self._index.folder.name)

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        return await anyio.to_thread.run_sync(lambda: [self._one(r.text) for r in responses])

    def _one(self, text: str) -> Reward:
        sentences = [part.strip() for part in _SENTENCES.split(text)]
        found = [self._support(part) for part in sentences if _words(part)][:MOST_SENTENCES]
        if not found:
            return self.decided(0.0, "the response has no words to look up")
        evidence = tuple(Evidence(self.name, _line(one), Visibility.VISIBLE) for one in found)
        value = math.fsum(one.value for one in found) / len(found)
        return Reward(self.name, value, evidence=evidence)

    def _support(self, sentence: str) -> Supported:
        words = _words(sentence)
        weights = {word: self._rarity(word) for word in words}
        best = Supported(sentence, 0.0, None, words)
        for passage in self._index.search(sentence, self.config.k):
            held = set(tokens.plain(indexed_text(passage)))
            shared = math.fsum(weights[word] for word in words if word in held)
            value = shared / math.fsum(weights.values())
            if value > best.value:
                missing = [word for word in words if word not in held]
                best = Supported(sentence, value, passage, missing)
        return best

    def _rarity(self, word: str) -> float:
        place = self._index.vocabulary.get(word)
        starts = self._index.postings.starts
        held_by = 0 if place is None else int(starts[place + 1] - starts[place])
        return math.log(1 + (len(self._index) - held_by + 0.5) / (held_by + 0.5))


def _words(sentence: str) -> list[str]:
    """Words to look up; a lone letter stands in every passage and speaks for nothing."""
    words = query_words(sentence)
    return [word for word in words if not (len(word) == 1 and word.isascii() and word.isalpha())]


def _line(one: Supported) -> str:
    if one.passage is None:
        return f"0.00 {short(one.sentence)!r}: no passage found"
    lacks = f"; not in it: {', '.join(one.missing[:12])}" if one.missing else ""
    quote = short(" ".join(one.passage.text.split()), 300)
    return f"{one.value:.2f} {short(one.sentence)!r}: {one.passage.id}: {quote!r}{lacks}"


def from_folder(config: SupportConfig, base: str | Path) -> SupportConfig:
    index = str(Path(base) / config.index) if config.index else ""
    return replace(config, source=str(Path(base) / Path(config.source).expanduser()), index=index)
