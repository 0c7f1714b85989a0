"""What the engine is asked for and what it hands back, before and after any device is involved."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from burnish.lm.base import Completion, Sampling, media_of
from burnish.lm.tokenizer import Tokenizer
from burnish.records import Finish


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


@dataclass(eq=False)
class Row:
    """One completion in the making."""

    request: Request
    index: int
    """Which of the request's n completions this is."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    raw_logprobs: list[float] = field(default_factory=list)
    """Under the model's own distribution, at temperature 1."""
    alternatives: list[dict[int, float]] = field(default_factory=list)
    unmasked: list[int] = field(default_factory=list)
    """Of a diffusion model: the step at which each token was written."""
    finish: Finish = Finish.LENGTH
    cut: int | None = None
    """Where a stop string begins in the text."""

    @property
    def sampling(self) -> Sampling:
        return self.request.sampling

    @property
    def prompt(self) -> tuple[int, ...]:
        return self.request.prompt_ids

    def meets_stop_string(self, tokenizer: Tokenizer, new: int = 1) -> bool:
        """Whether the `new` latest tokens completed a stop string; sets `cut` to where it begins.

        The text is decoded from its end only, until a stop string is met. Tokens behind the one
        that completed it are dropped.
        """
        stops = self.sampling.stop
        if not stops or not self.shows_stop_string(
            tokenizer, self.tokens[-self.stop_window(new) :]
        ):
            return False
        for end in range(len(self.tokens) - new + 1, len(self.tokens) + 1):
            text = tokenizer.decode(self.tokens[:end])
            found = [place for stop in stops if (place := text.find(stop)) >= 0]
            if found:
                self.cut = min(found)
                self.shorten(end)
                return True
        return False

    def stop_window(self, new: int) -> int:
        """So many tokens hold any stop string that the `new` latest ones may have completed.

        A character is at most four byte tokens.
        """
        return 4 * max(map(len, self.sampling.stop), default=0) + 4 + new

    def shows_stop_string(self, tokenizer: Tokenizer, tail: Sequence[int]) -> bool:
        """Whether these tokens' text contains a stop string."""
        if not self.sampling.stop:
            return False
        text = tokenizer.decode(tail)
        return any(stop in text for stop in self.sampling.stop)

    def shorten(self, length: int) -> None:
        """Keep the first `length` tokens."""
        kept = (self.tokens, self.logprobs, self.raw_logprobs, self.alternatives, self.unmasked)
        for values in kept:
            del values[length:]

    def restart(self) -> None:
        """Forget everything that was drawn."""
        self.shorten(0)
        self.finish, self.cut = Finish.LENGTH, None


def make_rows(requests: Iterable[Request]) -> list[Row]:
    """`sampling.n` rows of every request."""
    return [Row(request, index) for request in requests for index in range(request.sampling.n)]


def in_canonical_order(rows: Sequence[Row]) -> list[Row]:
    """The same order whatever order the requests came in, rows that may run longest first.

    Which rows share a batch decides the last bits of half-precision numbers, so the engine's
    schedule must follow from the set of rows alone.
    """

    def key(row: Row) -> tuple[Any, ...]:
        settings = msgspec.structs.astuple(row.sampling)
        seen = tuple(part.sha256 for part in media_of(row.prompt))
        return (-row.request.max_new, -len(row.prompt), row.prompt, seen, settings, row.index)

    return sorted(rows, key=key)


def completions(
    requests: Iterable[Request], rows: Iterable[Row], tokenizer: Tokenizer, model: str
) -> list[list[Completion]]:
    """What `make_rows` made of the requests, filled by now, in the order of the requests."""
    made = iter(rows)
    return [
        [_completion(next(made), tokenizer, model) for _ in range(request.sampling.n)]
        for request in requests
    ]


def _completion(row: Row, tokenizer: Tokenizer, model: str) -> Completion:
    """A finished row as a completion; weights that are no numbers are a failure, not an answer."""
    text = tokenizer.decode(row.tokens)
    is_sound = math.isfinite(sum(row.logprobs))
    return Completion(
        text=text if row.cut is None else text[: row.cut],
        token_ids=tuple(row.tokens),
        logprobs=tuple(row.logprobs),
        raw_logprobs=tuple(row.raw_logprobs),
        finish=row.finish if is_sound else Finish.ERROR,
        prompt_ids=row.prompt,
        top_logprobs=tuple(row.alternatives),
        model=model,
        unmasked=tuple(row.unmasked),
    )
