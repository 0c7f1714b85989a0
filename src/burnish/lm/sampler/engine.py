"""The generation engine.

    sampler = Sampler(decoder, tokenizer)
    completions = sampler.generate([Request(prompt_ids, Sampling(n=8, max_tokens=32))])

A prompt is computed once for all its rows. Rows wait in one queue; whoever is done leaves its seat
and its part of the cache to the next. The weights are the decoder's own: nothing is copied, so
nothing can be out of date.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

import torch

from burnish.lm.base import Completion
from burnish.lm.decoder import Decoder
from burnish.lm.sampler.plan import Plan
from burnish.lm.sampler.room import MOST_SEATS, Room, Size, build_room, size_for, with_reserve
from burnish.lm.sampler.rows import Request, Row, completions, make_rows
from burnish.lm.sampler.schedule import Schedule
from burnish.lm.tokenizer import Tokenizer


class Sampler:
    """Samples from a decoder with the decoder's own weights; one call at a time."""

    def __init__(
        self,
        decoder: Decoder,
        tokenizer: Tokenizer,
        *,
        name: str = "",
        max_rows: int | None = None,
    ) -> None:
        """`max_rows` bounds the rows decoded at once; None lets memory decide."""
        self.decoder, self.tokenizer, self.name = decoder, tokenizer, name
        self._max_rows = min(max_rows or MOST_SEATS, MOST_SEATS)
        self._room: Room | None = None
        self._lock = threading.Lock()

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
        room, size = self._enter(rows)
        schedule = Schedule(room, size, rows, self.tokenizer)
        try:
            schedule.run()
        except BaseException:
            # Nobody knows what lies in it.
            self._room = None
            raise
        if not schedule.is_sound:
            self._room = None

    def release(self) -> None:
        """Give the cache and the captured graphs back; the next call builds them anew."""
        with self._lock:
            self._room = None

    def _enter(self, rows: Sequence[Row]) -> tuple[Room, Size]:
        """A room that holds these rows, and how much of it is theirs."""
        room, ends = self._room, tuple(self.tokenizer.eos_ids)
        if room is not None and room.plan.is_current and room.ends == ends:
            size = size_for(rows, room.plan, self._max_rows, room.held_bytes)
            if room.size.holds(size):
                return room, replace(size, pages=min(size.pages, room.size.pages))
        # Let go first: what the old room holds is not free for the new one.
        before = None if room is None else room.size
        self._room = room = None
        plan = Plan(self.decoder)
        size = size_for(rows, plan, self._max_rows)
        self._room = build_room(plan, with_reserve(size, plan, before), ends)
        return self._room, size
