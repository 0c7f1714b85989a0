"""A corpus as token ids on disk: written once, then read by position without holding it.

A split is one stream: a boundary token before each document, and one at the end. Whole documents are
held out, by a hash of their first `HASHED` characters, so equal documents fall on the same side and
more data moves nothing. Files are in burnish's cache folder under a name made of the corpus's
contents, the tokenizer and the share held out; what is damaged (each file has its SHA-256), or of a
function whose first texts are others by now, is written again.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

import msgspec
import numpy as np
import tokenizers
from msgspec import Struct
from numpy.typing import NDArray

from burnish.activity import advance, waiting_for
from burnish.errors import StoreError, UserError, first_line
from burnish.lm.embedded import make_once, scratch_folder
from burnish.lm.tokenizer import Tokenizer
from burnish.seeds import digest
from burnish.store.blobs import cache_folder
from burnish.tasks.base import is_held_out
from burnish.tasks.corpus import Corpus, Report

logger = logging.getLogger(__name__)

LAYOUT = 3
HASHED = 1 << 16
"""Characters of a document that decide whether it is held out."""
CHECKED = 1 << 16
"""Bytes of a function's first texts that are compared with the cache."""
BATCH = 1 << 20
"""Bytes that are encoded at one time."""
END_OF_TEXT = "<|endoftext|>"
READING = "tokenising the text"
COUNTS, FREQUENCIES = "counts.json", "frequencies.npy"

Ids = NDArray[np.integer]
Side = Literal["train", "held_out"]


class SideCount(Struct, frozen=True):
    tokens: int = 0
    """Boundaries included."""
    documents: int = 0
    bytes: int = 0
    sha256: str = ""


class Counts(Struct, frozen=True):
    train: SideCount
    held_out: SideCount
    boundary: int
    dtype: str
    frequencies_sha256: str
    separators: int
    fingerprint: str = ""
    """Of all of the above; the hashes in it are those of every id in its order."""


@dataclass(frozen=True)
class Stream:
    path: Path
    count: SideCount
    dtype: str

    @cached_property
    def ids(self) -> Ids:
        return np.memmap(self.path, dtype=self.dtype, mode="r", shape=(self.count.tokens,))

    def read(self, position: int, length: int) -> NDArray[np.int64]:
        """`length` ids from a place on, round the stream's end."""
        # The last boundary is the first one again.
        size = self.count.tokens - 1
        begin = position % size
        parts = [self.ids[begin : min(begin + length, size)]]
        got = len(parts[0])
        while got < length:
            parts.append(self.ids[: min(size, length - got)])
            got += len(parts[-1])
        return np.concatenate(parts).astype(np.int64)


@dataclass(frozen=True)
class Tokens:
    folder: Path
    counts: Counts
    note: str = ""

    @property
    def train(self) -> Stream:
        return Stream(self.folder / "train.bin", self.counts.train, self.counts.dtype)

    @property
    def held_out(self) -> Stream:
        return Stream(self.folder / "held_out.bin", self.counts.held_out, self.counts.dtype)

    @cached_property
    def frequencies(self) -> NDArray[np.int64]:
        """How often each id stands in the training stream, (V,)."""
        found: NDArray[np.int64] = np.load(self.folder / FREQUENCIES)
        return found

    @property
    def boundary(self) -> int:
        return self.counts.boundary

    @property
    def fingerprint(self) -> str:
        """Of all ids, trained on and held out, in their order."""
        return self.counts.fingerprint

    def line(self) -> str:
        t, h = self.counts.train, self.counts.held_out
        share = h.bytes / max(t.bytes + h.bytes, 1)
        return (
            f"{t.documents:,} documents, {t.tokens:,} tokens, {t.bytes:,} bytes; held out "
            f"{h.documents:,} documents, {h.bytes:,} bytes ({share:.0%}){self.note}"
        )


def open_tokens(corpus: Corpus, tokenizer: Tokenizer, *, held_out: float) -> Tokens:
    backend = plain_backend(tokenizer)
    boundary = boundary_id(tokenizer)
    name = digest(corpus.digest, backend.to_str(), f"{held_out}", f"{boundary}", f"{LAYOUT}")

    def build(folder: Path) -> None:
        with waiting_for(READING, "bytes", max(corpus.size, 1)):
            _write(folder, corpus, backend, boundary, held_out)

    place = cache_folder() / f"tokens-{name}"
    if place.is_dir():
        why = _damage(place)
        if not why and corpus.has_functions:
            if _begins_alike(place, corpus, backend, boundary, held_out):
                made = datetime.fromtimestamp((place / COUNTS).stat().st_mtime)
                note = (
                    f"; cached tokens of {made:%Y-%m-%d %H:%M} (only the first texts were compared)"
                )
                return Tokens(place, _counts(place), note)
            why = f"{corpus.name}: the first texts are others than those in the cache"
        if not why:
            return Tokens(place, _counts(place))
        logger.warning("%s; the text is tokenised again.", why)
        # Out of its place at once, so that nobody opens half of it.
        with scratch_folder(place) as scratch:
            try:
                place.rename(scratch / place.name)
            except OSError as error:
                raise StoreError(
                    f"{place}: cannot be removed ({error.strerror or error}); remove it by hand."
                ) from None
    folder = make_once(place.name, build)
    return Tokens(folder, _counts(folder))


def _fingerprint(counts: Counts) -> str:
    return digest(msgspec.json.encode(msgspec.structs.replace(counts, fingerprint="")))


def _counts(folder: Path) -> Counts:
    return msgspec.json.decode((folder / COUNTS).read_bytes(), type=Counts)


def _damage(folder: Path) -> str:
    """The file of a cache folder that is not what was written, and why; empty where all are."""
    file = COUNTS
    try:
        counts = _counts(folder)
        if counts.fingerprint != _fingerprint(counts):
            raise ValueError("it does not fit its fingerprint")
        tokens = Tokens(folder, counts)
        sums = {FREQUENCIES: counts.frequencies_sha256}
        for stream in (tokens.train, tokens.held_out):
            file = stream.path.name
            sums[file] = stream.count.sha256
            wanted = stream.count.tokens * np.dtype(stream.dtype).itemsize
            got = stream.path.stat().st_size
            if got != wanted:
                raise ValueError(f"{got:,} bytes, expected {wanted:,}")
        for file, wanted_sum in sums.items():
            if (found := _sha256(folder / file)) != wanted_sum:
                raise ValueError(f"SHA-256 {found[:16]}, expected {wanted_sum[:16]}")
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        return f"{folder / file}: the cached tokens are damaged ({first_line(error)})"
    return ""


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _begins_alike(
    folder: Path, corpus: Corpus, backend: tokenizers.Tokenizer, boundary: int, share: float
) -> bool:
    """Whether the first texts give the ids that the cache begins with."""
    tokens = Tokens(folder, _counts(folder))
    batch = next(_batches(corpus, share, CHECKED))
    for side, ids in _encoded(batch, _encoder(backend, boundary), boundary).items():
        stream = tokens.train if side == "train" else tokens.held_out
        if len(ids) >= stream.count.tokens or not np.array_equal(stream.ids[: len(ids)], ids):
            return False
    return True


def boundary_id(tokenizer: Tokenizer) -> int:
    """The token between documents: `<|endoftext|>`, else the one that ends a text."""
    found = tokenizer.backend.token_to_id(END_OF_TEXT)
    if found is not None:
        return int(found)
    if not tokenizer.eos_ids:
        raise UserError(
            "the tokenizer has no token that ends a text; expected <|endoftext|> in its vocabulary "
            "or an eos_token in tokenizer_config.json."
        )
    return tokenizer.eos_ids[0]


def plain_backend(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """A copy that reads no special token and no boundary in a text, and puts none around it."""
    table = json.loads(tokenizer.backend.to_str())
    boundary = boundary_id(tokenizer)
    for token in table.get("added_tokens") or ():
        # An added token that is not special would be read in texts.
        token["special"] |= token["id"] == boundary
    backend = tokenizers.Tokenizer.from_str(json.dumps(table))
    backend.encode_special_tokens = True
    backend.no_truncation()
    backend.no_padding()
    return backend


def token_bytes(tokenizer: Tokenizer) -> NDArray[np.int64] | None:
    """How many bytes of text each id stands for, (V,); 0 for special tokens.

    None where the tokens are no bytes, as with SentencePiece.
    """
    backend = tokenizer.backend
    if "ByteLevel" not in str(json.loads(backend.to_str()).get("decoder")):
        return None
    added = backend.get_added_tokens_decoder()
    special = {i for i, token in added.items() if token.special}
    vocabulary = backend.get_vocab(with_added_tokens=True)
    found = np.zeros(max(vocabulary.values()) + 1, dtype=np.int64)
    for text, index in vocabulary.items():
        # A byte-level token has one character for each byte; an added one is plain text.
        size = len(text.encode()) if index in added else len(text)
        found[index] = 0 if index in special else size
    return found


def _write(
    folder: Path, corpus: Corpus, backend: tokenizers.Tokenizer, boundary: int, share: float
) -> None:
    encode = _encoder(backend, boundary)
    vocabulary = int(max(backend.get_vocab(with_added_tokens=True).values())) + 1
    dtype = "uint16" if vocabulary <= 1 << 16 else "uint32"
    sides: dict[Side, _SideWriter] = {
        "train": _SideWriter(folder / "train.bin", dtype),
        "held_out": _SideWriter(folder / "held_out.bin", dtype),
    }
    frequencies = np.zeros(vocabulary, dtype=np.int64)
    separators = 0

    def on_separators(count: int) -> None:
        nonlocal separators
        separators += count

    try:
        for batch in _batches(corpus, share, BATCH, on_separators):
            for side, ids in _encoded(batch, encode, boundary).items():
                own = [piece for piece in batch if piece.side == side]
                sizes, begun = sum(len(p.text) for p in own), sum(p.begins for p in own)
                sides[side].add(ids, sizes, begun)
                if side == "train":
                    frequencies += np.bincount(ids, minlength=vocabulary)
        for writer in sides.values():
            if writer.documents:
                writer.add(np.array([boundary]), 0, 0)
    finally:
        for writer in sides.values():
            writer.file.close()
    if not sides["train"].documents:
        held = sides["held_out"].documents
        more = f"; all {held} documents are held out, lower train.held_out" if held else ""
        raise UserError(f"{corpus.name}: no text to train on{more}.")
    np.save(folder / FREQUENCIES, frequencies)
    counts = Counts(
        sides["train"].count,
        sides["held_out"].count,
        boundary,
        dtype,
        frequencies_sha256=_sha256(folder / FREQUENCIES),
        separators=separators,
    )
    counts = msgspec.structs.replace(counts, fingerprint=_fingerprint(counts))
    (folder / COUNTS).write_bytes(msgspec.json.encode(counts))


class _SideWriter:
    def __init__(self, path: Path, dtype: str) -> None:
        self.file: BinaryIO = path.open("wb")
        self.dtype = dtype
        self.tokens = self.documents = self.bytes = 0
        self._hash = hashlib.sha256()

    def add(self, ids: Ids, size: int, documents: int) -> None:
        data = ids.astype(self.dtype).tobytes()
        self.file.write(data)
        self._hash.update(data)
        self.tokens += len(ids)
        self.bytes += size
        self.documents += documents

    @property
    def count(self) -> SideCount:
        return SideCount(self.tokens, self.documents, self.bytes, self._hash.hexdigest())


class _SidePiece(NamedTuple):
    side: Side
    text: bytes
    begins: bool
    """A document begins with it."""


def _batches(
    corpus: Corpus, share: float, most: int, on_separators: Report = lambda count: None
) -> Iterator[list[_SidePiece]]:
    """Pieces of all documents and the side of each, about `most` bytes at a time."""
    held: list[_SidePiece] = []
    size, begins = 0, True
    side: Side = "train"
    for piece in corpus.pieces(lambda count: advance(READING, count), on_separators):
        if begins:
            key = digest(piece.text.strip()[:HASHED])
            side = "held_out" if is_held_out(key, share) else "train"
        held.append(_SidePiece(side, piece.text.encode(), begins))
        size += len(held[-1].text)
        begins = piece.ends
        if size >= most:
            yield held
            held, size = [], 0
    yield held


Encode = Callable[[list[bytes]], list[Ids]]


def _encoded(batch: list[_SidePiece], encode: Encode, boundary: int) -> dict[Side, Ids]:
    """The ids of each side, a boundary before each document."""
    found: dict[Side, list[Ids]] = {}
    for piece, ids in zip(batch, encode([piece.text for piece in batch]), strict=True):
        row = found.setdefault(piece.side, [])
        row += [np.array([boundary]), ids] if piece.begins else [ids]
    return {side: np.concatenate(rows) for side, rows in found.items()}


def _encoder(backend: tokenizers.Tokenizer, boundary: int) -> Encode:
    """Texts to ids, never the boundary's; one token a byte is a table, all else the library's work."""
    model = json.loads(backend.to_str())
    is_bytes = model["model"].get("merges") == [] and model.get("normalizer") is None
    splitter = model.get("pre_tokenizer") or {}
    if is_bytes and splitter.get("type") == "ByteLevel" and not splitter.get("add_prefix_space"):
        table_256 = np.array([backend.token_to_id(c) for c in _symbols()], dtype=object)
        if all(index is not None for index in table_256):
            ids_256 = table_256.astype(np.int64)
            return lambda texts: [ids_256[np.frombuffer(text, dtype=np.uint8)] for text in texts]

    def encode(texts: list[bytes]) -> list[Ids]:
        words = [text.decode() for text in texts]
        found = backend.encode_batch_fast(words, add_special_tokens=False)
        rows: list[Ids] = [np.array(one.ids, dtype=np.int64) for one in found]
        for text, row, one in zip(words, rows, found, strict=True):
            if (row == boundary).any():
                begin, end = one.offsets[int((row == boundary).argmax())]
                raise UserError(
                    f"the tokenizer reads {text[begin:end]!r:.40} of a text as {backend.id_to_token(boundary)!r}, "
                    "the token between documents; expected one that no text gives. Take that out of "
                    "the texts, or add <|endoftext|> to the tokenizer."
                )
        return rows

    return encode


def _symbols() -> list[str]:
    """The character that byte-level tokenizers write for each byte from 0 to 255."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]
