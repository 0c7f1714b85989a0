"""Propose, try, accept: the one loop that improves a grading instruction or a rubric.

    found = await improve(start, propose, attempt, rounds=50, patience=3)
    found.beam[0], found.log, found.rounds

`evolve_instruction` and `apply_review` improve one candidate step by step; `evolve_rubric` keeps a
beam of them. What an edit is, and when it is believed, is theirs to say.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

C = TypeVar("C")
E = TypeVar("E")
S = TypeVar("S")


class Tried(NamedTuple, Generic[C, S]):
    """What became of one edit."""

    record: S | None
    """For the log; None where it was tried before."""
    child: C | None = None
    """The changed candidate, where it is accepted."""


@dataclass
class Improved(Generic[C, S]):
    """The candidates at the end, and the whole way to them."""

    beam: list[C]
    log: list[S] = field(default_factory=list)
    rounds: int = 0
    idle: int = 0
    """Rounds in a row without an accepted edit."""
    is_done: bool = False
    """True where nothing was left to improve."""


async def improve(
    start: C,
    propose: Callable[[C, int, int], Awaitable[Sequence[E] | None]],
    attempt: Callable[[C, E, int], Awaitable[Tried[C, S]]],
    *,
    rounds: int,
    patience: int,
    choose: Callable[[list[C], int], Awaitable[list[C]]] | None = None,
) -> Improved[C, S]:
    """Try the edits of every candidate until `patience` rounds in a row brought nothing.

    `propose(candidate, round, place)` gives edits, or None where nothing is left to improve. With
    `choose` it picks the next beam of all candidates and accepted children; without, an accepted
    child takes its parent's place at once, so that each edit is tried on what those before it left.
    """
    found = Improved[C, S]([start])
    while found.rounds < rounds and found.idle < patience:
        children: list[C] = []
        for place, parent in enumerate(list(found.beam)):
            edits = await propose(parent, found.rounds + 1, place)
            if edits is None:
                found.is_done = True
                return found
            for edit in edits:
                tried = await attempt(parent, edit, found.rounds + 1)
                found.log += [] if tried.record is None else [tried.record]
                if tried.child is not None:
                    children.append(tried.child)
                    if choose is None:
                        parent = found.beam[place] = tried.child
        found.rounds += 1
        found.idle = 0 if children else found.idle + 1
        if choose is not None:
            found.beam = await choose(found.beam + children, found.rounds)
    return found
