"""Sampling models outside the built-in families, with transformers' own `generate`.

`generate` runs the model and keeps its cache, of whichever kind; every token is drawn here, by
`burnish.lm.sampling`, so that a row never depends on its neighbours.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteriaList,
)

from burnish.errors import ModelError, UserError
from burnish.lm.base import Completion, media_of, within_row
from burnish.lm.hardware import available_bytes, is_device_full, prefill_tokens, too_long
from burnish.lm.sampler.rows import Request, Row, completions, in_canonical_order, make_rows
from burnish.lm.sampling import draw, row_seed, row_settings, top_logprobs, uniforms
from burnish.lm.tokenizer import Tokenizer
from burnish.lm.transformers_model import Together, TransformersDecoder, named_line
from burnish.records import Finish
from burnish.texts import counted


class GenerateSampler:
    """Samples from a transformers model with the model's own weights; one call at a time."""

    def __init__(
        self,
        module: TransformersDecoder,
        tokenizer: Tokenizer,
        *,
        name: str = "",
        max_rows: int | None = None,
    ) -> None:
        self.module, self.tokenizer, self.name = module, tokenizer, name
        self._max_rows = max_rows
        # Some models keep the state of the text they are at in themselves.
        self._lock = threading.Lock()

    def generate(self, requests: Sequence[Request]) -> list[list[Completion]]:
        """`request.sampling.n` completions of every request, in the order given."""
        rows = make_rows(_within_reach(self.module, request) for request in requests)
        if rows:
            with self._lock:
                longest = max(len(row.prompt) + row.request.max_new for row in rows)
                head_VD = self.module.head_weight
                # The cache, its copy while it grows, and a few float32 rows of logits.
                per_row = 2 * longest * self.module.cache_bytes_per_token + 6 * 4 * len(head_VD)
                budget = available_bytes(head_VD.device) // 2
                if not self._max_rows and budget < per_row:
                    raise too_long(longest, per_row, budget)
                max_rows = self._max_rows or int(budget // per_row)
                self._fill(rows, max_rows)
        return completions(requests, rows, self.tokenizer, self.name)

    def _fill(self, rows: Sequence[Row], max_rows: int) -> None:
        module, waiting = self.module, in_canonical_order(rows)
        while waiting:
            if module.together is not Together.ANY:
                waiting.sort(key=lambda row: len(row.prompt))
            batch = _next_batch(module, waiting, max_rows)
            module.prefetch(media_of(row.prompt) for row in waiting)
            _generate(module, batch, self.tokenizer)
            if _is_exact(module, batch):
                waiting = waiting[len(batch) :]
                continue
            module.narrow(max(map(_length, batch)))
            for row in batch:
                row.restart()

    def release(self) -> None:
        """Nothing is held between calls."""


def _within_reach(module: TransformersDecoder, request: Request) -> Request:
    """The request with a budget that the model can be sampled and trained on."""
    tokens = len(request.prompt_ids)
    if tokens < module.least_prompt:
        raise UserError(
            f"{type(module.model).__name__} continues a prompt of {counted(tokens, 'token')} otherwise "
            f"than one pass computes it; expected at least {module.least_prompt} tokens. Lengthen "
            "the prompt, or try a newer transformers."
        )
    own = within_row(
        type(module.model).__name__, tokens, module.longest_row(tokens), request.sampling
    )
    return replace(request, budget=min(request.max_new, own.max_tokens))


def _is_exact(module: TransformersDecoder, batch: Sequence[Row]) -> bool:
    """Whether a row that is longer, or more padded, than any before agrees with one pass over it."""
    longest = max(batch, key=_length)
    shortest = min(batch, key=lambda row: len(row.prompt))
    padding = max(len(row.prompt) for row in batch) - len(shortest.prompt)
    if module.is_proven(_length(longest), padding):
        return True
    for row in (longest, shortest) if padding else (longest,):
        media = media_of(row.prompt)
        if not module.agrees([*row.prompt, *row.tokens], row.raw_logprobs, media):
            return False
    module.note_proven(_length(longest), padding)
    return True


def _length(row: Row) -> int:
    return len(row.prompt) + len(row.tokens)


def _next_batch(module: TransformersDecoder, rows: Sequence[Row], max_rows: int) -> list[Row]:
    """The first rows that may be sampled together; always at least one."""
    if module.together is Together.NONE:
        max_rows = 1
    most_tokens = prefill_tokens(module.head_weight.device)
    batch = [rows[0]]
    width, new = len(rows[0].prompt), rows[0].request.max_new
    longest = module.longest_row(width)
    for row in rows[1:]:
        tokens = len(row.prompt)
        wider, newer = max(width, tokens), max(new, row.request.max_new)
        is_full = len(batch) >= max_rows or (len(batch) + 1) * wider > most_tokens
        is_apart = wider + newer > longest or module.longest_row(tokens) != longest
        if is_full or is_apart or (tokens != width and module.together is not Together.ANY):
            break
        batch.append(row)
        width, new = wider, newer
    return batch


def _generate(module: TransformersDecoder, rows: list[Row], tokenizer: Tokenizer) -> None:
    # A tokenizer may name a padding token that the model's embedding was never widened for.
    pad = tokenizer.pad_id if tokenizer.pad_id < module.head_weight.shape[0] else 0
    inputs = module.generation_inputs([row.prompt for row in rows], pad)
    steps = max(row.request.max_new for row in rows)
    drawer = _Drawer(module, rows, tokenizer, pad)

    def closed(input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        return torch.tensor([_is_closed(row) for row in rows], device=input_ids.device)

    # Neither an end token nor a padding token is named to `generate`: the drawer ends rows itself.
    try:
        module.model.generate(
            **inputs,
            generation_config=GenerationConfig(
                max_new_tokens=steps, do_sample=False, use_cache=True
            ),
            logits_processor=LogitsProcessorList([drawer]),
            stopping_criteria=StoppingCriteriaList([closed]),
        )
    # Boundary: a family's own code. Errors of the drawer and a full device are handled elsewhere.
    except Exception as error:
        if drawer.is_drawing or is_device_full(error):
            raise
        raise ModelError(
            f"{type(module.model).__name__} fails at token {drawer.step + 1} ({named_line(error)})"
        ) from error


class _Drawer(LogitsProcessor):  # type: ignore[misc]  # transformers is not typed here
    """Draws each open row's token and leaves `generate` no other; closed rows get padding."""

    def __init__(
        self, module: TransformersDecoder, rows: list[Row], tokenizer: Tokenizer, pad: int
    ) -> None:
        device = module.head_weight.device
        self.rows = rows
        self.tokenizer = tokenizer
        self.ends = set(tokenizer.eos_ids)
        self.pad = pad
        self.step = 0
        self.is_drawing = False
        self.forbidden = list(module.forbidden)
        self.alternatives = max(row.sampling.top_logprobs for row in rows)
        self.settings = row_settings(
            [row.sampling for row in rows], module.head_weight.shape[0], device
        )
        seeds_B = torch.tensor([row_seed(row.sampling, row.index) for row in rows], device=device)
        self.uniforms_BT = uniforms(seeds_B, max(row.request.max_new for row in rows))

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Float32 logits (B, V) in; 0 at the token to take and minus infinity elsewhere out."""
        self.is_drawing = True
        uniforms_B = self.uniforms_BT[:, self.step]
        drawn = draw(scores, self.settings, uniforms_B, self.forbidden)
        self.step += 1
        tops: list[dict[int, float]] = [{}] * len(self.rows)
        if self.alternatives:  # every row's likeliest tokens, best first
            values, ids = top_logprobs(scores, self.settings, self.alternatives)
            pairs = zip(ids.tolist(), values.tolist(), strict=True)
            tops = [dict(zip(tokens, logprobs, strict=True)) for tokens, logprobs in pairs]
        columns = zip(self.rows, *(column.tolist() for column in drawn), strict=True)
        taken: list[int] = []
        for place, (row, token, logprob, raw) in enumerate(columns):
            if _is_closed(row):
                taken.append(self.pad)
                continue
            taken.append(token)
            row.tokens.append(token)
            row.logprobs.append(logprob)
            row.raw_logprobs.append(raw)
            if count := row.sampling.top_logprobs:
                row.alternatives.append(dict(list(tops[place].items())[:count]))
            if token in self.ends or row.meets_stop_string(self.tokenizer):
                row.finish = Finish.STOP
        taken_B1 = torch.tensor(taken, device=scores.device).unsqueeze(1)
        self.is_drawing = False
        return torch.full_like(scores, float("-inf")).scatter_(1, taken_B1, 0.0)


def _is_closed(row: Row) -> bool:
    return row.finish is Finish.STOP or len(row.tokens) >= row.request.max_new
