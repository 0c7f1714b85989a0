"""Sampling from a masked diffusion model, many rows of different lengths at once.

Each step is one pass over prompt and canvas of every row, because in a model that looks both ways the
keys of all tokens change with every token that is filled in: nothing can be kept exactly. Where the
prompt sees itself alone (`prompt_sees = "prompt"`), its keys are computed once a block and kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, get_args

import msgspec
import torch
from msgspec import Meta
from torch import Tensor

from burnish import seeds
from burnish.boundary import Settings
from burnish.errors import ArgumentError, UserError
from burnish.lm.base import Completion, JsonObject
from burnish.lm.decoder import Decoder
from burnish.lm.diffusion.masked_rows import both_ways, without_mask
from burnish.lm.hardware import prefill_tokens
from burnish.lm.head import chunk_tokens
from burnish.lm.model_input import ModelInput
from burnish.lm.sampler.rows import Request, Row, completions, in_canonical_order, make_rows
from burnish.lm.sampling import RowSettings, draw, row_seed, row_settings, uniforms
from burnish.lm.tokenizer import Tokenizer
from burnish.lm.weights import read_json, write_json
from burnish.records import Finish

Order = Literal["confidence", "entropy", "margin", "random"]
ORDERS: tuple[str, ...] = get_args(Order)
KEY = "masked_diffusion"
"""Of `generation_config.json`: the settings that a model is decoded with unless told otherwise."""


Tokens = Annotated[int, Meta(ge=0, le=1_000_000)]


class Decoding(Settings, frozen=True, kw_only=True):
    """How a masked diffusion model writes an answer."""

    block: Annotated[int, Meta(ge=1, le=1_000_000)] = 32
    """Tokens of a block; blocks are filled from left to right."""
    steps: Tokens = 0
    """Denoising steps of a block, each a pass over the whole row; 0: one for each token."""
    order: Order = "confidence"
    """Which places are filled first: the likeliest candidate, the lowest entropy, the largest lead of
    the likeliest token over the second, or `random`."""
    canvas: Tokens = 0
    """Mask tokens that are laid out at once, as answers were trained; 0: the whole token budget."""

    def to_text(self) -> str:
        """As `parse_decoding` reads them.

        >>> Decoding(steps=8).to_text()
        'block=32,steps=8,order=confidence,canvas=0'
        """
        return ",".join(f"{name}={getattr(self, name)}" for name in self.__struct_fields__)


def read_decoding(folder: Path) -> Decoding:
    """The settings that lie with a model; the defaults where it has none."""
    given = read_json(folder / "generation_config.json").get(KEY, {})
    try:
        return msgspec.convert(given, Decoding)
    except (msgspec.ValidationError, ArgumentError) as error:
        raise UserError(f"{folder / 'generation_config.json'}: '{KEY}': {error}") from None


def write_decoding(folder: Path, settings: Decoding) -> None:
    """Put the settings beside a model."""
    file = folder / "generation_config.json"
    plain: JsonObject = msgspec.to_builtins(settings)
    write_json(file, {**read_json(file), KEY: plain})


def parse_decoding(text: str, start: Decoding) -> Decoding:
    """`steps=8,order=entropy` over other settings.

    >>> parse_decoding("steps=8,order=entropy", Decoding()).steps
    8
    """
    found: JsonObject = {}
    for part in filter(None, (one.strip() for one in text.split(","))):
        key, mark, value = (word.strip() for word in part.partition("="))
        if not mark or key not in Decoding.__struct_fields__:
            raise UserError(
                f"decoding: got '{part}', expected key=value of {', '.join(Decoding.__struct_fields__)}"
            )
        found[key] = int(value) if value.isascii() and value.isdigit() else value
    return msgspec.structs.replace(start, **found)


def order_scores(logits_NV: Tensor, drawn_N: Tensor, order: str, uniforms_N: Tensor) -> Tensor:
    """How sure each place is of its candidate, (N,); under the model's own distribution."""
    if order == "random":
        return uniforms_N
    logp_NV = logits_NV.float().log_softmax(-1)
    if order == "entropy":
        return torch.xlogy(logp_NV.exp(), logp_NV.exp()).sum(-1)
    if order == "margin":
        two_N2 = logp_NV.exp().topk(2, dim=-1).values
        return two_N2[:, 0] - two_N2[:, 1]
    return logp_NV.gather(1, drawn_N[:, None]).squeeze(1)


def chosen(score_BW: Tensor, is_open_BW: Tensor, count_B: Tensor) -> Tensor:
    """The `count` open places of each row with the highest scores, bool (B, W); ties to the left."""
    ranked_BW = score_BW.masked_fill(~is_open_BW, float("-inf"))
    order_BW = ranked_BW.sort(dim=1, descending=True, stable=True).indices
    rank_BW = torch.empty_like(order_BW)
    places_BW = torch.arange(score_BW.shape[1], device=score_BW.device).expand_as(order_BW)
    rank_BW.scatter_(1, order_BW, places_BW)
    return (rank_BW < count_B[:, None]) & is_open_BW


def step_counts(tokens: int, steps: int) -> list[int]:
    """How many of a block's tokens are kept in each of its steps, as even as can be.

    >>> step_counts(10, 4), step_counts(3, 0)
    ([3, 3, 2, 2], [1, 1, 1])
    """
    steps = min(steps or tokens, tokens)
    return [tokens // steps + (place < tokens % steps) for place in range(steps)]


OTHER_STREAM = 0x5DEECE66D
"""Turns the seed of a step's candidates into that of its random order."""


RECORDED = 4
"""From so many steps of a block on, its pass is recorded on a GPU: recording costs about two passes."""


class DiffusionSampler:
    """Samples with the module's own weights; one call at a time."""

    def __init__(
        self,
        module: Decoder,
        tokenizer: Tokenizer,
        *,
        decoding: Decoding,
        name: str = "",
        max_rows: int | None = None,
    ) -> None:
        self.module, self.tokenizer, self.name = module, tokenizer, name
        self.decoding = decoding
        self.passes = 0
        self._max_rows = max_rows
        self._lock = threading.Lock()

    def generate(self, requests: Sequence[Request]) -> list[list[Completion]]:
        """`request.sampling.n` completions of every request, in the order given."""
        rows = make_rows(requests)
        with self._lock, torch.inference_mode():
            self._write(in_canonical_order(rows))
        return completions(requests, rows, self.tokenizer, self.name)

    def release(self) -> None:
        """Nothing is held between calls."""

    def _write(self, waiting: list[Row]) -> None:
        active: list[Row] = []
        most = prefill_tokens(self.module.head_weight.device)

        def length(row: Row) -> int:
            return len(row.prompt) + _canvas(row, row.request.max_new, self.module, self.decoding)

        while waiting or active:
            while waiting and len(active) < (self._max_rows or 1 << 30):
                longest = max(map(length, (*active, waiting[0])))
                if active and (len(active) + 1) * longest > most:
                    break
                active.append(waiting.pop(0))
            self._fill_block(active)
            active = [row for row in active if not self._is_done(row)]

    def _is_done(self, row: Row) -> bool:
        """Whether the last block ended the row; cuts what stands behind the end."""
        new = min(self.decoding.block, len(row.tokens))
        ends = set(self.tokenizer.eos_ids)
        start = len(row.tokens) - ((len(row.tokens) - 1) % self.decoding.block + 1)
        at = next((i for i in range(start, len(row.tokens)) if row.tokens[i] in ends), None)
        if at is not None:
            row.shorten(at + 1)
            row.finish = Finish.STOP
            new = min(new, at + 1 - start)
        if row.meets_stop_string(self.tokenizer, max(1, new)):
            row.finish = Finish.STOP
        return row.finish is Finish.STOP or len(row.tokens) >= row.request.max_new

    def _fill_block(self, rows: Sequence[Row]) -> None:
        block = _Block.open(self.module, rows, self.decoding)
        for step in range(block.steps):
            self._step(block, step)
        kept = zip(rows, *(part.tolist() for part in block.written), block.widths, strict=True)
        for row, tokens, logprobs, raw, at, width in kept:
            before = 1 + max(row.unmasked, default=-1)
            row.tokens += tokens[:width]
            row.logprobs += logprobs[:width]
            row.raw_logprobs += raw[:width]
            row.unmasked += [before + step for step in at[:width]]

    def _step(self, block: _Block, step: int) -> None:
        """Draw a candidate for every open place, and keep the surest ones of each row."""
        self.passes += 1
        hidden_BWD = block.hidden()
        row_N, place_N = block.is_open_BW.nonzero(as_tuple=True)
        width, seeds_B = block.is_open_BW.shape[1], block.seeds_BS[:, step]
        uniform_N = uniforms(seeds_B, width)[row_N, place_N]
        order_N = uniforms(seeds_B ^ OTHER_STREAM, width)[row_N, place_N]
        found = _draw(
            self.module,
            hidden_BWD[row_N, place_N],
            block.settings.select(row_N),
            uniform_N,
            order_N,
            self.decoding.order,
        )
        score_BW = hidden_BWD.new_zeros(block.is_open_BW.shape, dtype=torch.float32)
        score_BW[row_N, place_N] = found.score_N
        keep_BW = chosen(score_BW, block.is_open_BW, block.counts_BS[:, step])
        keep_N = keep_BW[row_N, place_N]
        row_K, place_K = row_N[keep_N], place_N[keep_N]
        written = block.written
        written.token_BW[row_K, place_K] = found.token_N[keep_N]
        written.logprob_BW[row_K, place_K] = found.logprob_N[keep_N]
        written.raw_BW[row_K, place_K] = found.raw_N[keep_N]
        written.step_BW[row_K, place_K] = step
        block.ids_BS[row_K, block.column_BW[row_K, place_K]] = found.token_N[keep_N]
        block.is_open_BW.logical_and_(~keep_BW)


class _Drawn(NamedTuple):
    token_N: Tensor
    logprob_N: Tensor
    raw_N: Tensor
    score_N: Tensor


def _draw(
    module: Decoder,
    hidden_ND: Tensor,
    settings: RowSettings,
    uniform_N: Tensor,
    order_N: Tensor,
    order: str,
) -> _Drawn:
    weight = module.head_weight
    size = chunk_tokens(weight.shape[0], weight.dtype, weight.device)
    parts = []
    for start in range(0, len(hidden_ND), size):
        some = torch.arange(start, min(start + size, len(hidden_ND)), device=hidden_ND.device)
        logits_CV = without_mask(module, module.logits(hidden_ND[some]).float())
        drawn = draw(logits_CV, settings.select(some), uniform_N[some])
        score_C = order_scores(logits_CV, drawn.tokens_B, order, order_N[some])
        parts.append(_Drawn(drawn.tokens_B, drawn.logprobs_B, drawn.raw_logprobs_B, score_C))
    return _Drawn(*(torch.cat(column) for column in zip(*parts, strict=True)))


class _Written(NamedTuple):
    token_BW: Tensor
    logprob_BW: Tensor
    raw_BW: Tensor
    step_BW: Tensor


class _Block(NamedTuple):
    """The blocks that all rows write at the same time."""

    hidden: Callable[[], Tensor]
    """One pass: the hidden states (B, W, D) at the places of the block."""
    ids_BS: Tensor
    """What the pass reads; filled in as the block is written."""
    column_BW: Tensor
    """Where the places of the block stand in it."""
    is_open_BW: Tensor
    widths: list[int]
    counts_BS: Tensor
    seeds_BS: Tensor
    settings: RowSettings
    written: _Written

    @property
    def steps(self) -> int:
        return self.counts_BS.shape[1]

    @classmethod
    def open(cls, module: Decoder, rows: Sequence[Row], decoding: Decoding) -> _Block:
        device = module.head_weight.device
        mask = module.architecture.mask
        widths = [min(decoding.block, row.request.max_new - len(row.tokens)) for row in rows]
        canvases = []
        for row, width in zip(rows, widths, strict=True):
            size = _canvas(row, len(row.tokens) + width, module, decoding)
            canvases.append([*row.tokens, *[mask] * (size - len(row.tokens))])
        counts = [step_counts(width, decoding.steps) for width in widths]
        steps = max(map(len, counts))
        counts_BS = torch.tensor([[*c, *[0] * (steps - len(c))] for c in counts], device=device)
        done = [1 + max(row.unmasked, default=-1) for row in rows]
        seeds_BS = torch.tensor(
            [
                [seeds.derive(row_seed(row.sampling, row.index), first + s) for s in range(steps)]
                for row, first in zip(rows, done, strict=True)
            ],
            device=device,
        )
        width_B = torch.tensor(widths, device=device)
        places_W = torch.arange(max(widths), device=device)
        is_open_BW = places_W < width_B[:, None]
        begin_B = torch.tensor([len(row.tokens) for row in rows], device=device)
        if module.architecture.prompt_sees == "prompt":
            inputs, run = _behind_prompts(module, rows, canvases)
        else:
            begin_B = begin_B + torch.tensor([len(row.prompt) for row in rows], device=device)
            whole = [[*row.prompt, *c] for row, c in zip(rows, canvases, strict=True)]
            inputs = both_ways(whole, pad=mask, device=device)
            run = module
        column_BW = torch.where(is_open_BW, begin_B[:, None] + places_W, 0)
        line_B1 = torch.arange(len(rows), device=device)[:, None]
        zeros_BW = torch.zeros(is_open_BW.shape, device=device)
        whole_BW = zeros_BW.long()

        def hidden() -> Tensor:
            return run(inputs)[line_B1, column_BW]

        return cls(
            hidden=_Recorded(hidden) if device.type == "cuda" and steps >= RECORDED else hidden,
            ids_BS=inputs.ids_RS,
            column_BW=column_BW,
            is_open_BW=is_open_BW,
            widths=widths,
            counts_BS=counts_BS,
            seeds_BS=seeds_BS,
            settings=row_settings([r.sampling for r in rows], module.head_weight.shape[0], device),
            written=_Written(whole_BW, zeros_BW, zeros_BW.clone(), whole_BW.clone()),
        )


class _Recorded:
    """A pass over the same tensors time after time: the second call records it, later ones replay it.

    A pass of a small model would otherwise wait for the launch of each of its kernels.
    """

    def __init__(self, work: Callable[[], Tensor]) -> None:
        self._work = work
        self._is_warm = False
        self._graph: torch.cuda.CUDAGraph | None = None
        self._found: Tensor | None = None

    def __call__(self) -> Tensor:
        if not self._is_warm:  # kernels are compiled and libraries opened
            self._is_warm = True
            return self._work()
        if self._graph is None:
            self._graph = self._record()
        self._graph.replay()
        assert self._found is not None
        return self._found

    def _record(self) -> torch.cuda.CUDAGraph:
        current, side = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(current)
        graph = torch.cuda.CUDAGraph()
        # Not torch.cuda.graph: it collects garbage and empties the allocator's cache first.
        with torch.cuda.stream(side):
            # Other threads may use the device meanwhile.
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                self._found = self._work()
            finally:
                graph.capture_end()
        current.wait_stream(side)
        return graph


def _behind_prompts(
    module: Decoder, rows: Sequence[Row], canvases: Sequence[Sequence[int]]
) -> tuple[ModelInput, Callable[[ModelInput], Tensor]]:
    """Canvases as input, and a pass over them alone that reads the prompts' keys from before."""
    device, mask = module.head_weight.device, module.architecture.mask
    layers: dict[int, tuple[Tensor, Tensor]] = {}
    prompts = both_ways([row.prompt for row in rows], pad=mask, device=device)

    def note(index: int, key: Tensor, value: Tensor) -> None:
        layers[index] = (key, value)

    module(prompts, keep=note)

    def joined(index: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        before_key, before_value = layers[index]
        return torch.cat((before_key, key), dim=2), torch.cat((before_value, value), dim=2)

    canvas = both_ways(canvases, pad=mask, device=device)
    length_B = torch.tensor([len(row.prompt) for row in rows], device=device)
    size = canvas.ids_RS.shape[1]
    seen_BP = torch.arange(prompts.ids_RS.shape[1], device=device) < length_B[:, None]
    own_BSS = canvas.mask
    if not isinstance(own_BSS, Tensor):
        own_BSS = torch.ones(len(rows), size, size, dtype=torch.bool, device=device)
    mask_BSK = torch.cat((seen_BP[:, None, :].expand(-1, size, -1), own_BSS), dim=2)
    inputs = ModelInput(canvas.ids_RS, length_B[:, None] + canvas.positions_RS, mask_BSK)
    return inputs, lambda given: module(given, keep=joined)


def _canvas(row: Row, end: int, module: Decoder, decoding: Decoding) -> int:
    """Length of the canvas while the row is written up to `end`.

    It may be longer than the token budget: the model expects a canvas as it was trained with.
    """
    canvas = decoding.canvas or row.request.max_new
    return min(canvas * -(-end // canvas), module.max_positions - len(row.prompt))
