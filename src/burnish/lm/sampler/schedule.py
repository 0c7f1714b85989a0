"""Who decodes when: rows take seats, draw in bursts, and leave when they are done.

The host looks at the results of one burst while the device works on the next. What it does follows
from what it has seen and never from when it saw it, so the same rows always meet in the same
batches.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from burnish.lm.sampler.cache import PromptWriter
from burnish.lm.sampler.notes import Notes
from burnish.lm.sampler.pages import Pages
from burnish.lm.sampler.room import Room, Size
from burnish.lm.sampler.rows import Row, in_canonical_order
from burnish.lm.sampler.seats import Arrivals, Variant
from burnish.lm.tokenizer import Tokenizer
from burnish.records import Finish

EVEN_ENOUGH = 4096
"""Up to this many tokens a batch of prompts takes in those far shorter than its longest."""
ADMIT_SHARE = 16
"""Rows are let in when one seat in so many is free: each admission interrupts the others."""

Prompt = tuple[int, ...]


@dataclass(eq=False)
class Guest:
    """A row on its seat."""

    row: Row
    seat: int
    pages: list[int]
    """Its own; those of its prompt are shared."""
    is_done: bool = False


@dataclass(frozen=True)
class Flight:
    """Draws that the device was told to make, and the host memory they arrive in."""

    guests: list[Guest]
    seats: list[int]
    """Where each guest sat when the draws were started."""
    steps: int
    drawn: tuple[Tensor, ...]
    """Tokens, log-probs, untempered log-probs, (K, B) each."""
    alternatives: tuple[Tensor, Tensor] | None
    landed: torch.cuda.Event | None


class Schedule:
    """One call of the engine."""

    def __init__(self, room: Room, size: Size, rows: Sequence[Row], tokenizer: Tokenizer) -> None:
        """`size` is the call's own: a room that earlier calls made larger changes nothing."""
        self.room, self.size, self.tokenizer = room, size, tokenizer
        self.page = room.size.page
        self.variant = Variant.of(rows)
        # A call that broke off may have left rows behind.
        room.seats.left.zero_()
        self.waiting = deque(in_canonical_order(rows))
        self.seated: dict[int, Guest] = {}
        self.notes = Notes(size.seats, size.steps, room.burst, room.ends)
        self.pages = Pages(size.pages, self.page, seats=size.seats if room.is_dense else 0)
        self.flights: deque[Flight] = deque()
        self._rows_of = Counter(row.prompt for row in rows)
        self._hidden: dict[Prompt, Tensor] = {}
        self._watches = any(row.sampling.stop or row.sampling.top_logprobs for row in rows)
        self._launched = 0
        self.is_sound = True
        """Whether every log-prob so far was a number; if not, neither is what lies in the cache."""

    def run(self) -> None:
        """Fill every row."""
        while self.waiting or self.seated or self.flights:
            admitted = self._admit()
            self._catch_up(self.room.lag)
            decoded = self._burst()
            if not (admitted or decoded or self.flights):
                raise RuntimeError(f"{len(self.waiting)} rows wait, and nobody will make room")
            self._catch_up(self.room.lag if admitted or decoded else 0)

    def _catch_up(self, lag: int) -> None:
        """Look at results until only so many flights are under way."""
        while len(self.flights) > lag:
            self._land(self.flights.popleft())

    # --- letting rows in

    def _admit(self) -> bool:
        """Seat waiting rows and draw their first tokens; whether any were let in."""
        free = self.size.seats - len(self.seated)
        if not self.waiting or free < max(1, self.size.seats // ADMIT_SHARE):
            return False
        guests: list[Guest] = []
        new: list[Prompt] = []
        for seat in (seat for seat in range(self.size.seats) if seat not in self.seated):
            if not self.waiting:
                break
            row = self.waiting[0]
            max_new = row.request.max_new
            if not self._make_room(row):
                break
            self.waiting.popleft()
            if row.prompt not in self.pages.prompts:
                self.pages.hold_prompt(row.prompt)
                new.append(row.prompt)
            self.pages.prompts[row.prompt].readers += 1
            own = self.pages.take(self.pages.private(row.prompt, max_new))
            guests.append(Guest(row, seat, own))
        if not guests:
            return False
        self._prefill(new + self._ahead())
        self._seat(guests)
        return True

    def _ahead(self) -> list[Prompt]:
        """Prompts of rows that still wait, where memory holds all: one prefill interrupts least."""
        if not self.size.is_roomy:
            return []
        waiting = dict.fromkeys(row.prompt for row in self.waiting)
        found = [prompt for prompt in waiting if prompt not in self.pages.prompts]
        for prompt in found:
            self.pages.hold_prompt(prompt)
        return found

    def _make_room(self, row: Row) -> bool:
        """Whether a row's pages are free, once prompts that nobody reads just now are dropped."""
        needed = self.pages.needed(row.prompt, row.request.max_new)
        # Who is idle is only asked where it matters: it takes a look at every prompt held.
        if needed <= len(self.pages.free):
            return True
        for prompt in self.pages.idle(besides=row.prompt):
            self._drop(prompt)
            if needed <= len(self.pages.free):
                return True
        return False

    def _drop(self, prompt: Prompt) -> None:
        """Forget a prompt; a row that comes later has it computed again."""
        self.pages.drop_prompt(prompt)
        self._hidden.pop(prompt, None)

    def _prefill(self, prompts: Sequence[Prompt]) -> None:
        """Compute prompts, file their keys and values, and keep their last hidden states."""
        device = self.room.seats.device
        for batch in _even_batches(prompts, self.room.prefill_tokens):
            longest = len(batch[0])
            # Padded behind: causal attention keeps the padding from being seen.
            ids_PS = torch.tensor([[*p, *[0] * (longest - len(p))] for p in batch])
            positions_PS = torch.arange(longest, device=device).expand(len(batch), -1)
            lengths = [len(p) for p in batch]
            tables = [self.pages.prompts[p].pages for p in batch]
            writer = PromptWriter(self.room.cache, tables, lengths)
            hidden_PSD = self.room.plan.decoder(ids_PS.to(device), positions_PS, keep=writer)
            last_P = torch.tensor(lengths, device=device) - 1
            hidden_PD = hidden_PSD[torch.arange(len(batch), device=device), last_P]
            self._hidden.update(zip(batch, hidden_PD.unbind(0), strict=True))

    def _seat(self, guests: list[Guest]) -> None:
        """Give rows their pages and seats, and start drawing their first tokens."""
        room, page = self.room, self.page
        tables: list[list[int]] = []
        source: list[int] = []
        target: list[int] = []
        partial = 0
        for guest in guests:
            prompt = self.pages.prompts[guest.row.prompt]
            own = [guest.seat + 1] if room.is_dense else guest.pages
            tables.append([*prompt.pages[: prompt.full], *own])
            if prompt.full < len(prompt.pages):
                source.append(prompt.pages[prompt.full])
                target.append(own[0])
                partial = max(partial, len(guest.row.prompt) - prompt.full * page)
            self.seated[guest.seat] = guest
        if source:
            room.cache.copy(source, target, partial)
        seats = [guest.seat for guest in guests]
        self.notes.open(seats, [guest.row.request.max_new for guest in guests])
        places_N = room.seats.seat(Arrivals(seats, [g.row for g in guests], tables))
        self._draw_first(guests, places_N)

    def _draw_first(self, guests: list[Guest], places_N: Tensor) -> None:
        prompts = list(dict.fromkeys(guest.row.prompt for guest in guests))
        place = {prompt: index for index, prompt in enumerate(prompts)}
        hidden_PD = torch.stack([self._hidden[prompt] for prompt in prompts])
        source_N = torch.tensor([place[g.row.prompt] for g in guests], device=places_N.device)
        logits_NV = self.room.stepper.logits(hidden_PD).index_select(0, source_N)
        self.room.stepper.first(logits_NV, places_N, self.variant)
        self._take_off(guests, 1)

    # --- decoding

    def _burst(self) -> bool:
        """Start a few steps for everyone who has tokens left; whether there was anyone."""
        steps = min(self.room.burst, self.notes.left)
        if steps == 0:
            return False
        guests = list(self.seated.values())
        rows = self._close_ranks(guests)
        self.room.seats.step.zero_()
        for _ in range(steps):
            self.room.decode(rows, self.variant)
        self.notes.ask(steps)
        self._take_off(guests, steps)
        return True

    def _close_ranks(self, guests: list[Guest]) -> int:
        """Move the rearmost guests to empty seats where that makes the batch smaller; its size."""
        fit, count = self.room.fit, len(guests)
        span = max(self.seated) + 1
        if fit(span) == fit(count):
            return fit(span)
        empty = [seat for seat in range(count) if seat not in self.seated]
        moving = sorted((g for g in guests if g.seat >= count), key=lambda g: g.seat)
        source = [guest.seat for guest in moving]
        if self.room.is_dense:
            tokens = max(len(g.row.prompt) + int(self.notes.drawn[g.seat]) for g in moving)
            self.room.cache.copy([s + 1 for s in source], [s + 1 for s in empty], tokens)
        self.room.seats.move(source, empty)
        self.notes.move(source, empty)
        for guest, seat in zip(moving, empty, strict=True):
            del self.seated[guest.seat]
            self.seated[seat] = guest
            guest.seat = seat
        return fit(count)

    # --- results

    def _take_off(self, guests: list[Guest], steps: int) -> None:
        """Send what is being drawn on its way to the host."""
        seats = self.room.seats
        outputs: tuple[Tensor, ...] = (seats.out_tokens, seats.out_logprobs, seats.out_raw)
        landed = None
        if self.room.landings:
            arrive = self.room.landings[self._launched % len(self.room.landings)]
            for out, host in zip(outputs, arrive, strict=True):
                host[:steps].copy_(out[:steps], non_blocking=True)
            if seats.device.type == "cuda":
                landed = torch.cuda.Event()  # type: ignore[no-untyped-call]
                landed.record()
            outputs = arrive
        self._launched += 1
        alternatives = None
        if self.variant.alternatives:
            ids, values = self.room.stepper.alternatives(self.variant.alternatives)
            alternatives = (ids[:steps].to("cpu", copy=True), values[:steps].to("cpu", copy=True))
        places = [guest.seat for guest in guests]
        self.flights.append(Flight(guests, places, steps, outputs, alternatives, landed))

    def _land(self, flight: Flight) -> None:
        """Give rows their tokens; whoever is done leaves seat and pages to others."""
        if flight.landed is not None:
            flight.landed.synchronize()
        present = [i for i, guest in enumerate(flight.guests) if not guest.is_done]
        if not present:
            return
        guests = [flight.guests[i] for i in present]
        columns = [flight.seats[i] for i in present]
        drawn = [out[: flight.steps].cpu().numpy()[:, columns].T for out in flight.drawn]
        self.is_sound = self.is_sound and bool(np.isfinite(drawn[1]).all())
        news = self.notes.add(np.array([guest.seat for guest in guests]), *drawn)
        for i in np.flatnonzero(news.ended | news.is_full | self._watched(guests)):
            guest, row, count = guests[i], guests[i].row, int(news.counts[i])
            if flight.alternatives is not None:
                row.alternatives += _alternatives(row, flight.alternatives, columns[i], count)
            is_over = news.ended[i] or news.is_full[i]
            tail = self.notes.last(guest.seat, row.stop_window(count))
            if not is_over and not row.shows_stop_string(self.tokenizer, tail):
                continue
            self.notes.write(row, guest.seat)
            if row.meets_stop_string(self.tokenizer, count):
                self.room.seats.dismiss([guest.seat])
                self._leave(guest, Finish.STOP)
            elif is_over:
                self._leave(guest, Finish.STOP if news.ended[i] else Finish.LENGTH)

    def _watched(self, guests: Sequence[Guest]) -> NDArray[np.bool_]:
        """Rows whose every token is looked at: for a stop string, or for its alternatives."""
        if not self._watches:
            return np.zeros(len(guests), dtype=np.bool_)
        settings = [guest.row.sampling for guest in guests]
        return np.array([bool(s.stop or s.top_logprobs) for s in settings])

    def _leave(self, guest: Guest, finish: Finish) -> None:
        guest.is_done = True
        guest.row.finish = finish
        del self.seated[guest.seat]
        self.notes.close(guest.seat)
        self.pages.give(guest.pages)
        prompt = guest.row.prompt
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


def _alternatives(
    row: Row, alternatives: tuple[Tensor, Tensor], seat: int, count: int
) -> list[dict[int, float]]:
    wanted = row.sampling.top_logprobs
    if not wanted:
        return []
    ids, values = (part[:count, seat, :wanted].tolist() for part in alternatives)
    return [dict(zip(i, v, strict=True)) for i, v in zip(ids, values, strict=True)]
