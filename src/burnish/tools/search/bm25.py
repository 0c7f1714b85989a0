"""BM25 over millions of passages: built with numpy, kept in bm25s' files, read through memory maps.

Scores are those of bm25s' default (Lucene's BM25, k1 1.5, b 0.75). Two things are done here and not by
bm25s, for time and memory (`lab/benchmarks/search.py`): counting runs over flat arrays, and a query
stops reading the long lists of common words once they cannot change the result (MaxScore, Turtle and
Flood 1995).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from burnish.boundary import NonNegative, public
from burnish.errors import ArgumentError, UserError
from burnish.store.durable import write_file
from burnish.tools.search.passages import K1, B
from burnish.tools.search.sources import Report, file_digest, no_report

CHUNK = 4_000_000
"""Words that are counted at once."""
_SEARCH_COST = 8
"""Looking a passage up in a list costs as much as reading this many of its entries."""
_ROUNDING = 1e-5
"""Of a sum of 32-bit scores, relative; bounds are wider by this much."""
Floats = NDArray[np.float32]
Ints = NDArray[np.int32]


class Found(NamedTuple):
    places: Ints
    scores: Floats


class Postings(NamedTuple):
    """For each word the passages that hold it, in order of place, and its score in each."""

    scores: Floats
    places: Ints
    starts: NDArray[np.int64]
    """Where the list of each word begins; one more at the end."""
    bounds: Floats
    """The highest score of each word."""
    passages: int

    def best(self, words: Sequence[int], limit: int) -> Found:
        """The passages with the highest sums over `words`; equal sums in the order of places."""
        if not words or limit <= 0:
            return Found(np.zeros(0, np.int32), np.zeros(0, np.float32))
        # Rare words first: their lists are short, and their scores high.
        chosen = np.array(sorted(words, key=lambda word: (-self.bounds[word], word)))
        rest = np.append(np.cumsum(self.bounds[chosen][::-1], dtype=np.float64)[::-1], 0.0)
        begins, ends = self.starts[chosen], self.starts[chosen + 1]
        sums = np.zeros(self.passages, np.float32)
        read: list[Ints] = []
        cost = 0
        for at, (begin, end) in enumerate(zip(begins, ends, strict=True)):
            if at and cost < (ends[at:] - begins[at:]).sum():
                candidates = np.concatenate(read)
                kept = _still_possible(sums[candidates], rest[at], limit)
                if kept is not None:
                    lists = [(int(b), int(e)) for b, e in zip(begins[at:], ends[at:], strict=True)]
                    return self._finish(sums, candidates[kept], lists, rest[at + 1 :], limit)
            places = self.places[begin:end]
            before = sums[places]
            read.append(places[before == 0])  # every score is above 0, so these are new
            sums[places] = before + self.scores[begin:end]
            cost += int(end - begin)
        candidates = np.concatenate(read)
        return top(candidates, sums[candidates], limit)

    def _finish(
        self,
        sums: Floats,
        candidates: Ints,
        lists: Sequence[tuple[int, int]],
        rest: NDArray[np.float64],
        limit: int,
    ) -> Found:
        """Add the remaining words to the passages that can still be among the best."""
        for (begin, end), left in zip(lists, rest, strict=True):
            places, gains = self.places[begin:end], self.scores[begin:end]
            if _SEARCH_COST * len(candidates) > len(places):
                sums[places] += gains
            else:
                at = np.searchsorted(places, candidates)
                at[at == len(places)] = 0
                hits = places[at] == candidates
                sums[candidates[hits]] += gains[at[hits]]
            kept = _still_possible(sums[candidates], left, limit)
            if kept is not None:
                candidates = candidates[kept]
        return top(candidates, sums[candidates], limit)


def _still_possible(scores: Floats, rest: float, limit: int) -> NDArray[np.bool_] | None:
    """Which candidates can be among the best; None where a passage that is no candidate can, too."""
    if len(scores) < limit:
        return None
    least = float(np.partition(scores, -limit)[-limit])
    slack = _ROUNDING * (least + rest)
    if rest + slack >= least:
        return None
    return scores.astype(np.float64) + rest + slack >= least


def top(places: Ints, scores: Floats, limit: int) -> Found:
    """The highest scores, best first; equal ones in the order of places."""
    if len(places) > limit:
        kept = scores >= np.partition(scores, -limit)[-limit]
        places, scores = places[kept], scores[kept]
    order = np.lexsort((places, -scores))[:limit]
    return Found(places[order], scores[order])


# --- building


def build_postings(word_ids: Ints, lengths: Ints, *, words: int) -> Postings:
    """Scores of all passages, whose words stand one after the other in `word_ids`."""
    count = len(lengths)
    counted = list(_counts(word_ids, lengths))
    held_by = np.zeros(words, np.int64)
    for part in counted:
        held_by += np.bincount(part.words, minlength=words)
    rare = np.log(1 + (count - held_by + 0.5) / (held_by + 0.5)).astype(np.float32)
    mean = max(lengths.mean(), 1e-9) if count else 1.0  # 0 where no passage has a word
    norm_N = K1 * ((1 - B) + B * lengths / mean)
    starts = np.zeros(words + 1, np.int64)
    np.cumsum(held_by, out=starts[1:])
    scores = np.empty(starts[-1], np.float32)
    places = np.empty(starts[-1], np.int32)
    free = starts[:-1].copy()
    while counted:
        part = counted.pop(0)
        # A part is sorted by word, then place: its entries of a word follow those of earlier parts.
        times_W = np.bincount(part.words, minlength=words)
        shift_W = free - (np.cumsum(times_W) - times_W)
        to = np.arange(len(part.words)) + shift_W[part.words]
        places[to] = part.places
        scores[to] = rare[part.words] * (part.times / (norm_N[part.places] + part.times))
        free += times_W
    bounds = np.zeros(words, np.float32)
    if len(scores):
        bounds = np.maximum.reduceat(scores, starts[:-1])
    return Postings(scores, places, starts, bounds, count)


class _Counts(NamedTuple):
    words: Ints
    places: Ints
    times: Ints


def _counts(word_ids: Ints, lengths: Ints) -> Iterator[_Counts]:
    """How often each word stands in each passage, some passages at a time."""
    ends = np.cumsum(lengths, dtype=np.int64)
    first = 0
    while first < len(lengths):
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + CHUNK, side="right")))
        places = np.repeat(np.arange(first, last, dtype=np.int64), lengths[first:last])
        pairs = word_ids[before : int(ends[last - 1])].astype(np.int64) << 32 | places
        pairs.sort()
        is_first = np.ones(len(pairs), bool)
        is_first[1:] = pairs[1:] != pairs[:-1]
        at = np.flatnonzero(is_first)
        pairs, times = pairs[at], np.diff(at, append=len(pairs))
        yield _Counts(
            (pairs >> 32).astype(np.int32),
            (pairs & 0xFFFFFFFF).astype(np.int32),
            times.astype(np.int32),
        )
        first = last


# --- bm25s' files

_SCORES, _PLACES, _STARTS = "data.csc.index.npy", "indices.csc.index.npy", "indptr.csc.index.npy"
_WORDS, _SETTINGS, _BOUNDS = "vocab.index.json", "params.index.json", "bounds.npy"


def write_postings(folder: Path, postings: Postings, vocabulary: Mapping[str, int]) -> None:
    """Write the files of a bm25s index, and the highest score of each word."""
    np.save(folder / _SCORES, postings.scores)
    np.save(folder / _PLACES, postings.places)
    np.save(folder / _STARTS, postings.starts)
    np.save(folder / _BOUNDS, postings.bounds)
    (folder / _WORDS).write_bytes(msgspec.json.encode(dict(vocabulary)))
    settings: dict[str, Any] = {"k1": K1, "b": B, "delta": 0.5, "method": "lucene"}
    settings |= {"idf_method": "lucene", "dtype": "float32", "int_dtype": "int32"}
    settings |= {"num_docs": postings.passages, "version": "0.3.16", "backend": "numpy"}
    (folder / _SETTINGS).write_bytes(msgspec.json.encode(settings))


def read_postings(folder: Path) -> tuple[Postings, dict[str, int]]:
    def mapped(name: str) -> NDArray[Any]:
        # A plain array over the map: slices of np.memmap cost several times as much.
        return np.asarray(np.load(folder / name, mmap_mode="r", allow_pickle=False))

    settings = msgspec.json.decode((folder / _SETTINGS).read_bytes())
    vocabulary = msgspec.json.decode((folder / _WORDS).read_bytes(), type=dict[str, int])
    postings = Postings(
        mapped(_SCORES),
        mapped(_PLACES),
        np.load(folder / _STARTS, allow_pickle=False),
        np.load(folder / _BOUNDS, allow_pickle=False),
        int(settings["num_docs"]),
    )
    return postings, vocabulary


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
        write_file(folder / _DONE, msgspec.json.encode(_Done(done)))
    write_file(folder / _DONE, msgspec.json.encode(_Done(done, file_digest(folder / _VECTORS))))
    report("encoding", count, count)


def rows_done(folder: Path) -> int:
    """How many vectors are written; none where they are not as they were written."""
    try:
        done = msgspec.json.decode((folder / _DONE).read_bytes(), type=_Done)
        is_whole = not done.sha256 or done.sha256 == file_digest(folder / _VECTORS)
    except (OSError, msgspec.MsgspecError, UserError):
        return 0
    return done.rows if is_whole else 0


class _Done(msgspec.Struct):
    rows: int
    sha256: str = ""
    """Once all vectors are there."""


class Vectors:
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


@public
def reciprocal_rank_fusion(
    rankings: Sequence[Sequence[K]], constant: NonNegative = CONSTANT
) -> list[tuple[K, float]]:
    """Join rankings: each gives 1 / (constant + rank) to what it holds, the first rank being 1.

    Equal sums stand in the order of their keys, so keys must be comparable.

    >>> [key for key, _ in reciprocal_rank_fusion([["a", "b"], ["b", "c"]])]
    ['b', 'a', 'c']
    """
    sums: dict[K, float] = {}
    for keys in rankings:
        if len(set(keys)) != len(keys):
            raise ArgumentError("rankings: an item stands twice in one ranking, expected once")
        for rank, key in enumerate(keys, start=1):
            sums[key] = sums.get(key, 0.0) + 1 / (constant + rank)
    return sorted(sums.items(), key=lambda item: (-item[1], item[0]))
