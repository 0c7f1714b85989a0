"""Pre-training: the next token of packed text, from random or given weights.

How documents become sequences is `training/packed_text.py`. In a sequence documents do not see each
other and positions restart with each. Bits per byte are of the text's bytes, so that tokenizers can be
compared; beside them stands what the frequencies of single tokens would reach.
"""

from __future__ import annotations

import importlib
import logging
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from burnish.errors import UserError
from burnish.lm.base import Sampling
from burnish.lm.decoder import plain_head
from burnish.lm.head import chunk_tokens, token_logprobs
from burnish.lm.model_input import ModelInput, Segments
from burnish.records import Author, Message, Reward, Span, Task, Trajectory
from burnish.store import StoredSample
from burnish.training.algorithm import (
    HELD_OUT,
    Algorithm,
    AlgorithmState,
    HeldOutScores,
    Loss,
    Preparation,
    Setup,
    StepReport,
    StepResult,
    stored,
)
from burnish.training.forecast import Workload, given_rows
from burnish.training.guards import check_rows
from burnish.training.packed_text import (
    Integers,
    PackedText,
    Sequences,
    check_corpus,
    document_starts,
)
from burnish.training.packing import through_logits, to_device
from burnish.training.token_cache import READING

if TYPE_CHECKING:
    from burnish.config.schema import Config, PretrainTrain
    from burnish.training.data import Data

logger = logging.getLogger(__name__)

LN2 = math.log(2.0)
SHOWN, GIVEN, WRITTEN = 4, 32, 64
"""Held-out sequences that are continued, the tokens given of each and those written, at most."""
MEANING = "bits per byte of the held-out sequence, negative: higher is better"


class TextMicro(NamedTuple):
    inputs: ModelInput
    target_RS: Tensor
    names: Sequence[str]
    total: int


class PretrainAlgorithm(Algorithm[Sequences, TextMicro]):
    shares_model = True
    samples_answers = False

    def __init__(self, setup: Setup, settings: PretrainTrain) -> None:
        super().__init__(setup, settings)
        self.settings = settings
        self.loaded = setup.trainable.loaded
        self.text = PackedText(setup, settings)
        for misfit in self._misfits():
            raise UserError(misfit)
        # Tokens of a pass whose logits are kept for the backward pass; beyond it they are computed
        # twice, which costs more than another pass.
        head_VD = self.loaded.module.head_weight
        self._kept_tokens = chunk_tokens(head_VD.shape[0], head_VD.dtype, head_VD.device)
        if settings.compile:
            compile_layers(self.loaded.module)

    @classmethod
    def check(cls, config: Config, settings: PretrainTrain, data: Data) -> None:
        check_corpus(settings, data)

    def state(self) -> AlgorithmState:
        return AlgorithmState({"text": self.text.tokens.fingerprint})

    def restore(self, state: AlgorithmState) -> None:
        self.text.check_same(state.values.get("text", ""))

    def _misfits(self) -> Iterator[str]:
        """Why this model cannot learn these sequences."""
        name, module, settings = self.loaded.name, self.loaded.module, self.settings
        vocabulary = self.loaded.tokenizer.backend.get_vocab(with_added_tokens=True)
        highest, rows = max(vocabulary.values()), module.head_weight.shape[0]
        if highest >= rows:
            yield (
                f"model '{name}': its tokenizer has ids up to {highest} and its vocabulary {rows} rows; "
                "expected a row for every id. Use the tokenizer that it was made with."
            )
        if settings.separate and not getattr(module, "packs", True):
            yield (
                f"model '{name}' carries a state that no mask hides, so documents in one sequence "
                "would see each other; set train.separate=false to let them."
            )
        longest = module.longest_row(settings.sequence)
        if settings.sequence > longest:
            yield (
                f"train.sequence: got {settings.sequence}, and the model reads {longest} tokens; "
                "expected no more. Lower it, or raise model.new.context."
            )

    def prepare(self) -> Iterator[Preparation]:
        steps, rows = self.setup.steps, self.settings.batch
        yield Preparation(READING, lambda: self.text.prepare(steps, rows))

    def batch(self, step: int) -> Sequences:
        return self.text.batch(step, self.settings.batch)

    def micro_batches(self, batch: Sequences, tokens: int) -> Iterator[TextMicro]:
        mine = self.setup.world.share(range(len(batch.names)))
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

    def _inputs(self, host_RS: Integers, ids_RS: Tensor) -> ModelInput:
        length, device = host_RS.shape[1], ids_RS.device
        starts_RS = np.zeros_like(host_RS)
        if self.settings.separate:
            starts_RS = document_starts(host_RS, self.text.tokens.boundary)
        positions_RS = to_device(torch.from_numpy(np.arange(length) - starts_RS), device)
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
        hidden_ND = model(micro.inputs).flatten(0, 1)
        target_N = micro.target_RS.flatten()
        weight_VD = plain_head(model)
        if weight_VD is None:
            logp_N, _ = through_logits(model, hidden_ND, target_N, 1.0, False)
        else:
            logp_N, _ = token_logprobs(hidden_ND, weight_VD, None, target_N, 1.0)
        return logp_N.view(micro.target_RS.shape)

    def workload(self) -> Workload:
        return given_rows(self.settings.batch, self.settings.sequence, length="train.sequence")

    def finish(self, step: int, batch: Sequences, result: StepResult) -> StepReport:
        targets = batch.targets
        size = self.text.bytes_of(targets)
        found = {
            "length/tokens": float(targets.size),
            "text/epoch": self.text.epochs((step + 1) * self.settings.batch),
        }
        if size:
            found["text/bits_per_byte"] = float(result.sums["nll"]) / LN2 / size
            found["text/unigram_bits_per_byte"] = self.text.unigram_bits(targets) / size
        return StepReport(found)

    def evaluate(self, step: int) -> HeldOutScores | None:
        """Bits per byte of held-out sequences.

        The mark of a sequence is its bits over the mean bytes of a sequence, so that the mean of
        the marks is all bits over all bytes.
        """
        batch = self.text.held_out(self.setup.config.evaluation.prompts)
        size = 0.0 if batch is None else self.text.bytes_of(batch.targets)
        if batch is None or not size:
            return None
        bits_R = self._nll(batch, step) / LN2
        unigram = self.text.unigram_bits(batch.targets) / size
        marks = [bits * len(bits_R) / size for bits in bits_R.tolist()]
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
        decode, lm = self.loaded.tokenizer.decode, self.setup.local
        given = min(GIVEN, batch.targets.shape[1] // 2)
        places = range(min(SHOWN, len(marks))) if given else ()
        sampling = Sampling(temperature=0.0, max_tokens=WRITTEN)
        prompts = [[int(id_) for id_ in batch.ids_RS1[place, :given]] for place in places]
        written = lm.sample_batch([lm.request(prompt, sampling) for prompt in prompts])
        rows = []
        for place, prompt, (one,) in zip(places, prompts, written, strict=True):
            name, task = (
                f"eval.{step}.{place}",
                Task(batch.names[place], (Message("user", decode(prompt)),)),
            )
            answer = Span(Author.MODEL, one.token_ids, one.logprobs, trainable=True)
            played = Trajectory(
                name,
                task.id,
                name,
                (Span(Author.PROMPT, tuple(prompt)), answer),
                one.text,
                finish=one.finish,
                weight_version=self.setup.weight_version,
            )
            rows.append((task, played, Reward("bits_per_byte", -marks[place], reason=MEANING)))
        return stored(step, HELD_OUT, rows)

    @torch.no_grad()
    def _nll(self, batch: Sequences, step: int) -> Tensor:
        batches, model = self.setup.batches, self.setup.trainable.module
        mine = batches.world.share(range(len(batch.names)))

        def work() -> dict[int, Tensor]:
            sums = [
                -self._logprobs(model, micro).double().sum(1)
                for micro in self.micro_batches(batch, batches.tokens)
            ]
            return dict(zip(mine, torch.cat(sums).cpu(), strict=True)) if sums else {}

        nll_R = batches.world.stacked(batches.within_memory(work), len(batch.names))
        check_rows("logprob", "held-out logprobs", nll_R, list(batch.names), step)
        return nll_R


ALGORITHM = PretrainAlgorithm


def compile_layers(module: Any) -> bool:
    """Compile every layer of the built-in decoder in place; False where they stay as they are.

    What is saved, and the names of parameters, do not change.
    """
    layers = getattr(getattr(module, "model", None), "layers", None)
    if layers is None or not hasattr(module, "architecture"):
        logger.warning("train.compile: this model is not the built-in decoder; it runs as it is.")
        return False
    try:
        from torch._dynamo import config

        importlib.import_module("torch._inductor.compile_fx")
    except ImportError as error:
        logger.warning("train.compile: no compiler here (%s); the model runs as it is.", error)
        return False
    # A layer that cannot be compiled runs as it is, instead of ending the run.
    config.suppress_errors = True
    # Layers share their code and differ in their numbers: each is compiled, with and without gradients.
    config.recompile_limit = max(config.recompile_limit, 4 * len(layers))
    for layer in layers:
        layer.compile(dynamic=False)
    return True
