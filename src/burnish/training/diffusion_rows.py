"""Where the rows of masked diffusion come from: tasks with demonstrations or texts, or a corpus.

    rows = open_rows(setup, settings, module)
    rows.train(step), rows.held_out(64)             # TokenRow: ids, what may be masked, documents
    rows.bits(step_rows, nats)                      # of a corpus: bits per byte

Rows of a corpus are those of pre-training (`training/packed_text.py`), one token on: a document is
its tokens and the boundary behind it, which is so learned as the end of a text.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from burnish.config.schema import DiffusionTrain
from burnish.errors import UserError
from burnish.lm.decoder import Decoder
from burnish.lm.diffusion.masked_rows import TokenRow, answer_row
from burnish.models.masked_diffusion import syntax_eligible
from burnish.records import Message, Task
from burnish.training.algorithm import Preparation, Setup
from burnish.training.diffusion_settings import canvas_of
from burnish.training.experts import open_experts, text_of
from burnish.training.packed_text import (
    PackedText,
    Sequences,
    corpus_of,
    ended_document_starts,
)
from burnish.training.token_cache import READING

logger = logging.getLogger(__name__)

TEXTS = 4096
"""Texts whose tokens are remembered."""
LOOKED_AT = 16
"""Rows whose lengths are measured."""


class Bits(NamedTuple):
    """What a byte of some rows costs."""

    per_byte: float
    unigram: float
    """By the frequencies of single tokens in the training text."""
    size: float
    """Bytes of the rows."""


class Rows(ABC):
    """The rows of a run."""

    text: PackedText | None = None
    """The corpus that they are cut of, if any."""

    def __init__(self, setup: Setup, settings: DiffusionTrain, module: Decoder) -> None:
        self.setup, self.settings, self.module = setup, settings, module
        self.tokenizer = setup.trainable.loaded.tokenizer
        self.longest = module.max_positions
        mask = module.architecture.mask_id
        assert mask is not None
        self.mask = mask
        if settings.on == "text" and settings.sequence > self.longest:
            self._refuse("sequence", settings.sequence)

    def _refuse(self, key: str, size: int) -> None:
        raise UserError(
            f"train.{key} is {size}; the model reads {self.longest} tokens. Lower train.{key}"
        )

    @abstractmethod
    def train(self, step: int) -> list[TokenRow]:
        """What a step trains on."""

    @abstractmethod
    def probe(self, count: int) -> list[TokenRow]:
        """Rows to measure on: the same at every step."""

    @abstractmethod
    def held_out(self, most: int) -> list[TokenRow]:
        """Rows that are never trained on."""

    @abstractmethod
    def longest_row(self) -> tuple[int, int]:
        """Tokens of the longest prompt and of the longest answer, of some rows."""

    def prepare(self) -> Iterator[Preparation]:
        """Work before the first step."""
        return iter(())

    def bits(self, rows: Sequence[TokenRow], nats: float) -> Bits | None:
        """A loss over all tokens of some rows as bits a byte; None where bytes are not known."""
        return None

    def epochs(self, steps: int) -> float | None:
        """How often so many steps read everything; None where there is no end."""
        return None

    def checked(self, row: TokenRow, what: str, remedy: str) -> TokenRow:
        """Refuse a row in which the mask token would have to be predicted."""
        if row.has_target(self.mask):
            raise UserError(
                f"{what} has the mask token {self.mask} of the model, which is never predicted; "
                f"expected a text without it. {remedy}, or convert the model with another mask_token"
            )
        return row


def open_rows(setup: Setup, settings: DiffusionTrain, module: Decoder) -> Rows:
    """A corpus where the settings name one, else the run's tasks."""
    kind = CorpusRows if settings.sources else TaskRows
    return kind(setup, settings, module)


# --- a corpus


class CorpusRows(Rows):
    """Packed rows of text."""

    text: PackedText

    def __init__(self, setup: Setup, settings: DiffusionTrain, module: Decoder) -> None:
        super().__init__(setup, settings, module)
        self.text = PackedText(
            corpus_of(settings, setup.data.root),
            self.tokenizer,
            held_out=settings.held_out_share,
            length=settings.sequence,
            world=setup.world,
            seed=setup.seeds.for_("text"),
        )

    def prepare(self) -> Iterator[Preparation]:
        steps, rows = self.setup.steps, self.settings.batch
        yield Preparation(READING, lambda: self.text.prepare(steps, rows))

    def train(self, step: int) -> list[TokenRow]:
        return self._rows(self.text.batch(step, self.settings.batch))

    def probe(self, count: int) -> list[TokenRow]:
        return self._rows(self.text.batch(0, count))

    def held_out(self, most: int) -> list[TokenRow]:
        found = self.text.held_out(most)
        return [] if found is None else self._rows(found)

    def longest_row(self) -> tuple[int, int]:
        return 0, self.settings.sequence

    def _rows(self, found: Sequences) -> list[TokenRow]:
        ids_RS = found.targets
        starts_RS = ended_document_starts(ids_RS, self.text.tokens.boundary)
        every = np.ones(ids_RS.shape[1], bool)
        rows = [
            TokenRow(name, tuple(ids), every, own if self.settings.separate else None)
            for name, ids, own in zip(found.names, ids_RS.tolist(), starts_RS, strict=True)
        ]
        return [
            self.checked(row, f"{self.text.corpus.name}, {row.id}: it", "Take it out of the text")
            for row in rows
        ]

    def bits(self, rows: Sequence[TokenRow], nats: float) -> Bits | None:
        ids = np.concatenate([np.array(row.ids) for row in rows])
        size = self.text.bytes_of(ids)
        if not size:
            return None
        return Bits(nats / math.log(2) / size, self.text.unigram_bits(ids) / size, size)

    def epochs(self, steps: int) -> float | None:
        return self.text.epochs(steps * self.settings.batch)


# --- tasks


class TaskRows(Rows):
    """Answers behind their prompts, or the texts of tasks."""

    def __init__(self, setup: Setup, settings: DiffusionTrain, module: Decoder) -> None:
        super().__init__(setup, settings, module)
        self.experts = open_experts(
            setup.config, setup.data, self.tokenizer, setup.seeds, settings.by
        )
        self.canvas = canvas_of(settings)
        self._text_ids = lru_cache(TEXTS)(self.tokenizer.encode_data)
        if self.canvas > self.longest:
            self._refuse("canvas", self.canvas)
        if settings.on == "answers":
            self._leave_out_long()

    def train(self, step: int) -> list[TokenRow]:
        tasks = self.experts.draw(step, self.settings.batch)
        seeds = self.setup.seeds
        return [self.row(task, i, seeds.for_("window", step, i)) for i, task in enumerate(tasks)]

    def probe(self, count: int) -> list[TokenRow]:
        return [self.row(task, i) for i, task in enumerate(self.experts.draw(0, count))]

    def held_out(self, most: int) -> list[TokenRow]:
        tasks = self.experts.tasks.held_out(most)
        known = [task for task in tasks if self.experts.has_answers(task) and self._fits(task)]
        return [self.plain_row(task, i) for i, task in enumerate(known)]

    def longest_row(self) -> tuple[int, int]:
        shown = self.probe(LOOKED_AT)
        return max(row.prompt for row in shown), max(row.count for row in shown)

    def row(self, task: Task, draw: int, seed: int = 0) -> TokenRow:
        """What is learned of one task; with `syntax`, some of its prompt too."""
        found = self.plain_row(task, draw, seed)
        return self._with_syntax(found, (seed, draw)) if self.settings.syntax else found

    def plain_row(self, task: Task, draw: int, seed: int = 0) -> TokenRow:
        """The answer of a task behind its prompt, or a window of its text."""
        if self.settings.on == "answers":
            found = answer_row(
                self.experts.as_trajectory(task, draw),
                canvas=self.canvas,
                end=next(iter(self.experts.end), None),
                mask=self.mask,
                longest=self.longest,
            )
        else:
            text = text_of(task.fields[self.experts.field])
            ids = [*self._text_ids(text), *self.experts.end]
            size = self.settings.sequence
            start = seed % -(-len(ids) // size) * size
            own = tuple(ids[start : start + size])
            found = TokenRow(f"{task.id}.text{draw}", own, np.ones(len(own), bool))
        return self.checked(
            found, f"task {task.id}: its '{self.experts.field}'", "Leave the task out"
        )

    def _leave_out_long(self) -> None:
        """Leave out demonstrations that the model cannot read."""
        # Stages of a run with this model look through the same tasks.
        strata, key = self.setup.data.strata, f"{self.settings.by} within {self.longest}"
        if key in strata:
            self.experts.strata = strata[key]
        elif left_out := self.experts.keep(self._fits):
            logger.warning(
                "experts: %d demonstrations have more than %d tokens with their prompts, which is what "
                "the model reads; they are left out.",
                left_out,
                self.longest,
            )
        strata[key] = self.experts.strata

    def _fits(self, task: Task) -> bool:
        """Whether a demonstration with its prompt is no longer than the model reads."""
        if self.settings.on == "text":
            return True
        texts = [text_of(task.fields[self.experts.field]), *(m.text for m in task.messages)]
        # A token is at least a byte, so that most are known to fit without being encoded.
        if sum(len(text.encode()) for text in texts) + self._frame * len(texts) <= self.longest:
            return True
        return len(self.experts.as_trajectory(task, 0).token_ids) <= self.longest

    @cached_property
    def _frame(self) -> int:
        """Tokens that the template writes around a message, and all that it writes once."""
        try:
            return len(self.tokenizer.render([Message("user", "")])) + 1
        except UserError:  # a template for other messages: nothing is known without encoding
            return self.longest

    def _with_syntax(self, row: TokenRow, seed: tuple[int, int]) -> TokenRow:
        """Syntax tokens of the prompt, and a share of its others, may be masked too (SyRM)."""
        texts = [self.tokenizer.backend.id_to_token(token) or "" for token in row.ids[: row.prompt]]
        marks = row.eligible.copy()
        marks[: row.prompt] |= np.array(syntax_eligible(texts, self.settings.syntax), dtype=bool)
        if self.settings.syntax_rest:
            drawn = np.random.default_rng(seed).random(row.prompt)
            marks[: row.prompt] |= drawn < self.settings.syntax_rest
        return replace(row, eligible=marks)
