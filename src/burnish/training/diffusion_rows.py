"""Rows of masked diffusion: the settings of their noise, where they come from, and their losses.

Rows of a corpus are those of pre-training (`training/packed_text.py`), one token on: a document is its
tokens and the boundary behind it, which is so learned as the end of a text. What a row gets follows
from its own field of uniform numbers; all rows are masked at once.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from burnish.config.schema import DiffusionTrain
from burnish.errors import UserError
from burnish.lm.decoder import Decoder
from burnish.lm.diffusion.masked_rows import (
    TokenRow,
    Unit,
    answer_row,
    unit_losses,
    unit_of,
    unit_passes,
)
from burnish.lm.diffusion.sampler import Decoding, parse_decoding
from burnish.lm.tokenizer import Tokenizer
from burnish.models.masked_diffusion import syntax_eligible
from burnish.models.masked_diffusion.samplers import (
    Noise,
    Noised,
    Probe,
    build_noise,
    evaluation_uniforms,
    probe_table,
)
from burnish.records import Message, Task
from burnish.training.algorithm import Setup
from burnish.training.data import open_experts, text_of
from burnish.training.packed_text import PackedText, Sequences, ended_document_starts
from burnish.training.update import MicroBatcher

FITTED = (
    "mix_uniform",
    "probe_at",
    "refit_every",
    "probe_rows",
    "probe_rates",
    "probe_masks",
    "moment",
    "loss_max",
    "max_weight",
)
"""Keys that rates 'p_pots' alone reads."""

OF_TEXT = ("column", "separator", "held_out_share", "separate")
"""Keys that text of files alone reads."""


def setting_faults(settings: DiffusionTrain) -> Iterator[str]:
    """Keys that would be ignored in silence, and those that contradict each other."""
    is_text = settings.on == "text"
    rules = (
        (settings.rates == "clipped", ("low", "high"), "train.rates = 'clipped'"),
        (settings.rates == "p_pots", FITTED, "train.rates = 'p_pots'"),
        (bool(settings.delimiters), ("delta",), "train.delimiters"),
        (is_text, ("sequence", "data"), "train.on = 'text'"),
        (bool(settings.sources), OF_TEXT, "train.data"),
        (not settings.sources, ("by",), "a task set (no train.data)"),
        (bool(settings.syntax), ("syntax_rest",), "train.syntax"),
        (not is_text or settings.canvas == 0, ("canvas",), "train.on = 'answers'"),
        (not is_text, ("syntax",), "train.on = 'answers'"),
    )
    default = DiffusionTrain()
    for is_read, keys, reader in rules:
        for key in () if is_read else keys:
            value, usual = getattr(settings, key), getattr(default, key)
            if value != usual:
                yield (
                    f"train.{key} is {value!r}, which only {reader} reads; set that, or "
                    f"train.{key} = {usual!r}"
                )
    if settings.sources and settings.held_out == "rewards":
        yield (
            "train.held_out is 'rewards', and train.data is text without prompts; expected 'loss'. Rewards "
            "of a trained model: burnish eval"
        )
    yield from canvas_faults(settings.decoding, canvas_of(settings))


def canvas_of(settings: DiffusionTrain) -> int:
    return settings.canvas if settings.on == "answers" else 0


def canvas_faults(decoding: str, canvas: int) -> Iterator[str]:
    """A decoding on another canvas than the one that is trained with."""
    named = parse_decoding(decoding, Decoding(canvas=canvas)).canvas
    if named != canvas:
        yield (
            f"train.decoding has canvas={named}, and rows are trained with a canvas of {canvas}; "
            "expected the same. Leave it out of train.decoding"
        )


def noise_of(settings: DiffusionTrain, tokenizer: Tokenizer | None) -> Noise:
    """The samplers that the settings name; without a tokenizer, to check them."""
    options: dict[str, Any] = {}
    if settings.rates == "clipped":
        options = {"low": settings.low, "high": settings.high}
    if settings.rates == "p_pots":
        options = {
            "mix_uniform": settings.mix_uniform,
            "refit_every": settings.refit_every,
            "start": settings.probe_at,
            "moment": settings.moment,
            "loss_max": settings.loss_max or None,
            "max_weight": settings.max_weight,
        }
    ids: set[int] = set()
    for text in settings.delimiters:
        found = tokenizer.encode_data(text) if text and tokenizer is not None else []
        if not text or (tokenizer is not None and not found):
            raise UserError(
                f"train.delimiters has {text!r}, which has no token; expected texts such as '####'. Leave "
                "it out"
            )
        ids |= set(found)
    return build_noise(
        settings.rates,
        settings.masks,
        passes=settings.passes,
        strata=settings.strata,
        delimiters=sorted(ids),
        delta=settings.delta,
        eps=settings.eps,
        control="rescale" if settings.control == "rescale" else "none",
        options=options,
    )


logger = logging.getLogger(__name__)

TEXTS = 4096
LOOKED_AT = 16


class Bits(NamedTuple):
    per_byte: float
    unigram: float
    """By the frequencies of single tokens in the training text."""
    size: float


class Rows(ABC):
    text: PackedText | None = None
    """The corpus that they are cut of, if any."""

    def __init__(self, setup: Setup, settings: DiffusionTrain, module: Decoder) -> None:
        self.setup, self.settings, self.module = setup, settings, module
        self.tokenizer = setup.trainable.loaded.tokenizer
        self.longest, self.mask = module.max_positions, mask_of(module)
        self.canvas = canvas_of(settings)
        size = settings.sequence if settings.on == "text" else self.canvas
        if size > self.longest:
            key = "sequence" if settings.on == "text" else "canvas"
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

    def checked(self, row: TokenRow, what: str, remedy: str) -> TokenRow:
        """Refuse a row in which the mask token would have to be predicted."""
        if row.has_target(self.mask):
            raise UserError(
                f"{what} has the mask token {self.mask} of the model, which is never predicted; "
                f"expected a text without it. {remedy}, or convert the model with another mask_token"
            )
        return row


def mask_of(module: Decoder) -> int:
    """The mask token of a masked diffusion model."""
    found = module.architecture.mask_id
    assert found is not None
    return found


class CorpusRows(Rows):
    text: PackedText

    def __init__(self, setup: Setup, settings: DiffusionTrain, module: Decoder) -> None:
        super().__init__(setup, settings, module)
        self.text = PackedText(setup, settings)

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
        ids_RS, corpus = found.targets, self.text.corpus.name
        starts_RS = ended_document_starts(ids_RS, self.text.tokens.boundary)
        every = np.ones(ids_RS.shape[1], bool)
        rows = []
        for name, ids, own in zip(found.names, ids_RS.tolist(), starts_RS, strict=True):
            row = TokenRow(name, tuple(ids), every, own if self.settings.separate else None)
            rows.append(self.checked(row, f"{corpus}, {name}: it", "Take it out of the text"))
        return rows

    def bits(self, rows: Sequence[TokenRow], nats: float) -> Bits | None:
        """A loss over all tokens of some rows as bits a byte; None where bytes are not known."""
        ids = np.concatenate([np.array(row.ids) for row in rows])
        size = self.text.bytes_of(ids)
        if not size:
            return None
        return Bits(nats / math.log(2) / size, self.text.unigram_bits(ids) / size, size)


class TaskRows(Rows):
    def __init__(self, setup: Setup, settings: DiffusionTrain, module: Decoder) -> None:
        super().__init__(setup, settings, module)
        self.experts = open_experts(
            setup.config, setup.data, self.tokenizer, setup.seeds, settings.by
        )
        self._text_ids = lru_cache(TEXTS)(self.tokenizer.encode_data)
        # Stages of a run with this model look through the same tasks.
        strata, key = setup.data.strata, f"{settings.by} within {self.longest}"
        if settings.on == "answers" and key in strata:
            self.experts.strata = strata[key]
        elif settings.on == "answers":
            if left_out := self.experts.keep(self._fits):
                logger.warning(
                    "experts: %d demonstrations have more than %d tokens with their prompts, which "
                    "is what the model reads; they are left out.",
                    *(left_out, self.longest),
                )
            strata[key] = self.experts.strata

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
        """The plain row; with `syntax`, syntax tokens of the prompt and a share of its others may be
        masked too (SyRM)."""
        row, settings = self.plain_row(task, draw, seed), self.settings
        if not settings.syntax:
            return row
        texts = [self.tokenizer.backend.id_to_token(token) or "" for token in row.ids[: row.prompt]]
        marks = row.eligible.copy()
        marks[: row.prompt] |= np.array(syntax_eligible.plain(texts, settings.syntax))
        if settings.syntax_rest:
            drawn = np.random.default_rng((seed, draw)).random(row.prompt)
            marks[: row.prompt] |= drawn < settings.syntax_rest
        return replace(row, eligible=marks)

    def plain_row(self, task: Task, draw: int, seed: int = 0) -> TokenRow:
        """The answer of a task behind its prompt, or a window of its text."""
        field, end = self.experts.field, self.experts.end
        if self.settings.on == "answers":
            found = answer_row(
                self.experts.as_trajectory(task, draw),
                canvas=self.canvas,
                end=next(iter(end), None),
                mask=self.mask,
                longest=self.longest,
            )
        else:
            ids = [*self._text_ids(text_of(task.fields[field])), *end]
            size = self.settings.sequence
            start = seed % -(-len(ids) // size) * size
            own = tuple(ids[start : start + size])
            found = TokenRow(f"{task.id}.text{draw}", own, np.ones(len(own), bool))
        return self.checked(found, f"task {task.id}: its '{field}'", "Leave the task out")

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


HELD_OUT_SEED = 20251118
"""Of the masks of every held-out loss, whatever the run's seed is."""
HELD_OUT_MASKS = 8


def mask_rows(
    noise: Noise, rows: Sequence[TokenRow], u_B: Tensor, fields: Sequence[Tensor], mask_id: int
) -> tuple[Noised, list[list[Unit]]]:
    """Rows under the masks of their rates' uniform numbers (B,) and their own fields, (F, L) each.

    And the units of each row, one for each pass.
    """
    ids_BL, eligible_BL = _padded(rows, mask_id)
    u_FBL = torch.ones((noise.masks.fields, *ids_BL.shape), dtype=torch.float64)
    for i, (row, field_FL) in enumerate(zip(rows, fields, strict=True)):
        u_FBL[:, i, : len(row.ids)] = field_FL
    noised = noise.corrupt(ids_BL, eligible_BL, u_B, u_FBL, mask_id)
    return noised, _units(noised, rows)


def _units(noised: Noised, rows: Sequence[TokenRow]) -> list[list[Unit]]:
    """Of each row, one for each pass; `number` is that of the row."""
    found: list[list[Unit]] = [[] for _ in rows]
    for one in noised.passes:
        by_token = one.chance_BX if one.chance_BX.ndim > 1 else one.chance_BX[:, None]
        chance_BL = np.broadcast_to(by_token.numpy(), one.mask_BL.shape)
        mask_BL = one.mask_BL.numpy()
        for i, row in enumerate(rows):
            size = len(row.ids)
            found[i].append(unit_of(row, mask_BL[i, :size], chance_BL[i, :size], number=i))
    return found


def _padded(rows: Sequence[TokenRow], mask_id: int) -> tuple[Tensor, Tensor]:
    shape = (len(rows), max(len(row.ids) for row in rows))
    ids_BL = torch.full(shape, mask_id)
    eligible_BL = torch.zeros(shape, dtype=torch.bool)
    for i, row in enumerate(rows):
        ids_BL[i, : len(row.ids)] = torch.tensor(row.ids)
        eligible_BL[i, : len(row.ids)] = torch.from_numpy(row.eligible)
    return ids_BL, eligible_BL


@torch.no_grad()
def held_out_losses(
    module: Decoder, rows: Sequence[TokenRow], batches: MicroBatcher
) -> list[float]:
    """Mean loss of each row over 8 uniform rates in strata, with masks of a fixed seed."""
    longest = max(len(row.ids) for row in rows)
    u_N, u_1NL = evaluation_uniforms(len(rows) * HELD_OUT_MASKS, longest, HELD_OUT_SEED)
    repeated = [row for row in rows for _ in range(HELD_OUT_MASKS)]
    fields = [u_1NL[:, n, : len(row.ids)] for n, row in enumerate(repeated)]
    _, units = mask_rows(build_noise(), repeated, u_N, fields, mask_of(module))
    loss_N = losses_of(module, [own[0] for own in units], batches)
    return loss_N.view(len(rows), HELD_OUT_MASKS).mean(1).tolist()


def probed_losses(
    module: Decoder,
    rows: Sequence[TokenRow],
    rates: int,
    masks: int,
    seed: int,
    batches: MicroBatcher,
    noise: Noise,
) -> Probe:
    """Losses [row, rate, mask] on a grid of rates; delimiters as in training."""
    mask_id = mask_of(module)
    ids_XL, eligible_XL = _padded(rows, mask_id)

    def losses(noised: Noised, row_N: Tensor) -> Tensor:
        units = _units(noised, [rows[x] for x in row_N.tolist()])
        return losses_of(module, [own[0] for own in units], batches)

    generator = torch.Generator().manual_seed(seed)
    return probe_table(
        losses, ids_XL, eligible_XL, mask_id, generator, rates=rates, masks=masks, noise=noise
    )


@torch.no_grad()
def losses_of(module: Decoder, units: Sequence[Unit], batches: MicroBatcher) -> Tensor:
    """The loss of each unit by its number, (N,), over all processes; without gradients."""
    found: dict[int, Tensor] = {}
    for some in unit_passes(batches.world.share(units), batches.tokens):
        loss_U = unit_losses(module, some, batches.device).double().cpu()
        found |= {unit.number: value for unit, value in zip(some, loss_U, strict=True)}
    return batches.world.stacked(found, len(units))
