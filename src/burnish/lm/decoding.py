"""Generation: prefill each distinct prompt once, then decode all rows together.

Prompts are padded on the left. A prompt's keys and values are computed once and repeated for its
rollouts. Rows that are done leave the batch when at most half of it is still active. Batches that
do not fit are cut into chunks; neither the cut nor the order changes what a row samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from burnish.lm.base import Completion, Sampling
from burnish.lm.sampling import RowSettings, draw, row_settings, top_logprobs, uniforms
from burnish.lm.tokenizer import Tokenizer
from burnish.records import Finish

if TYPE_CHECKING:
    from burnish.lm.decoder import Decoder
    from burnish.lm.kv_cache import KVCache
    from burnish.lm.transformers_model import TransformersCache, TransformersDecoder

PREFILL_TOKENS = {"cpu": 32_768, "cuda": 262_144}
"""Most prompt tokens computed at once, padding included."""


@dataclass(frozen=True)
class Request:
    """One prompt, how to sample it, and how many tokens it may grow by."""

    prompt_ids: tuple[int, ...]
    sampling: Sampling
    budget: int = 0
    """At most this many new tokens; 0 takes `sampling.max_tokens`."""

    @property
    def max_new(self) -> int:
        return self.budget or self.sampling.max_tokens


@dataclass
class _Row:
    """One completion in the making."""

    request: Request
    index: int
    """Which of the request's n completions this is."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    alternatives: list[dict[int, float]] = field(default_factory=list)
    finish: Finish = Finish.LENGTH
    cut: int | None = None
    """Where a stop string begins in the text."""


@torch.inference_mode()
def generate(
    module: Decoder | TransformersDecoder,
    tokenizer: Tokenizer,
    requests: Sequence[Request],
    *,
    max_rows: int,
    model: str = "",
) -> list[list[Completion]]:
    """`request.sampling.n` completions of every request, in the order given."""
    rows = [_Row(request, index) for request in requests for index in range(request.sampling.n)]
    limit = PREFILL_TOKENS.get(module.head_weight.device.type, PREFILL_TOKENS["cpu"])
    for chunk in _chunks(rows, max_rows, limit):
        _Batch(module, tokenizer, chunk).run()
    made = iter([_completion(row, tokenizer, model) for row in rows])
    return [[next(made) for _ in range(request.sampling.n)] for request in requests]


def _chunks(rows: Sequence[_Row], max_rows: int, max_prefill: int) -> Iterator[list[_Row]]:
    """Rows in order, cut where the rows or the distinct prompts would not fit at once."""
    chunk: list[_Row] = []
    prompts: set[tuple[int, ...]] = set()
    longest = 0
    for row in rows:
        prompt = row.request.prompt_ids
        width = max(longest, len(prompt))
        tokens = len(prompts | {prompt}) * width
        if chunk and (len(chunk) >= max_rows or tokens > max_prefill):
            yield chunk
            chunk, prompts, width = [], set(), len(prompt)
        chunk.append(row)
        prompts.add(prompt)
        longest = width
    if chunk:
        yield chunk


class _Batch:
    """The decode loop over one chunk of rows."""

    def __init__(
        self, module: Decoder | TransformersDecoder, tokenizer: Tokenizer, rows: list[_Row]
    ) -> None:
        self.module = module
        self.tokenizer = tokenizer
        self.rows = rows
        self.device = module.head_weight.device
        self.steps = max(row.request.max_new for row in rows)
        self.alternatives = max(row.request.sampling.top_logprobs for row in rows)
        self.settings: RowSettings = row_settings(
            [row.request.sampling for row in rows], module.head_weight.shape[0], self.device
        )
        self.ends = set(tokenizer.eos_ids)

    def run(self) -> None:
        """Fill every row."""
        logits_BV, cache, keys_BK, lengths_B = self._prefill()
        active = list(self.rows)
        uniforms_TB = self._uniforms()
        positions_B1 = lengths_B.unsqueeze(1)
        for step in range(self.steps):
            drawn = draw(logits_BV, self.settings, uniforms_TB[step])
            alternatives = self._alternatives(logits_BV)
            stay = self._record(active, drawn.tokens_B, drawn.logprobs_B, alternatives)
            running = sum(stay)
            if running == 0:
                return
            tokens_B1 = drawn.tokens_B.unsqueeze(1)
            if running * 2 <= len(active):
                kept = [i for i, stays in enumerate(stay) if stays]
                active = [active[i] for i in kept]
                index = torch.tensor(kept, device=self.device)
                cache = cache.select(index)
                self.settings = self.settings.select(index)
                tokens_B1, positions_B1 = tokens_B1[index], positions_B1[index]
                uniforms_TB = uniforms_TB[:, index]
                keys_BK = None if keys_BK is None else keys_BK[index]
            # Keys of the prompt's padding are masked; everything decoded since is visible.
            mask = None if keys_BK is None else keys_BK[:, None, : cache.length + 1]
            hidden_B1D = self.module(tokens_B1, positions_B1, mask, cache)
            logits_BV = self.module.logits(hidden_B1D[:, 0])
            positions_B1 = positions_B1 + 1

    def _prefill(self) -> tuple[Tensor, KVCache | TransformersCache, Tensor | None, Tensor]:
        """First logits, cache, visible keys and prompt lengths of every row."""
        prompts = list(dict.fromkeys(row.request.prompt_ids for row in self.rows))
        place = {prompt: index for index, prompt in enumerate(prompts)}
        longest = max(map(len, prompts))
        pad = self.tokenizer.pad_id
        ids_PS = torch.tensor([[pad] * (longest - len(p)) + list(p) for p in prompts])
        missing_P = torch.tensor([longest - len(p) for p in prompts])
        positions_PS = (torch.arange(longest) - missing_P.unsqueeze(1)).clamp_min(0)
        mask = _left_padded_mask(missing_P, longest) if bool(missing_P.any()) else None
        cache = self.module.new_cache(len(prompts), longest)
        hidden_PSD = self.module(
            ids_PS.to(self.device),
            positions_PS.to(self.device),
            None if mask is None else mask.to(self.device),
            cache,
        )
        source_B = torch.tensor([place[row.request.prompt_ids] for row in self.rows])
        logits_PV = self.module.logits(hidden_PSD[:, -1])
        keys_BK = None
        if mask is not None:
            keys = torch.arange(longest + self.steps) >= missing_P[source_B].unsqueeze(1)
            keys_BK = keys.to(self.device)
        index_B = source_B.to(self.device)
        lengths_B = (longest - missing_P)[source_B].to(self.device)
        repeated = cache.select(index_B, longest + self.steps)
        return logits_PV[index_B], repeated, keys_BK, lengths_B

    def _uniforms(self) -> Tensor:
        """(T, B), each column from its row's own seed; greedy rows need none."""
        columns = torch.zeros(len(self.rows), self.steps)
        for column, row in zip(columns, self.rows, strict=True):
            if row.request.sampling.temperature > 0:
                budget = row.request.max_new
                column[:budget] = uniforms(row.request.sampling, row.index, budget)
        return columns.T.contiguous().to(self.device)

    def _alternatives(self, logits_BV: Tensor) -> list[tuple[list[int], list[float]]] | None:
        if not self.alternatives:
            return None
        values, ids = top_logprobs(logits_BV, self.settings, self.alternatives)
        return list(zip(ids.tolist(), values.tolist(), strict=True))

    def _record(
        self,
        active: list[_Row],
        tokens_B: Tensor,
        logprobs_B: Tensor,
        alternatives: list[tuple[list[int], list[float]]] | None,
    ) -> list[bool]:
        """Append what was drawn to the rows still open; which of them go on."""
        tokens, logprobs = tokens_B.tolist(), logprobs_B.tolist()
        stay: list[bool] = []
        for index, row in enumerate(active):
            if row.finish is Finish.STOP or len(row.tokens) >= row.request.max_new:
                stay.append(False)
                continue
            token = tokens[index]
            row.tokens.append(token)
            row.logprobs.append(logprobs[index])
            if alternatives is not None and row.request.sampling.top_logprobs:
                ids, values = alternatives[index]
                count = row.request.sampling.top_logprobs
                row.alternatives.append(dict(zip(ids[:count], values[:count], strict=True)))
            if token in self.ends or self._meets_stop_string(row):
                row.finish = Finish.STOP
                stay.append(False)
            else:
                stay.append(len(row.tokens) < row.request.max_new)
        return stay

    def _meets_stop_string(self, row: _Row) -> bool:
        """Whether the text now contains a stop string; looks at its end only, until one is met."""
        stops = row.request.sampling.stop
        if not stops:
            return False
        # A character is at most four byte tokens, so this many tokens hold any stop string that
        # the newest token may have completed.
        window = 4 * max(map(len, stops)) + 4
        tail = self.tokenizer.decode(row.tokens[-window:])
        if not any(stop in tail for stop in stops):
            return False
        text = self.tokenizer.decode(row.tokens)
        found = [place for stop in stops if (place := text.find(stop)) >= 0]
        row.cut = min(found, default=None)
        return row.cut is not None


def _left_padded_mask(missing_P: Tensor, length: int) -> Tensor:
    """(P, S, S): causal, without the padding; a padding token sees itself, to stay finite."""
    causal_SS = torch.ones(length, length, dtype=torch.bool).tril()
    real_PS = torch.arange(length) >= missing_P.unsqueeze(1)
    itself_SS = torch.eye(length, dtype=torch.bool)
    return (causal_SS & real_PS.unsqueeze(1)) | itself_SS


def _completion(row: _Row, tokenizer: Tokenizer, model: str) -> Completion:
    text = tokenizer.decode(row.tokens)
    return Completion(
        text=text if row.cut is None else text[: row.cut],
        token_ids=tuple(row.tokens),
        logprobs=tuple(row.logprobs),
        finish=row.finish,
        prompt_ids=row.request.prompt_ids,
        top_logprobs=tuple(row.alternatives),
        model=model,
    )
