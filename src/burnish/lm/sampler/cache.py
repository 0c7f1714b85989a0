"""Keys and values in pages: allocated once, written in place, read through tables of pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from burnish.lm.architecture import Architecture


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
    """Tokens a page holds."""
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
