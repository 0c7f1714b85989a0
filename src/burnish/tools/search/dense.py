"""Passages by the nearness of their vectors, and rankings joined into one.

    write_vectors(folder, texts, count, encoder.encode)  # goes on where it was stopped
    Vectors(folder).best(encoder.encode(["a question"])[0], limit=10)
    reciprocal_rank_fusion([[3, 1], [1, 2]])             # places and sums: 1, then 3, then 2

Vectors are kept as 16-bit floats (768 bytes a passage) and read through a memory map. Search is
exact: every vector is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from burnish.arguments import as_list, as_number
from burnish.errors import ArgumentError
from burnish.store.durable import write_file
from burnish.tools.search.bm25 import Floats, Found, top
from burnish.tools.search.sources import Report, no_report

BLOCK = 512
"""Passages that are encoded together; fixed, so that a stopped build goes on with the same bits."""
ROWS = 65_536
"""Vectors that are compared at once."""
CONSTANT = 60.0
"""Of reciprocal rank fusion (Cormack, Clarke and Büttcher 2009)."""
Encode = Callable[[Sequence[str]], NDArray[np.float32]]
K = TypeVar("K", bound=Hashable)
_VECTORS, _DONE = "vectors.npy", "done.json"


def write_vectors(
    folder: Path,
    texts: Callable[[int], Iterable[str]],
    count: int,
    encode: Encode,
    report: Report = no_report,
) -> None:
    """Encode `count` texts in blocks; `texts(n)` gives those from place n on."""
    folder.mkdir(parents=True, exist_ok=True)
    done = rows_done(folder)
    if done >= count:
        return
    left = iter(texts(done))
    vectors: np.memmap[Any, Any] | None = None
    while done < count:
        report("encoding", done, count)
        block = encode(list(islice(left, BLOCK)))
        if vectors is None:
            mode, shape = ("r+", None) if done else ("w+", (count, block.shape[1]))
            vectors = open_memmap(folder / _VECTORS, mode=mode, dtype=np.float16, shape=shape)
        vectors[done : done + len(block)] = block
        vectors.flush()
        done += len(block)
        write_file(folder / _DONE, msgspec.json.encode({"rows": done}))
    report("encoding", count, count)


def rows_done(folder: Path) -> int:
    """How many vectors are written."""
    try:
        return int(msgspec.json.decode((folder / _DONE).read_bytes())["rows"])
    except FileNotFoundError:
        return 0


class Vectors:
    """The vectors of all passages."""

    def __init__(self, folder: Path) -> None:
        self.vectors_ND = np.asarray(np.load(folder / _VECTORS, mmap_mode="r", allow_pickle=False))

    def best(self, query_D: Floats, limit: int) -> Found:
        """The nearest passages by cosine, best first; equal ones in the order of places."""
        places, scores = [np.zeros(0, np.int32)], [np.zeros(0, np.float32)]
        for first in range(0, len(self.vectors_ND), ROWS):
            block_ND = self.vectors_ND[first : first + ROWS].astype(np.float32)
            found = top(np.arange(len(block_ND), dtype=np.int32), block_ND @ query_D, limit)
            places.append(found.places + np.int32(first))
            scores.append(found.scores)
        return top(np.concatenate(places), np.concatenate(scores), limit)


def reciprocal_rank_fusion(
    rankings: Sequence[Sequence[K]], constant: float = CONSTANT
) -> list[tuple[K, float]]:
    """Join rankings: each gives 1 / (constant + rank) to what it holds, the first rank being 1.

    Equal sums stand in the order of their keys, so keys must be comparable.

    >>> [key for key, _ in reciprocal_rank_fusion([["a", "b"], ["b", "c"]])]
    ['b', 'a', 'c']
    """
    constant = as_number("constant", constant, low=0)
    sums: dict[K, float] = {}
    for ranking in as_list("rankings", rankings):
        keys = as_list("rankings", ranking)
        if len(set(keys)) != len(keys):
            raise ArgumentError("rankings: an item stands twice in one ranking, expected once")
        for rank, key in enumerate(keys, start=1):
            sums[key] = sums.get(key, 0.0) + 1 / (constant + rank)
    return sorted(sums.items(), key=lambda item: (-item[1], item[0]))
