"""Earlier questions that fill the places of invalid ones, so that the solver always has work.

Four strategies of search self-play (section 2.4 of our notes, table 4 of arXiv 2510.18821):

| strategy | an invalid place is filled with |
|---|---|
| `dummy` | nothing: the place has no solver |
| `resample` | a question to another answer, drawn up to `retries` times; then a copy of a valid one |
| `full` | a question of any earlier step |
| `periodic` | the same, from a pool that is emptied every `reset_every` steps |

Where we differ: a question that comes again is updated in place by its id, so that duplicates do not
pile up; what is drawn above the ceiling is marked; all of it goes into the checkpoint.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct

from burnish.agents.ssp.rules import as_golds
from burnish.arguments import as_number, as_text, as_whole, as_word
from burnish.seeds import derive, digest

Strategy = Literal["periodic", "full", "resample", "dummy"]
STRATEGIES = ("periodic", "full", "resample", "dummy")


class Entry(Struct, frozen=True, kw_only=True):
    """A valid question."""

    id: str
    question: str
    answer: tuple[str, ...]
    success: float | None = None
    """Share of attempts that solved it, the last time it was played; None: not known."""
    step: int = 0
    """When it was proposed."""


def question_id(question: str, answer: Any) -> str:
    """The same for the same question to the same answer.

    >>> question_id("Which?", "Tol") == question_id("Which?", ["Tol"])
    True
    """
    return digest(as_text("question", question), *as_golds("answer", answer))


class Drawn(NamedTuple):
    """A question from the pool."""

    entry: Entry
    is_above: bool
    """Its success rate is above the ceiling: there was no other."""


class QuestionPool:
    """Valid questions by id, oldest first.

    >>> pool = QuestionPool(reset_every=10)
    >>> pool.add("Which river is it that the old town of Vel lies on?", "Tol", success=0.4, step=0)
    >>> pool.draw(seed=1, ceiling=0.5).entry.answer
    ('Tol',)
    """

    def __init__(self, reset_every: int = 10, keep_ratio: float = 0.0) -> None:
        """`reset_every` 0 never resets; a reset keeps the newest `keep_ratio` of the questions."""
        self.reset_every = as_whole("reset_every", reset_every, low=0, high=10**9)
        self.keep_ratio = as_number("keep_ratio", keep_ratio, low=0, high=1)
        self.entries: dict[str, Entry] = {}

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, question: str, answer: Any, *, success: float | None, step: int) -> None:
        """Note a question that was played; one that is known gets its new success rate."""
        golds = tuple(as_golds("answer", answer))
        key = question_id(question, list(golds))
        rate = None if success is None else as_number("success", success, low=0, high=1)
        known = self.entries.get(key)
        if known is None:
            step = as_whole("step", step, low=0)
            self.entries[key] = Entry(
                id=key, question=question, answer=golds, success=rate, step=step
            )
        else:
            newest = known.success if rate is None else rate
            self.entries[key] = msgspec.structs.replace(known, success=newest)

    def draw(self, seed: int, ceiling: float = 1.0) -> Drawn | None:
        """One question, uniform among those with a success rate of at most `ceiling`.

        Where there is none, uniform among all, marked `is_above`; None where the pool is empty. A
        question whose rate is not known counts as 1.
        """
        ceiling = as_number("ceiling", ceiling, low=0, high=1)
        every = list(self.entries.values())
        fitting = [e for e in every if (1.0 if e.success is None else e.success) <= ceiling]
        chosen = fitting or every
        if not chosen:
            return None
        return Drawn(random.Random(seed).choice(chosen), not fitting)

    def end_step(self, step: int) -> int:
        """Reset the pool where its period ends with this step (counted from 0); how many left it."""
        if not self.reset_every or (as_whole("step", step, low=0) + 1) % self.reset_every:
            return 0
        return self.reset()

    def reset(self) -> int:
        """Keep the newest share; how many questions left."""
        before = len(self.entries)
        kept = math.floor(before * self.keep_ratio + 1e-9)  # 100 x 0.29 is below 29
        by_age = sorted(self.entries.values(), key=lambda entry: entry.step)
        newest = {entry.id for entry in by_age[before - kept :]}
        self.entries = {key: entry for key, entry in self.entries.items() if key in newest}
        return before - len(self.entries)

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"entries": msgspec.to_builtins(list(self.entries.values()))}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's `state()`."""
        entries = msgspec.convert(state.get("entries", []), list[Entry])
        self.entries = {entry.id: entry for entry in entries}


class Filled(NamedTuple):
    """The question of one place."""

    question: str
    answer: tuple[str, ...]
    origin: str
    """proposed, replayed or copied."""
    is_above: bool = False


def complete(
    proposed: Sequence[Filled | None],
    places: Sequence[int],
    pool: QuestionPool,
    strategy: Strategy,
    ceiling: float,
    seed: int,
) -> list[Filled | None]:
    """A question for each place of a step: the proposed one, or what the strategy fills in.

    `places` tell the places apart in the seed, so that the draw of one depends on no other. None
    stays where there is nothing to fill in.

    >>> complete([None], [0], QuestionPool(), "periodic", 1.0, seed=0)
    [None]
    """
    as_word("strategy", strategy, STRATEGIES)
    valid = [filled for filled in proposed if filled is not None]
    found: list[Filled | None] = []
    for place, filled in zip(places, proposed, strict=True):
        own = derive(seed, "fill", place)
        if filled is None and strategy == "resample" and valid:
            copied = random.Random(own).choice(valid)
            filled = copied._replace(origin="copied")
        elif filled is None and strategy in ("full", "periodic"):
            drawn = pool.draw(own, ceiling)
            if drawn is not None:
                entry = drawn.entry
                filled = Filled(entry.question, entry.answer, "replayed", drawn.is_above)
        found.append(filled)
    return found
