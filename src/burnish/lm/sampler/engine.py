"""The generation engine.

A prompt is computed once for all its rows. Rows wait in one queue; a row that is done frees its
slot and its pages for the next. The weights are the decoder's own: nothing is copied, so nothing
can be out of date.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from burnish import activity
from burnish.lm.base import Completion
from burnish.lm.decoder import Decoder
from burnish.lm.model_input import ModelInput
from burnish.lm.sampler.engine_state import (
    MAX_SLOTS,
    EngineState,
    Size,
    allocate,
    size_for,
    with_reserve,
)
from burnish.lm.sampler.rows import Request, Row, completions, in_canonical_order, make_rows
from burnish.lm.sampler.slots import OutputBuffer, Pages, PromptWriter, Variant
from burnish.lm.sampler.step import Plan
from burnish.lm.tokenizer import Tokenizer
from burnish.records import Finish

EVEN_ENOUGH = 4096
"""A prefill batch of up to this many tokens may mix prompts of very different lengths."""
ADMIT_SHARE = 16
"""Rows are admitted when one slot in so many is free: each admission interrupts the others."""

Prompt = tuple[int, ...]


class Engine:
    """Samples from a decoder with the decoder's own weights; one call at a time."""

    def __init__(
        self, decoder: Decoder, tokenizer: Tokenizer, *, name: str = "", max_rows: int | None = None
    ) -> None:
        """`max_rows` bounds the rows decoded at once; None lets memory decide."""
        self.decoder, self.tokenizer, self.name = decoder, tokenizer, name
        self._max_rows = min(max_rows or MAX_SLOTS, MAX_SLOTS)
        self._state: EngineState | None = None
        self._lock = threading.Lock()  # invariant: one call uses the state at a time

    def generate(self, requests: Sequence[Request]) -> list[list[Completion]]:
        """`request.sampling.n` completions of every request, in the order given."""
        rows = make_rows(requests)
        if rows:
            # The worker thread that calls this starts on the first GPU, wherever the weights are.
            here = torch.cuda.device_of(self.decoder.head_weight)  # type: ignore[no-untyped-call]
            with self._lock, torch.inference_mode(), here:
                self._fill(rows)
        return completions(requests, rows, self.tokenizer, self.name)

    def _fill(self, rows: Sequence[Row]) -> None:
        state, size = self._state_for(rows)
        schedule = Schedule(state, size, rows, self.tokenizer)
        try:
            schedule.run()
        except BaseException:
            # Cache contents are undefined after an error; discard them.
            self._state = None
            raise
        if not schedule.is_sound:
            self._state = None

    def release(self) -> None:
        """Free the cache and the captured graphs; the next call allocates them again."""
        with self._lock:
            self._state = None

    def _state_for(self, rows: Sequence[Row]) -> tuple[EngineState, Size]:
        """State that is large enough for these rows, and how much of it they use."""
        state, ends = self._state, tuple(self.tokenizer.eos_ids)
        if state is not None and state.plan.is_current and state.ends == ends:
            size = size_for(rows, state.plan, self._max_rows, state.held_bytes)
            if state.size.holds(size):
                return state, replace(size, pages=min(size.pages, state.size.pages))
        # Free the old state first: its memory is not available to the new one otherwise.
        before = None if state is None else state.size
        self._state = state = None
        plan = Plan(self.decoder)
        size = size_for(rows, plan, self._max_rows)
        self._state = allocate(plan, with_reserve(size, plan, before), ends)
        return self._state, size


@dataclass(eq=False)
class ActiveRow:
    """A row that has a slot."""

    row: Row
    slot: int
    pages: list[int]
    """Its private pages; those of its prompt are shared."""
    is_done: bool = False


@dataclass(frozen=True)
class InFlight:
    """Draws that were started on the device, and the host memory they are copied to."""

    rows: list[ActiveRow]
    slots: list[int]
    """The slot of each row when the draws were started; a row may move afterwards."""
    steps: int
    drawn: tuple[Tensor, ...]
    """Tokens, log-probs, untempered log-probs, (K, B) each."""
    alternatives: tuple[Tensor, Tensor] | None
    copied: torch.cuda.Event | None


class Schedule:
    """The scheduler of one call: which rows decode together, from admission to their last token."""

    def __init__(
        self, state: EngineState, size: Size, rows: Sequence[Row], tokenizer: Tokenizer
    ) -> None:
        """`size` is that of this call: state that earlier calls made larger changes nothing."""
        self.state, self.size, self.tokenizer = state, size, tokenizer
        self.page = state.size.page
        self.variant = Variant.of(rows)
        # A call that was interrupted may have left rows behind.
        state.slots.left.zero_()
        self.waiting = deque(in_canonical_order(rows))
        self.active: dict[int, ActiveRow] = {}
        self.output = OutputBuffer(size.slots, size.steps, state.burst, state.ends)
        self.pages = Pages(size.pages, self.page, slots=size.slots if state.is_dense else 0)
        self.in_flight: deque[InFlight] = deque()
        self._rows_of = Counter(row.prompt for row in rows)
        self._hidden: dict[Prompt, Tensor] = {}
        self._watches = any(row.sampling.stop or row.sampling.top_logprobs for row in rows)
        self._copies = 0
        self.is_sound = True
        """Whether every log-prob so far is finite; if not, neither are the cache's contents."""

    def run(self) -> None:
        """Fill every row."""
        while self.waiting or self.active or self.in_flight:
            activity.moved()
            admitted = self._admit()
            self._collect_all_but(self.state.lag)
            decoded = self._burst()
            if not (admitted or decoded or self.in_flight):
                raise RuntimeError(f"{len(self.waiting)} rows wait, and no memory will be freed")
            # With nothing new started, the device is idle: read everything it has computed.
            self._collect_all_but(self.state.lag if admitted or decoded else 0)

    def _collect_all_but(self, lag: int) -> None:
        """Read results until only so many bursts are in flight."""
        while len(self.in_flight) > lag:
            self._collect(self.in_flight.popleft())

    # --- admission

    def _admit(self) -> bool:
        """Give slots to waiting rows and start their first tokens; whether any were admitted."""
        free = self.size.slots - len(self.active)
        if not self.waiting or free < max(1, self.size.slots // ADMIT_SHARE):
            return False
        admitted: list[ActiveRow] = []
        new: list[Prompt] = []
        for slot in (slot for slot in range(self.size.slots) if slot not in self.active):
            # Strictly in order: a short row never overtakes a long one, which could starve.
            if not self.waiting or not self._free_pages_for(self.waiting[0]):
                break
            row = self.waiting.popleft()
            if row.prompt not in self.pages.prompts:
                self.pages.hold_prompt(row.prompt)
                new.append(row.prompt)
            self.pages.prompts[row.prompt].readers += 1
            private = self.pages.take(self.pages.private(row.prompt, row.request.max_new))
            admitted.append(ActiveRow(row, slot, private))
        if not admitted:
            return False
        if (
            self.size.holds_all_prompts
        ):  # those of rows that still wait: one prefill interrupts least
            for prompt in dict.fromkeys(row.prompt for row in self.waiting):
                if prompt not in self.pages.prompts:
                    self.pages.hold_prompt(prompt)
                    new.append(prompt)
        self._prefill(new)
        self._start(admitted)
        return True

    def _free_pages_for(self, row: Row) -> bool:
        """Whether a row's pages are free, after dropping cached prompts that no row reads now."""
        needed = self.pages.needed(row.prompt, row.request.max_new)
        # The idle prompts are searched only when needed: the search looks at every cached prompt.
        if needed <= len(self.pages.free):
            return True
        for prompt in self.pages.idle(besides=row.prompt):
            self._drop(prompt)
            if needed <= len(self.pages.free):
                return True
        return False

    def _drop(self, prompt: Prompt) -> None:
        """Forget a prompt; a later row has it computed again."""
        self.pages.drop_prompt(prompt)
        self._hidden.pop(prompt, None)

    def _prefill(self, prompts: Sequence[Prompt]) -> None:
        """Compute prompts, write their keys and values, and keep their last hidden states."""
        device = self.state.slots.device
        for batch in _even_batches(prompts, self.state.prefill_tokens):
            longest = len(batch[0])
            # Padded on the right: causal attention keeps the padding from being seen.
            ids_PS = torch.tensor([[*p, *[0] * (longest - len(p))] for p in batch])
            positions_PS = torch.arange(longest, device=device).expand(len(batch), -1)
            lengths = [len(p) for p in batch]
            tables = [self.pages.prompts[p].pages for p in batch]
            writer = PromptWriter(self.state.cache, tables, lengths)
            inputs = ModelInput(ids_PS.to(device), positions_PS)
            hidden_PSD = self.state.plan.decoder(inputs, keep=writer)
            last_P = torch.tensor(lengths, device=device) - 1
            hidden_PD = hidden_PSD[torch.arange(len(batch), device=device), last_P]
            self._hidden.update(zip(batch, hidden_PD.unbind(0), strict=True))

    def _start(self, admitted: list[ActiveRow]) -> None:
        """Fill the slots of new rows and start drawing their first tokens.

        Full pages of a prompt are shared by all its rows. The last, partial one is copied into
        each row's first private page, because the row writes its own tokens behind the prompt's.
        """
        state, page = self.state, self.page
        tables: list[list[int]] = []
        source: list[int] = []
        target: list[int] = []
        partial = 0
        for one in admitted:
            prompt = self.pages.prompts[one.row.prompt]
            private = [one.slot + 1] if state.is_dense else one.pages
            tables.append([*prompt.pages[: prompt.full], *private])
            if prompt.full < len(prompt.pages):
                source.append(prompt.pages[prompt.full])
                target.append(private[0])
                partial = max(partial, len(one.row.prompt) - prompt.full * page)
            self.active[one.slot] = one
        if source:
            state.cache.copy(source, target, partial)
        slots = [one.slot for one in admitted]
        self.output.open(slots, [one.row.request.max_new for one in admitted])
        places_N = state.slots.fill(slots, [one.row for one in admitted], tables)
        # The first tokens need no decode step: the prefill has left their hidden states.
        prompts = list(dict.fromkeys(one.row.prompt for one in admitted))
        place = {prompt: index for index, prompt in enumerate(prompts)}
        hidden_PD = torch.stack([self._hidden[prompt] for prompt in prompts])
        source_N = torch.tensor([place[one.row.prompt] for one in admitted], device=places_N.device)
        logits_NV = state.stepper.logits(hidden_PD).index_select(0, source_N)
        state.stepper.first(logits_NV, places_N, self.variant)
        self._start_copy(admitted, 1)

    # --- decoding

    def _burst(self) -> bool:
        """Start a few steps for every row that has tokens left; whether there was any."""
        steps = min(self.state.burst, self.output.left)
        if steps == 0:
            return False
        rows = list(self.active.values())
        count = self._compact(rows)
        self.state.slots.step.zero_()
        for _ in range(steps):
            self.state.decode(count, self.variant)
        self.output.ask(steps)
        self._start_copy(rows, steps)
        return True

    def _compact(self, rows: list[ActiveRow]) -> int:
        """Move the last rows to empty slots where that makes the batch smaller; its size.

        A step always works on the first slots, so one row in a high slot would keep the batch
        large. Batch sizes come in buckets: within one, moving gains nothing.
        """
        fit, count = self.state.fit, len(rows)
        span = max(self.active) + 1
        if fit(span) == fit(count):
            return fit(span)
        empty = [slot for slot in range(count) if slot not in self.active]
        moving = sorted((one for one in rows if one.slot >= count), key=lambda one: one.slot)
        source = [one.slot for one in moving]
        if self.state.is_dense:
            # The slot owns the page there, so the page's contents move along.
            tokens = max(len(one.row.prompt) + int(self.output.drawn[one.slot]) for one in moving)
            self.state.cache.copy([s + 1 for s in source], [s + 1 for s in empty], tokens)
        self.state.slots.move(source, empty)
        self.output.move(source, empty)
        for one, slot in zip(moving, empty, strict=True):
            del self.active[one.slot]
            self.active[slot] = one
            one.slot = slot
        return fit(count)

    # --- results

    def _start_copy(self, rows: list[ActiveRow], steps: int) -> None:
        """Start copying what is being drawn to the host.

        There are more host buffers than bursts in flight, so none is overwritten before it is read.
        """
        slots = self.state.slots
        outputs: tuple[Tensor, ...] = (slots.out_tokens, slots.out_logprobs, slots.out_raw)
        copied = None
        if self.state.host_buffers:
            buffers = self.state.host_buffers[self._copies % len(self.state.host_buffers)]
            for out, host in zip(outputs, buffers, strict=True):
                host[:steps].copy_(out[:steps], non_blocking=True)
            if slots.device.type == "cuda":
                copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
                copied.record()
            outputs = buffers
        self._copies += 1
        alternatives = None
        if self.variant.alternatives:
            ids, values = self.state.stepper.alternatives(self.variant.alternatives)
            alternatives = (ids[:steps].to("cpu", copy=True), values[:steps].to("cpu", copy=True))
        places = [one.slot for one in rows]
        self.in_flight.append(InFlight(rows, places, steps, outputs, alternatives, copied))

    def _collect(self, draws: InFlight) -> None:
        """Read the results of a burst; rows that are done free their slots and pages.

        A row that ended in an earlier burst may still have been drawn for in this one: those
        tokens are dropped.
        """
        if draws.copied is not None:
            draws.copied.synchronize()
        present = [i for i, one in enumerate(draws.rows) if not one.is_done]
        if not present:
            return
        rows = [draws.rows[i] for i in present]
        columns = [draws.slots[i] for i in present]
        drawn = [out[: draws.steps].cpu().numpy()[:, columns].T for out in draws.drawn]
        self.is_sound = self.is_sound and bool(np.isfinite(drawn[1]).all())
        progress = self.output.add(np.array([one.slot for one in rows]), *drawn)
        looked_at = progress.ended | progress.is_full
        if self._watches:  # every token: for a stop string, or for its alternatives
            settings = [one.row.sampling for one in rows]
            looked_at = looked_at | np.array([bool(s.stop or s.top_logprobs) for s in settings])
        for i in np.flatnonzero(looked_at):
            one, row, count = rows[i], rows[i].row, int(progress.counts[i])
            if draws.alternatives is not None and (wanted := row.sampling.top_logprobs):
                parts = (part[:count, columns[i], :wanted].tolist() for part in draws.alternatives)
                row.alternatives += [
                    dict(zip(*pair, strict=True)) for pair in zip(*parts, strict=True)
                ]
            is_over = progress.ended[i] or progress.is_full[i]
            tail = self.output.last(one.slot, row.stop_window(count))
            if not is_over and not row.shows_stop_string(self.tokenizer, tail):
                continue
            self.output.write(row, one.slot)
            if row.meets_stop_string(self.tokenizer, count):
                # The device knows end tokens, not stop strings: it must be told to stop.
                self.state.slots.stop([one.slot])
                self._finish(one, Finish.STOP)
            elif is_over:
                self._finish(one, Finish.STOP if progress.ended[i] else Finish.LENGTH)

    def _finish(self, one: ActiveRow, finish: Finish) -> None:
        one.is_done = True
        one.row.finish = finish
        del self.active[one.slot]
        self.output.close(one.slot)
        self.pages.give(one.pages)
        prompt = one.row.prompt
        self._rows_of[prompt] -= 1
        self.pages.prompts[prompt].readers -= 1
        if not self._rows_of[prompt]:
            self._drop(prompt)


def _even_batches(prompts: Sequence[Prompt], limit: int) -> Iterator[list[Prompt]]:
    """Prompts longest first, cut where padding or memory would cost too much."""
    batch: list[Prompt] = []
    for prompt in sorted(prompts, key=lambda p: (-len(p), p)):
        if batch:
            tokens = (len(batch) + 1) * len(batch[0])
            uneven = 2 * len(prompt) < len(batch[0]) and tokens > EVEN_ENOUGH
            if tokens > limit or uneven:
                yield batch
                batch = []
        batch.append(prompt)
    if batch:
        yield batch
