"""Search for models: a tool by name, and an awaitable search for environments and games.

A passage is data from outside. It is shown on one line of its own behind a number, so that a text in
it cannot pass for the next passage; its control tokens never become tokens (`lm/control_tokens`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import anyio.to_thread
import msgspec
from msgspec import Meta, Struct

from burnish.boundary import PositiveInt, public
from burnish.errors import UserError
from burnish.tools.search.index import SearchIndex, open_index
from burnish.tools.search.passages import Passage, Retriever, query_words
from burnish.tools.search.sources import Source

REMEMBERED = 4096
"""Queries whose passages are kept: the rollouts of a group often ask the same."""
LONGEST_QUERY = 1000
"""Characters of a model's query that are looked up."""


class SearchSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is searched, and how much of it is shown."""

    source: Annotated[str, Meta(min_length=1)]
    """A folder of .txt and .md files, or a JSONL, CSV, TSV or Parquet file."""
    how: Literal["bm25", "dense", "hybrid"] = "bm25"
    """By words, by vectors, or by both."""
    k: Annotated[int, Meta(ge=1, le=100)] = 3
    """Passages that a query finds."""
    characters: Annotated[int, Meta(ge=1, le=1_000_000)] = 500
    """Of a passage that are shown."""
    index: str = ""
    """Folder of the index; in burnish's cache folder where empty."""
    text: str = ""
    """Column of the text, where it has no usual name."""
    title: str = ""
    """Column of the title, where it has no usual name."""
    id: str = ""
    """Column of the id, where it has no usual name."""
    longest: Annotated[int, Meta(ge=40, le=1_000_000)] = 1200
    """Characters of a passage; longer documents are cut."""


def as_settings(what: str, options: Mapping[str, Any]) -> SearchSettings:
    """The settings in a table of options; `what` begins an error."""
    try:
        return msgspec.convert(dict(options), SearchSettings)
    except msgspec.ValidationError as error:
        raise UserError(f"{what}: {error}.") from None


@cache
def open_settings(settings: SearchSettings, root: Path = Path()) -> SearchIndex:
    """The index of settings, opened once in a process; paths start at `root`."""
    columns = {name: getattr(settings, name) for name in ("text", "title", "id", "longest")}
    source = Source(str(root / Path(settings.source).expanduser()), **columns)
    folder = root / settings.index if settings.index else None
    index = open_index(source, folder=folder, how=settings.how)
    index.search("ready", 1)  # loads what the first query needs, before a deadline runs
    return index


class AsyncSearch:
    """A retriever that can be awaited: it works in a thread, and remembers equal queries."""

    def __init__(self, retriever: Retriever) -> None:
        self.retriever = retriever
        self._known: OrderedDict[tuple[str, int], tuple[Passage, ...]] = OrderedDict()

    async def search(self, query: str, k: int = 3) -> list[Passage]:
        key = query[:LONGEST_QUERY], k
        if key not in self._known:
            found = await anyio.to_thread.run_sync(lambda: tuple(self.retriever.search(*key)))
            self._known[key] = found
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return list(self._known[key])


def search_tool(root: Path = Path(), **options: Any) -> Callable[[str], Awaitable[str]]:
    """A function that models may call; its options are those of `SearchSettings`."""
    settings = as_settings("tool 'search'", options)
    found_in = AsyncSearch(open_settings(settings, root))

    async def search(query: str) -> str:
        """Search a collection of texts. Returns the passages that fit the query best.

        Args:
            query: words to look for
        """
        if not query_words(query):
            raise ValueError("the query has no words; expected words to look for")
        return shown_passages(await found_in.search(query, settings.k), settings.characters)

    return search


@public
def shown_passages(passages: Sequence[Passage], characters: PositiveInt = 500) -> str:
    """Passages as a model reads them, one a line: `[1] Title: text`, each cut to a length.

    >>> shown_passages([Passage("p", "Two\\nbatteries.", "Lamp")])
    '[1] Lamp: Two batteries.'
    """
    lines = []
    for number, passage in enumerate(passages, start=1):
        title = " ".join(passage.title.split())[:200]
        text = " ".join(passage.text.split())
        cut = text[:characters] + ("..." if len(text) > characters else "")
        lines.append(f"[{number}] {title}: {cut}" if title else f"[{number}] {cut}")
    return "\n".join(lines) or "nothing found"
