"""A search index on disk: built once from a file or folder, rebuilt when that changes.


An index folder holds one generation, named by a digest of the source and the settings: the passages
(JSON lines with offsets), the files of a bm25s index, and vectors once a dense search asked for
them. All are read through memory maps, so a million passages open in seconds. Nothing is pickled.
"""

from __future__ import annotations

import mmap
import os
import re
import shutil
import time
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from msgspec import Struct

from burnish.arguments import as_path, as_whole, as_word
from burnish.errors import StoreError, UserError
from burnish.lm.embedded import SentenceEncoder
from burnish.seeds import digest
from burnish.store.blobs import cache_folder
from burnish.store.durable import WriterLock, remove_drafts, whole_folder, write_file
from burnish.tools.search.bm25 import (
    Found,
    Vectors,
    build_postings,
    read_postings,
    reciprocal_rank_fusion,
    rows_done,
    write_postings,
    write_vectors,
)
from burnish.tools.search.passages import (
    K1,
    B,
    Passage,
    indexed_text,
    query_words,
    tokens,
)
from burnish.tools.search.sources import (
    Report,
    Source,
    file_digest,
    no_report,
    read_passages,
    source_files,
)

How = Literal["bm25", "dense", "hybrid"]
HOWS = ("bm25", "dense", "hybrid")
DEPTH = 100
"""Passages of each kind of search that a hybrid one joins, at least."""
_LAYOUT = 2
"""Counts changes of what is written here."""
_SETTLED_S = 2.0
"""A file that was changed this shortly before it was read may change again within one clock tick."""
_PASSAGES, _OFFSETS, _SEEN = "passages.jsonl", "offsets.npy", "source.json"
_SUMS = "checksums.json"
"""SHA-256 of the other files of a generation, its vectors aside."""
_GENERATION = re.compile("g-[0-9a-f]{16}")


class Hit(NamedTuple):
    """A found passage and its score: BM25, cosine, or the sum of reciprocal ranks."""

    passage: Passage
    score: float


class SearchIndex:
    """An index folder that was built by `open_index` or `write_index`; a `Retriever`."""

    def __init__(
        self,
        folder: Path | str,
        *,
        how: How = "bm25",
        encoder: SentenceEncoder | None = None,
        report: Report = no_report,
    ) -> None:
        """`how` is the usual way of searching; vectors that it needs and lacks are made here."""
        self.folder, self.how = as_path("folder", folder, "an index folder"), how
        self._encoder = encoder
        try:
            sums = msgspec.json.decode((self.folder / _SUMS).read_bytes(), type=dict[str, str])
            for name, known in sums.items():  # places in files are read without a look
                if Path(name).name != name or file_digest(self.folder / name) != known:
                    raise ValueError(f"{name} is damaged")
            self._offsets = np.load(self.folder / _OFFSETS, allow_pickle=False)
            self.postings, self.vocabulary = read_postings(self.folder)
            with (self.folder / _PASSAGES).open("rb") as file:
                self._lines = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError, KeyError, msgspec.MsgspecError, UserError) as error:
            raise StoreError(f"{self.folder}: no search index ({error}); remove it") from error
        if how != "bm25":
            self._make_vectors(report)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, place: int) -> Passage:
        """The passage at a place, counted from 0."""
        begin, end = self._offsets[place], self._offsets[place + 1]
        return msgspec.json.decode(self._lines[begin:end], type=Passage)

    def search(self, query: str, limit: int = 5) -> list[Passage]:
        """The best passages, best first; none where no word of the query is known."""
        return [hit.passage for hit in self.find(query, limit)]

    def find(self, query: str, limit: int = 5, how: How | None = None) -> list[Hit]:
        """The best passages with their scores; equal scores in the order of the source."""
        found = self.places(query, limit, how)
        return [
            Hit(self[place], score)
            for place, score in zip(found.places.tolist(), found.scores.tolist(), strict=True)
        ]

    def places(self, query: str, limit: int = 5, how: How | None = None) -> Found:
        """Places of the best passages and their scores."""
        chosen = how or self.how
        words, limit = query_words(query), max(0, as_whole("limit", limit))
        if chosen == "bm25":
            return self._by_words(words, limit)
        if not words or not limit:
            return self._by_words([], 0)
        if chosen == "dense":
            return self._by_vectors(query, limit)
        depth = max(limit, DEPTH)
        rankings = [
            self._by_words(words, depth).places.tolist(),
            self._by_vectors(query, depth).places.tolist(),
        ]
        joined = reciprocal_rank_fusion(rankings)[:limit]
        places, scores = [place for place, _ in joined], [score for _, score in joined]
        return Found(np.array(places, np.int32), np.array(scores, np.float32))

    def _by_words(self, words: list[str], limit: int) -> Found:
        known = [self.vocabulary[word] for word in words if word in self.vocabulary]
        return self.postings.best(known, limit)

    def _by_vectors(self, query: str, limit: int) -> Found:
        return self._vectors.best(self.encoder.encode([query])[0], limit)

    @cached_property
    def _vectors(self) -> Vectors:
        self._make_vectors(no_report)
        return Vectors(self.folder / f"vectors-{self.encoder.fingerprint}")

    @cached_property
    def encoder(self) -> SentenceEncoder:
        return self._encoder or SentenceEncoder()

    def _make_vectors(self, report: Report) -> None:
        def texts(first: int) -> Iterator[str]:
            return (indexed_text(self[place]) for place in range(first, len(self)))

        folder = self.folder / f"vectors-{self.encoder.fingerprint}"
        if rows_done(folder) < len(self):
            with _locked(self.folder.parent):
                write_vectors(folder, texts, len(self), self.encoder.encode, report)


def open_index(
    source: str | Path | Source,
    *,
    folder: str | Path | None = None,
    how: How = "bm25",
    encoder: SentenceEncoder | None = None,
    report: Report = no_report,
) -> SearchIndex:
    """Open the index of a file or folder, building it first where it is missing or out of date.

    Without `folder` it is kept in burnish's cache folder. `report(what, done, total)` is called
    while something long goes on.
    """
    given = source if isinstance(source, Source) else Source(str(as_path("source", source)))
    given = msgspec.structs.replace(given, path=str(Path(given.path).expanduser().resolve()))
    if as_word("how", how, HOWS) != "bm25":
        encoder = encoder or SentenceEncoder()  # refused here where it is not installed
    usual = cache_folder() / "search" / digest(msgspec.json.encode(given))
    root = usual if folder is None else Path(folder)
    if root.exists() and not root.is_dir():
        raise UserError(f"{root} is a file; expected a folder for the index.")
    root.mkdir(parents=True, exist_ok=True)
    with _locked(root):
        remove_drafts(root)
        place = root / f"g-{_digest_of(given, root)}"
        if not place.is_dir():
            write_index(read_passages(given, report), place, report=report)
            for old in root.iterdir():
                if old != place and _is_generation(old):
                    shutil.rmtree(old, ignore_errors=True)
    return SearchIndex(place, how=how, encoder=encoder, report=report)


def write_index(
    passages: Iterable[Passage], folder: str | Path, *, report: Report = no_report
) -> Path:
    """Write passages and their BM25 index to a new folder; `SearchIndex(folder)` opens it."""
    place = as_path("folder", folder)
    if place.exists():
        raise UserError(f"{place}: there is something already; expected a new folder.")
    place.parent.mkdir(parents=True, exist_ok=True)
    with whole_folder(place, "a search index") as draft:
        vocabulary: defaultdict[str, int] = defaultdict()
        vocabulary.default_factory = vocabulary.__len__
        word_ids, lengths, offsets = array("i"), array("i"), array("q", [0])
        encode = msgspec.json.Encoder().encode
        with (draft / _PASSAGES).open("wb", buffering=1 << 20) as file:
            for passage in passages:
                offsets.append(offsets[-1] + file.write(encode(passage) + b"\n"))
                words = tokens.plain(indexed_text(passage))
                lengths.append(len(words))
                word_ids.extend(map(vocabulary.__getitem__, words))
        if not lengths:
            raise UserError(f"{place}: no text to search in; expected at least one passage.")
        report("indexing", 0, len(lengths))
        postings = build_postings(
            np.frombuffer(word_ids, np.int32) if word_ids else np.zeros(0, np.int32),
            np.frombuffer(lengths, np.int32),
            words=len(vocabulary),
        )
        write_postings(draft, postings, vocabulary)
        np.save(draft / _OFFSETS, np.frombuffer(offsets, np.int64))
        sums = {file.name: file_digest(file) for file in sorted(draft.iterdir())}
        (draft / _SUMS).write_bytes(msgspec.json.encode(sums))
        report("indexing", len(lengths), len(lengths))
    return place


# --- which generation belongs to a source


class _Seen(Struct):
    """A file as it was when it was last hashed."""

    size: int
    changed: tuple[int, int]
    sha256: str
    at: float


def _digest_of(source: Source, root: Path) -> str:
    """Changes with the settings, and with the name and contents of every file.

    A file whose size and times are those of the last time is not read again, unless it had been
    changed just before.
    """
    notes = root / _SEEN
    try:
        known = msgspec.json.decode(notes.read_bytes(), type=dict[str, _Seen])
    except (FileNotFoundError, msgspec.MsgspecError):
        known = {}
    seen: dict[str, _Seen] = {}
    for file in source_files(source):
        facts = file.path.stat()
        changed = (facts.st_mtime_ns, facts.st_ctime_ns)
        old = known.get(file.name)
        is_same = old and old.size == facts.st_size and old.changed == changed
        if old and is_same and old.at - max(changed) / 1e9 > _SETTLED_S:
            seen[file.name] = old
            continue
        at = time.time()
        seen[file.name] = _Seen(facts.st_size, changed, file_digest(file.path), at)
    if seen != known:
        write_file(notes, msgspec.json.encode(seen))
    parts = [part for name, one in sorted(seen.items()) for part in (name, one.sha256)]
    settings = msgspec.to_builtins(source) | {"layout": _LAYOUT, "k1": K1, "b": B}
    del settings["path"]
    return digest(msgspec.json.encode(settings, order="deterministic"), *parts)


def _is_generation(path: Path) -> bool:
    """Whether this is an index that we wrote: our name, and our files in it."""
    is_named = _GENERATION.fullmatch(path.name) is not None
    return is_named and not path.is_symlink() and (path / _OFFSETS).is_file()


@contextmanager
def _locked(root: Path, wait_s: float = 24 * 3600.0) -> Iterator[None]:
    """One process builds at a time; the others wait for it."""
    busy = f"{root}: the index is being built by {{holder}}"
    until = time.monotonic() + wait_s
    while True:
        try:
            lock = WriterLock(root / "lock", busy)
            break
        except StoreError:
            if time.monotonic() > until or not os.access(root, os.W_OK):
                raise
            time.sleep(0.5)
    try:
        yield
    finally:
        lock.release()
