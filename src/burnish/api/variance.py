"""How noisy the loss of a masked diffusion model is on some data, before compute is spent."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec
import torch
from msgspec import Meta
from torch import Tensor

from burnish.api.ask import as_messages
from burnish.config.given import PYTHON
from burnish.config.recipes import Asked, all_recipes, resolve
from burnish.config.schema import DiffusionTrain, PretrainTrain
from burnish.errors import UserError
from burnish.lm.decoder import Decoder, Layer
from burnish.lm.diffusion.masked_rows import PADDING, Bound, fill, likelihood_bound, segment_mask
from burnish.lm.diffusion.sampler import read_decoding
from burnish.lm.folder import LoadedModel, is_diffusion, load_model
from burnish.lm.model_input import ModelInput
from burnish.lm.tokenizer import Tokenizer, end_of_turn
from burnish.models.masked_diffusion.objective import collate
from burnish.models.masked_diffusion.rates import stratum_counts
from burnish.models.masked_diffusion.report import VarianceReport, variance_report
from burnish.store.manifest import is_ours, newest_weights
from burnish.tasks.config import build as build_tasks
from burnish.tasks.rows import read_table
from burnish.training.data import answer_spans, text_of
from burnish.training.packed_text import corpus_of
from burnish.training.token_cache import boundary_id, plain_backend

ANSWERS = ("demonstration", "answer", "response", "completion", "output")
"""Fields that are taken for the answer of a row, in this order."""


@dataclass(frozen=True)
class Row:
    """A row to measure on."""

    ids: list[int]
    prompt_length: int
    text: str
    """Of the answer; empty where only tokens are given."""
    text_tokens: int = 0
    """Tokens of that text; end tokens follow them."""


@dataclass(frozen=True)
class MeasuredVariance:
    """A variance report, and what the model makes of the same rows."""

    model: str
    report: VarianceReport
    bound_per_token: float
    """Lower bound of the mean log-prob of a token, in nats."""
    standard_error: float | None
    """Of that estimate, over masks."""
    samples: int
    """Masks of each row."""
    bits_per_byte: float | None
    """The bound's part for the tokens of text, over their bytes; None where these are not known.

    End tokens have no bytes: what they take is left out.
    """

    def to_json(self) -> dict[str, Any]:
        """Plain numbers and texts."""
        bound = {
            "nats_per_token": self.bound_per_token,
            "standard_error": self.standard_error,
            "samples": self.samples,
            "bits_per_byte": self.bits_per_byte,
            "is_bound": True,
        }
        return {"model": self.model, "likelihood": bound, **self.report.to_json()}


def measure_variance(
    model: str,
    data: str,
    *,
    rows: int = 16,
    rates: int = 20,
    masks: int = 8,
    batch: int = 32,
    field: str = "",
    gradient: bool = True,
    seed: int = 0,
    device: str = "auto",
    on_row: Callable[[int, int], None] | None = None,
) -> MeasuredVariance:
    """Measure on the first rows of a recipe's training tasks or of a file.

    The gradient is that of the last layer's output matrices. Answers are filled with end tokens as
    the model was trained. Strata are those of a training step of `batch` rows.
    """
    run = Path(model).expanduser()
    loaded = load_model(newest_weights(run) if is_ours(run) else model, device=device)
    if not is_diffusion(loaded):
        raise UserError(
            f"model '{model}' is causal: its loss has no mask and no rate; expected a masked diffusion "
            f"model, such as diffusion:smollm2, or burnish convert {model} FOLDER"
        )
    module = loaded.module
    assert isinstance(module, Decoder)
    chosen = read_rows(data, loaded, rows, field)
    module.requires_grad_(False)
    last = cast(Layer, module.model.layers[-1])
    picked = [last.self_attn.o_proj.weight, last.mlp.down_proj.weight] if gradient else []
    for parameter in picked:
        parameter.requires_grad_(True)
    table = collate([{"input_ids": one.ids, "prompt_length": one.prompt_length} for one in chosen])
    mask_id = module.architecture.mask_id
    assert mask_id is not None
    report = variance_report(
        lambda ids, attention, prompts: _logits(module, ids, attention, prompts),
        table,
        mask_id,
        parameters=picked,
        rates=rates,
        masks=masks,
        strata=stratum_counts(batch).count,
        seed=seed,
        device=str(loaded.device),
        with_prompts=True,
        on_row=on_row,
    )
    return _with_bound(model, module, chosen, report, seed)


def _logits(module: Decoder, ids_BL: Tensor, attention_BL: Tensor, prompt_B: Tensor) -> Tensor:
    columns_L = torch.arange(ids_BL.shape[1], device=ids_BL.device)
    is_apart = module.architecture.prompt_sees == "prompt"
    mask = None
    if is_apart or not bool(attention_BL.all()):
        segment_BL = torch.where(attention_BL.bool(), 0, PADDING)
        mask = segment_mask(segment_BL, prompt_B if is_apart else None)
    return module.logits(module(ModelInput(ids_BL, columns_L.expand_as(ids_BL), mask)))


def _with_bound(
    model: str, module: Decoder, rows: Sequence[Row], report: VarianceReport, seed: int
) -> MeasuredVariance:
    pairs = [(one.ids[: one.prompt_length], one.ids[one.prompt_length :]) for one in rows]
    bounds: list[Bound] = likelihood_bound(module, pairs, seed=seed)
    if any(one.logprob is None for one in bounds):
        raise UserError(f"model '{model}' gave no finite log-probs; expected weights without NaN")
    tokens = sum(len(one.tokens) for one in bounds)
    errors = [one.standard_error for one in bounds]
    known = [e for e in errors if e is not None]
    total = math.fsum(one.logprob for one in bounds if one.logprob is not None)
    size = sum(len(one.text.encode()) for one in rows)
    of_text = math.fsum(
        part
        for row, one in zip(rows, bounds, strict=True)
        for part in one.tokens[: row.text_tokens]
    )
    return MeasuredVariance(
        model,
        report,
        total / tokens,
        math.sqrt(math.fsum(e * e for e in known)) / tokens if len(known) == len(errors) else None,
        bounds[0].samples,
        -of_text / (size * math.log(2)) if size and all(one.text for one in rows) else None,
    )


def read_rows(data: str, loaded: LoadedModel, count: int, field: str = "") -> list[Row]:
    """Rows of a recipe's training tasks or text, or of a file: `input_ids` and `prompt_length`, or `prompt` (or
    `messages`) with an answer, or `text` alone."""
    assert isinstance(loaded.module, Decoder)
    canvas = read_decoding(loaded.folder).canvas
    tokenizer = loaded.tokenizer
    asked = resolve([data], {}, PYTHON) if data in all_recipes() or data.endswith(".toml") else None
    if asked is not None and not asked.resolved.value.train.needs_tasks:
        found = _of_corpus(tokenizer, asked, count)
    elif asked is not None:
        config = asked.resolved.value
        tasks = build_tasks(config.experts.task or config.task, config.run.seed, asked.root)
        name = field or config.experts.field
        shown = [task for task in tasks.sample(4 * count) if text_of(task.fields.get(name))]
        if not shown:
            raise UserError(
                f"recipe '{data}': none of its tasks has a text in field '{name}'; give --field"
            )
        found = [
            _answered(tokenizer, task.messages, text_of(task.fields[name]), canvas)
            for task in shown[:count]
        ]
    else:
        table = read_table(Path(data))
        if table.bad:
            raise UserError(f"{data}:{table.bad[0].number}: {table.bad[0].why}; mend the row.")
        size = loaded.module.head_weight.shape[0]
        found = [
            _of_values(tokenizer, row.values, field, canvas, f"{data}:{row.number}", size)
            for row in table.rows[:count]
        ]
    longest = loaded.module.max_positions
    fitting = [one for one in found if len(one.ids) <= longest]
    if len(fitting) < 2:
        raise UserError(
            f"'{data}' has {len(fitting)} rows of at most {longest} tokens; expected at least 2"
        )
    return fitting


def _of_corpus(tokenizer: Tokenizer, asked: Asked, count: int) -> list[Row]:
    train = asked.resolved.value.train
    assert isinstance(train, DiffusionTrain | PretrainTrain)
    texts = islice(corpus_of(train, asked.root).documents(), count)
    backend, end = plain_backend(tokenizer), boundary_id(tokenizer)
    found = []
    for text in texts:
        ids = backend.encode(text[: 64 * train.sequence], add_special_tokens=False).ids
        own = [*ids, end][: train.sequence]
        shown = text if len(own) > len(ids) else tokenizer.decode(own)
        found.append(Row(own, 0, shown, min(len(ids), len(own))))
    return found


def _of_values(
    tokenizer: Tokenizer,
    values: Mapping[str, Any],
    field: str,
    canvas: int,
    where: str,
    vocabulary: int,
) -> Row:
    if ids := values.get("input_ids") or values.get("ids"):
        behind = values.get("prompt_length") or values.get("prompt_len") or 0
        kind = list[Annotated[int, Meta(ge=0, lt=vocabulary)]]
        try:
            ids = msgspec.convert(ids, kind)
            behind = msgspec.convert(behind, Annotated[int, Meta(ge=0, lt=len(ids))])
        except msgspec.ValidationError as error:
            raise UserError(
                f"{where}: {error}; expected input_ids from 0 to {vocabulary - 1}, the model's "
                "vocabulary, and a prompt_length with at least one token behind it."
            ) from None
        return Row(ids, behind, "")
    asked = values.get("messages") or values.get("prompt")
    names = (field,) if field else ANSWERS
    answer = next((text_of(values[n]) for n in names if text_of(values.get(n))), "")
    if asked and answer:
        return _answered(tokenizer, as_messages(asked), answer, canvas)
    text = text_of(values.get(field or "text"))
    if not text:
        given = ", ".join(f"{key}={value!r:.20}" for key, value in values.items())
        raise UserError(
            f"{where}: the row has {given or 'nothing'}; expected input_ids, a prompt with one of "
            f"{', '.join(ANSWERS)}, or text. Another answer: --field NAME"
        )
    own = tokenizer.encode_data(text)
    return Row([*own, *end_of_turn(tokenizer)], 0, text, len(own))


def _answered(tokenizer: Tokenizer, messages: Any, answer: str, canvas: int) -> Row:
    end = end_of_turn(tokenizer)
    spans = answer_spans(tokenizer, messages, answer, end)
    prompt = [token for span in spans if not span.trainable for token in span.token_ids]
    ids = [token for span in spans if span.trainable for token in span.token_ids]
    filled = fill(ids, canvas, next(iter(end), None)).ids
    return Row([*prompt, *filled], len(prompt), answer, len(ids) - len(end))
