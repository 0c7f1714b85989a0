"""The memory an engine works in: how much a call needs, and everything allocated for it.

A room outlives its call, because captured graphs know its addresses; it is built anew when a call
needs more than it holds or when the model's weights have moved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from burnish.errors import ModelError
from burnish.lm.hardware import can_run_kernels
from burnish.lm.memory import available_bytes, prefill_tokens, too_long
from burnish.lm.sampler.cache import PagedCache
from burnish.lm.sampler.pages import pages_for
from burnish.lm.sampler.plain import PlainOps
from burnish.lm.sampler.plan import Plan
from burnish.lm.sampler.rows import Row
from burnish.lm.sampler.seats import BURST, Seats, Variant
from burnish.lm.sampler.step import Ops, Stepper

PAGE = 16
"""Tokens a page holds on a GPU; on the CPU one page holds a row."""
MOST_SEATS = 2048
LANDINGS = 4
"""Bursts whose results may be on their way to the host."""


@dataclass(frozen=True)
class Size:
    """What a call needs room for."""

    seats: int
    width: int
    """Pages of a row."""
    steps: int
    """New tokens of a row."""
    page: int
    """Tokens of a page."""
    pages: int
    is_roomy: bool
    """Whether all prompts fit beside a full set of rows."""

    def holds(self, other: Size) -> bool:
        """Whether a room of this size serves a call of the other."""
        # A call that memory was too short for may find a few pages less than it counted on.
        pages = other.pages if other.is_roomy or other.width == 1 else other.pages * 3 // 4
        mine = (self.seats, self.width, self.steps, self.page, self.pages)
        asked = (other.seats, other.width, other.steps, other.page, pages)
        return all(have >= need for have, need in zip(mine, asked, strict=True))


@dataclass
class Room:
    """Cache, seats and the step that works on them."""

    size: Size
    plan: Plan
    ends: tuple[int, ...]
    """Token ids that end a row."""
    cache: PagedCache
    seats: Seats
    stepper: Stepper
    decode: Callable[[int, Variant], None]
    fit: Callable[[int], int]
    """The number of rows a step works on when this many have seats."""
    burst: int
    """Steps between two looks at which rows are done."""
    lag: int
    """Bursts started before the results of an earlier one are looked at."""
    prefill_tokens: int
    """Most prompt tokens computed at once, padding included."""
    landings: list[tuple[Tensor, ...]] = field(default_factory=list)

    @property
    def held_bytes(self) -> int:
        """What the cache takes."""
        return 2 * self.cache.keys.numel() * self.cache.keys.element_size()

    @property
    def is_dense(self) -> bool:
        """One page holds a row, and seat i owns page i + 1."""
        return self.size.width == 1


def size_for(rows: Sequence[Row], plan: Plan, max_rows: int, held: int = 0) -> Size:
    """What these rows need, within the memory that is free now and what a room already holds."""
    device = plan.embedding.device
    free = (available_bytes(device) + held) // 2
    if device.type == "cuda":
        return _paged_size(rows, plan, min(len(rows), max_rows), free)
    return _dense_size(rows, plan, min(len(rows), max_rows), free)


def with_reserve(size: Size, plan: Plan, before: Size | None) -> Size:
    """The size of a new room for a call: on a GPU more than was asked for, where memory allows.

    It also holds what the room before held, and a quarter more pages: calls of two kinds take
    turns, prompts get a little longer, and every new room captures its graphs anew.
    """
    if plan.embedding.device.type != "cuda":
        return size
    from burnish.lm.sampler.graphs import bucket

    free = available_bytes(plan.embedding.device) // 2
    most = free // (size.page * plan.decoder.cache_bytes_per_token)
    old = before or size
    pages = max(size.pages * 5 // 4 + 64, old.pages)
    return replace(
        size,
        seats=bucket(max(size.seats, old.seats)),
        width=max(size.width, old.width),
        steps=max(size.steps, old.steps),
        pages=max(size.pages, min(pages, most)),
    )


def build_room(plan: Plan, size: Size, ends: tuple[int, ...]) -> Room:
    """Allocate a room; on a GPU with Triton its steps are kernels in captured graphs."""
    weight = plan.embedding
    cache = PagedCache(
        plan.architecture, size.pages, size.page, dtype=weight.dtype, device=weight.device
    )
    seats = Seats(size.seats, size.width, size.steps, weight.shape[0], weight.device)
    if can_run_kernels(weight):
        from burnish.lm.sampler.graphs import Graphs, bucket
        from burnish.lm.sampler.triton_ops import TritonOps

        stepper = Stepper(plan, TritonOps(plan, cache, seats), seats, ends)
        outputs = (seats.out_tokens, seats.out_logprobs, seats.out_raw)
        landings = [
            tuple(torch.empty(out.shape, dtype=out.dtype, pin_memory=True) for out in outputs)
            for _ in range(LANDINGS)
        ]
        decode = Graphs(stepper).decode
        return Room(
            size,
            plan,
            ends,
            cache,
            seats,
            stepper,
            decode,
            bucket,
            burst=BURST,
            lag=1,
            prefill_tokens=_prefill_tokens(plan),
            landings=landings,
        )
    ops: Ops = PlainOps(plan, cache, seats)
    stepper = Stepper(plan, ops, seats, ends)
    return Room(
        size,
        plan,
        ends,
        cache,
        seats,
        stepper,
        stepper.decode,
        lambda rows: rows,
        burst=1,
        lag=0,
        prefill_tokens=_prefill_tokens(plan),
    )


def _prefill_tokens(plan: Plan) -> int:
    """Prompt tokens whose widest layer takes at most a quarter of the memory that is free now."""
    a, device = plan.architecture, plan.embedding.device
    if device.type != "cuda":
        return prefill_tokens(device)
    per_token = (4 * a.intermediate_size + 8 * a.hidden_size) * plan.embedding.element_size()
    return max(2048, min(prefill_tokens(device), available_bytes(device) // 4 // per_token))


def _paged_size(rows: Sequence[Row], plan: Plan, seats: int, free: int) -> Size:
    prompts = {row.prompt for row in rows}
    capacity = max(len(row.prompt) + row.request.max_new for row in rows)
    private = sorted(map(_private_pages, rows), reverse=True)
    wanted = 1 + sum(pages_for(len(p), PAGE) for p in prompts) + sum(private[:seats])
    least = 1 + max(pages_for(len(row.prompt), PAGE) + _private_pages(row) for row in rows)
    free -= seats * _bytes_per_seat(plan)
    pages = min(wanted, free // (PAGE * plan.decoder.cache_bytes_per_token))
    if pages < least:
        raise _too_long(capacity, plan, free)
    return Size(
        seats=seats,
        # Rounded up, so that the next call is likely to fit and to find its graphs.
        width=8 * pages_for(capacity, 8 * PAGE),
        steps=32 * -(-max(row.request.max_new for row in rows) // 32),
        page=PAGE,
        pages=pages,
        is_roomy=pages == wanted,
    )


def _private_pages(row: Row) -> int:
    """Pages of a row beside the full ones of its prompt."""
    return pages_for(len(row.prompt) + row.request.max_new, PAGE) - len(row.prompt) // PAGE


def _dense_size(rows: Sequence[Row], plan: Plan, seats: int, free: int) -> Size:
    prompts = {row.prompt for row in rows}
    capacity = max(len(row.prompt) + row.request.max_new for row in rows)
    page_bytes = capacity * plan.decoder.cache_bytes_per_token
    # A row, and the prompt it came from, which no other row may need.
    fitting = (free - 2 * page_bytes) // (2 * page_bytes + _bytes_per_seat(plan))
    if fitting < 1:
        raise _too_long(capacity, plan, free)
    seats = min(seats, fitting)
    return Size(
        seats=seats,
        width=1,
        steps=max(row.request.max_new for row in rows),
        page=capacity,
        pages=1 + seats + min(len(prompts), seats + 1),
        is_roomy=False,
    )


def _bytes_per_seat(plan: Plan) -> int:
    """A few float32 rows of logits while a token is drawn."""
    return 6 * 4 * plan.embedding.shape[0]


def _too_long(capacity: int, plan: Plan, free: int) -> ModelError:
    needed = capacity * plan.decoder.cache_bytes_per_token + _bytes_per_seat(plan)
    return too_long(capacity, needed, free)
