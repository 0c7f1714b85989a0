"""The text of a pre-training: a corpus as packed sequences, whatever is learned of them.

Documents are laid end to end as token ids on disk (`training/token_cache.py`), a boundary token
before each, and cut into sequences of a fixed length without padding. Every epoch shuffles the
sequences and shifts where they are cut. What a step reads follows from the seed and the step alone.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from burnish.errors import UserError
from burnish.seeds import derive
from burnish.tasks.corpus import Corpus
from burnish.training.events import Prepared
from burnish.training.token_cache import Stream, Tokens, open_tokens, token_bytes

if TYPE_CHECKING:
    from burnish.config.schema import DiffusionTrain, PretrainTrain
    from burnish.training.algorithm import Setup
    from burnish.training.data import Data

logger = logging.getLogger(__name__)

Integers = NDArray[np.int64]


class Sequences(NamedTuple):
    ids_RS1: Integers
    """One more token than a sequence has: column s + 1 is the target of column s."""
    names: Sequence[str]

    @property
    def targets(self) -> Integers:
        return self.ids_RS1[:, 1:]


def corpus_of(settings: PretrainTrain | DiffusionTrain, root: Path = Path()) -> Corpus:
    return Corpus(settings.sources, settings.column, settings.separator, root)


def check_corpus(settings: PretrainTrain | DiffusionTrain, data: Data) -> None:
    """Refuse a corpus without text; its contents count for the run's fingerprint."""
    corpus = corpus_of(settings, data.root)
    if next(corpus.pieces(), None) is None:
        raise UserError(f"{corpus.name}: no text in it; expected at least one document.")
    corpus.check()
    data.digests.append(corpus.digest)


class PackedText:
    def __init__(self, setup: Setup, settings: PretrainTrain | DiffusionTrain) -> None:
        self.corpus = corpus_of(settings, setup.data.root)
        self.tokenizer = setup.trainable.loaded.tokenizer
        self.share, self.length = settings.held_out_share, settings.sequence
        self.world, self.seed = setup.world, setup.seeds.for_("text")

    @cached_property
    def tokens(self) -> Tokens:
        return self.world.in_turn(
            lambda: open_tokens(self.corpus, self.tokenizer, held_out=self.share)
        )

    def prepare(self, steps: int, rows: int) -> Prepared:
        """Tokenise it and say what it is; refuses less than one sequence."""
        tokens, length = self.tokens, self.length
        if tokens.train.count.tokens <= length:
            raise UserError(
                f"{self.corpus.name}: {tokens.train.count.tokens - 1:,} tokens to train on; expected "
                f"at least one sequence of {length:,}. Add text, or lower train.sequence."
            )
        note = "" if tokens.counts.held_out.documents else "; nothing is held out"
        separator = self.corpus.separator
        if note and self.share and tokens.counts.train.documents == 1 and not separator:
            note += ": all of it is one document (train.separator cuts it into several)"
        if separator and not tokens.counts.separators and self.world.is_main:
            logger.warning("%s", self.corpus.unused_separator("in none of its texts"))
        reads = f"this run reads {self.epochs(steps * rows):.3g} epochs"
        return Prepared("text", f"{self.corpus.name}: {tokens.line()}{note}; {reads}")

    def check_same(self, fingerprint: str) -> None:
        """Refuse to go on with another text than the one a checkpoint was trained on."""
        if fingerprint and fingerprint != self.tokens.fingerprint:
            raise UserError(
                f"{self.corpus.name}: its texts are others than those that this run was started on. "
                "Give it those again, or start a new run: other --runs, or another run.seed."
            )

    def epochs(self, sequences: int) -> float:
        return sequences / windows(self.tokens.train, self.length)

    def batch(self, step: int, rows: int) -> Sequences:
        stream = self.tokens.train
        places = [
            window_start(stream, self.length, step * rows + row, self.seed) for row in range(rows)
        ]
        ids = np.stack([stream.read(place, self.length + 1) for place in places])
        return Sequences(ids, [f"text at token {place}" for place in places])

    def held_out(self, most: int) -> Sequences | None:
        """Held-out sequences, spread evenly so that few are a fair sample of a sorted corpus."""
        stream = self.tokens.held_out
        if not stream.count.documents:
            return None
        length = min(self.length, stream.count.tokens - 1)
        places = [window * length for window in spread_evenly(windows(stream, length), most)]
        ids = np.stack([stream.read(place, length + 1) for place in places])
        return Sequences(ids, [f"held-out text at token {place}" for place in places])

    def bytes_of(self, ids: Integers) -> float:
        return float(self._bytes_V[ids].sum())

    def unigram_bits(self, ids: Integers) -> float:
        """Bits of these ids by their frequencies in the training text, one added to every count."""
        return float(self._unigram_V[ids].sum())

    @cached_property
    def _bytes_V(self) -> NDArray[np.float64]:
        """Bytes of text that each id stands for; their mean where the tokenizer does not tell."""
        size = len(self.tokens.frequencies)
        exact, count = token_bytes(self.tokenizer), self.tokens.counts.train
        if exact is not None:
            bytes_V = np.pad(exact, (0, size - len(exact))).astype(np.float64)
            written = float(self.tokens.frequencies @ bytes_V)
            # A normaliser or a space before each text writes other bytes than were read.
            return bytes_V * (count.bytes / written) if written else bytes_V
        mean = np.full(size, count.bytes / max(count.tokens - count.documents - 1, 1))
        mean[self.tokens.boundary] = 0.0
        return mean

    @cached_property
    def _unigram_V(self) -> NDArray[np.float64]:
        counts = self.tokens.frequencies + 1.0
        return np.asarray(np.log2(counts.sum()) - np.log2(counts))


def windows(stream: Stream, length: int) -> int:
    """Sequences of one epoch; what is left over is another part of the stream in each."""
    return (stream.count.tokens - 1) // length


def window_start(stream: Stream, length: int, index: int, seed: int) -> int:
    """Where sequence `index` of an endless walk through the stream begins."""
    count = windows(stream, length)
    epoch, place = divmod(index, count)
    shift = derive(seed, "cut", epoch) % (stream.count.tokens - 1)
    return shift + shuffled(place, count, derive(seed, "epoch", epoch)) * length


def shuffled(place: int, count: int, seed: int) -> int:
    """Where a permutation of `range(count)`, fixed by the seed, puts a place; nothing is held.

    A Feistel network of four rounds over the next even power of two, walked until it is in range.
    """
    half = max(1, (max(count - 1, 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    keys = [derive(seed, "round", number) for number in range(4)]
    while True:
        left, right = place >> half, place & mask
        for key in keys:
            mixed = (right * 0x9E3779B97F4A7C15 + key) & 0xFFFFFFFFFFFFFFFF
            mixed = ((mixed ^ (mixed >> 32)) * 0xD6E8FEB86659FD93) & 0xFFFFFFFFFFFFFFFF
            left, right = right, left ^ ((mixed >> 29) & mask)
        place = (left << half) | right
        if place < count:
            return place


def spread_evenly(count: int, most: int) -> list[int]:
    """Places of `most` of `count` things: a fair sample where these are sorted.

    >>> spread_evenly(3, 8), spread_evenly(16, 8)
    ([0, 1, 2], [0, 2, 4, 6, 8, 10, 12, 14])
    """
    chosen = min(count, most)
    return [place * count // chosen for place in range(chosen)]


def document_starts(ids_RS: Integers, boundary: int) -> Integers:
    """The column at which each token's document begins in its row; a boundary begins one."""
    return _starts(ids_RS == boundary)


def ended_document_starts(ids_RS: Integers, boundary: int) -> Integers:
    """The same where a boundary is the end of the document before it."""
    begins_RS = np.zeros(ids_RS.shape, dtype=bool)
    begins_RS[:, 1:] = ids_RS[:, :-1] == boundary
    return _starts(begins_RS)


def _starts(begins_RS: NDArray[np.bool_]) -> Integers:
    columns_S = np.arange(begins_RS.shape[1])
    return np.maximum.accumulate(np.where(begins_RS, columns_S, 0), axis=1)
