"""Search in passages: in memory, or an index on disk with BM25, dense and hybrid search.

    index = open_index("manuals/", how="hybrid")
    index.search("descale the kettle", limit=3)

`docs/search.md` says how it is used by tools, environments and rewards. Only an index on disk needs
numpy, and only dense search needs torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports
from burnish.tools.search.passages import Passage, PassageIndex, Retriever, tokens

if TYPE_CHECKING:
    from burnish.tools.search.dense import reciprocal_rank_fusion
    from burnish.tools.search.index import Hit, SearchIndex, open_index, write_index
    from burnish.tools.search.sources import Source, read_passages
    from burnish.tools.search.tool import AsyncSearch, search_tool, shown_passages

__all__ = [
    "AsyncSearch",
    "Hit",
    "Passage",
    "PassageIndex",
    "Retriever",
    "SearchIndex",
    "Source",
    "open_index",
    "read_passages",
    "reciprocal_rank_fusion",
    "search_tool",
    "shown_passages",
    "tokens",
    "write_index",
]

__getattr__, __dir__ = lazy_exports(__name__)
