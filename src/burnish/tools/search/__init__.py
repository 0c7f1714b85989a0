"""Search in passages: in memory, or an index on disk with BM25, dense and hybrid search.

Only an index on disk needs numpy, and only dense search needs torch.
"""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.tools.search.bm25 import reciprocal_rank_fusion as reciprocal_rank_fusion
    from burnish.tools.search.index import (
        Hit as Hit,
        SearchIndex as SearchIndex,
        open_index as open_index,
        write_index as write_index,
    )
    from burnish.tools.search.passages import (
        Passage as Passage,
        PassageIndex as PassageIndex,
        Retriever as Retriever,
        tokens as tokens,
    )
    from burnish.tools.search.sources import Source as Source, read_passages as read_passages
    from burnish.tools.search.tool import (
        AsyncSearch as AsyncSearch,
        search_tool as search_tool,
        shown_passages as shown_passages,
    )

__getattr__, __dir__ = lazy_exports(__name__)
