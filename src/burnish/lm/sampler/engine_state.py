"""The memory an engine works in: how much a call needs, and everything allocated for it.

The state outlives its call, because captured graphs hold its addresses. It is allocated again when
a call needs more or when the model's weights have moved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from burnish.errors import ModelError
from burnish.lm.hardware import available_bytes, can_run_kernels, prefill_tokens, too_long
from burnish.lm.sampler.rows import Row
from burnish.lm.sampler.slots import BURST, PagedCache, Slots, Variant, pages_for
from burnish.lm.sampler.step import Graphs, Ops, PlainOps, Plan, Stepper, bucket

PAGE = 16
"""Tokens a page holds on a GPU; on the CPU one page holds a row."""
MAX_SLOTS = 2048
HOST_BUFFERS = 4
"""Bursts whose results may be in transfer to the host."""


@dataclass(frozen=True)
class Size:
    """How much a call needs, or a state holds."""

    slots: int
    width: int
    steps: int
    page: int
    pages: int
    holds_all_prompts: bool
    """Whether all prompts fit beside a full set of rows."""

    def holds(self, other: Size) -> bool:
        """Whether a state of this size serves a call of the other."""
        # A call that memory was too short for may find a few pages less than it counted on.
        pages = other.pages if other.holds_all_prompts or other.width == 1 else other.pages * 3 // 4
        mine = (self.slots, self.width, self.steps, self.page, self.pages)
        asked = (other.slots, other.width, other.steps, other.page, pages)
        return all(have >= need for have, need in zip(mine, asked, strict=True))


@dataclass
class EngineState:
    """Cache, slots and the step that works on them."""

    size: Size
    plan: Plan
    ends: tuple[int, ...]
    """Token ids that end a row."""
    cache: PagedCache
    slots: Slots
    stepper: Stepper
    decode: Callable[[int, Variant], None]
    fit: Callable[[int], int]
    """The batch size of a step for this many rows."""
    burst: int
    """Steps between two checks for rows that are done."""
    lag: int
    """Bursts in flight before the results of an earlier one are read."""
    prefill_tokens: int
    """Most prompt tokens computed at once, padding included."""
    host_buffers: list[tuple[Tensor, ...]] = field(default_factory=list)

    @property
    def held_bytes(self) -> int:
        """What the cache takes."""
        return 2 * self.cache.keys.numel() * self.cache.keys.element_size()

    @property
    def is_dense(self) -> bool:
        """One page holds a row, and slot i owns page i + 1."""
        return self.size.width == 1


def size_for(rows: Sequence[Row], plan: Plan, max_rows: int, held: int = 0) -> Size:
    """What these rows need, within the memory that is free now and `held` bytes of the old state."""
    device = plan.embedding.device
    free = (available_bytes(device) + held) // 2
    if device.type == "cuda":
        return _paged_size(rows, plan, min(len(rows), max_rows), free)
    return _dense_size(rows, plan, min(len(rows), max_rows), free)


def with_reserve(size: Size, plan: Plan, before: Size | None) -> Size:
    """The size to allocate for a call: on a GPU more than it needs, where memory allows.

    At least the size before, and a quarter more pages: calls of two kinds take turns, prompts get
    a little longer, and every new state captures its graphs again.
    """
    if plan.embedding.device.type != "cuda":
        return size
    free = available_bytes(plan.embedding.device) // 2
    most = free // (size.page * plan.decoder.cache_bytes_per_token)
    old = before or size
    pages = max(size.pages * 5 // 4 + 64, old.pages)
    return replace(
        size,
        slots=bucket(max(size.slots, old.slots)),
        width=max(size.width, old.width),
        steps=max(size.steps, old.steps),
        pages=max(size.pages, min(pages, most)),
    )


def allocate(plan: Plan, size: Size, ends: tuple[int, ...]) -> EngineState:
    """Allocate the state; on a GPU with Triton its steps are kernels in captured graphs."""
    weight = plan.embedding
    cache = PagedCache(
        plan.architecture, size.pages, size.page, dtype=weight.dtype, device=weight.device
    )
    slots = Slots(size.slots, size.width, size.steps, weight.shape[0], weight.device)
    on_gpu = can_run_kernels(weight)
    ops: Ops = PlainOps(plan, cache, slots)
    if on_gpu:
        from burnish.lm.sampler.triton_ops import TritonOps

        ops = TritonOps(plan, cache, slots)
    stepper = Stepper(plan, ops, slots, ends)
    outputs = (slots.out_tokens, slots.out_logprobs, slots.out_raw)
    return EngineState(
        size,
        plan,
        ends,
        cache,
        slots,
        stepper,
        decode=Graphs(stepper).decode if on_gpu else stepper.decode,
        fit=bucket if on_gpu else int,
        burst=BURST if on_gpu else 1,
        lag=1 if on_gpu else 0,
        prefill_tokens=_prefill_tokens(plan),
        host_buffers=[
            tuple(torch.empty(out.shape, dtype=out.dtype, pin_memory=True) for out in outputs)
            for _ in range(HOST_BUFFERS if on_gpu else 0)
        ],
    )


def _prefill_tokens(plan: Plan) -> int:
    """Prompt tokens whose widest layer takes at most a quarter of the memory that is free now."""
    a, device = plan.architecture, plan.embedding.device
    if device.type != "cuda":
        return prefill_tokens(device)
    per_token = (4 * a.intermediate_size + 8 * a.hidden_size) * plan.embedding.element_size()
    return max(2048, min(prefill_tokens(device), available_bytes(device) // 4 // per_token))


def _paged_size(rows: Sequence[Row], plan: Plan, slots: int, free: int) -> Size:
    prompts = {row.prompt for row in rows}
    capacity = max(len(row.prompt) + row.request.max_new for row in rows)
    private = sorted(map(_private_pages, rows), reverse=True)
    wanted = 1 + sum(pages_for(len(p), PAGE) for p in prompts) + sum(private[:slots])
    least = 1 + max(pages_for(len(row.prompt), PAGE) + _private_pages(row) for row in rows)
    free -= slots * _bytes_per_slot(plan)
    pages = min(wanted, free // (PAGE * plan.decoder.cache_bytes_per_token))
    if pages < least:
        raise _too_long(capacity, plan, free)
    return Size(
        slots=slots,
        # Rounded up, so that the next call is likely to fit and to find its graphs.
        width=8 * pages_for(capacity, 8 * PAGE),
        steps=32 * -(-max(row.request.max_new for row in rows) // 32),
        page=PAGE,
        pages=pages,
        holds_all_prompts=pages == wanted,
    )


def _private_pages(row: Row) -> int:
    """Pages of a row beside the full ones of its prompt."""
    return pages_for(len(row.prompt) + row.request.max_new, PAGE) - len(row.prompt) // PAGE


def _dense_size(rows: Sequence[Row], plan: Plan, slots: int, free: int) -> Size:
    prompts = {row.prompt for row in rows}
    capacity = max(len(row.prompt) + row.request.max_new for row in rows)
    page_bytes = capacity * plan.decoder.cache_bytes_per_token
    # A row, and the prompt it came from, which no other row may need.
    fitting = (free - 2 * page_bytes) // (2 * page_bytes + _bytes_per_slot(plan))
    if fitting < 1:
        raise _too_long(capacity, plan, free)
    slots = min(slots, fitting)
    return Size(
        slots=slots,
        width=1,
        steps=max(row.request.max_new for row in rows),
        page=capacity,
        pages=1 + slots + min(len(prompts), slots + 1),
        holds_all_prompts=False,
    )


def _bytes_per_slot(plan: Plan) -> int:
    """A few float32 rows of logits while a token is drawn."""
    return 6 * 4 * plan.embedding.shape[0]


def _too_long(capacity: int, plan: Plan, free: int) -> ModelError:
    needed = capacity * plan.decoder.cache_bytes_per_token + _bytes_per_slot(plan)
    return too_long(capacity, needed, free)
