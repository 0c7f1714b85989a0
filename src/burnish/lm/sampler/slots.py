"""The rows that are being decoded, as device tensors with one entry a slot.

A captured graph reads and writes these tensors by address, so they are allocated once. A slot
whose row is done keeps its token and length until another row is put there; what it computes
meanwhile is discarded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from burnish.lm.architecture import Architecture
from burnish.lm.sampler.rows import Row
from burnish.lm.sampling import RowSettings, row_seed, uniforms


class PagedCache:
    """Keys and values of every layer, (L, P, Hkv, page, Dh) each; page 0 is for scratch."""

    def __init__(
        self,
        architecture: Architecture,
        pages: int,
        page: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        a = architecture
        shape = (a.layers, pages, a.kv_heads, page, a.head_dim)
        self.page = page
        self.kv_heads = a.kv_heads
        # What no token has written yet is read under a mask: it must hold finite numbers,
        # since 0 times NaN is NaN.
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros_like(self.keys)
        # Views made once: slicing a tensor costs as much as a small operation.
        self.layers = list(zip(self.keys.unbind(0), self.values.unbind(0), strict=True))
        self.lines = [(k.view(-1, a.head_dim), v.view(-1, a.head_dim)) for k, v in self.layers]

    @property
    def pages(self) -> int:
        return self.keys.shape[1]

    def line_index(self, pages_N: Tensor, offsets_N: Tensor) -> Tensor:
        """Where tokens lie in `lines`, (N, Hkv): a line is one head's vector of one token."""
        heads_H = torch.arange(self.kv_heads, device=pages_N.device)
        return (pages_N.unsqueeze(1) * self.kv_heads + heads_H) * self.page + offsets_N.unsqueeze(1)

    def copy(self, source: Sequence[int], target: Sequence[int], tokens: int) -> None:
        """Copy the first tokens of some pages into others."""
        device = self.keys.device
        from_N = torch.tensor(source, device=device)
        to_N = torch.tensor(target, device=device)
        for part in (self.keys, self.values):
            head = part[:, :, :, :tokens]
            head.index_copy_(1, to_N, head.index_select(1, from_N))


class PromptWriter:
    """Writes the keys and values of a prefill as the decoder computes them."""

    def __init__(
        self, cache: PagedCache, tables: Sequence[Sequence[int]], lengths: Sequence[int]
    ) -> None:
        """`tables` names each prompt's pages; what lies behind its length goes to scratch."""
        longest = max(lengths)
        width = max(map(len, tables))
        table_PW = torch.tensor([[*table, *[0] * (width - len(table))] for table in tables])
        token_S = torch.arange(longest)
        page_PS = table_PW[:, token_S // cache.page]
        page_PS = page_PS * (token_S < torch.tensor(lengths).unsqueeze(1))
        offset_PS = (token_S % cache.page).expand_as(page_PS)
        index_NH = cache.line_index(page_PS.reshape(-1), offset_PS.reshape(-1))
        # In the decoder's order: prompt, head, token.
        index_PHS = index_NH.view(len(tables), longest, -1).transpose(1, 2)
        self._cache = cache
        self._index = index_PHS.reshape(-1).to(cache.keys.device)

    def __call__(self, layer: int, key_PHSE: Tensor, value_PHSE: Tensor) -> None:
        keys, values = self._cache.lines[layer]
        size = key_PHSE.shape[-1]
        keys.index_copy_(0, self._index, key_PHSE.reshape(-1, size))
        values.index_copy_(0, self._index, value_PHSE.reshape(-1, size))


def pages_for(tokens: int, page: int) -> int:
    """How many pages hold this many tokens."""
    return -(-tokens // page)


@dataclass(eq=False)
class PromptPages:
    """The pages of one prompt that has been computed, and how many rows are reading them."""

    pages: list[int]
    full: int
    """How many of them are full; at most one more follows."""
    readers: int = 0


@dataclass
class Pages:
    """Free pages, handed out lowest first."""

    count: int
    """With page 0."""
    page: int
    slots: int = 0
    """Where one page holds a whole row, pages 1 to `slots` belong to the slots of that number."""
    free: list[int] = field(init=False)
    prompts: dict[tuple[int, ...], PromptPages] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.free = list(range(self.count - 1, self.slots, -1))

    def needed(self, prompt: tuple[int, ...], new: int) -> int:
        """Pages that a further row of this prompt would take, the prompt's own included."""
        missing = 0 if prompt in self.prompts else pages_for(len(prompt), self.page)
        return missing + self.private(prompt, new)

    def private(self, prompt: tuple[int, ...], new: int) -> int:
        """Private pages of a row, beside the page of its slot."""
        if self.slots:
            return 0
        return pages_for(len(prompt) + new, self.page) - len(prompt) // self.page

    def take(self, count: int) -> list[int]:
        """Pages for a new owner."""
        return [self.free.pop() for _ in range(count)]

    def give(self, pages: list[int]) -> None:
        """Take pages back."""
        self.free += pages

    def hold_prompt(self, prompt: tuple[int, ...]) -> None:
        """Pages for a prompt that is about to be computed."""
        taken = self.take(pages_for(len(prompt), self.page))
        self.prompts[prompt] = PromptPages(taken, len(prompt) // self.page)

    def drop_prompt(self, prompt: tuple[int, ...]) -> None:
        """Free the pages of a prompt that no row reads."""
        self.give(self.prompts.pop(prompt).pages)

    def idle(self, besides: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Prompts that no row is reading, oldest first."""
        return [p for p, held in self.prompts.items() if not held.readers and p != besides]


KEYS_OF_A_PROGRAM = 256
"""Keys that one program reads before it pays to share them among several."""
BURST = 4
"""Decode steps between two checks for rows that are done."""


class Variant(NamedTuple):
    """What the rows of a call ask of a draw; a captured graph serves one variant."""

    greedy: bool
    all_greedy: bool
    tempered: bool
    top_k: bool
    top_p: bool
    min_p: bool
    alternatives: int
    key_blocks: int = 1
    """How many programs may share the keys of the longest row, from 1 to 8."""

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Variant:
        settings = {id(row.request): row.sampling for row in rows}.values()
        longest = max(len(row.prompt) + row.request.max_new for row in rows)
        return cls(
            greedy=any(s.temperature == 0 for s in settings),
            all_greedy=all(s.temperature == 0 for s in settings),
            tempered=any(s.temperature not in (0, 1) for s in settings),
            top_k=any(s.top_k > 0 for s in settings),
            top_p=any(s.top_p < 1 for s in settings),
            min_p=any(s.min_p > 0 for s in settings),
            alternatives=max((s.top_logprobs for s in settings), default=0),
            key_blocks=min(8, -(-longest // KEYS_OF_A_PROGRAM)),
        )

    @property
    def filters(self) -> bool:
        return self.top_k or self.top_p or self.min_p


class Slots:
    """State of every slot; a step works on the first few."""

    def __init__(
        self, count: int, width: int, steps: int, vocabulary: int, device: torch.device
    ) -> None:
        """`width` pages a row at most, `steps` new tokens at most."""
        self.count, self.width, self.steps = count, width, steps
        self._vocabulary = vocabulary
        self.device = device

        def column(value: float, dtype: torch.dtype) -> Tensor:
            return torch.full((count,), value, dtype=dtype, device=device)

        self.tokens = column(0, torch.long)
        """The newest token, which the next step reads."""
        self.lengths = column(0, torch.long)
        """Tokens in the cache; the newest one is not."""
        self.left = column(0, torch.long)
        """Tokens that may still be drawn."""
        self.drawn = column(0, torch.long)
        self.greedy = column(0, torch.bool)
        self.temperature = column(1, torch.float32)
        self.top_k = column(vocabulary, torch.long)
        self.top_p = column(1, torch.float32)
        self.min_p = column(0, torch.float32)
        self.table = torch.zeros(count, width, dtype=torch.int32, device=device)
        self.uniforms = torch.zeros(count, steps, device=device)
        self.step = torch.zeros(1, dtype=torch.long, device=device)
        self.out_tokens = torch.zeros(BURST, count, dtype=torch.long, device=device)
        self.out_logprobs = torch.zeros(BURST, count, device=device)
        self.out_raw = torch.zeros(BURST, count, device=device)

    @property
    def _columns(self) -> tuple[Tensor, ...]:
        """Everything that belongs to a row."""
        return (
            self.tokens,
            self.lengths,
            self.left,
            self.drawn,
            self.greedy,
            self.temperature,
            self.top_k,
            self.top_p,
            self.min_p,
            self.table,
            self.uniforms,
        )

    @property
    def written(self) -> tuple[Tensor, ...]:
        """What a decode step writes, its outputs aside."""
        return self.tokens, self.lengths, self.left, self.drawn, self.step

    def settings(self, places: slice | Tensor, variant: Variant) -> RowSettings:
        """How the rows in some slots sample."""

        def when(used: bool, values: Tensor) -> Tensor | None:
            return values[places].unsqueeze(1) if used else None

        return RowSettings(
            greedy_B=self.greedy[places] if variant.greedy else None,
            all_greedy=variant.all_greedy,
            temperature_B1=when(variant.tempered, self.temperature),
            top_k_B1=when(variant.top_k, self.top_k),
            top_p_B1=when(variant.top_p, self.top_p),
            min_p_B1=when(variant.min_p, self.min_p),
        )

    def next_uniforms(self, places: slice | Tensor) -> Tensor:
        """The number that each row's next token is drawn with.

        A row that is done gets its last one again: what it draws is not read.
        """
        column_B1 = self.drawn[places].clamp(max=self.steps - 1).unsqueeze(1)
        return self.uniforms[places].gather(1, column_B1).squeeze(1)

    def fill(
        self, slots: Sequence[int], rows: Sequence[Row], tables: Sequence[Sequence[int]]
    ) -> Tensor:
        """Put rows into slots, nothing drawn yet; the slots as a tensor."""
        samplings = [row.sampling for row in rows]
        # One transfer for the integers and one for the fractions.
        whole = torch.tensor(
            [
                [
                    slot,
                    len(row.prompt),
                    row.request.max_new,
                    s.temperature == 0,
                    min(s.top_k or self._vocabulary, self._vocabulary),
                    row_seed(s, row.index),
                ]
                for slot, row, s in zip(slots, rows, samplings, strict=True)
            ]
        ).to(self.device)
        parts = torch.tensor([[s.temperature or 1.0, s.top_p, s.min_p] for s in samplings])
        parts = parts.to(self.device)
        padded = [[*t, *[0] * (self.width - len(t))] for t in tables]
        places = whole[:, 0].contiguous()
        drawn = torch.zeros_like(places)
        values = (
            drawn,
            whole[:, 1],
            whole[:, 2],
            drawn,
            whole[:, 3].bool(),
            parts[:, 0],
            whole[:, 4],
            parts[:, 1],
            parts[:, 2],
            torch.tensor(padded, dtype=torch.int32).to(self.device),
            uniforms(whole[:, 5], self.steps),
        )
        for column, value in zip(self._columns, values, strict=True):
            column.index_copy_(0, places, value)
        return places

    def move(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Move rows to other slots; the old slots have nothing left to draw."""
        from_N = torch.tensor(source, device=self.device)
        to_N = torch.tensor(target, device=self.device)
        for column in self._columns:
            column.index_copy_(0, to_N, column.index_select(0, from_N))
        self.left.index_fill_(0, from_N, 0)

    def stop(self, places: Sequence[int]) -> None:
        """Let these rows draw no more."""
        self.left.index_fill_(0, torch.tensor(places, device=self.device), 0)


Ints = NDArray[np.int64]


class Progress(NamedTuple):
    """What a burst of results changed for its rows, one entry a row."""

    counts: Ints
    """How many of the drawn tokens count: up to the row's end or its budget."""
    ended: NDArray[np.bool_]
    """Whether the last of them is an end token."""
    is_full: NDArray[np.bool_]
    """Whether the row's budget is spent."""


class OutputBuffer:
    """What has been drawn, on the host: one line a slot."""

    def __init__(self, slots: int, steps: int, burst: int, ends: Sequence[int]) -> None:
        # A burst may run past the end of a line.
        shape = (slots, steps + burst)
        self._tokens = np.zeros(shape, dtype=np.int64)
        self._logprobs = np.zeros(shape, dtype=np.float32)
        self._raw = np.zeros(shape, dtype=np.float32)
        self._ends = np.array(ends, dtype=np.int64)
        self.budget: Ints = np.zeros(slots, dtype=np.int64)
        """Tokens the row may draw; 0: the slot is empty."""
        self.asked: Ints = np.zeros(slots, dtype=np.int64)
        """Tokens whose drawing has been started."""
        self.drawn: Ints = np.zeros(slots, dtype=np.int64)

    def open(self, slots: Sequence[int], budgets: Sequence[int]) -> None:
        """Begin rows with these budgets; each is asked for its first token."""
        self.budget[slots] = budgets
        self.asked[slots] = 1
        self.drawn[slots] = 0

    def close(self, slot: int) -> None:
        """Empty a slot."""
        self.budget[slot] = self.asked[slot] = self.drawn[slot] = 0

    def move(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Move rows to other slots; the old ones are empty."""
        for lines in (self._tokens, self._logprobs, self._raw, self.budget, self.asked, self.drawn):
            lines[target] = lines[source]
        self.budget[source] = self.asked[source] = self.drawn[source] = 0

    @property
    def left(self) -> int:
        """Most tokens that any row may still be asked for."""
        return int((self.budget - self.asked).max())

    def ask(self, steps: int) -> None:
        """Count this many further tokens as started for every row, within its budget."""
        np.minimum(self.asked + steps, self.budget, out=self.asked)

    def add(
        self, slots: Ints, tokens_NK: Ints, logprobs_NK: NDArray[Any], raw_NK: NDArray[Any]
    ) -> Progress:
        """Append what the rows in these slots have drawn."""
        steps = tokens_NK.shape[1]
        before = self.drawn[slots]
        place = before[:, None] + np.arange(steps)
        line = slots[:, None]
        self._tokens[line, place] = tokens_NK
        self._logprobs[line, place] = logprobs_NK
        self._raw[line, place] = raw_NK
        is_end = (tokens_NK[:, :, None] == self._ends).any(axis=2)
        first = np.where(is_end.any(axis=1), is_end.argmax(axis=1) + 1, steps + 1)
        rest = self.budget[slots] - before
        count = np.minimum(np.minimum(first, steps), rest)
        self.drawn[slots] = before + count
        return Progress(count, first <= count, count == rest)

    def last(self, slot: int, count: int) -> list[int]:
        """The newest tokens of a row, `count` at most."""
        end = int(self.drawn[slot])
        found: list[int] = self._tokens[slot, max(0, end - count) : end].tolist()
        return found

    def write(self, row: Row, slot: int) -> None:
        """Copy everything a row has drawn into it."""
        length = self.drawn[slot]
        row.tokens = self._tokens[slot, :length].tolist()
        row.logprobs = self._logprobs[slot, :length].tolist()
        row.raw_logprobs = self._raw[slot, :length].tolist()
