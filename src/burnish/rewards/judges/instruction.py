"""A grading instruction that improves itself on labelled records (PIAR, in AFRL, arXiv 2602.10006).

    result = await evolve_instruction(text, pool, held_out, grade=grade, propose=propose)
    result.instruction, result.log

In each round a grader follows the instruction on a pool, a proposer sees where it disagrees with
the labels and proposes edits, and an edit is kept where it helps on records that neither saw. The
paper's loop was not readable in detail; the acceptance rule is ours: macro accuracy must rise by a
margin, so that common grades cannot hide rare ones, and no rule may fall by more than one point.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from msgspec import Struct

from burnish.errors import UserError
from burnish.rewards.judges.labelled import (
    Accuracy,
    Disagreement,
    Edit,
    Grade,
    Labelled,
    accuracy_of,
    by_rule,
    fallen_rules,
    is_grade,
)
from burnish.rewards.scorer import gather

Grader = Callable[[str, Labelled], Awaitable[Grade | None]]
"""The grade that an instruction gives a record; None where none could be read."""
Proposer = Callable[[str, Mapping[str, Sequence[Disagreement]]], Awaitable[Sequence[Edit]]]
"""Edits for an instruction, from its disagreements with the labels by rule."""


class Change(Struct, frozen=True, omit_defaults=True):
    """One proposed edit and what became of it; JSON-able."""

    round: int
    edit: Edit
    accepted: bool
    reason: str
    before: Accuracy
    """On the held-out records, as `after`."""
    after: Accuracy | None = None
    """None where the edit could not be applied."""
    fixed: tuple[str, ...] = ()
    """Those of the edit's cases that its instruction grades right."""


class Evolution(Struct, frozen=True):
    """The improved instruction and its whole history; JSON-able."""

    instruction: str
    before: Accuracy
    after: Accuracy
    """Both on the held-out records."""
    rounds: int
    stopped: str
    log: tuple[Change, ...]


async def evolve_instruction(
    instruction: str,
    pool: Sequence[Labelled],
    held_out: Sequence[Labelled],
    *,
    grade: Grader,
    propose: Proposer,
    margin: float = 0.005,
    max_fall: float = 0.01,
    patience: int = 3,
    max_rounds: int = 50,
    limit: int = 8,
) -> Evolution:
    """Improve an instruction until `patience` rounds in a row brought nothing.

    An edit is accepted where macro accuracy on `held_out` rises by at least `margin` and no rule's
    accuracy falls by more than `max_fall`; each is tried on what the ones before it left. `limit`
    records are graded at a time.
    """
    _check(pool, held_out, margin, patience)
    trial = _Trial(pool, held_out, grade, margin, max_fall, limit)
    start = now = await trial.accuracy(instruction)
    log: list[Change] = []
    rounds = idle = 0
    stopped = f"{max_rounds} rounds were done"
    while rounds < max_rounds:
        wrong = await trial.disagreements(instruction)
        if not wrong:
            stopped = "the pool is graded as its labels say"
            break
        rounds += 1
        idle += 1
        for edit in await propose(instruction, by_rule(wrong)):
            change, changed = await trial.of(edit, instruction, now, rounds)
            log.append(change)
            if change.accepted and change.after is not None:
                instruction, now, idle = changed, change.after, 0
        if idle >= patience:
            stopped = f"{patience} rounds without an accepted edit"
            break
    return Evolution(instruction, start, now, rounds, stopped, tuple(log))


@dataclass
class _Trial:
    """Tries edits on records; each record is graded once for every instruction."""

    pool: Sequence[Labelled]
    held_out: Sequence[Labelled]
    grade: Grader
    margin: float
    max_fall: float
    limit: int
    known: dict[tuple[str, str], Grade | None] = field(default_factory=dict)
    """By instruction and record id: proposers come back to edits that were refused."""

    async def of(
        self, edit: Edit, instruction: str, before: Accuracy, number: int
    ) -> tuple[Change, str]:
        """What becomes of one edit in a round, and the instruction it makes."""
        try:
            changed = edit.applied_to(instruction)
        except ValueError as error:
            return Change(number, edit, False, f"not applied: {error}", before), instruction
        after = await self.accuracy(changed)
        cases = [record for record in self.pool if record.id in edit.cases]
        grades = await self._grades(changed, cases)
        fixed = tuple(r.id for r, g in zip(cases, grades, strict=True) if is_grade(g, r))
        objection = self._objection(before, after)
        reason = objection or f"macro accuracy {before.macro:.4f} -> {after.macro:.4f}"
        return Change(number, edit, not objection, reason, before, after, fixed), changed

    async def accuracy(self, instruction: str) -> Accuracy:
        return accuracy_of(self.held_out, await self._grades(instruction, self.held_out))

    async def disagreements(self, instruction: str) -> list[Disagreement]:
        found = await self._grades(instruction, self.pool)
        pairs = zip(self.pool, found, strict=True)
        return [Disagreement(record, g) for record, g in pairs if not is_grade(g, record)]

    async def _grades(self, instruction: str, records: Sequence[Labelled]) -> list[Grade | None]:
        asked = [r for r in records if (instruction, r.id) not in self.known]
        calls = [partial(self.grade, instruction, record) for record in asked]
        found = await gather(calls, limit=self.limit) if calls else []
        for record, value in zip(asked, found, strict=True):
            self.known[instruction, record.id] = value
        return [self.known[instruction, record.id] for record in records]

    def _objection(self, before: Accuracy, after: Accuracy) -> str:
        """Why an edit is not accepted, or nothing."""
        rise = after.macro - before.macro
        # A rise of exactly the margin is enough, whatever the two are in binary.
        if rise < self.margin - 1e-12:
            return f"macro accuracy changes by {rise:+.4f}; expected at least {self.margin:+.4f}"
        fallen = fallen_rules(before.by_rule, after.by_rule, self.max_fall)
        if fallen:
            worst = max(fallen, key=lambda rule: fallen[rule])
            return (
                f"accuracy of rule '{worst}' falls by {fallen[worst]:.4f}; expected at most "
                f"{self.max_fall:.4f}"
            )
        return ""


def _check(
    pool: Sequence[Labelled], held_out: Sequence[Labelled], margin: float, patience: int
) -> None:
    for name, records in (("pool", pool), ("held_out", held_out)):
        ids = [record.id for record in records]
        if not ids or len(set(ids)) < len(ids):
            raise UserError(
                f"{name}: got {len(ids)} records with {len(set(ids))} different ids; expected at "
                "least one, each with an id of its own."
            )
    shared = sorted({r.id for r in pool} & {r.id for r in held_out})
    if shared:
        raise UserError(
            f"record '{shared[0]}' and {len(shared) - 1} more are in the pool and held out; expected "
            "none in both, or edits are judged on what they were made from."
        )
    if not margin > 0 or patience < 1:
        raise UserError(
            f"margin is {margin} and patience {patience}; expected a margin above 0, or edits that "
            "change nothing are accepted for ever, and a patience of at least 1."
        )
