"""A corpus as token ids on disk: written once, then read by position without holding it.

    tokens = open_tokens(corpus, tokenizer, held_out=0.05)
    tokens.train.read(position, 1024)       # ids from any place; the stream goes round
    tokens.held_out, tokens.line()

A split is one stream: a boundary token before each document, and one at the end. The same token so
begins and ends texts, and every token of a document is predicted from what stands before it. Whole
documents are held out, by a hash of their first `PIECE` characters, so equal documents fall on the
same side and more data moves nothing. Files are in burnish's cache folder under a name made of the
corpus's contents, the tokenizer and the share held out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

import msgspec
import numpy as np
import tokenizers
from msgspec import Struct
from numpy.typing import NDArray

from burnish.activity import advance, waiting_for
from burnish.errors import StoreError, UserError
from burnish.lm.embedded import make_once
from burnish.lm.tokenizer import Tokenizer
from burnish.seeds import digest
from burnish.tasks.base import is_held_out
from burnish.tasks.corpus import Corpus

LAYOUT = 1
"""Counts changes of what is written."""
BATCH = 1 << 20
"""Bytes that are encoded at one time."""
END_OF_TEXT = "<|endoftext|>"
READING = "tokenising the text"

Ids = NDArray[np.integer]
Side = Literal["train", "held_out"]


class SideCount(Struct, frozen=True):
    """Size of one split."""

    tokens: int = 0
    """Boundaries included."""
    documents: int = 0
    bytes: int = 0
    """Of the text in UTF-8."""


class Counts(Struct, frozen=True):
    """`counts.json`."""

    train: SideCount
    held_out: SideCount
    boundary: int
    dtype: str


@dataclass(frozen=True)
class Stream:
    """The ids of one split."""

    path: Path
    count: SideCount
    dtype: str

    @cached_property
    def ids(self) -> Ids:
        """All of them, mapped from the file."""
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
    """A tokenised corpus."""

    folder: Path
    counts: Counts

    @property
    def train(self) -> Stream:
        return Stream(self.folder / "train.bin", self.counts.train, self.counts.dtype)

    @property
    def held_out(self) -> Stream:
        return Stream(self.folder / "held_out.bin", self.counts.held_out, self.counts.dtype)

    @property
    def boundary(self) -> int:
        """The id that begins and ends documents."""
        return self.counts.boundary

    @cached_property
    def frequencies(self) -> NDArray[np.int64]:
        """How often each id stands in the training stream, (V,)."""
        found: NDArray[np.int64] = np.load(self.folder / "frequencies.npy")
        return found

    def line(self) -> str:
        """For people."""
        t, h = self.counts.train, self.counts.held_out
        return (
            f"{t.documents:,} documents, {t.tokens:,} tokens, {t.bytes:,} bytes; held out "
            f"{h.documents:,} documents, {h.bytes:,} bytes"
        )


def open_tokens(corpus: Corpus, tokenizer: Tokenizer, *, held_out: float) -> Tokens:
    """The tokens of a corpus, from the cache or written now."""
    backend = plain_backend(tokenizer)
    name = digest(corpus.digest, backend.to_str(), f"{held_out}", f"{LAYOUT}")
    boundary = boundary_id(tokenizer)

    def build(folder: Path) -> None:
        with waiting_for(READING, "bytes", max(corpus.size, 1)):
            _write(folder, corpus, backend, boundary, held_out)

    folder = make_once(f"tokens-{name}", build)
    try:
        counts = msgspec.json.decode((folder / "counts.json").read_bytes(), type=Counts)
        tokens = Tokens(folder, counts)
        for stream in (tokens.train, tokens.held_out):
            wanted = stream.count.tokens * np.dtype(stream.dtype).itemsize
            if stream.path.stat().st_size != wanted:
                raise ValueError(f"{stream.path.name} has not {wanted:,} bytes")
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise StoreError(
            f"{folder}: the cached tokens are damaged ({error}); remove the folder, and the next "
            "start writes it again."
        ) from error
    return tokens


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
    """A copy that reads no special token in a text, and puts none around it."""
    backend = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
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
    special = {i for i, t in backend.get_added_tokens_decoder().items() if t.special}
    vocabulary = backend.get_vocab(with_added_tokens=True)
    found = np.zeros(max(vocabulary.values()) + 1, dtype=np.int64)
    for text, index in vocabulary.items():
        # A byte-level token has one character for each byte.
        found[index] = 0 if index in special else len(text)
    return found


# --- writing


def _write(
    folder: Path, corpus: Corpus, backend: tokenizers.Tokenizer, boundary: int, share: float
) -> None:
    encode = _encoder(backend)
    vocabulary = max(backend.get_vocab(with_added_tokens=True).values()) + 1
    dtype = "uint16" if vocabulary <= 1 << 16 else "uint32"
    sides: dict[Side, _SideWriter] = {
        "train": _SideWriter(folder / "train.bin", dtype),
        "held_out": _SideWriter(folder / "held_out.bin", dtype),
    }
    frequencies = np.zeros(vocabulary, dtype=np.int64)
    try:
        for batch in _batches(corpus, share):
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
    np.save(folder / "frequencies.npy", frequencies)
    counts = Counts(sides["train"].count, sides["held_out"].count, boundary, dtype)
    (folder / "counts.json").write_bytes(msgspec.json.encode(counts))


class _SideWriter:
    def __init__(self, path: Path, dtype: str) -> None:
        self.file: BinaryIO = path.open("wb")
        self.dtype = dtype
        self.tokens = self.documents = self.bytes = 0

    def add(self, ids: Ids, size: int, documents: int) -> None:
        self.file.write(ids.astype(self.dtype).tobytes())
        self.tokens += len(ids)
        self.bytes += size
        self.documents += documents

    @property
    def count(self) -> SideCount:
        return SideCount(self.tokens, self.documents, self.bytes)


class _SidePiece(NamedTuple):
    side: Side
    text: bytes
    begins: bool
    """A document begins with it."""


def _batches(corpus: Corpus, share: float) -> Iterator[list[_SidePiece]]:
    """Pieces of all documents and the side of each, about `BATCH` bytes at a time."""
    held: list[_SidePiece] = []
    size, begins = 0, True
    side: Side = "train"
    for piece in corpus.pieces(lambda count: advance(READING, count)):
        if begins:
            side = "held_out" if is_held_out(digest(piece.text), share) else "train"
        held.append(_SidePiece(side, piece.text.encode(), begins))
        size += len(held[-1].text)
        begins = piece.ends
        if size >= BATCH:
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


def _encoder(backend: tokenizers.Tokenizer) -> Encode:
    """Texts to ids; one token a byte is a table, everything else the library's own work."""
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
        return [np.array(one.ids, dtype=np.int64) for one in found]

    return encode


def _symbols() -> list[str]:
    """The character that byte-level tokenizers write for each byte from 0 to 255."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]
