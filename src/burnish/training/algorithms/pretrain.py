"""Pre-training: the next token of packed text, from random or given weights.

    train = { kind = "pretrain", data = "books/", sequence = 512, batch = 32 }
    model = { path = "new", new = { layers = 6, width = 256 } }

Documents are laid end to end as token ids on disk (`training/token_cache.py`), a boundary token
before each, and cut into sequences of a fixed length without padding. In a sequence documents do
not see each other and positions begin anew with each. Every epoch shuffles the sequences and shifts
where they are cut. A step's batch follows from the seed and the step alone, so a resumed run reads
on at the same place. The loss is the mean over all tokens of the step.

Bits per byte are of the text's bytes, so that tokenizers can be compared; beside them stands what
the frequencies of single tokens would reach (a unigram model of the training text).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from burnish.errors import UserError
from burnish.lm.base import Sampling
from burnish.lm.head import chunk_tokens, token_logprobs
from burnish.lm.model_input import ModelInput, Segments
from burnish.lm.plain_head import plain_head
from burnish.records import Author, Message, Reward, Span, Task, Trajectory
from burnish.seeds import derive
from burnish.store import StoredSample
from burnish.tasks.corpus import Corpus
from burnish.training.algorithm import (
    Algorithm,
    HeldOutScores,
    Loss,
    Preparation,
    Setup,
    StepReport,
    StepResult,
)
from burnish.training.compiled import compile_layers
from burnish.training.events import Event, Prepared
from burnish.training.forecast import Keys, Workload
from burnish.training.forward import through_logits
from burnish.training.guards import check_rows
from burnish.training.packing import to_device
from burnish.training.token_cache import Stream, Tokens, open_tokens, token_bytes

if TYPE_CHECKING:
    from burnish.config.schema import Config, PretrainTrain
    from burnish.training.data import Data

LN2 = math.log(2.0)
SHOWN, GIVEN, WRITTEN = 4, 32, 64
"""Held-out sequences that are continued, the tokens given of each and those written, at most."""
MEANING = "bits per byte of the held-out sequence, negative: higher is better"
Integers = NDArray[np.int64]


class Sequences(NamedTuple):
    """The rows of a step, on the host."""

    ids_RS1: Integers
    """One more token than the model reads: column s + 1 is the target of column s."""
    names: Sequence[str]

    @property
    def targets(self) -> Integers:
        return self.ids_RS1[:, 1:]


class TextMicro(NamedTuple):
    """A micro-batch on the device."""

    inputs: ModelInput
    target_RS: Tensor
    names: Sequence[str]
    total: int
    """Tokens of the whole update."""


class PretrainAlgorithm(Algorithm[Sequences, TextMicro]):
    """`train = { kind = "pretrain" }`: raises the likelihood of text."""

    samples_answers = False

    def __init__(self, setup: Setup, settings: PretrainTrain) -> None:
        super().__init__(setup, settings)
        self.settings = settings
        self.loaded = setup.trainable.loaded
        self.corpus = corpus_of(settings, setup.data.root)
        self._check_model()
        if settings.compile:
            compile_layers(self.loaded.module)

    @classmethod
    def check(cls, config: Config, settings: PretrainTrain, data: Data) -> None:
        corpus = corpus_of(settings, data.root)
        if next(corpus.pieces(), None) is None:
            raise UserError(f"{corpus.name}: no text in it; expected at least one document.")
        corpus.check()
        data.digests.append(corpus.digest)

    def _check_model(self) -> None:
        tokenizer, module = self.loaded.tokenizer, self.loaded.module
        highest = max(tokenizer.backend.get_vocab(with_added_tokens=True).values())
        rows = module.head_weight.shape[0]
        if highest >= rows:
            raise UserError(
                f"model '{self.loaded.name}': its tokenizer has ids up to {highest} and its "
                f"vocabulary {rows} rows; expected a row for every id. Use the tokenizer that the "
                "model was made with."
            )
        if self.settings.separate and not getattr(module, "packs", True):
            raise UserError(
                f"model '{self.loaded.name}' carries a state that no mask hides, so documents in one "
                "sequence would see each other; set train.separate=false to let them."
            )
        longest = module.longest_row(self.settings.sequence)
        if self.settings.sequence > longest:
            raise UserError(
                f"train.sequence: got {self.settings.sequence}, and the model reads {longest} "
                "tokens; expected no more. Lower it, or raise model.new.context."
            )

    # --- the text

    def prepare(self) -> Iterator[Preparation]:
        yield Preparation("tokenising the text", self._prepare)

    def _prepare(self) -> Event:
        tokens, length = self.tokens, self.settings.sequence
        if tokens.train.count.tokens <= length:
            raise UserError(
                f"{self.corpus.name}: {tokens.train.count.tokens - 1:,} tokens to train on; expected "
                f"at least one sequence of {length:,}. Add text, or lower train.sequence."
            )
        epochs = self.setup.steps * self.settings.batch / windows(tokens.train, length)
        note = "" if tokens.counts.held_out.documents else "; nothing is held out"
        if note and self.settings.held_out and tokens.counts.train.documents == 1:
            note += ": all of it is one document (train.separator cuts it into several)"
        return Prepared(
            "text",
            f"{self.corpus.name}: {tokens.line()}{note}; this run reads {epochs:.3g} epochs",
        )

    @cached_property
    def tokens(self) -> Tokens:
        """The corpus as ids on disk; with several processes one writes it."""
        world = self.setup.world
        if not world.is_main:
            world.wait()
        share = self.settings.held_out
        found = open_tokens(self.corpus, self.loaded.tokenizer, held_out=share)
        if world.is_main:
            world.wait()
        return found

    @cached_property
    def _bytes_V(self) -> NDArray[np.float64]:
        """Bytes of text that each id stands for; their mean where the tokenizer does not tell."""
        size = len(self.tokens.frequencies)
        exact = token_bytes(self.loaded.tokenizer)
        if exact is not None:
            return np.pad(exact, (0, size - len(exact))).astype(np.float64)
        count = self.tokens.counts.train
        mean = np.full(size, count.bytes / max(count.tokens - count.documents - 1, 1))
        mean[self.tokens.boundary] = 0.0
        return mean

    @cached_property
    def _unigram_V(self) -> NDArray[np.float64]:
        """Bits of each id by its frequency in the training text, one added to every count."""
        counts = self.tokens.frequencies + 1.0
        return np.asarray(np.log2(counts.sum()) - np.log2(counts))

    # --- a step

    def batch(self, step: int) -> Sequences:
        rows, length = self.settings.batch, self.settings.sequence
        stream, seed = self.tokens.train, self.setup.seeds.for_("text")
        places = [
            window_start(stream, length, step * rows + row, seed, is_shuffled=True)
            for row in range(rows)
        ]
        ids = np.stack([stream.read(place, length + 1) for place in places])
        return Sequences(ids, [f"text at token {place}" for place in places])

    def micro_batches(self, batch: Sequences, tokens: int) -> Iterator[TextMicro]:
        mine = self.setup.world.share(range(len(batch.names)))
        return self._cut(batch, mine, tokens)

    def _cut(self, batch: Sequences, mine: Sequence[int], tokens: int) -> Iterator[TextMicro]:
        size = max(1, min(tokens, self._kept_tokens) // batch.targets.shape[1])
        for begin in range(0, len(mine), size):
            rows = list(mine[begin : begin + size])
            ids_RS1 = to_device(torch.from_numpy(batch.ids_RS1[rows]), self.setup.batches.device)
            yield TextMicro(
                self._inputs(batch.ids_RS1[rows, :-1], ids_RS1[:, :-1]),
                ids_RS1[:, 1:],
                [batch.names[row] for row in rows],
                batch.targets.size,
            )

    @cached_property
    def _kept_tokens(self) -> int:
        """Tokens of a pass whose logits are kept for the backward pass; beyond it they are computed
        twice, which costs more than another pass."""
        head_VD = self.loaded.module.head_weight
        return chunk_tokens(head_VD.shape[0], head_VD.dtype, head_VD.device)

    def _inputs(self, host_RS: Integers, ids_RS: Tensor) -> ModelInput:
        """What the model reads, documents apart where that is asked for."""
        rows, length = host_RS.shape
        device = ids_RS.device
        if not self.settings.separate:
            positions_RS = torch.arange(length, device=device).expand(rows, length)
            return ModelInput(ids_RS, positions_RS)
        starts_RS = document_starts(host_RS, self.tokens.boundary)
        positions = torch.from_numpy(np.arange(length) - starts_RS)
        positions_RS = to_device(positions, device)
        if not starts_RS.any():
            return ModelInput(ids_RS, positions_RS)
        if Segments.can_run(self.setup.trainable.module, device):
            return ModelInput(ids_RS, positions_RS, Segments.of(starts_RS, device))
        column_S = torch.arange(length, device=device)
        starts = to_device(torch.from_numpy(starts_RS), device)
        mask_RSS = (column_S >= starts[:, :, None]) & (column_S <= column_S[:, None])
        return ModelInput(ids_RS, positions_RS, mask_RSS)

    def loss(self, model: Any, micro: TextMicro) -> Loss:
        logp_RS = self._logprobs(model, micro)
        nll = -logp_RS.sum(dtype=torch.float64 if logp_RS.dtype == torch.float64 else None)
        return Loss(
            nll / micro.total,
            micro.names,
            rows={"logprobs": logp_RS.detach()},
            sums={"nll": nll.detach()},
        )

    def _logprobs(self, model: Any, micro: TextMicro) -> Tensor:
        """Log-prob of every target, (R, S)."""
        hidden_ND = model(micro.inputs).flatten(0, 1)
        target_N = micro.target_RS.flatten()
        weight_VD = plain_head(model)
        if weight_VD is None:
            logp_N, _ = through_logits(model, hidden_ND, target_N, 1.0, False)
        else:
            logp_N, _ = token_logprobs(hidden_ND, weight_VD, None, target_N, 1.0)
        return logp_N.view(micro.target_RS.shape)

    def workload(self) -> Workload:
        keys = Keys("train.batch", "", "train.sequence", "")
        settings = self.settings
        return Workload(settings.batch, 1, 0, settings.sequence, is_sampled=False, keys=keys)

    def finish(self, step: int, batch: Sequences, result: StepResult) -> StepReport:
        targets = batch.targets
        size = float(self._bytes_V[targets].sum())
        found = {
            "length/tokens": float(targets.size),
            "text/epoch": (step + 1)
            * self.settings.batch
            / windows(self.tokens.train, self.settings.sequence),
        }
        if size:
            found["text/bits_per_byte"] = float(result.sums["nll"]) / LN2 / size
            found["text/unigram_bits_per_byte"] = float(self._unigram_V[targets].sum()) / size
        return StepReport(found)

    # --- held-out text

    def evaluate(self, step: int) -> HeldOutScores | None:
        """Bits per byte of held-out sequences.

        The mark of a sequence is its bits over the mean bytes of a sequence, so that the mean of
        the marks is all bits over all bytes.
        """
        stream = self.tokens.held_out
        if not stream.count.documents:
            return None
        length = min(self.settings.sequence, stream.count.tokens - 1)
        count = windows(stream, length)
        chosen = min(count, self.setup.config.evaluation.prompts)
        # Spread evenly, so that a smaller number is a fair sample of a sorted corpus.
        places = [window * count // chosen * length for window in range(chosen)]
        ids = np.stack([stream.read(place, length + 1) for place in places])
        batch = Sequences(ids, [f"held-out text at token {place}" for place in places])
        size = float(self._bytes_V[batch.targets].sum())
        if not size:
            return None
        bits_R = self._nll(batch, step) / LN2
        unigram = float(self._unigram_V[batch.targets].sum()) / size
        marks = [bits * chosen / size for bits in bits_R.tolist()]
        beside = f"single tokens by their frequency: {unigram:.3f}"
        samples = self._continuations(step, batch, marks)
        return HeldOutScores(marks, "bits_per_byte", samples, beside)

    def _continuations(
        self, step: int, batch: Sequences, marks: Sequence[float]
    ) -> list[StoredSample]:
        """What the model writes behind the beginnings of a few held-out sequences, to be looked at.

        The reward is the sequence's bits per byte, negative: higher is better.
        """
        if not self.setup.world.is_main or self.settings.compile:
            return []  # layers compiled for training would be compiled again for every length
        tokenizer = self.loaded.tokenizer
        given = min(GIVEN, batch.targets.shape[1] // 2)
        places = range(min(SHOWN, len(marks))) if given else ()
        sampling = Sampling(temperature=0.0, max_tokens=WRITTEN)
        lm = self.setup.local
        prompts = [[int(id_) for id_ in batch.ids_RS1[place, :given]] for place in places]
        written = lm.sample_batch([lm.request(prompt, sampling) for prompt in prompts])
        found = []
        for place, prompt, (one,) in zip(places, prompts, written, strict=True):
            text = tokenizer.decode(prompt)
            name = f"eval.{step}.{place}"
            spans = (
                Span(Author.PROMPT, tuple(prompt)),
                Span(Author.MODEL, one.token_ids, one.logprobs, trainable=True),
            )
            task = Task(batch.names[place], (Message("user", text),))
            played = Trajectory(
                name,
                task.id,
                name,
                spans,
                one.text,
                finish=one.finish,
                weight_version=self.setup.weight_version,
            )
            reward = Reward("bits_per_byte", -marks[place], reason=MEANING)
            found.append(
                StoredSample(
                    step=step,
                    split="eval:held_out",
                    index=place,
                    task=task,
                    trajectory=played,
                    reward=reward,
                    keep=False,
                )
            )
        return found

    @torch.no_grad()
    def _nll(self, batch: Sequences, step: int) -> Tensor:
        """Nats of every row, (R,), over all processes."""
        batches, model = self.setup.batches, self.setup.trainable.module
        mine = batches.world.share(range(len(batch.names)))

        def work() -> dict[int, Tensor]:
            sums = [
                -self._logprobs(model, micro).double().sum(1)
                for micro in self._cut(batch, mine, batches.tokens)
            ]
            return dict(zip(mine, torch.cat(sums).cpu(), strict=True)) if sums else {}

        merged = batches.world.merge(batches.within_memory(work))
        nll_R = torch.stack([merged[i] for i in range(len(batch.names))])
        check_rows("logprob", "held-out logprobs", nll_R, list(batch.names), step)
        return nll_R


ALGORITHM = PretrainAlgorithm


def corpus_of(settings: PretrainTrain, root: Path = Path()) -> Corpus:
    """Where the settings say that text comes from."""
    return Corpus(settings.sources, settings.column, settings.separator, root)


# --- sequences of a stream


def windows(stream: Stream, length: int) -> int:
    """Sequences of one epoch; what is left over is another part of the stream in each."""
    return (stream.count.tokens - 1) // length


def window_start(
    stream: Stream, length: int, index: int, seed: int, *, is_shuffled: bool = True
) -> int:
    """Where sequence `index` of an endless walk through the stream begins."""
    count = windows(stream, length)
    epoch, place = divmod(index, count)
    if not is_shuffled:
        return place * length
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


def document_starts(ids_RS: Integers, boundary: int) -> Integers:
    """The column at which each token's document begins in its row."""
    columns_S = np.arange(ids_RS.shape[1])
    return np.maximum.accumulate(np.where(ids_RS == boundary, columns_S, 0), axis=1)
